"""Ragged paged batches whose every unused slot is NaN, and the contiguous attention they must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from looseleaf import ops
from looseleaf.ops import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """Arguments of `ops.attend`, and each sequence's tokens side by side."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    cu_query_lens: Tensor
    max_query_len: int
    keys: list[Tensor] = field(repr=False)  # of each sequence: [tokens, kv_heads, head_dim]
    values: list[Tensor] = field(repr=False)

    def arguments(self) -> dict[str, Any]:
        names = ("q", "k_cache", "v_cache", "block_table", "seq_lens", "cu_query_lens", "max_query_len")
        return {name: getattr(self, name) for name in names}

    def queries(self) -> list[Tensor]:
        return list(torch.split(self.q[: int(self.cu_query_lens[-1])], self.cu_query_lens.diff().tolist()))


def _attend_by_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor,
    *,
    max_query_len: int,
    scale: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The oracle itself, called as `ops.attend` is: a loaded library takes over the operator, never this."""
    tables = (block_table, seq_lens, cu_query_lens)
    out = q.new_empty((q.size(0), q.size(1), v_cache.size(3))) if out is None else out
    lse = q.new_empty(q.shape[:2], dtype=torch.float32) if lse is None else lse
    factor = q.size(2) ** -0.5 if scale is None else scale
    reference.attend_out(q, k_cache, v_cache, *tables, max_query_len, factor, **options, out=out, lse=lse)
    return out, lse


# The operator, and both ways that the reference goes: `batch_invariant` keeps to one sequence after the other.
WAYS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "operator": ops.attend,
    "one by one": partial(_attend_by_reference, batch_invariant=True),
    "single rows together": _attend_by_reference,
}


def build_batch(
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    q_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    v_head_dim: int | None = None,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    is_token_major: bool = False,
    num_padding_rows: int = 0,
    seed: int = 0,
) -> PagedBatch:
    generator = torch.Generator().manual_seed(seed)
    v_head_dim = v_head_dim or head_dim
    columns = max(1, max((-(-length // block_size) for length in seq_lens), default=0)) + 1
    num_used = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(num_used) + 3
    caches = []
    for dim in (head_dim, v_head_dim):
        # Token-major storage (NHD) reaches the operators as a transposed view.
        sizes = (num_blocks, block_size, kv_heads) if is_token_major else (num_blocks, kv_heads, block_size)
        cache = torch.full((*sizes, dim), torch.nan, dtype=dtype)
        caches.append(cache.transpose(1, 2) if is_token_major else cache)
    block_ids = torch.randperm(num_blocks, generator=generator).tolist()
    block_table = torch.full((len(seq_lens), columns), -1, dtype=torch.int32)
    tokens: tuple[list[Tensor], list[Tensor]] = ([], [])
    for row, length in enumerate(seq_lens):
        for column in range(num_used[row]):
            block_table[row, column] = block_ids.pop()
        position = torch.arange(length)
        blocks = block_table[row, position // block_size].long()
        for cache, kept in zip(caches, tokens, strict=True):
            contiguous = torch.randn(length, kv_heads, cache.size(3), generator=generator).to(dtype)
            cache[blocks, :, position % block_size] = contiguous
            kept.append(contiguous)
    num_rows = sum(query_lens) + num_padding_rows
    return PagedBatch(
        q=torch.randn(num_rows, q_heads, head_dim, generator=generator).to(dtype),
        k_cache=caches[0],
        v_cache=caches[1],
        block_table=block_table,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        cu_query_lens=torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        max_query_len=max(query_lens, default=0),
        keys=tokens[0],
        values=tokens[1],
    )


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors here are small: threads that wait for each other would take most of the time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def make_batch() -> Callable[..., PagedBatch]:
    return build_batch
