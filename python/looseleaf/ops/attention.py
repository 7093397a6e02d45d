"""The mathematics of attention in float32: rows of one sequence, and single rows of many.

Both sum the same terms. The first slices a sequence to its length and masks nothing but what a row's position hides:
the one to compare kernels with. The second serves decode steps, where a call per sequence costs more than its work.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from looseleaf.ops.blocks import load_blocks

__all__ = ["Options", "attend_rows", "attend_single_rows", "first_key"]


class Options(NamedTuple):
    """What one call asks for, the same for every sequence."""

    scale: float
    causal: bool
    window: int | None
    softcap: float
    sinks: Tensor | None
    alibi_slopes: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None


def first_key(position: int, window: int | None) -> int:
    """Position of the first key that a row sees; a window counts the row's own position."""
    return 0 if window is None else max(0, position - window + 1)


def attend_rows(
    query: Tensor, key: Tensor, value: Tensor, *, position: int, key_start: int, options: Options
) -> tuple[Tensor, Tensor]:
    """Attention of neighboring rows of one sequence, every one of which sees at least one key.

    Args:
        query: [rows, q_heads, head_dim], at positions `position`, `position + 1`, ...
        key: float32 [kv_heads, keys, head_dim], at positions `key_start`, `key_start + 1`, ...
        value: float32 [kv_heads, keys, v_head_dim], at the same positions.
        position: position of the first row in its sequence.
        key_start: position of the first key.
        options: of the call.

    Returns:
        float32 [rows, q_heads, v_head_dim] and the natural log-sum-exp of the scores, float32 [rows, q_heads].
    """
    num_rows, q_heads, head_dim = query.shape
    # The first row decides where the keys begin that are needed at all, the last one where they end.
    start = first_key(position, options.window) - key_start
    stop = position + num_rows - key_start if options.causal else key.size(1)
    key, value, key_start = key[:, start:stop], value[:, start:stop], key_start + start
    kv_heads, num_keys, _ = key.shape

    # The query heads that share a KV head become rows of one product, so keys and values are never repeated.
    packed = query.transpose(0, 1).reshape(kv_heads, -1, head_dim).float() * options.scale
    scores = (packed @ key.transpose(1, 2)).view(q_heads, num_rows, num_keys)
    if options.softcap > 0:
        scores = scores.div_(options.softcap).tanh_().mul_(options.softcap)
    row_positions = torch.arange(position, position + num_rows, device=query.device)
    distance = row_positions[:, None] - torch.arange(key_start, key_start + num_keys, device=query.device)
    if options.alibi_slopes is not None:
        scores -= options.alibi_slopes[:, None, None] * distance.abs()
    if num_rows > 1 and options.causal:
        scores.masked_fill_(distance < 0, -torch.inf)
    if num_rows > 1 and options.window is not None:
        scores.masked_fill_(distance >= options.window, -torch.inf)

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


def attend_single_rows(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, options: Options
) -> tuple[Tensor, Tensor]:
    """Attention of the last token of each sequence, block by block, all sequences in one go.

    Blocks are taken whole. What a row must not see in them is replaced, scores by -inf and values by 0, before anything
    is multiplied with it.

    Args:
        query: [seqs, q_heads, head_dim].
        k_cache: [blocks, kv_heads, block_size, head_dim].
        v_cache: [blocks, kv_heads, block_size, v_head_dim].
        block_table: int32 [seqs, columns].
        seq_lens: int32 [seqs], none of them 0.
        options: of the call.

    Returns:
        float32 [seqs, q_heads, v_head_dim] and the natural log-sum-exp of the scores, float32 [seqs, q_heads].
    """
    num_seqs, q_heads, head_dim = query.shape
    _, kv_heads, block_size, v_head_dim = v_cache.shape
    heads = (kv_heads, q_heads // kv_heads)
    position = seq_lens.long() - 1
    key_start = torch.zeros_like(position) if options.window is None else (position - options.window + 1).clamp_(min=0)

    # One entry for each block in use: `row` of the table, `column`, and which of its tokens the row does not see.
    columns = torch.arange(int(position.max()) // block_size + 1, device=query.device)
    first_block, last_block = (tensor.div(block_size, rounding_mode="floor") for tensor in (key_start, position))
    is_used = (columns >= first_block[:, None]) & (columns <= last_block[:, None])
    row, column = is_used.nonzero(as_tuple=True)
    block_ids = block_table[row, column]
    distance = position[row, None] - column[:, None] * block_size - torch.arange(block_size, device=query.device)
    is_hidden = (distance < 0) | (distance > (position - key_start)[row, None])

    packed = (query.float() * options.scale).view(num_seqs, *heads, head_dim)
    key = load_blocks(k_cache, block_ids, options.k_scale)
    scores = packed.index_select(0, row) @ key.transpose(2, 3)  # [entries, kv_heads, group, block_size]
    if options.softcap > 0:
        scores = scores.div_(options.softcap).tanh_().mul_(options.softcap)
    if options.alibi_slopes is not None:
        scores -= options.alibi_slopes.view(*heads, 1) * distance[:, None, None]
    scores.masked_fill_(is_hidden[:, None, None], -torch.inf)

    largest_of_block = scores.new_full((num_seqs, len(columns), *heads), -torch.inf)
    largest_of_block[row, column] = scores.amax(-1)
    largest = largest_of_block.amax(1)
    if options.sinks is not None:
        largest = torch.maximum(largest, options.sinks.view(heads))
    weights = scores.sub_(largest.index_select(0, row)[..., None]).exp_()
    total = torch.zeros_like(largest).index_add_(0, row, weights.sum(-1))
    if options.sinks is not None:
        total += (options.sinks.view(heads) - largest).exp()

    value = load_blocks(v_cache, block_ids, options.v_scale)
    partly_hidden = is_hidden.any(1).nonzero().squeeze(1)
    value[partly_hidden] = value[partly_hidden].masked_fill_(is_hidden[partly_hidden][:, None, :, None], 0.0)
    out = total.new_zeros((num_seqs, *heads, v_head_dim)).index_add_(0, row, weights @ value) / total[..., None]
    return out.view(num_seqs, q_heads, v_head_dim), (largest + total.log()).view(num_seqs, q_heads)
