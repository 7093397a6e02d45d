"""What the kernels promise beyond right numbers: invariance, addresses, in-place operation under the compiler."""

from __future__ import annotations

import mmap
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.kernels.conftest import SETS
from tests.kernels.oracle import Options, attend_exactly, error_of
from torch import Tensor

from looseleaf import ops
from looseleaf.errors import InvalidArgument
from looseleaf.ops import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

INT32 = torch.int32


def _batch(lengths: list[int], query_lens: list[int], dtype: torch.dtype, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    used = [-(-length // 16) for length in lengths]
    pool = torch.randn(sum(used) + 1, 2, 2, 16, 64, generator=generator).to(dtype)
    ids = torch.split((torch.randperm(sum(used), generator=generator) + 1).to(INT32), used)
    return {
        "q": torch.randn(sum(query_lens), 8, 64, generator=generator).to(dtype),
        "k_cache": pool[:, 0],
        "v_cache": pool[:, 1],
        "block_table": torch.nn.utils.rnn.pad_sequence(list(ids), batch_first=True),
        "seq_lens": torch.tensor(lengths, dtype=INT32),
        "cu_query_lens": torch.tensor([0, *query_lens], dtype=INT32).cumsum(0, dtype=INT32),
        "max_query_len": max(query_lens),
    }


def _alone(batch: dict[str, Any], index: int) -> dict[str, Any]:
    first, end = batch["cu_query_lens"][index : index + 2].tolist()
    return batch | {
        "q": batch["q"][first:end],
        "block_table": batch["block_table"][index : index + 1],
        "seq_lens": batch["seq_lens"][index : index + 1],
        "cu_query_lens": torch.tensor([0, end - first], dtype=INT32),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_invariant_result_is_bitwise_free_of_batch_and_threads(
    dtype: torch.dtype, with_threads: Callable[[int], None]
) -> None:
    batch = _batch([2500, 17, 2049, 300, 1], [1, 3, 2, 40, 1], dtype)
    results = []
    for num_threads in (1, 2):
        with_threads(num_threads)
        out, lse = ops.attend(**batch, batch_invariant=True)
        results.append((out, lse))
        for index in range(5):
            first, end = batch["cu_query_lens"][index : index + 2].tolist()
            own_out, own_lse = ops.attend(**_alone(batch, index), batch_invariant=True)
            assert torch.equal(own_out, out[first:end])
            assert torch.equal(own_lse, lse[first:end])
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_error_does_not_grow_with_the_context() -> None:
    batch = _batch([30000], [1], torch.float32)
    out, _ = ops.attend(**batch)
    sums = torch.tensor([0, 30000], dtype=INT32)
    key, value = ops.gather(batch["k_cache"], batch["v_cache"], batch["block_table"], sums)
    exact, _ = attend_exactly(batch["q"], key, value, Options(scale=0.125))
    assert error_of(out, exact) <= 2e-6


@pytest.mark.usefixtures("library")
def test_a_split_sequence_is_combined(with_threads: Callable[[int], None]) -> None:
    batch = _batch([30000], [1], torch.float32)
    with_threads(1)
    whole, whole_lse = ops.attend(**batch)
    with_threads(2)
    split, split_lse = ops.attend(**batch)
    assert not torch.equal(whole, split)  # it was split: another order of sums
    assert error_of(split, whole) < 2e-6
    torch.testing.assert_close(split_lse, whole_lse, atol=1e-5, rtol=0)


@pytest.mark.parametrize("forced_set", SETS, indirect=True)
def test_query_says_which_kernels_run(forced_set: str) -> None:
    assert native.kernel_name(torch.bfloat16) == forced_set
    with pytest.raises(InvalidArgument, match="cache_dtype"):
        native.kernel_name(torch.float64)


@pytest.mark.usefixtures("library")
def test_choice_of_kernels_is_the_same_every_time() -> None:
    names = {native.kernel_name(torch.float32) for _ in range(3)}
    assert len(names) == 1
    assert names <= set(SETS)


@pytest.fixture
def far_pool() -> Iterator[Tensor]:
    """K and V of 70,000 blocks, 2^32 elements in all: addresses only, but for the pages that a test writes."""
    shape = (70_000, 2, 2, 16, 960)
    num_elements = torch.Size(shape).numel()
    assert num_elements > 2**32
    memory = mmap.mmap(-1, num_elements * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # no reserve
    pool = torch.frombuffer(memory, dtype=torch.bfloat16).view(shape)
    yield pool
    del pool


def test_blocks_and_offsets_need_more_than_16_and_32_bits(far_pool: Tensor) -> None:
    k_cache, v_cache = far_pool[:, 0], far_pool[:, 1]
    generator = torch.Generator().manual_seed(1)
    key = torch.randn(20, 2, 960, generator=generator).to(torch.bfloat16)
    value = torch.randn(20, 2, 960, generator=generator).to(torch.bfloat16)
    table = torch.tensor([[69_999, 65_537]], dtype=INT32)
    position = torch.arange(20)
    ops.write(key, value, k_cache, v_cache, table[0, position // 16].long() * 16 + position % 16)
    query = torch.randn(1, 4, 960, generator=generator).to(torch.bfloat16)
    lengths = (torch.tensor([20], dtype=INT32), torch.tensor([0, 1], dtype=INT32))
    out, _ = ops.attend(query, k_cache, v_cache, table, *lengths, max_query_len=1)
    exact, _ = attend_exactly(query, key, value, Options(scale=960**-0.5))
    assert error_of(out, exact) <= 2.5e-3
    gathered, _ = ops.gather(k_cache, v_cache, table, torch.tensor([0, 20], dtype=INT32))
    assert torch.equal(gathered, key)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_graph_writes_in_place_and_agrees(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "inductor" and shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("inductor needs a C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    batch = _batch([40, 17], [1, 1], torch.float32)
    pool = torch.cat([batch["k_cache"][:, None], batch["v_cache"][:, None]], 1)
    key = torch.randn(2, 2, 64)
    slots = torch.tensor([2 * 16 + 7, 3 * 16])

    def step(pool: Tensor, q: Tensor) -> Tensor:
        torch.ops.looseleaf.write(key, key, pool[:, 0], pool[:, 1], slots)
        out = torch.empty_like(q)
        tables = (batch["block_table"], batch["seq_lens"], batch["cu_query_lens"])
        torch.ops.looseleaf.attend_out(q, pool[:, 0], pool[:, 1], *tables, 1, 0.125, out=out)
        return out + 1

    eager_pool, compiled_pool = pool.clone(), pool.clone()
    expected = step(eager_pool, batch["q"])
    address = compiled_pool.data_ptr()
    torch.compiler.reset()
    result = torch.compile(step, fullgraph=True, backend=backend)(compiled_pool, batch["q"])
    assert torch.equal(result, expected)
    assert torch.equal(compiled_pool, eager_pool)
    assert compiled_pool.data_ptr() == address


def test_every_byte_of_an_8bit_cache_is_its_value(each_set: Callable[[], Iterator[str]]) -> None:
    """One token for each byte; a query of 0 makes the mean of one value, which is the value."""
    every_byte = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    for dtype in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2):
        values = every_byte.view(dtype)
        v_cache = values.view(torch.uint8)[:, None, None, None].expand(-1, 1, 8, 72).contiguous().view(dtype)
        k_cache = torch.zeros(256, 1, 8, 72, dtype=torch.uint8).view(dtype)
        table = torch.arange(256, dtype=INT32)[:, None]
        ones, sums = torch.ones(256, dtype=INT32), torch.arange(257, dtype=INT32)
        scale = torch.ones(1)
        query = torch.zeros(256, 1, 72)
        for _ in each_set():
            out, _ = ops.attend(
                query, k_cache, v_cache, table, ones, sums, max_query_len=1, k_scale=scale, v_scale=scale
            )
            expected = values.float()[:, None, None].expand_as(out)
            is_infinite = expected.isinf()
            assert torch.equal(out[~is_infinite].nan_to_num(-1.0), expected[~is_infinite].nan_to_num(-1.0))
            assert bool((out[is_infinite] == expected[is_infinite]).all())
