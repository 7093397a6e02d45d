"""Every operator in plain PyTorch: the oracle that kernels are tested against, and the path where no kernel is loaded.

Registered for any device under `CompositeExplicitAutograd`, so a library that implements the CPU or the CUDA key takes
over; the first call on CPU tensors loads that one (`native_first`). Arguments were checked by the wrappers (or are the
caller's duty): these functions trust them. A token outside a sequence's length is sliced away, never masked: its memory
may hold NaN, and 0 x NaN is NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from looseleaf.ops.attention import Options, attend_rows, attend_single_rows, first_key
from looseleaf.ops.blocks import as_movable, encode, load_tokens
from looseleaf.ops.native import grad_refused, native_first
from looseleaf.ops.schemas import LIBRARY, NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["attend", "attend_out", "copy_blocks", "gather", "merge_states", "swap_blocks", "write"]

_MAX_SCORES = 1 << 22
"""Scores (query heads x rows x keys) that are held at once, in float32: 16 MiB."""

_MAX_ELEMENTS = 1 << 20
"""Elements of keys that are gathered at once for single rows, in float32: 4 MiB, and as much for values. An allocator
keeps so much at hand, where more would be taken from the system anew by each call: 2 us for each page of it."""


def write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Put each row into its slot; a slot that stands twice takes the last of its rows, whole."""
    slots, rows = torch.sort(slot_mapping, stable=True)
    is_kept = slots >= 0
    is_kept[:-1] &= slots[:-1] != slots[1:]
    slots, rows = slots[is_kept], rows[is_kept]
    block_size = k_cache.size(2)
    block_ids, offsets = slots.div(block_size, rounding_mode="floor"), slots.remainder(block_size)
    for values, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        stored = encode(values.index_select(0, rows), cache.dtype, scale)
        as_movable(cache)[block_ids, :, offsets] = as_movable(stored)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor,
    max_query_len: int,
    scale: float,
    causal: bool = True,  # noqa: FBT001, FBT002 - the schema's order and defaults
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    batch_invariant: bool = False,  # noqa: FBT001, FBT002 - the schema's order and defaults
) -> tuple[Tensor, Tensor]:
    """`attend_out` into new tensors."""
    out = q.new_empty((q.size(0), q.size(1), v_cache.size(3)))
    lse = q.new_empty((q.size(0), q.size(1)), dtype=torch.float32)
    attend_out(
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        cu_query_lens,
        max_query_len,
        scale,
        causal,
        window,
        softcap,
        sinks,
        alibi_slopes,
        k_scale,
        v_scale,
        batch_invariant,
        out=out,
        lse=lse,
    )
    return out, lse


def attend_out(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor,
    max_query_len: int,  # noqa: ARG001 - for kernels, which cannot read the lengths on the host
    scale: float,
    causal: bool = True,  # noqa: FBT001, FBT002 - the schema's order and defaults
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    batch_invariant: bool = False,  # noqa: FBT001, FBT002 - the schema's order and defaults
    *,
    out: Tensor,
    lse: Tensor | None = None,
) -> None:
    """Attend to each sequence; rows that no sequence owns, or that see no key, keep 0 and -inf."""
    options = Options(scale, causal, window, softcap, sinks, alibi_slopes, k_scale, v_scale)
    out.zero_()
    if lse is not None:
        lse.fill_(-torch.inf)
    rows, kv_lens = cu_query_lens.tolist(), seq_lens.tolist()
    single_rows: list[int] = []
    for index, kv_len in enumerate(kv_lens):
        first_row, end_row = rows[index], rows[index + 1]
        position = kv_len - (end_row - first_row)
        if causal and position < 0:  # more rows than tokens: the first rows stand before every key
            first_row, position = first_row - position, 0
        if kv_len == 0 or first_row >= end_row:
            continue
        if rows[index + 1] - rows[index] == 1 and not batch_invariant:
            single_rows.append(index)
            continue
        key_start = first_key(position, window)
        key = load_tokens(k_cache, block_table[index], key_start, kv_len, k_scale)
        value = load_tokens(v_cache, block_table[index], key_start, kv_len, v_scale)
        max_rows = max(1, _MAX_SCORES // (q.size(1) * key.size(1)))
        for row in range(first_row, end_row, max_rows):
            end = min(row + max_rows, end_row)
            result = attend_rows(
                q[row:end], key, value, position=position + row - first_row, key_start=key_start, options=options
            )
            _keep(slice(row, end), result, out, lse)
    max_blocks = max(1, _MAX_ELEMENTS // k_cache.shape[1:].numel())
    num_blocks = [-(-kv_len // k_cache.size(2)) for kv_len in kv_lens]
    for group in _groups(single_rows, num_blocks, max_blocks):
        sequences = torch.tensor(group, device=q.device)
        part = cu_query_lens[sequences]
        result = attend_single_rows(q[part], k_cache, v_cache, block_table[sequences], seq_lens[sequences], options)
        _keep(part, result, out, lse)


def _keep(rows: slice | Tensor, result: tuple[Tensor, Tensor], out: Tensor, lse: Tensor | None) -> None:
    out[rows] = result[0].to(out.dtype)
    if lse is not None:
        lse[rows] = result[1]


def _groups(indices: list[int], sizes: list[int], max_size: int) -> Iterator[list[int]]:
    """Cut a list of indices into parts whose sizes sum up to no more than `max_size`, or that hold one index."""
    group: list[int] = []
    total = 0
    for index in indices:
        if group and total + sizes[index] > max_size:
            yield group
            group, total = [], 0
        group.append(index)
        total += sizes[index]
    if group:
        yield group


def copy_blocks(caches: Sequence[Tensor], block_mapping: Tensor) -> None:
    """Copy whole blocks within each cache; rows of -1 are skipped."""
    pairs = block_mapping[block_mapping[:, 0] >= 0].long()
    if len(pairs):
        for cache in map(as_movable, caches):
            cache.index_copy_(0, pairs[:, 1], cache.index_select(0, pairs[:, 0]))


def gather(
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    k_out: Tensor,
    v_out: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Lay the tokens of each sequence side by side."""
    rows = cu_seq_lens.tolist()
    for index in range(len(rows) - 1):
        first_row, end_row = rows[index], rows[index + 1]
        for cache, out, scale in ((k_cache, k_out, k_scale), (v_cache, v_out, v_scale)):
            tokens = load_tokens(cache, block_table[index], 0, end_row - first_row, scale)
            out[first_row:end_row] = tokens.transpose(0, 1)


def swap_blocks(src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor) -> None:
    """Copy whole blocks from one list of caches to another, which may be on another device."""
    for source, target in zip(src, dst, strict=True):
        blocks = as_movable(source).index_select(0, block_mapping[:, 0].to(source.device))
        as_movable(target).index_copy_(0, block_mapping[:, 1].to(target.device), blocks.to(target.device))


def merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys; a part without a key counts for nothing."""
    largest = torch.maximum(lse_a, lse_b)
    reference = largest.masked_fill(largest == -torch.inf, 0.0)
    weight_a, weight_b = (lse_a - reference).exp(), (lse_b - reference).exp()
    total = weight_a + weight_b
    merged = torch.zeros_like(out_a, dtype=torch.float32)
    for out, weight in ((out_a, weight_a), (out_b, weight_b)):
        share = (weight / total)[..., None]
        merged += torch.where(share > 0, share * out.float(), 0.0)
    return merged.to(out_a.dtype), reference + total.log()


def _attend_shapes(q: Tensor, _k_cache: Tensor, v_cache: Tensor, *_arguments: object) -> tuple[Tensor, Tensor]:
    out = q.new_empty((q.size(0), q.size(1), v_cache.size(3)))
    return out, q.new_empty((q.size(0), q.size(1)), dtype=torch.float32)


def _merge_shapes(out_a: Tensor, lse_a: Tensor, _out_b: Tensor, _lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(out_a), torch.empty_like(lse_a)


def _nothing_returned(*_arguments: object, **_options: object) -> None:
    """An operator that fills what it was given has no shapes to tell."""


_SHAPES: dict[str, Callable[..., object]] = {"attend": _attend_shapes, "merge_states": _merge_shapes}

for _function in (write, attend, attend_out, copy_blocks, gather, swap_blocks, merge_states):
    _name = _function.__name__
    LIBRARY.impl(_name, native_first(_name, _function), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    _shapes = grad_refused(_function, _SHAPES.get(_name, _nothing_returned))
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _shapes, lib=LIBRARY)
