"""How many bytes, blocks and sequences: the arithmetic of paged and contiguous KV caches. No torch.

One token costs a key and a value in every layer. A paged pool holds one block more than it hands out: block 0, the null
block, is never allocated, and it is inside every budget here.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

from looseleaf.errors import InvalidArgument, InvalidType
from looseleaf.host_memory import available_host_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf.config import ModelShape

__all__ = [
    "available_host_memory",
    "blocks_for_tokens",
    "bytes_per_block",
    "bytes_per_token",
    "contiguous_bytes",
    "format_bytes",
    "memory_budget",
    "num_blocks_for_budget",
    "paged_bytes",
    "parse_memory",
]

_UNITS = {"B": 1}
_UNITS |= {prefix + "B": 1000**power for power, prefix in enumerate("KMGTP", start=1)}
_UNITS |= {prefix + "iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)}
_UNIT_BY_LOWER_CASE = {unit.lower(): size for unit, size in _UNITS.items()}
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_ALLOWED = "a number of bytes, or a number with one of " + ", ".join(_UNITS)


def parse_memory(memory: str | int) -> int:
    """Read an amount of memory.

    Args:
        memory: bytes, or a string such as "2GiB" (binary: 1024 to a step), "512MB" (decimal: 1000 to a step) or
            "1.5 GiB". Upper and lower case are the same. A part of a byte is dropped.

    Returns:
        Bytes, at least 1.

    Raises:
        InvalidArgument: not a number with a known unit, or less than one byte.
        InvalidType: neither a string nor an integer.

    >>> parse_memory("2GiB"), parse_memory("512MB"), parse_memory(4096)
    (2147483648, 512000000, 4096)
    """
    if isinstance(memory, bool) or not isinstance(memory, str | int):
        raise InvalidType(f"memory must be a string or an integer, not {memory!r}; allowed: {_ALLOWED}")
    if isinstance(memory, int):
        num_bytes = memory
    else:
        match = _MEMORY.fullmatch(memory)
        size = _UNIT_BY_LOWER_CASE.get((match[2] or "B").lower()) if match else None
        if match is None or size is None:
            raise InvalidArgument(f"memory cannot be {memory!r}; allowed: {_ALLOWED}")
        num_bytes = int(Decimal(match[1]) * size)
    if num_bytes < 1:
        raise InvalidArgument(f"memory must be at least 1 byte, not {memory!r}")
    return num_bytes


def format_bytes(num_bytes: int) -> str:
    """Write a number of bytes in the largest binary unit that it fills, to two decimals.

    >>> format_bytes(536_870_912), format_bytes(737_280), format_bytes(1023), format_bytes(1_288_490_189)
    ('512 MiB', '720 KiB', '1023 B', '1.2 GiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(num_bytes.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{num_bytes / 1024**power:.2f}".rstrip("0").rstrip(".") + f" {units[power]}"


def bytes_per_token(shape: ModelShape) -> int:
    """Bytes of the keys and values of one token, all layers.

    >>> from looseleaf.config import ModelShape
    >>> bytes_per_token(ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="float16"))
    131072
    """
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * shape.element_bytes


def bytes_per_block(shape: ModelShape, block_size: int) -> int:
    """Bytes of one block of `block_size` tokens, all layers.

    Raises:
        InvalidArgument: `block_size` is below 1.

    >>> from looseleaf.config import ModelShape
    >>> bytes_per_block(ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="float16"), 16)
    2097152
    """
    _check_at_least("block_size", block_size, 1)
    return block_size * bytes_per_token(shape)


def blocks_for_tokens(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens; the last one may be partly empty.

    Raises:
        InvalidArgument: `num_tokens` is below 0 or `block_size` below 1.

    >>> blocks_for_tokens(200, 16), blocks_for_tokens(4096, 16), blocks_for_tokens(0, 16)
    (13, 256, 0)
    """
    _check_at_least("num_tokens", num_tokens, 0)
    _check_at_least("block_size", block_size, 1)
    return -(-num_tokens // block_size)


def paged_bytes(shape: ModelShape, num_tokens: int, *, block_size: int) -> int:
    """Bytes of the blocks that a sequence of `num_tokens` tokens holds.

    Raises:
        InvalidArgument: `num_tokens` is below 0 or `block_size` below 1.

    >>> from looseleaf.config import ModelShape
    >>> shape = ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="float16")
    >>> paged_bytes(shape, 200, block_size=16)
    27262976
    """
    return blocks_for_tokens(num_tokens, block_size) * bytes_per_block(shape, block_size)


def contiguous_bytes(shape: ModelShape, max_tokens: int) -> int:
    """Bytes of a contiguous cache of one sequence, which is allocated for the most tokens that it may ever hold.

    Raises:
        InvalidArgument: `max_tokens` is below 0.

    >>> from looseleaf.config import ModelShape
    >>> contiguous_bytes(ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="float16"), 4096)
    536870912
    """
    _check_at_least("max_tokens", max_tokens, 0)
    return max_tokens * bytes_per_token(shape)


def num_blocks_for_budget(budget_bytes: int, shape: ModelShape, block_size: int) -> int:
    """Usable blocks of the largest pool that fits a budget; the null block is paid for and not counted.

    Args:
        budget_bytes: bytes that the whole pool may take.
        shape: shape of the model's KV cache.
        block_size: tokens of one block.

    Returns:
        floor(budget_bytes / bytes per block) - 1, at least 1.

    Raises:
        InvalidArgument: the budget holds less than one usable block, or `block_size` is below 1.

    >>> from looseleaf.config import ModelShape
    >>> num_blocks_for_budget(2 * 1024**3, ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="float16"), 16)
    1023
    """
    block_bytes = bytes_per_block(shape, block_size)
    num_usable = budget_bytes // block_bytes - 1
    if num_usable < 1:
        raise InvalidArgument(
            f"memory is {budget_bytes} bytes; 1 usable block and the null block need "
            f"2 x {block_bytes} = {2 * block_bytes} bytes"
        )
    return num_usable


def memory_budget(memory: str | float, *, available_bytes: Callable[[], int] = available_host_memory) -> int:
    """Turn what a user may say about memory into bytes.

    Args:
        memory: as for `parse_memory`, or a float: so much of the memory that is available, above 0 and at most 1.
        available_bytes: what is available; asked for a float only.

    Raises:
        InvalidArgument: as for `parse_memory`, or the float is out of range.
        InvalidType: as for `parse_memory`.

    >>> memory_budget("2GiB"), memory_budget(0.5, available_bytes=lambda: 1000)
    (2147483648, 500)
    """
    if not isinstance(memory, float):
        return parse_memory(memory)
    if not 0 < memory <= 1:
        raise InvalidArgument(f"memory as a fraction must be above 0 and at most 1, not {memory}; bytes are an integer")
    return parse_memory(int(memory * available_bytes()))


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidArgument(f"{name} must be at least {least}, not {value}")
