"""The CUDA library on a card: the samples of the emulator, and what only a card can show. `make gpu` runs this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.kernels.oracle import Options, attend_exactly, error_of
from tests.kernels.test_cuda_attend import check
from tests.kernels.test_grid import CASES, TOLERANCES, _build

from looseleaf import Engine, SamplingParams, ops
from looseleaf.cached_folder import cache_root, is_whole
from looseleaf.ops import cuda_native, reference

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(300),
]
INT32 = torch.int32
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    assert cuda_native.load(), "the CUDA kernels could not be had; the warning says why"


@pytest.mark.parametrize("part", range(8))
def test_result_agrees_with_exact_attention(part: int) -> None:
    failed = []
    for index, case in enumerate(CASES[part::8]):
        try:
            check(_build(case, index), "looseleaf", "cuda")
        except (AssertionError, RuntimeError) as error:
            failed.append((index, case, str(error).splitlines()[0]))
    assert not failed, failed[:3]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_moves_agree_with_the_reference(dtype: torch.dtype, cache_dtype: torch.dtype | None) -> None:
    generator = torch.Generator().manual_seed(1)
    stored = cache_dtype or dtype
    scale = None if cache_dtype is None else torch.tensor([0.5, 0.25])
    rows = (torch.randn(21, 2, 40, generator=generator) * 50).to(dtype)
    slots = torch.randperm(48, generator=generator)[:21]
    slots[3] = -1
    caches = [torch.zeros(6, 8, 2, 40).to(stored).transpose(1, 2) for _ in range(2)]
    own = [cache.cuda() for cache in caches]
    cuda_scale = None if scale is None else scale.cuda()
    reference.write(rows, rows + 1, caches[0], caches[1], slots, scale, scale)
    ops.write(rows.cuda(), (rows + 1).cuda(), own[0], own[1], slots.cuda(), k_scale=cuda_scale, v_scale=cuda_scale)
    pairs = torch.tensor([[0, 5], [-1, -1]], dtype=INT32)
    reference.copy_blocks(caches, pairs)
    ops.copy_blocks(own, pairs.cuda())
    for cache, expected in zip(own, caches, strict=True):
        assert torch.equal(cache.cpu().float(), expected.float())
    ops.swap_blocks(own, caches, torch.tensor([[1, 2], [2, 3]]))
    torch.cuda.synchronize()
    for cache, expected in zip(own, caches, strict=True):
        assert torch.equal(cache.cpu().float()[1:3], expected.float()[2:4])


@pytest.mark.parametrize("dtype", DTYPES)
def test_captured_graph_follows_lengths_and_tables(dtype: torch.dtype) -> None:
    """One graph decodes across block boundaries: only what the buffers hold changes between replays."""
    block_size, kv_heads, head_dim, steps = 16, 2, 64, 40
    lengths = torch.tensor([5, 15, 16, 200])
    generator = torch.Generator().manual_seed(3)
    pool = torch.full((64, 2, kv_heads, block_size, head_dim), torch.nan, dtype=dtype, device="cuda")
    order = torch.randperm(63, generator=generator).add(1).to(INT32).tolist()
    table = torch.full((4, 16), -7, dtype=INT32)
    keys, values = (torch.randn(4, 240, kv_heads, head_dim, generator=generator).to(dtype) for _ in range(2))
    for seq, length in enumerate(lengths.tolist()):
        for column in range(-(-length // block_size)):
            table[seq, column] = order.pop()
        position = torch.arange(length)
        slots = (table[seq, position // block_size].long() * block_size + position % block_size).cuda()
        ops.write(keys[seq, :length].cuda(), values[seq, :length].cuda(), pool[:, 0], pool[:, 1], slots)
    query = torch.randn(4, 8, head_dim, generator=generator).to(dtype).cuda()
    key, value = (torch.zeros(4, kv_heads, head_dim, dtype=dtype, device="cuda") for _ in range(2))
    slots, lens = torch.full((4,), -1, device="cuda"), lengths.to(INT32).cuda()
    rows, cells, out = torch.arange(5, dtype=INT32).cuda(), table.cuda(), torch.empty_like(query)

    def step() -> None:
        torch.ops.looseleaf.write(key, value, pool[:, 0], pool[:, 1], slots)
        tables = (cells, lens, rows)
        torch.ops.looseleaf.attend_out(query, pool[:, 0], pool[:, 1], *tables, 1, 0.125, out=out)

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for now in range(steps):
        for seq, length in enumerate(lengths.tolist()):
            position = length + now
            if position % block_size == 0:
                table[seq, position // block_size] = order.pop()
            slots[seq].fill_(int(table[seq, position // block_size]) * block_size + position % block_size)
            key[seq], value[seq] = keys[seq, position].cuda(), values[seq, position].cuda()
        cells.copy_(table)
        lens.copy_(lengths + now + 1)
        graph.replay()
        result = out.cpu()
        for seq in range(4):
            length = int(lengths[seq]) + now + 1
            tokens = (keys[seq, :length], values[seq, :length])
            exact, _ = attend_exactly(query[seq : seq + 1].cpu(), *tokens, Options(scale=0.125))
            assert error_of(result[seq : seq + 1], exact) <= TOLERANCES[dtype], (now, seq)


def test_engine_answers_as_the_model_alone(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("transformers")
    tiny_model: PreTrainedModel = request.getfixturevalue("tiny_model")
    try:
        _compare(tiny_model.to("cuda"))
    finally:
        tiny_model.to("cpu")


def test_engine_answers_as_the_real_model_alone() -> None:
    """Where it is converted already: a card's time is not for that."""
    transformers = pytest.importorskip("transformers")
    folder = next((found for found in sorted(cache_root().glob("smollm2-*")) if is_whole(found)), None)
    if folder is None:
        pytest.skip("the real model is not converted here")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    _compare(model.to("cuda").eval())


def _compare(model: PreTrainedModel) -> None:
    """Greedy answers of a batch with those of each prompt alone."""
    prompts = [[1, 5, 9, 33], [1, 7] * 20, [1, 100, 200, 3, 4, 5, 6]]
    engine = Engine(model, num_blocks=64, block_size=16)
    answers = engine.generate(prompts, SamplingParams(max_tokens=24, ignore_eos=True))
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt], device=model.device)
        lengths = {"max_new_tokens": 24, "min_new_tokens": 24}
        own = model.generate(ids, do_sample=False, attention_mask=torch.ones_like(ids), **lengths)
        assert list(answer.token_ids) == own[0, len(prompt) :].tolist()
