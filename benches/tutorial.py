"""The tutorial's cache, written anew as a baseline: a list of free blocks, a dict of tables, a Python loop over tokens.

After S. Dutta, "How to Implement Paged Attention in PyTorch and vLLM", 2026: the same components, our own code.
"""

from __future__ import annotations

import torch


class TutorialCache:
    """Two tensors of blocks, a list used as a stack, and dicts from sequence to block ids and to length."""

    def __init__(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.block_size = block_size
        self.keys = torch.zeros(num_blocks, block_size, num_kv_heads, head_dim, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.free = list(range(num_blocks))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def append(self, name: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store one token, [kv_heads, head_dim] each; take a block where the last one is full."""
        table = self.tables.setdefault(name, [])
        length = self.lengths.get(name, 0)
        if length % self.block_size == 0:
            if not self.free:
                raise RuntimeError("out of memory")
            table.append(self.free.pop())
        block, offset = table[length // self.block_size], length % self.block_size
        self.keys[block, offset] = key
        self.values[block, offset] = value
        self.lengths[name] = length + 1

    def attend(self, name: int, query: torch.Tensor) -> torch.Tensor:
        """One query row [q_heads, head_dim] over all tokens of a sequence, gathered one by one."""
        table = self.tables[name]
        positions = range(self.lengths[name])
        keys = torch.stack([self.keys[table[p // self.block_size], p % self.block_size] for p in positions])
        values = torch.stack([self.values[table[p // self.block_size], p % self.block_size] for p in positions])
        group = query.shape[0] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,lhd->hl", query, keys) * query.shape[-1] ** -0.5
        return torch.einsum("hl,lhd->hd", torch.softmax(scores, dim=-1), values)
