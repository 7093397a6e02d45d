"""The shape of a model's KV cache: all that storage and sizing need to know of a model. No torch, no transformers."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from looseleaf.errors import InvalidArgument, InvalidType

__all__ = ["DTYPE_BYTES", "ModelShape", "dtype_name"]

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element of a KV cache, by dtype name."""

_DTYPE_ALIASES = {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The shape of one token's KV cache, the same in every layer.

    Attributes:
        num_layers: layers that keep keys and values.
        num_kv_heads: KV heads of one layer, before they are shared among query heads.
        head_dim: elements of one key, and of one value.
        dtype: "float32", "float16" or "bfloat16"; "fp32", "fp16", "bf16" and "torch.float16" are understood too.
        max_sequence_len: tokens that the model was made for; None if it does not say.

    Raises:
        InvalidArgument: a number is below 1, or the dtype is none of the three.
        InvalidType: a number is not an integer, or the dtype not a string.

    >>> ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="fp16", max_sequence_len=4096).dtype
    'float16'
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    max_sequence_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim"):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        if self.max_sequence_len is not None:
            object.__setattr__(self, "max_sequence_len", _positive("max_sequence_len", self.max_sequence_len))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidType(f"{name} must be an integer, not {value!r}")
    number = index(value)
    if number < 1:
        raise InvalidArgument(f"{name} must be at least 1, not {number}")
    return number


def dtype_name(dtype: object) -> str:
    """The one name of a dtype.

    Args:
        dtype: a name, an alias such as "bf16", or a `torch.dtype`.

    Raises:
        InvalidArgument: none of the dtypes of a KV cache.
        InvalidType: neither a string nor a `torch.dtype`.

    >>> dtype_name("bf16"), dtype_name("torch.float16")
    ('bfloat16', 'float16')
    """
    text = str(dtype)
    if not isinstance(dtype, str) and not text.startswith("torch."):
        raise InvalidType(f"dtype must be a string such as 'float16' or a torch.dtype, not {dtype!r}")
    name = text.removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    if name not in DTYPE_BYTES:
        raise InvalidArgument(f"dtype must be one of {', '.join(DTYPE_BYTES)}, not {text!r}")
    return name
