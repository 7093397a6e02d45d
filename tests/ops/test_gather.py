"""Cached tokens come out side by side, as they went in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from looseleaf import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ops.conftest import PagedBatch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_token_major", [False, True])
def test_tokens_come_back_in_order(
    make_batch: Callable[..., PagedBatch], dtype: torch.dtype, is_token_major: bool
) -> None:
    lengths = [17, 0, 16, 1, 50]
    batch = make_batch(lengths, [0] * 5, v_head_dim=32, dtype=dtype, is_token_major=is_token_major)
    sums = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    keys, values = ops.gather(batch.k_cache, batch.v_cache, batch.block_table, sums)
    assert torch.equal(keys, torch.cat(batch.keys))
    assert torch.equal(values, torch.cat(batch.values))


def test_outputs_are_filled_and_rows_past_the_end_kept(make_batch: Callable[..., PagedBatch]) -> None:
    batch = make_batch([17, 5], [0, 0])
    outputs = torch.full((2, 30, 2, 64), 9.0)
    sums = torch.tensor([0, 17, 20], dtype=torch.int32)
    returned = ops.gather(batch.k_cache, batch.v_cache, batch.block_table, sums, k_out=outputs[0], v_out=outputs[1])
    assert [tensor.data_ptr() for tensor in returned] == [outputs[0].data_ptr(), outputs[1].data_ptr()]
    assert torch.equal(outputs[0, :20], torch.cat([batch.keys[0], batch.keys[1][:3]]))
    assert torch.equal(outputs[1, :20], torch.cat([batch.values[0], batch.values[1][:3]]))
    assert bool((outputs[:, 20:] == 9).all())


def test_8bit_tokens_come_back_as_values() -> None:
    k_cache = torch.tensor([1, -2, 3, 4], dtype=torch.int8).view(1, 2, 2, 1)
    table, sums = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
    scale = torch.tensor([0.5, 2.0])
    keys, values = ops.gather(k_cache, k_cache, table, sums, k_scale=scale, v_scale=torch.tensor(3.0))
    assert keys.flatten(1).tolist() == [[0.5, 6], [-1, 8]]
    assert values.flatten(1).tolist() == [[3, 9], [-6, 12]]
