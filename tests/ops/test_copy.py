"""Whole blocks move, and only those that were named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from looseleaf import ops
from looseleaf.errors import InvalidArgument

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


def _numbered(num_blocks: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(num_blocks)[:, None, None].expand(num_blocks, 2, 3).to(dtype).contiguous()


def _ids(cache: Tensor) -> list[float]:
    ids = cache.float()[:, 0, 0]
    assert bool((cache.float() == ids[:, None, None]).all())
    return ids.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_reach_every_cache(dtype: torch.dtype) -> None:
    caches = [_numbered(6, dtype), _numbered(8, dtype)]
    ops.copy_blocks(caches, torch.tensor([[1, 4], [-1, -1], [1, 5], [2, 0]], dtype=torch.int32))
    assert _ids(caches[0]) == [2, 1, 2, 3, 1, 1]
    assert _ids(caches[1]) == [2, 1, 2, 3, 1, 1, 6, 7]


def test_copies_reach_both_halves_of_a_storage_and_views_of_it() -> None:
    storage = torch.arange(4.0).view(4, 1, 1, 1, 1).repeat(1, 2, 2, 4, 3)
    ops.copy_blocks([storage], torch.tensor([[3, 0]], dtype=torch.int32))
    assert storage[:, :, 0, 0, 0].tolist() == [[3, 3], [1, 1], [2, 2], [3, 3]]
    ops.copy_blocks([storage[:, 0], storage[:, 1].transpose(1, 2)], torch.tensor([[2, 1]], dtype=torch.int32))
    assert storage[:, :, 1, 3, 2].tolist() == [[3, 3], [2, 2], [2, 2], [3, 3]]


def test_empty_mapping_and_no_caches_copy_nothing() -> None:
    cache = _numbered(3)
    ops.copy_blocks([cache], torch.empty(0, 2, dtype=torch.int32))
    ops.copy_blocks([], torch.tensor([[0, 1]], dtype=torch.int32))
    ops.swap_blocks([cache], [_numbered(3)], torch.empty(0, 2, dtype=torch.int64))
    assert _ids(cache) == [0, 1, 2]


@pytest.mark.parametrize(
    "pairs", [[[0, 3]], [[3, 0]], [[0, -1]], [[-1, 0]], [[-2, -2]], [[0, 1], [1, 2]], [[0, 2], [1, 2]], [[1, 1]]]
)
def test_wrong_copies_are_refused_before_any_copy(pairs: list[list[int]]) -> None:
    caches = [_numbered(4), _numbered(3)]
    with pytest.raises(InvalidArgument, match="block_mapping"):
        ops.copy_blocks(caches, torch.tensor([[0, 2], *pairs], dtype=torch.int32))
    assert [_ids(cache) for cache in caches] == [[0, 1, 2, 3], [0, 1, 2]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_swapped_out_come_back(dtype: torch.dtype) -> None:
    pools, host = [_numbered(4, dtype), _numbered(4, dtype)], [_numbered(6, dtype), _numbered(6, dtype)]
    ops.swap_blocks(pools, host, torch.tensor([[1, 5], [3, 0]]))
    assert [_ids(cache) for cache in host] == [[3, 1, 2, 3, 4, 1]] * 2
    ops.swap_blocks(host, pools, torch.tensor([[5, 2]]))
    assert [_ids(cache) for cache in pools] == [[0, 1, 1, 3]] * 2


@pytest.mark.parametrize("pairs", [[[4, 0]], [[0, 6]], [[-1, -1]], [[0, 1], [1, 1]]])
def test_wrong_swaps_are_refused_before_any_copy(pairs: list[list[int]]) -> None:
    host = [_numbered(6)]
    with pytest.raises(InvalidArgument, match="block_mapping"):
        ops.swap_blocks([_numbered(4)], host, torch.tensor([[1, 2], *pairs]))
    assert _ids(host[0]) == [0, 1, 2, 3, 4, 5]
