"""The engine on every device that there is: copies, draws and tables depend on it. `make gpu` runs this, too."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("transformers")

from looseleaf import Engine, PagedKVCache, SamplingParams
from looseleaf.cache.swap import SwapSpace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

NEEDS_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
MAX_TOKENS = 20


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NEEDS_CARD)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model(device: str, tiny_model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    yield tiny_model.to(device)
    tiny_model.to("cpu")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, 259) for _ in range(rng.choice((3, 17, 40)))] for _ in range(12)]


def answers(
    model: PreTrainedModel, prompts: list[list[int]], params: SamplingParams, **sizes: Any
) -> tuple[list[list[int]], Engine]:
    engine = Engine(model, block_size=8, **({"num_blocks": 200} | sizes))
    results = engine.generate(prompts, params)
    assert [result.error for result in results] == [None] * len(results)
    stats = engine.cache.stats()
    assert (stats.num_available, stats.num_sequences) == (stats.num_blocks, 0)
    return [result.token_ids for result in results], engine


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_answers_are_those_of_a_pool_with_room(
    model: PreTrainedModel, prompts: list[list[int]], preemption: str
) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    whole, engine = answers(model, prompts, params)
    assert engine.report().num_preemptions == 0
    found, engine = answers(model, prompts, params, num_blocks=24, swap_memory="8MiB", preemption=preemption)
    assert found == whole
    assert engine.report().num_preemptions >= 3
    assert (engine.report().num_swaps > 0) == (preemption == "swap")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.9},
        {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01, "logprobs": 2},
        {"temperature": 1.1, "top_k": 20, "repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {7: 2.0}},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": 5, "stop_token_ids": (9, 10)},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids="-".join,
)
def test_an_answer_does_not_depend_on_its_batch(
    model: PreTrainedModel, prompts: list[list[int]], fields: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS, seed=11, ignore_eos=True, **fields)
    together, _ = answers(model, prompts[:5], params)
    assert together == [answers(model, [prompt], params)[0][0] for prompt in prompts[:5]]


def test_beams_are_those_of_transformers(model: PreTrainedModel, prompts: list[list[int]], device: str) -> None:
    found, _ = answers(model, prompts[:3], SamplingParams(max_tokens=8, num_beams=3, ignore_eos=True))
    for prompt, answer in zip(prompts, found, strict=False):
        ids = torch.tensor([prompt], device=device)
        lengths = {"max_new_tokens": 8, "min_new_tokens": 8}
        mask = torch.ones_like(ids)
        own = model.generate(ids, attention_mask=mask, do_sample=False, num_beams=3, eos_token_id=None, **lengths)
        assert answer == own[0, len(prompt) :].tolist()


def test_swapped_blocks_come_back_as_they_went(device: str) -> None:
    cache = PagedKVCache(
        num_layers=2, num_kv_heads=2, head_dim=8, dtype=torch.float32, device=device, num_blocks=12, block_size=4
    )
    space = SwapSpace(cache, num_blocks=6)
    seq = cache.admit(list(range(18)))
    for layer in cache.storage.layers:
        layer.copy_(torch.rand(layer.shape).to(device))
    cache.step([seq]).commit()
    before = [layer[seq.blocks].clone() for layer in cache.storage.layers]
    swapped = space.swap_out(seq)
    space.settle(wait=True)
    assert (cache.stats().num_sequences, space.num_free) == (0, 1)
    cache.manager.reset()
    for layer in cache.storage.layers:
        layer.zero_()
    seq = space.swap_in(swapped, list(range(19))).sequence
    space.settle(wait=True)
    assert seq.num_computed == 18
    for layer, expected in zip(cache.storage.layers, before, strict=True):
        assert torch.equal(layer[seq.blocks[:5]], expected)
    assert space.seconds_per_block is not None
