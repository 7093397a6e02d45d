"""Two parts of the keys, attended apart and merged, are attention over all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from looseleaf import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ops.conftest import PagedBatch


def _merge(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    states = [torch.tensor(value).view(1, 1, -1) for pair in (a, b) for value in pair]
    out, lse = ops.merge_states(states[0], states[1][0], states[2], states[3][0])
    return out.item(), lse.item()


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0.0, -math.inf), (0.0, -math.inf), (0.0, -math.inf)),
        ((1.0, math.log(3)), (5.0, 0.0), (2.0, math.log(4))),
        ((5.0, 0.0), (1.0, math.log(3)), (2.0, math.log(4))),
        ((3.0, 2.0), (0.0, -math.inf), (3.0, 2.0)),
        ((math.nan, -math.inf), (3.0, 2.0), (3.0, 2.0)),
        ((1.0, 500.0), (2.0, -500.0), (1.0, 500.0)),
    ],
)
def test_states_are_weighed_by_their_sums(
    a: tuple[float, float], b: tuple[float, float], expected: tuple[float, float]
) -> None:
    assert _merge(a, b) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_merged_halves_are_the_whole(make_batch: Callable[..., PagedBatch], dtype: torch.dtype) -> None:
    batch = make_batch([80, 48], [1, 1], dtype=dtype)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    whole = ops.attend(**batch.arguments(), sinks=sinks)
    first = batch.arguments() | {"seq_lens": torch.tensor([32, 32], dtype=torch.int32)}
    rest = batch.arguments() | {"seq_lens": batch.seq_lens - 32, "block_table": batch.block_table[:, 2:]}
    merged = ops.merge_states(*ops.attend(**first, sinks=sinks), *ops.attend(**rest))
    ulp = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(merged[0], whole[0], atol=max(1e-6, ulp), rtol=ulp)
    torch.testing.assert_close(merged[1], whole[1])
    assert merged[0].dtype == dtype
