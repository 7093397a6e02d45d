"""Every operator in plain PyTorch: the oracle that kernels are tested against, and the path where no kernel is loaded.

Registered for any device under `CompositeExplicitAutograd`, so a library that implements the CPU or the CUDA key takes
over. Arguments were checked by the wrappers (or are the caller's duty): these functions trust them. A token outside a
sequence's length is sliced away, never masked: its memory may hold NaN, and 0 x NaN is NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from looseleaf.ops.schemas import LIBRARY, NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["attend", "attend_out", "copy_blocks", "gather", "merge_states", "swap_blocks", "write"]

_MAX_SCORES = 1 << 22
"""Scores (query heads x rows x keys) that are held at once, in float32: 16 MiB."""


class _Options(NamedTuple):
    """What one call of `attend` asks for, the same for every sequence."""

    scale: float
    causal: bool
    window: int | None
    softcap: float
    sinks: Tensor | None
    alibi_slopes: Tensor | None


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
        stored = _encode(values.index_select(0, rows), cache.dtype, scale)
        _movable(cache)[block_ids, :, offsets] = _movable(stored)


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
    batch_invariant: bool = False,  # noqa: ARG001, FBT001, FBT002 - always so here: one sequence after the other
    *,
    out: Tensor,
    lse: Tensor | None = None,
) -> None:
    """Attend sequence by sequence; rows that no sequence owns, or that see no key, keep 0 and -inf."""
    options = _Options(scale, causal, window, softcap, sinks, alibi_slopes)
    out.zero_()
    if lse is not None:
        lse.fill_(-torch.inf)
    rows = cu_query_lens.tolist()
    for index, kv_len in enumerate(seq_lens.tolist()):
        first_row, end_row = rows[index], rows[index + 1]
        position = kv_len - (end_row - first_row)
        if causal and position < 0:  # more rows than tokens: the first rows stand before every key
            first_row, position = first_row - position, 0
        if kv_len == 0 or first_row >= end_row:
            continue
        first_key = _first_key(position, window)
        key = _tokens(k_cache, block_table[index], first_key, kv_len, k_scale)
        value = _tokens(v_cache, block_table[index], first_key, kv_len, v_scale)
        max_rows = max(1, _MAX_SCORES // (q.size(1) * key.size(1)))
        for row in range(first_row, end_row, max_rows):
            end = min(row + max_rows, end_row)
            row_out, row_lse = _attend_rows(
                q[row:end], key, value, position=position + row - first_row, first_key=first_key, options=options
            )
            out[row:end] = row_out
            if lse is not None:
                lse[row:end] = row_lse


def _attend_rows(
    query: Tensor, key: Tensor, value: Tensor, *, position: int, first_key: int, options: _Options
) -> tuple[Tensor, Tensor]:
    """Attention of neighboring rows of one sequence, every one of which sees at least one key.

    Args:
        query: [rows, q_heads, head_dim], at positions `position`, `position + 1`, ...
        key: float32 [kv_heads, keys, head_dim], at positions `first_key`, `first_key + 1`, ...
        value: float32 [kv_heads, keys, v_head_dim], at the same positions.
        position: position of the first row in its sequence.
        first_key: position of the first key.
        options: of the call.

    Returns:
        float32 [rows, q_heads, v_head_dim] and the natural log-sum-exp of the scores, float32 [rows, q_heads].
    """
    num_rows, q_heads, head_dim = query.shape
    if options.causal:  # the last row decides what is needed at all
        key, value = key[:, : position + num_rows - first_key], value[:, : position + num_rows - first_key]
    unneeded = _first_key(position, options.window) - first_key
    if unneeded > 0:
        key, value, first_key = key[:, unneeded:], value[:, unneeded:], first_key + unneeded
    kv_heads, num_keys, _ = key.shape

    # The query heads that share a KV head become rows of one product, so keys and values are never repeated.
    packed = query.transpose(0, 1).reshape(kv_heads, -1, head_dim).float() * options.scale
    scores = (packed @ key.transpose(1, 2)).view(q_heads, num_rows, num_keys)
    if options.softcap > 0:
        scores = scores.div_(options.softcap).tanh_().mul_(options.softcap)
    if options.alibi_slopes is not None:
        scores -= options.alibi_slopes[:, None, None] * _distance(query, key, position, first_key).abs()
    if num_rows > 1 and (options.causal or options.window is not None):
        distance = _distance(query, key, position, first_key)
        is_hidden = distance < 0 if options.causal else torch.zeros_like(distance, dtype=torch.bool)
        if options.window is not None:
            is_hidden |= distance >= options.window
        scores.masked_fill_(is_hidden, -torch.inf)

    largest = scores.amax(-1, keepdim=True)
    if options.sinks is not None:
        largest = torch.maximum(largest, options.sinks[:, None, None])
    weights = scores.sub_(largest).exp_()
    total = weights.sum(-1, keepdim=True)
    if options.sinks is not None:
        total += (options.sinks[:, None, None] - largest).exp()
    out = (weights.view(kv_heads, -1, num_keys) @ value).view(q_heads, num_rows, -1) / total
    lse = (largest + total.log()).squeeze(-1)
    return out.transpose(0, 1), lse.transpose(0, 1)


def _first_key(position: int, window: int | None) -> int:
    """Position of the first key that a row sees; a window counts the row's own position."""
    return 0 if window is None else max(0, position - window + 1)


def _distance(query: Tensor, key: Tensor, position: int, first_key: int) -> Tensor:
    """int64 [rows, keys]: by how many positions each key stands before each row; below 0 it stands behind."""
    row_positions = torch.arange(position, position + query.size(0), device=query.device)
    key_positions = torch.arange(first_key, first_key + key.size(1), device=query.device)
    return row_positions[:, None] - key_positions


def _tokens(cache: Tensor, table_row: Tensor, start: int, stop: int, scale: Tensor | None) -> Tensor:
    """Tokens [start, stop) of one sequence: float32 [kv_heads, stop - start, dim]."""
    block_size = cache.size(2)
    first_block = start // block_size
    block_ids = table_row[first_block : -(-stop // block_size)]
    blocks = _movable(cache).index_select(0, block_ids)
    tokens = blocks.transpose(0, 1).flatten(1, 2)[:, start - first_block * block_size : stop - first_block * block_size]
    values = tokens.view(cache.dtype).float()
    return values if scale is None else values * scale.reshape(-1, 1, 1)


def copy_blocks(caches: Sequence[Tensor], block_mapping: Tensor) -> None:
    """Copy whole blocks within each cache; rows of -1 are skipped."""
    pairs = block_mapping[block_mapping[:, 0] >= 0].long()
    if len(pairs):
        for cache in map(_movable, caches):
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
            tokens = _tokens(cache, block_table[index], 0, end_row - first_row, scale)
            out[first_row:end_row] = tokens.transpose(0, 1)


def swap_blocks(src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor) -> None:
    """Copy whole blocks from one list of caches to another, which may be on another device."""
    for source, target in zip(src, dst, strict=True):
        blocks = _movable(source).index_select(0, block_mapping[:, 0].to(source.device))
        _movable(target).index_copy_(0, block_mapping[:, 1].to(target.device), blocks.to(target.device))


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


def _encode(values: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Rows [tokens, kv_heads, dim] as a cache of this dtype keeps them: 8-bit ones divided by the scale, saturated."""
    if scale is None:
        return values.to(dtype)
    scaled = values.float() / scale.reshape(-1, 1)
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        return scaled.clamp_(limits.min, limits.max).to(dtype)
    return scaled.round_().clamp_(-128, 127).to(dtype)


def _movable(tensor: Tensor) -> Tensor:
    """The same memory in a dtype that indexing knows: float8 moves as bytes."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


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
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _SHAPES.get(_name, _nothing_returned), lib=LIBRARY)
