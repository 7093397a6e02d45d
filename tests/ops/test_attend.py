"""Paged attention agrees with contiguous attention over the same tokens.

Tolerances: 1e-5 in float32, 1e-3 in float16, 5e-3 in bfloat16, plus one unit in the last place of the output, which
both sides round once: 2^-10 of it in float16, 2^-7 in bfloat16. SDPA rounds its weights to 16 bits before it sums them;
the absolute part covers that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.ops.conftest import WAYS
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from looseleaf import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.ops.conftest import PagedBatch

TOLERANCES = {
    torch.float32: (1e-5, 0.0),
    torch.float16: (1e-3, 2.0**-10),
    torch.bfloat16: (5e-3, 2.0**-7),
}
DTYPES = list(TOLERANCES)
BLOCK_SIZE = 16


def _visible(num_rows: int, num_keys: int, *, causal: bool, window: int | None) -> Tensor:
    distance = (torch.arange(num_rows) + num_keys - num_rows)[:, None] - torch.arange(num_keys)
    visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return visible if window is None else visible & (distance < window)


def _contiguous(batch: PagedBatch, *, causal: bool = True, window: int | None = None) -> tuple[Tensor, Tensor]:
    """Out by SDPA in the batch's dtype, log-sum-exp in float64, of sequences with no more rows than tokens."""
    outs, lses = [], []
    for query, key, value in zip(batch.queries(), batch.keys, batch.values, strict=True):
        group = query.size(1) // key.size(1)
        q, k, v = (
            tensor.transpose(0, 1)[None]
            for tensor in (query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1))
        )
        mask = _visible(len(query), len(key), causal=causal, window=window)
        outs.append(scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1))
        scores = (q[0].double() @ k[0].double().transpose(1, 2)) * query.size(2) ** -0.5
        lses.append(scores.masked_fill(~mask, -torch.inf).logsumexp(-1).transpose(0, 1))
    return torch.cat(outs), torch.cat(lses).float()


def _assert_close(out: Tensor, expected: Tensor) -> None:
    atol, rtol = TOLERANCES[out.dtype]
    torch.testing.assert_close(out, expected, atol=atol, rtol=rtol)


def _check(batch: PagedBatch, **options: Any) -> None:
    expected_out, expected_lse = _contiguous(batch, **options)
    for attend in WAYS.values():
        out, lse = attend(**batch.arguments(), **options)
        _assert_close(out[: len(expected_out)], expected_out)
        torch.testing.assert_close(lse[: len(expected_lse)], expected_lse, atol=2e-5, rtol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 1000])
def test_every_length_agrees(make_batch: Callable[..., PagedBatch], dtype: torch.dtype, length: int) -> None:
    _check(make_batch([length], [1], dtype=dtype))
    _check(make_batch([length], [min(length, 40)], dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 112, 120, 128, 160, 192, 256])
def test_every_head_dim_agrees(make_batch: Callable[..., PagedBatch], dtype: torch.dtype, head_dim: int) -> None:
    _check(make_batch([37, 16, 5], [1, 3, 5], head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q_heads", "kv_heads"), [(4, 4), (4, 2), (9, 3), (8, 2), (14, 2), (16, 2), (8, 1)])
def test_every_group_agrees(
    make_batch: Callable[..., PagedBatch], dtype: torch.dtype, q_heads: int, kv_heads: int
) -> None:
    _check(make_batch([37, 16, 5], [1, 3, 5], q_heads=q_heads, kv_heads=kv_heads, dtype=dtype))


@pytest.mark.parametrize("block_size", [1, 4, 16, 23, 256])
@pytest.mark.parametrize("is_token_major", [False, True])
def test_every_block_size_and_layout_agrees(
    make_batch: Callable[..., PagedBatch], block_size: int, is_token_major: bool
) -> None:
    _check(make_batch([50, 23, 1], [1, 7, 1], block_size=block_size, is_token_major=is_token_major))


@pytest.mark.parametrize(
    ("seq_lens", "query_lens"),
    [
        pytest.param([9, 40, 130], [9, 40, 130], id="prefill"),
        pytest.param([9, 40, 130], [1, 1, 1], id="decode"),
        pytest.param([64, 100, 33], [32, 50, 1], id="chunks"),
        pytest.param([17, 90, 3, 70, 16], [1, 90, 3, 20, 1], id="all in one batch"),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_batches_agree(
    make_batch: Callable[..., PagedBatch], dtype: torch.dtype, seq_lens: Sequence[int], query_lens: Sequence[int]
) -> None:
    _check(make_batch(seq_lens, query_lens, dtype=dtype))


@pytest.mark.parametrize("window", [1, 4, 16, 17, 60, 500])
@pytest.mark.parametrize("causal", [True, False])
def test_window_agrees_with_a_mask(make_batch: Callable[..., PagedBatch], window: int, causal: bool) -> None:
    _check(make_batch([50, 64, 7, 33], [1, 20, 7, 33]), window=window, causal=causal)


def test_without_causal_every_row_sees_every_key(make_batch: Callable[..., PagedBatch]) -> None:
    _check(make_batch([50, 64, 7], [1, 20, 7]), causal=False)


def test_value_heads_may_be_of_another_dimension(make_batch: Callable[..., PagedBatch]) -> None:
    batch = make_batch([50, 20], [3, 20], head_dim=96, v_head_dim=64)
    _check(batch)
    assert ops.attend(**batch.arguments())[0].shape == (23, 4, 64)


def test_prompt_longer_than_one_slice_of_scores_agrees(
    make_batch: Callable[..., PagedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looseleaf.ops.reference._MAX_SCORES", 4 * 200 * 7)  # 7 rows at a time
    batch = make_batch([200, 30], [150, 30])
    _check(batch)
    _check(batch, window=20)
    _check(batch, causal=False, window=20)


def test_single_rows_that_do_not_fit_one_group_agree(
    make_batch: Callable[..., PagedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looseleaf.ops.reference._MAX_ELEMENTS", 5 * 2 * 16 * 64)  # 5 blocks
    batch = make_batch([200, 30, 16, 17, 1, 40], [1, 1, 1, 1, 1, 40])
    _check(batch)
    _check(batch, window=20)


def test_bounds_that_are_too_generous_change_nothing(make_batch: Callable[..., PagedBatch]) -> None:
    arguments = make_batch([50, 20], [3, 1]).arguments()
    out, lse = ops.attend(**arguments)
    wider = ops.attend(**arguments | {"max_query_len": 99})
    assert torch.equal(out, wider[0])
    assert torch.equal(lse, wider[1])


def test_result_does_not_depend_on_the_batch(make_batch: Callable[..., PagedBatch]) -> None:
    batch = make_batch([50, 64, 7, 33], [1, 20, 7, 1])
    together, _ = ops.attend(**batch.arguments(), batch_invariant=True)
    for row in range(4):
        begin, end = batch.cu_query_lens[row : row + 2].tolist()
        alone = batch.arguments() | {
            "q": batch.q[begin:end],
            "block_table": batch.block_table[row : row + 1],
            "seq_lens": batch.seq_lens[row : row + 1],
            "cu_query_lens": torch.tensor([0, end - begin], dtype=torch.int32),
        }
        assert torch.equal(ops.attend(**alone, batch_invariant=True)[0], together[begin:end])


def test_block_table_may_be_a_view_of_a_wider_one(make_batch: Callable[..., PagedBatch]) -> None:
    batch = make_batch([50, 20, 64], [3, 1, 2])
    wider = torch.full((6, 64), -7, dtype=torch.int32)
    wider[::2, :5] = batch.block_table
    expected, _ = ops.attend(**batch.arguments())
    out, _ = ops.attend(**batch.arguments() | {"block_table": wider[::2, :9]})
    assert torch.equal(out, expected)


def test_out_and_lse_are_filled_in_place(make_batch: Callable[..., PagedBatch]) -> None:
    batch = make_batch([50, 20], [3, 1], num_padding_rows=2)
    expected_out, expected_lse = ops.attend(**batch.arguments())
    wide = torch.full((6, 8, 64), torch.nan)
    lse = torch.full((6, 4), torch.nan)
    returned = ops.attend(**batch.arguments(), out=wide[:, :4], lse=lse)
    assert returned[1] is lse
    assert returned[0].data_ptr() == wide.data_ptr()
    assert torch.equal(wide[:, :4], expected_out)
    assert torch.equal(lse, expected_lse)
    assert bool(wide[:, 4:].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("query_dtype", DTYPES)
def test_8bit_caches_are_read_through_their_scales(
    make_batch: Callable[..., PagedBatch], dtype: torch.dtype, query_dtype: torch.dtype
) -> None:
    batch = make_batch([50, 20], [3, 20], dtype=query_dtype)
    caches = [cache.nan_to_num(0.0).float() for cache in (batch.k_cache, batch.v_cache)]
    scales = [torch.tensor([0.05, 0.03]), torch.tensor([0.04])]
    stored = [(cache / scale[:, None, None]).clamp(-127, 127) for cache, scale in zip(caches, scales, strict=True)]
    stored = [cache.to(dtype) for cache in stored]
    decoded = [cache.float() * scale[:, None, None] for cache, scale in zip(stored, scales, strict=True)]
    arguments = batch.arguments() | {"q": batch.q.float()}
    expected, expected_lse = ops.attend(**arguments | dict(zip(("k_cache", "v_cache"), decoded, strict=True)))
    arguments = batch.arguments() | dict(zip(("k_cache", "v_cache"), stored, strict=True))
    out, lse = ops.attend(**arguments, k_scale=scales[0], v_scale=scales[1])
    _assert_close(out, expected.to(query_dtype))
    torch.testing.assert_close(lse, expected_lse)
