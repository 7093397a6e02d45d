"""The CUDA kernels that move tokens and blocks, in the emulator, against the PyTorch implementations."""

from __future__ import annotations

import itertools
import mmap
from typing import Any

import pytest
import torch
from tests.kernels import emulated
from torch import Tensor

from looseleaf.ops import reference

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
EIGHT_BIT = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
LAYOUTS = ("fused", "token major", "odd")
INT32 = torch.int32


@pytest.fixture
def ops() -> Any:
    emulated.load()
    return torch.ops.looseleaf_emulated


def _caches(layout: str, dtype: torch.dtype, dims: tuple[int, int], num_blocks: int = 6) -> tuple[Tensor, Tensor]:
    """Caches [blocks, 3, 8, dim] of distinct values."""
    caches = []
    for dim in dims:
        if layout == "token major":
            cache = torch.empty(num_blocks, 8, 3, dim, dtype=dtype).transpose(1, 2)
        elif layout == "odd":  # rows that start at any element
            cache = torch.empty(num_blocks, 4, 9, dim + 3, dtype=dtype)[:, 1:, :-1, 3:]
        else:
            cache = torch.empty(num_blocks, 2, 3, 8, dim, dtype=dtype)[:, 1]
        values = torch.arange(cache.numel(), dtype=torch.float32).remainder(97).sub(48)
        cache.copy_(values.view(cache.shape).to(dtype))
        caches.append(cache)
    return caches[0], caches[1]


def _scales(dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    return (torch.tensor([0.5, 0.25, 2.0]), torch.tensor([0.75])) if dtype in EIGHT_BIT else (None, None)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [*zip(FLOATS, FLOATS, strict=True), *itertools.product(FLOATS, EIGHT_BIT)]
)
def test_write_and_gather_agree(ops: Any, layout: str, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    k_dim, v_dim = 24, 40
    scales = _scales(cache_dtype)
    k = (torch.randn(3, 21, k_dim, generator=generator) * 50).to(dtype).transpose(0, 1)
    v = (torch.randn(21, 3, v_dim + 8, generator=generator) * 50).to(dtype)[..., :v_dim]
    slots = torch.randperm(48, generator=generator)[:21]
    slots[[0, 7, 20]] = -1
    ours, theirs = (_caches(layout, cache_dtype, (k_dim, v_dim)) for _ in range(2))
    ops.write(k, v, *ours, slots, *scales)
    reference.write(k, v, *theirs, slots, *scales)
    assert _same(ours[0], theirs[0])
    assert _same(ours[1], theirs[1])
    table = torch.tensor([[5, 2, -9], [1, -9, -9], [-9, -9, -9], [0, 3, 4]], dtype=INT32)
    sums = torch.tensor([0, 13, 21, 21, 40], dtype=INT32)
    outs = [[torch.full((43, 3, dim), 7.0, dtype=dtype) for dim in (k_dim, v_dim)] for _ in range(2)]
    ops.gather(*ours, table, sums, *outs[0], *scales)
    reference.gather(theirs[0], theirs[1], table, sums, outs[1][0], outs[1][1], *scales)
    for own, expected in zip(*outs, strict=True):
        assert _same(own, expected)
        assert bool((own[40:] == 7).all())


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_slot_that_stands_again_takes_the_last_row(ops: Any, order: str) -> None:
    emulated.schedule(order, seed=3)
    slots = torch.arange(300) % 16
    slots[250:270] = -1
    rows = torch.arange(300.0)[:, None, None].expand(300, 2, 16).contiguous()
    k_cache, v_cache = torch.full((2, 2, 8, 16), -1.0), torch.full((2, 2, 8, 16), -1.0)
    ops.write(rows, rows + 0.5, k_cache, v_cache, slots)
    last = [max(token for token in range(300) if slots[token] == slot) for slot in range(16)]
    expected = torch.tensor(last, dtype=torch.float32).view(2, 8)[:, None, :, None].expand_as(k_cache)
    emulated.schedule("round-robin")
    assert torch.equal(k_cache, expected)
    assert torch.equal(v_cache, expected + 0.5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8])
def test_blocks_are_copied_whole(ops: Any, layout: str, dtype: torch.dtype) -> None:
    ours, theirs = (
        [*_caches(layout, dtype, (24, 40)), *_caches(layout, dtype, (24, 24)), *_caches("fused", dtype, (5, 5))]
        for _ in range(2)
    )
    pairs = torch.tensor([[0, 3], [-1, -1], [0, 4], [2, 1]], dtype=INT32)
    ops.copy_blocks(ours, pairs)
    reference.copy_blocks(theirs, pairs)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_are_swapped_between_layouts(ops: Any, layout: str) -> None:
    source = list(_caches(layout, torch.bfloat16, (24, 40)))
    ours, theirs = ([torch.zeros(9, 3, 8, dim, dtype=torch.bfloat16) for dim in (24, 40)] for _ in range(2))
    pairs = torch.tensor([[0, 3], [1, 4], [2, 5], [5, 0], [4, 8]])
    ops.swap_blocks(source, ours, pairs)
    reference.swap_blocks(source, theirs, pairs)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("dtype", FLOATS)
def test_states_are_merged(ops: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    out_a, out_b = (torch.randn(5, 3, 40, generator=generator).to(dtype) for _ in range(2))
    lse_a, lse_b = (torch.randn(5, 6, generator=generator).mul(9)[:, :3] for _ in range(2))
    lse_a[0], lse_b[0], lse_a[1], lse_b[2] = -torch.inf, -torch.inf, -torch.inf, -torch.inf
    out_a[:2], out_b[0], out_b[2] = torch.nan, torch.nan, torch.nan
    own, own_lse = ops.merge_states(out_a, lse_a, out_b, lse_b)
    expected, expected_lse = reference.merge_states(out_a, lse_a, out_b, lse_b)
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(own, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(own_lse, expected_lse, atol=1e-5, rtol=0)


def test_offsets_need_more_than_32_bits(ops: Any) -> None:
    shape = (70_000, 2, 2, 16, 960)  # 2^32 elements: addresses only, but for the pages that are written
    num_elements = torch.Size(shape).numel()
    assert num_elements > 2**32
    memory = mmap.mmap(-1, num_elements * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    pool = torch.frombuffer(memory, dtype=torch.bfloat16).view(shape)
    k_cache, v_cache = pool[:, 0], pool[:, 1]
    rows = torch.randn(20, 2, 960).to(torch.bfloat16)
    table = torch.tensor([[69_999, 65_537]], dtype=INT32)
    position = torch.arange(20)
    ops.write(rows, rows + 1, k_cache, v_cache, table[0, position // 16].long() * 16 + position % 16)
    ops.copy_blocks([pool], torch.tensor([[65_537, 69_998], [-1, -1]], dtype=INT32))
    outs = torch.empty(20, 2, 960, dtype=torch.bfloat16), torch.empty(20, 2, 960, dtype=torch.bfloat16)
    sums = torch.tensor([0, 20], dtype=INT32)
    ops.gather(k_cache, v_cache, torch.tensor([[69_999, 69_998]], dtype=INT32), sums, *outs)
    assert torch.equal(outs[0], rows)
    assert torch.equal(outs[1], rows + 1)


def test_wrong_values_are_refused_as_on_the_cpu(ops: Any) -> None:
    k_cache, v_cache = _caches("fused", torch.float32, (24, 24))
    rows = torch.zeros(2, 3, 24)
    with pytest.raises(RuntimeError, match="slot_mapping"):
        ops.write(rows, rows, k_cache, v_cache, torch.tensor([0, 48]))
    with pytest.raises(RuntimeError, match="block_mapping"):
        ops.copy_blocks([k_cache], torch.tensor([[0, 6]], dtype=INT32))
