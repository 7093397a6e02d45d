"""Checks of what stands inside tables, lengths and mappings: ids, slots, sums.

On the CPU always, O(batch + cells in use). On another device a check would wait for it, so there only with the
environment variable LOOSELEAF_CHECK=1. While a graph is traced there are no contents: a compiled library checks them
when the graph runs.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from looseleaf.errors import InvalidArgument

__all__ = [
    "are_checked",
    "check_block_ids",
    "check_block_pairs",
    "check_lengths",
    "check_no_chain",
    "check_prefix_sums",
    "check_slots",
]


def are_checked(device: torch.device) -> bool:
    """Whether the contents of tensors on this device are checked."""
    if torch.compiler.is_compiling():
        return False
    return device.type == "cpu" or os.environ.get("LOOSELEAF_CHECK") == "1"


def check_slots(slot_mapping: Tensor, num_slots: int) -> None:
    """Each slot is -1 (skipped) or one of the cache's."""
    _check_range("slot_mapping", slot_mapping, -1, num_slots - 1, "-1 (skip) or a slot of the cache")


def check_prefix_sums(name: str, sums: Tensor, *, num_rows: int, rows_name: str, max_len: int | None = None) -> None:
    """Sums start at 0, never fall, and end within the rows; no step is longer than `max_len`."""
    if int(sums[0]) != 0:
        raise InvalidArgument(f"{name}[0] must be 0, was {int(sums[0])}")
    falls = sums[1:] < sums[:-1]
    if bool(falls.any()):
        index = int(falls.nonzero()[0])
        raise InvalidArgument(
            f"{name} must never fall, went from {int(sums[index])} to {int(sums[index + 1])} at [{index + 1}]"
        )
    if int(sums[-1]) > num_rows:
        raise InvalidArgument(f"{name}[-1] must be at most {num_rows}, the rows of {rows_name}, was {int(sums[-1])}")
    if max_len is not None:
        longest = int(sums.diff().max()) if len(sums) > 1 else 0
        if longest > max_len:
            raise InvalidArgument(
                f"max_query_len must be at least the longest step of {name}, {longest}, was {max_len}"
            )


def check_lengths(name: str, lengths: Tensor, *, columns: int, block_size: int) -> None:
    """Each length fits its row of the table."""
    meaning = f"at most the {columns} columns of block_table x {block_size} tokens"
    _check_range(name, lengths, 0, columns * block_size, meaning)


def check_block_ids(block_table: Tensor, first_block: Tensor | None, num_used: Tensor, num_blocks: int) -> None:
    """Each cell [first_block, num_used) of a row, which is what will be read, names a block of the cache.

    Args:
        block_table: int32 [seqs, columns].
        first_block: int [seqs], None for 0.
        num_used: int [seqs], at most the columns.
        num_blocks: blocks of the cache.
    """
    columns = int(num_used.max()) if num_used.numel() else 0
    cells = block_table[:, :columns]
    column = torch.arange(columns, device=block_table.device)
    is_wrong = ((cells < 0) | (cells >= num_blocks)) & (column < num_used[:, None])
    if first_block is not None:
        is_wrong &= column >= first_block[:, None]
    if bool(is_wrong.any()):
        row, column_index = is_wrong.nonzero()[0].tolist()
        raise InvalidArgument(
            f"block_table[{row}, {column_index}] is in use and must name a block, 0 to {num_blocks - 1}, "
            f"was {int(cells[row, column_index])}"
        )


def check_block_pairs(block_mapping: Tensor, num_source: int, num_target: int, *, within_one_pool: bool) -> None:
    """Each (source, destination) names two blocks, and no destination stands twice.

    Args:
        block_mapping: [n, 2].
        num_source: blocks where the sources are.
        num_target: blocks where the destinations are.
        within_one_pool: rows of -1 are skipped, and no destination may be a source.
    """
    sources, targets = block_mapping.unbind(1)
    least = -1 if within_one_pool else 0
    _check_range("block_mapping[:, 0]", sources, least, num_source - 1, "a block of the source")
    _check_range("block_mapping[:, 1]", targets, least, num_target - 1, "a block of the destination")
    if within_one_pool:
        is_half = (sources == -1) != (targets == -1)
        if bool(is_half.any()):
            row = int(is_half.nonzero()[0])
            raise InvalidArgument(
                f"block_mapping[{row}] must be two blocks or -1 twice, was {block_mapping[row].tolist()}"
            )
        sources, targets = sources[sources >= 0], targets[targets >= 0]
        check_no_chain(sources, targets)
    values, counts = torch.unique(targets, return_counts=True)
    if values.numel() < targets.numel():
        raise InvalidArgument(f"block_mapping must name a destination once, {int(values[counts > 1][0])} stands twice")


def check_no_chain(sources: Tensor, targets: Tensor) -> None:
    """No destination is a source: what it ends up with would depend on the order of the copies."""
    is_both = torch.isin(sources, targets)
    if bool(is_both.any()):
        raise InvalidArgument(
            f"block_mapping must not name a block as source and as destination, {int(sources[is_both][0])} is both"
        )


def _check_range(name: str, values: Tensor, least: int, most: int, meaning: str) -> None:
    if values.numel() == 0:
        return
    low, high = (int(value) for value in values.aminmax())
    if low >= least and high <= most:
        return
    index = int(((values < least) | (values > most)).nonzero()[0])
    raise InvalidArgument(f"{name}[{index}] must be in {least} to {most} ({meaning}), was {int(values[index])}")
