"""Under pressure and in every way of running, in float32, answers are token for token those of `model.generate()`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from looseleaf import Engine, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from looseleaf.engine import Report, Result

MAX_TOKENS = 24
SWAP = {"swap_memory": "8MiB", "preemption": "swap"}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """64 of mixed lengths; some begin alike."""
    rng = random.Random(3)
    shared = [rng.randrange(3, 259) for _ in range(40)]
    prompts = []
    for number in range(64):
        own = [rng.randrange(3, 259) for _ in range(rng.choice((1, 5, 16, 31, 64)))]
        prompts.append((shared[: rng.choice((16, 33, 40))] if number % 3 == 0 else []) + own)
    return prompts


@pytest.fixture(scope="module")
def alone(
    tiny_model: PreTrainedModel, prompts: list[list[int]], generate_alone: Callable[..., list[list[int]]]
) -> list[list[int]]:
    return generate_alone(tiny_model, prompts, MAX_TOKENS, eos_token_id=None)


def run(
    model: PreTrainedModel, prompts: list[list[int]], params: SamplingParams, **options: Any
) -> tuple[list[Result], Report]:
    """The results and the report, after a look that nothing is left behind."""
    engine = Engine(model, block_size=8, **options)
    results = engine.generate(prompts, params)
    stats = engine.cache.stats()
    assert (stats.num_available, stats.num_sequences) == (stats.num_blocks, 0)
    engine.cache.manager.validate()
    return results, engine.report()


@pytest.mark.parametrize("speculation", [0, 3])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("preemption", [{}, SWAP])
def test_64_prompts_in_a_pool_that_is_too_small(
    tiny_model: PreTrainedModel,
    prompts: list[list[int]],
    alone: list[list[int]],
    preemption: dict[str, Any],
    prefix_caching: bool,
    speculation: int,
) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, prompt_lookup_num_tokens=speculation)
    results, report = run(tiny_model, prompts, params, num_blocks=40, prefix_caching=prefix_caching, **preemption)
    assert [result.token_ids for result in results] == alone
    assert report.num_preemptions >= 20
    assert report.num_swaps == (report.num_preemptions if preemption else 0)


@pytest.mark.parametrize("max_batch_tokens", [1, 7, 64, 512])
def test_prompts_in_chunks_of_any_size(
    tiny_model: PreTrainedModel, prompts: list[list[int]], alone: list[list[int]], max_batch_tokens: int
) -> None:
    number = 6 if max_batch_tokens == 1 else 20
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    results, _ = run(tiny_model, prompts[:number], params, num_blocks=60, max_batch_tokens=max_batch_tokens)
    assert [result.token_ids for result in results] == alone[:number]


@pytest.mark.parametrize("num_beams", [2, 4])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_beams(
    tiny_model: PreTrainedModel,
    prompts: list[list[int]],
    generate_alone: Callable[..., list[list[int]]],
    num_beams: int,
    prefix_caching: bool,
) -> None:
    expected = generate_alone(tiny_model, prompts[:6], 10, num_beams=num_beams, eos_token_id=None)
    params = SamplingParams(max_tokens=10, num_beams=num_beams, ignore_eos=True)
    results, _ = run(tiny_model, prompts[:6], params, num_blocks=60, prefix_caching=prefix_caching)
    assert [result.token_ids for result in results] == expected
