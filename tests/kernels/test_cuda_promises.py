"""What the CUDA kernels promise beyond right numbers, in the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.kernels import emulated
from tests.kernels.oracle import Options, attend_exactly, error_of
from tests.kernels.test_cuda_attend import check, emulator
from tests.kernels.test_grid import CASES, TOLERANCES, _build
from tests.kernels.test_promises import _alone, _batch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["emulator"]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
NUM_SCHEDULED = 60


def attend(batch: dict[str, Any], **options: object) -> tuple[Tensor, Tensor]:
    names = ("q", "k_cache", "v_cache", "block_table", "seq_lens", "cu_query_lens", "max_query_len")
    out, lse = torch.ops.looseleaf_emulated.attend(*[batch[name] for name in names], 0.125, **options)
    return out, lse


def exact(batch: dict[str, Any], index: int) -> Tensor:
    first, end = batch["cu_query_lens"][index : index + 2].tolist()
    length = int(batch["seq_lens"][index])
    blocks = batch["block_table"][index, : -(-length // 16)].long()
    key, value = (batch[name][blocks].transpose(1, 2).flatten(0, 1)[:length] for name in ("k_cache", "v_cache"))
    return attend_exactly(batch["q"][first:end], key, value, Options(scale=0.125))[0]


@pytest.mark.parametrize(("order", "seed"), [("reverse", 0), ("random", 1), ("random", 2)])
def test_result_is_free_of_the_schedule(order: str, seed: int) -> None:
    short = [
        (i, case) for i, case in enumerate(CASES) if case["lengths"] in ("edges", "one") and case["head_dim"] <= 128
    ]
    assert len(short) >= NUM_SCHEDULED
    for index, case in short[:NUM_SCHEDULED]:
        emulated.schedule(order, seed, processors=2)
        check(_build(case, index, 4))


@pytest.mark.parametrize("dtype", FLOATS)
def test_invariant_result_is_bitwise_free_of_batch_and_processors(dtype: torch.dtype) -> None:
    batch = _batch([700, 17, 449, 300, 1], [1, 3, 2, 20, 1], dtype)
    results = []
    for processors in (1, 4):
        emulated.schedule("round-robin", processors=processors)
        out, lse = attend(batch, batch_invariant=True)
        results.append((out, lse))
        for index in range(5):
            first, end = batch["cu_query_lens"][index : index + 2].tolist()
            alone = _alone(batch, index) | {"max_query_len": end - first}
            own_out, own_lse = attend(alone, batch_invariant=True)
            assert torch.equal(own_out, out[first:end])
            assert torch.equal(own_lse, lse[first:end])
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_items_are_cut_and_combined(dtype: torch.dtype) -> None:
    batch = _batch([1500, 40, 0, 900], [1, 1, 1, 2], dtype)
    whole, _ = attend(batch, batch_invariant=True)
    expected = torch.cat([exact(batch, index) for index in range(4)])
    num_cut = 0
    for processors in range(1, 9):
        emulated.schedule("round-robin", processors=processors)
        out, _ = attend(batch)
        assert error_of(out, expected) <= TOLERANCES[dtype]
        num_cut += not torch.equal(out, whole)
    assert num_cut >= 7


def _ideal_copies(lengths: Sequence[int], kv_heads: int, head_dim: int) -> int:
    return sum(lengths) * kv_heads * 2 * head_dim * 2 // 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("group", [4, 8, 16])
def test_fast_path_reads_each_token_once_and_without_conflicts(dtype: torch.dtype, group: int) -> None:
    lengths = [333, 64, 1, 150]
    batch = _batch(lengths, [1] * 4, dtype)
    batch["q"] = torch.randn(4, 2 * group, 64).to(dtype)
    emulated.take_counts()
    out, _ = attend(batch)
    counts = emulated.take_counts()
    assert error_of(out, torch.cat([exact(batch, index) for index in range(4)])) <= TOLERANCES[dtype]
    assert counts.async_copies == _ideal_copies(lengths, kv_heads=2, head_dim=64)
    assert counts.bank_conflicts == 0
    num_slices = sum(-(-length // 16) for length in lengths) * 2
    assert counts.matrix_loads == num_slices * 2 * (64 // 16)
    assert counts.matrix_products == counts.matrix_loads * (2 if group > 8 else 1)


def test_lengths_and_tables_are_read_on_the_device() -> None:
    """The same launches serve what changes in place: nothing of it was taken from the host."""
    batch = _batch([100, 30], [1, 1], torch.bfloat16)
    attend(batch)
    batch["seq_lens"].copy_(torch.tensor([65, 32], dtype=torch.int32))
    batch["block_table"][0, :2] = batch["block_table"][0, [1, 0]]
    out, _ = attend(batch)
    assert error_of(out, torch.cat([exact(batch, index) for index in range(2)])) <= TOLERANCES[torch.bfloat16]


def test_window_leaves_the_cells_before_it_alone() -> None:
    batch = _batch([500], [1], torch.float16)
    batch["block_table"][0, : (500 - 40) // 16] = 2**30
    out, _ = attend(batch, window=40)
    batch["block_table"][0, : (500 - 40) // 16] = 0
    blocks = batch["block_table"][0].long()
    key, value = (batch[name][blocks].transpose(1, 2).flatten(0, 1)[:500] for name in ("k_cache", "v_cache"))
    assert error_of(out, attend_exactly(batch["q"], key, value, Options(scale=0.125, window=40))[0]) <= 2.5e-3


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_byte_of_an_8bit_cache_is_its_value(stored: torch.dtype, dtype: torch.dtype) -> None:
    """One token for each byte; a query of 0 makes the mean of one value, which is the value."""
    values = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(stored)
    v_cache = values.view(torch.uint8)[:, None, None, None].expand(-1, 1, 8, 80).contiguous().view(stored)
    k_cache = torch.zeros(256, 1, 8, 80, dtype=torch.uint8).view(stored)
    lens, sums = torch.ones(256, dtype=torch.int32), torch.arange(257, dtype=torch.int32)
    table, scale = torch.arange(256, dtype=torch.int32)[:, None], torch.ones(1)
    query = torch.zeros(256, 1, 80, dtype=dtype)
    emulated.take_counts()
    out, _ = torch.ops.looseleaf_emulated.attend(
        query, k_cache, v_cache, table, lens, sums, 1, 1.0, k_scale=scale, v_scale=scale
    )
    assert (emulated.take_counts().matrix_products > 0) == (dtype != torch.float32)
    expected = values.float()[:, None, None].expand(out.shape).to(dtype)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(0.5, 1e4, -1e4), expected.nan_to_num(0.5, 1e4, -1e4))


def test_keys_of_8_bits_multiply_their_own_elements() -> None:
    """Distinct elements along the head dim: an exchange inside of a product would show."""
    generator = torch.Generator().manual_seed(2)
    k_cache, v_cache = (torch.randint(-99, 99, (5, 2, 16, 96), generator=generator, dtype=torch.int8) for _ in range(2))
    table, scale = torch.tensor([[3, 1, 4]], dtype=torch.int32), torch.tensor([0.01, 0.02])
    query = torch.randn(1, 8, 96, generator=generator).to(torch.float16)
    lens, sums = torch.tensor([43], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    emulated.take_counts()
    out, _ = torch.ops.looseleaf_emulated.attend(
        query, k_cache, v_cache, table, lens, sums, 1, 0.1, k_scale=scale, v_scale=scale
    )
    counts = emulated.take_counts()
    assert counts.async_copies == 43 * 2 * 2 * 96 // 16
    assert counts.bank_conflicts == 0
    key, value = (
        cache[table[0].long()].transpose(1, 2).flatten(0, 1)[:43].double() * scale[:, None]
        for cache in (k_cache, v_cache)
    )
    assert error_of(out, attend_exactly(query, key, value, Options(scale=0.1))[0]) <= 2.5e-3
