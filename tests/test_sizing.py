from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.config import ModelShape
from looseleaf.errors import InvalidArgument, InvalidType
from looseleaf.sizing import (
    blocks_for_tokens,
    bytes_per_block,
    bytes_per_token,
    contiguous_bytes,
    format_bytes,
    memory_budget,
    num_blocks_for_budget,
    paged_bytes,
    parse_memory,
)

LLAMA_8B = ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="float16", max_sequence_len=4096)
SMOLLM2 = ModelShape(num_layers=30, num_kv_heads=3, head_dim=64, dtype="float32", max_sequence_len=8192)

shapes = st.builds(
    ModelShape,
    num_layers=st.integers(1, 100),
    num_kv_heads=st.integers(1, 64),
    head_dim=st.integers(1, 512),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)
block_sizes = st.integers(1, 256)


def test_smollm2_costs_46080_bytes_a_token_and_737280_a_block() -> None:
    assert bytes_per_token(SMOLLM2) == 46_080
    assert bytes_per_block(SMOLLM2, 16) == 737_280


def test_32_layers_of_8_heads_of_128_in_half_precision_are_sized_exactly() -> None:
    assert contiguous_bytes(LLAMA_8B, 4096) == 536_870_912 == 512 * 1024**2
    assert 256 * contiguous_bytes(LLAMA_8B, 4096) == 128 * 1024**3
    assert blocks_for_tokens(4096, 16) == 256
    assert blocks_for_tokens(200, 16) == 13
    assert paged_bytes(LLAMA_8B, 4096, block_size=16) == 536_870_912
    assert paged_bytes(LLAMA_8B, 200, block_size=16) == 13 * 2 * 1024**2


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (31, 2), (32, 2), (33, 3)]
)
def test_a_block_starts_at_each_boundary(num_tokens: int, num_blocks: int) -> None:
    assert blocks_for_tokens(num_tokens, 16) == num_blocks


@given(shape=shapes, block_size=block_sizes, num_tokens=st.integers(0, 2**20))
def test_paged_is_below_contiguous_plus_one_block(shape: ModelShape, block_size: int, num_tokens: int) -> None:
    contiguous, paged = contiguous_bytes(shape, num_tokens), paged_bytes(shape, num_tokens, block_size=block_size)
    assert contiguous <= paged < contiguous + bytes_per_block(shape, block_size)


def test_negative_token_counts_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="num_tokens must be at least 0, not -1"):
        blocks_for_tokens(-1, 16)
    with pytest.raises(InvalidArgument, match="max_tokens must be at least 0, not -1"):
        contiguous_bytes(LLAMA_8B, -1)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (46_080, "45 KiB"),
        (1_288_490_189, "1.2 GiB"),
        (1024**3 - 1, "1024 MiB"),
        (1000 * 1024**3, "1000 GiB"),
        (3 * 1024**6, "3072 PiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_they_fill(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@given(st.integers(1, 2**60))
def test_written_bytes_read_back_to_a_hundredth(num_bytes: int) -> None:
    assert abs(parse_memory(format_bytes(num_bytes)) - num_bytes) <= 0.005 * num_bytes + 1


def test_a_fraction_is_a_share_of_what_is_available() -> None:
    assert memory_budget(0.9, available_bytes=lambda: 1000) == 900
    assert memory_budget(1.0, available_bytes=lambda: 1000) == 1000
    assert memory_budget(0.5) > 0


@pytest.mark.parametrize(("memory", "num_bytes"), [("1KiB", 1024), (1, 1), (4096, 4096)])
def test_amounts_do_not_ask_what_is_available(memory: str | int, num_bytes: int) -> None:
    def fail() -> int:
        raise AssertionError("asked")

    assert memory_budget(memory, available_bytes=fail) == num_bytes


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_other_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(InvalidArgument, match="above 0 and at most 1"):
        memory_budget(fraction, available_bytes=lambda: 1000)


@pytest.mark.parametrize(
    ("memory", "num_bytes"),
    [
        ("2GiB", 2 * 1024**3),
        ("512MB", 512_000_000),
        ("1.5 GiB", 3 * 1024**3 // 2),
        ("0.1KiB", 102),
        ("24gib", 24 * 1024**3),
        (" 7 kB ", 7000),
        ("3TB", 3 * 10**12),
        ("1PiB", 1024**5),
        ("4096", 4096),
        ("1B", 1),
        (1, 1),
        (2**63, 2**63),
    ],
)
def test_memory_is_read_exactly(memory: str | int, num_bytes: int) -> None:
    assert parse_memory(memory) == num_bytes


@pytest.mark.parametrize(
    "memory", ["", "GiB", "2G", "2 Gib s", "-1GiB", "1e9", "0x10", "nan", "inf", "2,5GiB", ".5GiB", "\u0662GiB"]
)
def test_unreadable_memory_is_refused_with_the_allowed_units(memory: str) -> None:
    with pytest.raises(InvalidArgument, match=r"allowed: .*MB.*GiB"):
        parse_memory(memory)


@pytest.mark.parametrize("memory", [0, -1, "0", "0GiB", "0.5B"])
def test_memory_below_one_byte_is_refused(memory: str | int) -> None:
    with pytest.raises(InvalidArgument, match="at least 1 byte"):
        parse_memory(memory)


@pytest.mark.parametrize("memory", [0.9, True, None, b"2GiB"])
def test_memory_of_another_type_is_refused(memory: object) -> None:
    with pytest.raises(InvalidType, match="string or an integer"):
        parse_memory(memory)  # type: ignore[arg-type]


@given(shape=shapes, block_size=block_sizes, budget_bytes=st.integers(1, 2**42))
def test_the_number_of_blocks_is_the_largest_that_fits_with_the_null_block(
    shape: ModelShape, block_size: int, budget_bytes: int
) -> None:
    block_bytes = bytes_per_block(shape, block_size)
    if budget_bytes < 2 * block_bytes:
        with pytest.raises(InvalidArgument, match=f"{2 * block_bytes} bytes"):
            num_blocks_for_budget(budget_bytes, shape, block_size)
        return
    num_blocks = num_blocks_for_budget(budget_bytes, shape, block_size)
    assert num_blocks >= 1
    assert (num_blocks + 1) * block_bytes <= budget_bytes < (num_blocks + 2) * block_bytes


@pytest.mark.parametrize("num_blocks", [1, 2, 1023])
def test_one_byte_below_a_block_is_one_block_less(num_blocks: int) -> None:
    exact = (num_blocks + 2) * bytes_per_block(LLAMA_8B, 16)
    assert num_blocks_for_budget(exact, LLAMA_8B, 16) == num_blocks + 1
    assert num_blocks_for_budget(exact - 1, LLAMA_8B, 16) == num_blocks


@pytest.mark.parametrize("block_size", [0, -16])
def test_a_block_holds_at_least_one_token(block_size: int) -> None:
    with pytest.raises(InvalidArgument, match="block_size must be at least 1"):
        bytes_per_block(LLAMA_8B, block_size)
