"""Blocks as values: from the dtype of a cache to float32 and back."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["as_movable", "encode", "load_blocks", "load_tokens"]


def load_blocks(cache: Tensor, block_ids: Tensor, scale: Tensor | None) -> Tensor:
    """Whole blocks, what stands past a sequence's end included: float32 [len(block_ids), kv_heads, block_size, dim]."""
    values = as_movable(cache).index_select(0, block_ids).view(cache.dtype).float()
    return values if scale is None else values.mul_(scale.reshape(-1, 1, 1))


def load_tokens(cache: Tensor, table_row: Tensor, start: int, stop: int, scale: Tensor | None) -> Tensor:
    """Tokens [start, stop) of one sequence and nothing else: float32 [kv_heads, stop - start, dim]."""
    block_size = cache.size(2)
    first_block = start // block_size
    blocks = load_blocks(cache, table_row[first_block : -(-stop // block_size)], scale)
    first_token = first_block * block_size
    return blocks.transpose(0, 1).flatten(1, 2)[:, start - first_token : stop - first_token]


def encode(values: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Rows [tokens, kv_heads, dim] as a cache of this dtype keeps them: 8-bit ones divided by the scale, saturated."""
    if scale is None:
        return values.to(dtype)
    scaled = values.float() / scale.reshape(-1, 1)
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        return scaled.clamp_(limits.min, limits.max).to(dtype)
    return scaled.round_().clamp_(-128, 127).to(dtype)


def as_movable(tensor: Tensor) -> Tensor:
    """The same memory in a dtype that indexing knows: float8 moves as bytes."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
