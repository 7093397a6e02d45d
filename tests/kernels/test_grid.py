"""Every instruction set against fp64, over pairs of everything that a call can differ in.

Dead slots of the caches hold NaN (bytes of NaN, or -128 in int8), cells of the table past the end or before the window
hold ids that no cache has.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.kernels.conftest import SETS
from tests.kernels.oracle import Options, attend_exactly, error_of
from tests.kernels.pairwise import pairwise
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2.5e-3, torch.float16: 2.5e-3}
EIGHT_BIT = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}
MAX_CASES = 500

PARAMETERS: dict[str, list[Any]] = {
    "dtype": [torch.float32, torch.bfloat16, torch.float16],
    "cache": ["same", "same", "e4m3", "e5m2", "int8"],
    "head_dim": [8, 24, 32, 40, 64, 80, 96, 112, 120, 128, 160, 192, 256, 264],
    "v_head_dim": [None, None, 8, 64, 72, 128],
    "group": [1, 2, 3, 4, 5, 6, 7, 8, 12, 16],
    "kv_heads": [1, 2, 3],
    "block_size": [8, 16, 24, 32, 64, 128, 256],
    "option": ["none", "not causal", "window 1", "window 7", "window 100", "softcap", "sinks", "alibi", "all"],
    "lengths": ["edges", "long", "one", "ragged"],
    "queries": ["decode", "verify", "chunk", "whole", "mixed"],
    "layout": ["fused", "token major", "padded", "separate"],
    "invariant": [False, True],
    "threads": [1, 2],
}


@dataclass(frozen=True, slots=True)
class Batch:
    arguments: dict[str, Any]
    sequences: list[tuple[Tensor, Tensor, Tensor]]  # query, key, value
    options: Options
    dtype: torch.dtype


def _lengths(case: dict[str, Any]) -> list[int]:
    size = case["block_size"]
    return {
        "edges": [0, 1, size - 1, size, size + 1],
        "long": [4097],
        "one": [1],
        "ragged": [3, 700, 1, 130, 33],
    }[case["lengths"]]


def _query_lens(case: dict[str, Any], lengths: list[int], rng: random.Random, most_rows: int) -> list[int]:
    kind = case["queries"]
    wanted = []
    for index, length in enumerate(lengths):
        own = ("decode", "verify", "chunk", "none")[index % 4] if kind == "mixed" else kind
        most = {"decode": 1, "verify": 4, "chunk": 70, "whole": length, "none": 0}[own]
        wanted.append(min(most, length, most_rows))
    if kind == "verify":
        wanted[rng.randrange(len(wanted))] += 2  # rows that may stand before every key
    return wanted


def _cache(case: dict[str, Any], num_blocks: int, dtype: torch.dtype, dims: tuple[int, int]) -> tuple[Tensor, Tensor]:
    heads, size = case["kv_heads"], case["block_size"]
    layout = case["layout"]
    poison = -128 if dtype == torch.int8 else torch.nan
    if layout == "fused" and dims[0] == dims[1]:
        pool = torch.full((num_blocks, 2, heads, size, dims[0]), poison, dtype=torch.float32).to(dtype)
        return pool[:, 0], pool[:, 1]
    caches = []
    for dim in dims:
        if layout == "token major":
            cache = torch.full((num_blocks, size, heads, dim), poison, dtype=torch.float32).to(dtype).transpose(1, 2)
        elif layout == "padded":
            cache = torch.full((num_blocks, heads + 1, size + 1, dim + 8), poison, dtype=torch.float32).to(dtype)
            cache = cache[:, 1:, :-1, 8:]
        else:
            cache = torch.full((num_blocks, heads, size, dim), poison, dtype=torch.float32).to(dtype)
        caches.append(cache)
    return caches[0], caches[1]


def _options(case: dict[str, Any], q_heads: int, generator: torch.Generator) -> Options:
    option = case["option"]
    everything = option == "all"
    return Options(
        scale=case["head_dim"] ** -0.5,
        causal=option != "not causal",
        window=20 if everything else int(option.split()[1]) if option.startswith("window") else None,
        softcap=3.0 if everything or option == "softcap" else 0.0,
        sinks=torch.randn(q_heads, generator=generator) * 3 if everything or option == "sinks" else None,
        alibi_slopes=torch.rand(q_heads, generator=generator) / 4 if everything or option == "alibi" else None,
    )


def _build(case: dict[str, Any], seed: int, most_rows: int = 150) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    dtype, size, kv_heads, head_dim = case["dtype"], case["block_size"], case["kv_heads"], case["head_dim"]
    v_head_dim = case["v_head_dim"] or head_dim
    cache_dtype = EIGHT_BIT.get(case["cache"], dtype)
    q_heads = kv_heads * case["group"]
    lengths = _lengths(case)
    query_lens = _query_lens(case, lengths, rng, most_rows)
    used = [-(-length // size) for length in lengths]
    num_blocks = sum(used) + 3
    k_cache, v_cache = _cache(case, num_blocks, cache_dtype, (head_dim, v_head_dim))
    columns = max(used) + 2
    table = torch.full((len(lengths), columns + 5), 2**31 - 1, dtype=torch.int32)[:, :columns]
    table[:, 1::2] = -7
    ids = list(range(num_blocks))
    rng.shuffle(ids)
    options = _options(case, q_heads, generator)
    eight_bit = cache_dtype != dtype
    scales = (torch.rand(kv_heads, generator=generator) + 0.5, torch.rand(1, generator=generator) + 0.5)
    queries = torch.randn(sum(query_lens) + 2, q_heads, head_dim + 8, generator=generator).to(dtype)[..., :head_dim]
    sequences = []
    row = 0
    for index, length in enumerate(lengths):
        first_key = 0 if options.window is None else max(0, length - query_lens[index] - options.window + 1)
        for column in range(first_key // size, used[index]):
            table[index, column] = ids.pop()
        stored = []
        for cache, dim in ((k_cache, head_dim), (v_cache, v_head_dim)):
            tokens = torch.randn(length, kv_heads, dim, generator=generator)
            tokens = (tokens * 20).to(cache_dtype) if cache_dtype == torch.int8 else tokens.to(cache_dtype)
            position = torch.arange(first_key, length)
            blocks = table[index, position // size].long()
            as_bytes = (cache.view(torch.uint8), tokens.view(torch.uint8)) if eight_bit else (cache, tokens)
            as_bytes[0][blocks, :, position % size] = as_bytes[1][first_key:]
            stored.append(tokens.double())
        if eight_bit:
            stored[0] *= scales[0].double()[:, None]
            stored[1] *= scales[1].double()
        sequences.append((queries[row : row + query_lens[index]], stored[0], stored[1]))
        row += query_lens[index]
    if cache_dtype == torch.int8:
        options = Options(
            **{name: getattr(options, name) for name in Options.__slots__} | {"scale": options.scale / 20}
        )
    arguments = {
        "q": queries,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": table,
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "cu_query_lens": torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        "max_query_len": max(query_lens),
        "batch_invariant": case["invariant"],
        "k_scale": scales[0] if eight_bit else None,
        "v_scale": scales[1] if eight_bit else None,
    } | {name: getattr(options, name) for name in Options.__slots__}
    return Batch(arguments, sequences, options, dtype)


CASES = pairwise(PARAMETERS, seed=20260)


def test_the_grid_is_as_large_as_it_should_be() -> None:
    assert 150 <= len(CASES) <= MAX_CASES


def _check(batch: Batch, num_threads: int, *, by_pairs: bool) -> None:
    arguments = dict(batch.arguments)
    num_rows, q_heads, _ = arguments["q"].shape
    v_head_dim = arguments["v_cache"].size(3)
    out = torch.full((num_rows, q_heads, v_head_dim), torch.nan, dtype=batch.dtype)
    lse = torch.full((num_rows, q_heads), torch.nan)
    order = ("q", "k_cache", "v_cache", "block_table", "seq_lens", "cu_query_lens", "max_query_len", "scale")
    torch.set_num_threads(num_threads)
    torch.ops.looseleaf.attend_out(*[arguments.pop(name) for name in order], **arguments, out=out, lse=lse)
    torch.set_num_threads(1)
    exact = [attend_exactly(*sequence, batch.options) for sequence in batch.sequences]
    row = sum(len(part) for part, _ in exact)
    assert bool((out[row:] == 0).all())
    assert bool((lse[row:] == -torch.inf).all())
    expected, expected_lse = torch.cat([part for part, _ in exact]), torch.cat([part for _, part in exact])
    is_empty = expected_lse == -torch.inf
    assert torch.equal(lse[:row] == -torch.inf, is_empty)
    assert bool((out[:row][is_empty] == 0).all())
    assert error_of(out[:row], expected) <= TOLERANCES[batch.dtype]
    seen = (lse[:row].double() - expected_lse)[~is_empty]
    worst = float(seen.abs().max()) if seen.numel() else 0.0
    assert worst <= (2e-2 if by_pairs else 1e-5)


@pytest.mark.parametrize("forced_set", SETS, indirect=True)
@pytest.mark.parametrize("part", range(8))
def test_result_agrees_with_exact_attention(forced_set: str, part: int, with_threads: Callable[[int], None]) -> None:
    cases = CASES[part::8]
    assert cases
    failed = []
    with_threads(1)
    for index, case in enumerate(cases):
        try:
            _check(_build(case, index), case["threads"], by_pairs=forced_set in ("avx512_bf16", "avx512_amx"))
        except AssertionError as error:
            failed.append((index, case, str(error).splitlines()[0]))
    assert not failed, failed[:3]
