"""Attention by hand: with keys of 0 every weight is the same, and the output is a plain mean of the values."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from tests.ops.conftest import WAYS
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ops.conftest import PagedBatch

Attend: TypeAlias = "Callable[..., tuple[Tensor, Tensor]]"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def _attend(
    v_cache: Tensor,
    table: list[list[int]],
    seq_lens: list[int],
    query_lens: list[int],
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attention with keys and queries of 0, unless `k_cache` or `q` are given; `way` is one of WAYS."""
    k_cache = options.pop("k_cache", torch.zeros_like(v_cache))
    sums = [0]
    for query_len in query_lens:
        sums.append(sums[-1] + query_len)
    return WAYS[options.pop("way", "operator")](
        options.pop("q", torch.zeros(sums[-1], options.pop("q_heads", v_cache.size(1)), 1, dtype=v_cache.dtype)),
        k_cache,
        v_cache,
        torch.tensor(table, dtype=torch.int32),
        torch.tensor(seq_lens, dtype=torch.int32),
        torch.tensor(sums, dtype=torch.int32),
        max_query_len=max(query_lens),
        **options,
    )


@pytest.fixture(params=WAYS)
def attend(request: pytest.FixtureRequest) -> Attend:
    return partial(_attend, way=request.param)


def _cache(num_blocks: int, block_size: int, fill: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((num_blocks, 1, block_size, 1), fill, dtype=dtype)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_past_the_length_never_reaches_a_result(attend: Attend, poison: float, dtype: torch.dtype) -> None:
    k_cache, v_cache = _cache(8, 4, poison, dtype), _cache(8, 4, poison, dtype)
    k_cache[2], k_cache[6, 0, 0] = 0, 0
    v_cache[2, 0, :, 0], v_cache[6, 0, 0] = torch.tensor([1.0, 2, 3, 4]), 10
    out, lse = attend(v_cache, [[2, 6]], [5], [1], k_cache=k_cache)
    assert out.item() == 4
    assert lse.item() == pytest.approx(1.609437912, abs=1e-6)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_memory_of_another_sequence_never_reaches_a_result(attend: Attend, poison: float, num_rows: int) -> None:
    v_cache = _cache(4, 4, poison)
    v_cache[1:3] = 5
    k_cache = v_cache.where(v_cache != 5, 0)
    out, _ = attend(v_cache, [[3, 0], [1, 2], [3, 0]], [8, 7, 8], [1, num_rows, 1], k_cache=k_cache)
    assert out[1:-1].flatten().tolist() == [5] * num_rows
    assert not bool(out[[0, -1]].isfinite().any())


def test_sequences_without_tokens_are_skipped(attend: Attend) -> None:
    v_cache = torch.arange(1.0, 9).view(2, 1, 4, 1)
    out, lse = torch.full((3, 1, 1), math.nan), torch.full((3, 1), math.nan)
    attend(v_cache, [[0, -1], [-1, -1], [0, 1]], [3, 0, 5], [1, 1, 1], out=out, lse=lse)
    assert out.flatten().tolist() == [2, 0, 3]
    assert lse.flatten().tolist() == pytest.approx([math.log(3), -math.inf, math.log(5)])


@pytest.mark.parametrize("options", [{}, {"sinks": torch.tensor([2.0])}, {"alibi_slopes": torch.tensor([0.5])}])
def test_rows_before_the_first_key_see_nothing(attend: Attend, options: dict[str, Any]) -> None:
    out, lse = attend(_cache(2, 4, 7), [[1]], [1], [3], **options)
    seen = 7 / (1 + math.exp(2)) if "sinks" in options else 7
    assert out.flatten().tolist() == pytest.approx([0, 0, seen])
    assert lse[:2].flatten().tolist() == [-math.inf, -math.inf]
    assert lse[2].item() == pytest.approx(math.log(1 + math.exp(2)) if "sinks" in options else 0)


def test_rows_that_no_sequence_owns_give_zero(attend: Attend) -> None:
    out, lse = torch.full((4, 1, 1), math.nan), torch.full((4, 1), math.nan)
    attend(_cache(2, 4, 7), [[1]], [2], [2], q=torch.zeros(4, 1, 1), out=out, lse=lse)
    assert out.flatten().tolist() == [7, 7, 0, 0]
    assert lse[2:].flatten().tolist() == [-math.inf, -math.inf]


def test_sequence_without_rows_gives_no_row_and_its_cells_are_not_read(attend: Attend) -> None:
    out, _ = attend(_cache(2, 4, 7), [[1], [99], [1]], [2, 4, 1], [1, 0, 1])
    assert out.flatten().tolist() == [7, 7]


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(8, 2), (28, 4), (4, 4), (6, 1), (9, 3)])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_neighboring_query_heads_share_a_kv_head(attend: Attend, q_heads: int, kv_heads: int, num_rows: int) -> None:
    v_cache = torch.arange(float(kv_heads))[None, :, None, None].expand(2, kv_heads, 4, 1).contiguous()
    out, _ = attend(v_cache, [[1]], [3], [num_rows], q_heads=q_heads)
    expected = [head // (q_heads // kv_heads) for head in range(q_heads)]
    assert out[..., 0].tolist() == [expected] * num_rows


@pytest.mark.parametrize(("window", "expected"), [(4, 4.5), (5, 4.0), (None, 3.0), (1, 6.0), (7, 3.0), (100, 3.0)])
def test_window_counts_the_own_position(attend: Attend, window: int | None, expected: float) -> None:
    v_cache = torch.arange(8.0).view(2, 1, 4, 1)
    out, lse = attend(v_cache, [[0, 1]], [7], [1], window=window)
    assert out.item() == expected
    assert lse.item() == pytest.approx(math.log(min(window or 7, 7)))


@pytest.mark.parametrize("cell", [-1, 99, 0])
def test_cell_before_the_window_is_not_read(attend: Attend, cell: int) -> None:
    v_cache = torch.tensor([math.nan] * 4 + [4.0, 5, 6, math.nan]).view(2, 1, 4, 1)
    out, _ = attend(v_cache, [[cell, 1, 50]], [7], [1], window=3)
    assert out.item() == 5
    out, _ = attend(v_cache, [[cell, 1, 50]], [7], [2], window=2)
    assert out.flatten().tolist() == [4.5, 5.5]


def test_sink_takes_its_share_once_and_has_no_value(attend: Attend) -> None:
    out, lse = attend(_cache(1, 4, 6), [[0]], [3], [1], sinks=torch.tensor([math.log(3)]))
    assert out.item() == pytest.approx(3)
    assert lse.item() == pytest.approx(math.log(6))
    out, lse = attend(_cache(1, 4, 6), [[0]], [3], [1], sinks=torch.tensor([200.0]))
    assert out.item() == 0
    assert lse.item() == 200


def test_softcap_bounds_the_scores(attend: Attend) -> None:
    v_cache, k_cache = torch.tensor([1.0, 2]).view(1, 1, 2, 1), torch.tensor([1000.0, -3]).view(1, 1, 2, 1)
    out, lse = attend(v_cache, [[0]], [2], [1], k_cache=k_cache, q=torch.ones(1, 1, 1), softcap=2.0, scale=0.5)
    scores = [2 * math.tanh(500 / 2), 2 * math.tanh(-1.5 / 2)]
    weights = [math.exp(score) for score in scores]
    assert out.item() == pytest.approx((weights[0] + 2 * weights[1]) / sum(weights), rel=1e-6)
    assert lse.item() == pytest.approx(math.log(sum(weights)), rel=1e-6)


def test_alibi_costs_its_slope_for_each_position_of_distance(attend: Attend) -> None:
    v_cache = torch.tensor([1.0, 2, 3, 0]).view(1, 1, 4, 1).expand(1, 2, 4, 1).contiguous()
    slopes = torch.tensor([0.0, math.log(2)])
    out, lse = attend(v_cache, [[0]], [3], [2], alibi_slopes=slopes)
    assert out[..., 0].flatten().tolist() == pytest.approx([1.5, (0.5 * 1 + 2) / 1.5, 2, (0.25 + 0.5 * 2 + 3) / 1.75])
    assert lse.exp().flatten().tolist() == pytest.approx([2, 1.5, 3, 1.75])
    out, _ = attend(v_cache, [[0]], [3], [2], alibi_slopes=slopes, causal=False)
    assert out[0, 1, 0].item() == pytest.approx((0.5 * 1 + 2 + 0.5 * 3) / 2)


@pytest.mark.parametrize("way", WAYS)
def test_softcap_bias_and_sinks_agree_with_a_plain_formula(make_batch: Callable[..., PagedBatch], way: str) -> None:
    batch = make_batch([45, 20, 7, 40], [2, 20, 1, 1])
    sinks, slopes = torch.tensor([0.5, -1.0, 2.0, 0.0]), torch.tensor([0.5, 0.25, 0.125, 0.0625])
    options: dict[str, Any] = {"softcap": 3.0, "scale": 0.3, "window": 30, "sinks": sinks, "alibi_slopes": slopes}
    out, lse = WAYS[way](**batch.arguments(), **options)
    row = 0
    for query, key, value in zip(batch.queries(), batch.keys, batch.values, strict=True):
        for position in range(len(key) - len(query), len(key)):
            seen = slice(max(0, position - 29), position + 1)
            distance = position - torch.arange(len(key))[seen]
            for head in range(4):
                k, v = key[seen, head // 2].double(), value[seen, head // 2].double()
                scores = 3 * torch.tanh(0.3 * (k @ query[position - len(key) + len(query), head].double()) / 3)
                weights = (scores - slopes[head] * distance).exp()
                total = weights.sum() + sinks[head].double().exp()
                torch.testing.assert_close(out[row, head], (weights @ v / total).float(), atol=1e-6, rtol=1e-5)
                torch.testing.assert_close(lse[row, head], total.log().float(), atol=1e-6, rtol=1e-5)
            row += 1
    assert row == len(out)


def test_large_scores_do_not_overflow(attend: Attend) -> None:
    v_cache, k_cache = torch.tensor([1.0, 2]).view(1, 1, 2, 1), torch.tensor([1e4, 2e4]).view(1, 1, 2, 1)
    out, lse = attend(v_cache, [[0]], [2], [1], k_cache=k_cache, q=torch.ones(1, 1, 1))
    assert out.item() == 2
    assert lse.item() == 2e4
