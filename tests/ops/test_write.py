"""Rows go into their slots and nowhere else."""

from __future__ import annotations

import pytest
import torch

from looseleaf import ops
from looseleaf.errors import InvalidArgument


def _rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param([4, 5, 6], id="within one block"),
        pytest.param([6, 7, 8, 9], id="across a boundary"),
        pytest.param([12, 13, 14, 15, 4, 5], id="across blocks that are not neighbors"),
        pytest.param([15, 0, 7, 8, 3], id="in any order"),
    ],
)
@pytest.mark.parametrize("is_token_major", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_come_back_from_their_slots(slots: list[int], is_token_major: bool, dtype: torch.dtype) -> None:
    k, v = torch.randn(len(slots), 3, 8).to(dtype), torch.randn(len(slots), 3, 5).to(dtype)
    caches = [torch.full((4, 4, 3, dim), 9.0, dtype=dtype) for dim in (8, 5)]
    if is_token_major:
        k_cache, v_cache = (cache.transpose(1, 2) for cache in caches)
    else:
        k_cache, v_cache = (cache.transpose(1, 2).contiguous() for cache in caches)
    ops.write(k, v, k_cache, v_cache, torch.tensor(slots))
    for rows, cache in ((k, k_cache), (v, v_cache)):
        by_slot = cache.transpose(1, 2).reshape(16, *rows.shape[1:])
        assert torch.equal(by_slot[slots], rows)
        untouched = [slot for slot in range(16) if slot not in slots]
        assert bool((by_slot[untouched] == 9).all())


def test_seven_tokens_stand_in_two_blocks_at_their_offsets() -> None:
    block_table, block_size = [5, 2], 4
    slots = torch.tensor([block_table[token // block_size] * block_size + token % block_size for token in range(8)])
    k_cache, v_cache = torch.zeros(6, 1, block_size, 1), torch.zeros(6, 1, block_size, 1)
    rows = _rows(*range(1, 9))
    ops.write(rows[:7], rows[:7], k_cache, v_cache, slots[:7])
    assert k_cache[5].flatten().tolist() == [1, 2, 3, 4]
    assert k_cache[2].flatten().tolist() == [5, 6, 7, 0]
    ops.write(rows[7:], rows[7:], k_cache, v_cache, slots[7:])
    assert v_cache[2, 0, 3].item() == 8


def test_padding_slot_writes_nothing() -> None:
    k_cache, v_cache = torch.full((2, 1, 4, 1), 9.0), torch.full((2, 1, 4, 1), 9.0)
    ops.write(_rows(1, 2, 3), _rows(4, 5, 6), k_cache, v_cache, torch.tensor([0, -1, 3]))
    assert k_cache.flatten().tolist() == [1, 9, 9, 3, 9, 9, 9, 9]
    assert v_cache.flatten().tolist() == [4, 9, 9, 6, 9, 9, 9, 9]


@pytest.mark.parametrize("slots", [[0, 1], [0, 1, 2, 3], [0, 8, 1], [0, -2, 1]])
def test_wrong_slots_are_refused_before_any_write(slots: list[int]) -> None:
    k_cache, v_cache = torch.full((2, 1, 4, 1), 9.0), torch.full((2, 1, 4, 1), 9.0)
    with pytest.raises(InvalidArgument, match="slot_mapping"):
        ops.write(_rows(1, 2, 3), _rows(4, 5, 6), k_cache, v_cache, torch.tensor(slots))
    assert bool((k_cache == 9).all())
    assert bool((v_cache == 9).all())


def test_no_rows_write_nothing() -> None:
    k_cache = torch.ones(2, 1, 4, 1)
    ops.write(_rows(), _rows(), k_cache, k_cache.clone(), torch.empty(0, dtype=torch.int64))
    assert bool((k_cache == 1).all())


def test_slot_that_stands_twice_holds_one_row_whole() -> None:
    num_rows = 4096  # enough that PyTorch would share the rows among threads
    rows = torch.arange(num_rows, dtype=torch.float32)[:, None, None].expand(num_rows, 2, 64).contiguous()
    k_cache, v_cache = torch.zeros(4, 2, 4, 64), torch.zeros(4, 2, 4, 64)
    ops.write(rows, rows, k_cache, v_cache, torch.arange(num_rows) % 16)
    assert torch.equal(k_cache, v_cache)
    assert bool((k_cache == k_cache[:, :1, :, :1]).all())
    assert k_cache[:, 0, :, 0].flatten().tolist() == list(range(num_rows - 16, num_rows))


def test_rows_may_be_slices_of_a_packed_projection() -> None:
    packed = torch.randn(5, 4, 8)
    k_cache, v_cache = torch.zeros(2, 2, 4, 8), torch.zeros(2, 2, 4, 8)
    ops.write(packed[:, :2], packed[:, 2:], k_cache, v_cache, torch.arange(5))
    assert torch.equal(k_cache.transpose(1, 2).flatten(0, 1)[:5], packed[:, :2])
    assert torch.equal(v_cache.transpose(1, 2).flatten(0, 1)[:5], packed[:, 2:])


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0), (torch.int8, 127.0)]
)
def test_8bit_write_divides_by_the_scale_and_saturates(dtype: torch.dtype, largest: float) -> None:
    scale = torch.tensor([0.5, 2.0])
    k_cache, v_cache = (torch.zeros(1, 2, 4, 1).to(dtype) for _ in range(2))
    rows = torch.tensor([3.0, -4.0, 1e6])[:, None, None].expand(3, 2, 1)
    slots = torch.tensor([0, 1, 2])
    ops.write(rows, rows, k_cache, v_cache, slots, k_scale=scale, v_scale=torch.tensor([1.0]))
    assert k_cache.float()[0, 0, :, 0].tolist() == [6, -8, largest, 0]
    assert k_cache.float()[0, 1, :, 0].tolist() == [1.5 if dtype.is_floating_point else 2, -2, largest, 0]
    assert v_cache.float()[0, 1, :, 0].tolist() == [3, -4, largest, 0]
