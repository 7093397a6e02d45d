"""The engine's own promises about what is sampled, on a tiny model in float32."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from looseleaf import Engine, SamplingParams
from looseleaf.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from looseleaf.engine import Result

MAX_TOKENS = 20


def new_engine(model: PreTrainedModel, num_blocks: int = 200, **options: Any) -> Engine:
    return Engine(model, num_blocks=num_blocks, block_size=8, **options)


def token_ids(results: list[Result]) -> list[list[int]]:
    return [result.token_ids for result in results]


def assert_all_free(engine: Engine) -> None:
    stats = engine.cache.stats()
    assert (stats.num_available, stats.num_sequences) == (stats.num_blocks, 0)
    engine.cache.manager.validate()


def varied(number: int) -> SamplingParams:
    """Every kind of params beside every other."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {},
        {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3},
        {"temperature": 1.5, "top_k": 20, "frequency_penalty": 0.4, "min_tokens": 6},
        {"temperature": 0.7, "min_p": 0.05, "prompt_lookup_num_tokens": 4},
        {"prompt_lookup_num_tokens": 3},
        {"temperature": 1.0, "logprobs": 2},
    ]
    return SamplingParams(max_tokens=MAX_TOKENS, seed=number, ignore_eos=True, **kinds[number % len(kinds)])


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(3, 259) for _ in range(rng.randint(1, 60))] for _ in range(21)]


@pytest.fixture(scope="module")
def alone(tiny_model: PreTrainedModel, prompts: list[list[int]]) -> list[list[int]]:
    """Each request by itself."""
    answers = []
    engine = new_engine(tiny_model)
    for number, prompt in enumerate(prompts):
        (result,) = engine.generate([prompt], varied(number))
        answers.append(result.token_ids)
    assert len({tuple(answer) for answer in answers}) == len(answers)
    return answers


@pytest.mark.parametrize(("num_blocks", "max_batch_tokens"), [(22, 24), (22, 512), (400, 512)])
@pytest.mark.parametrize("options", [{}, {"prefix_caching": False}, {"swap_memory": "1MiB", "preemption": "swap"}])
def test_a_seeded_request_gets_the_same_text_whatever_runs_beside_it(
    tiny_model: PreTrainedModel,
    prompts: list[list[int]],
    alone: list[list[int]],
    num_blocks: int,
    max_batch_tokens: int,
    options: dict[str, Any],
) -> None:
    engine = new_engine(tiny_model, num_blocks, max_batch_tokens=max_batch_tokens, **options)
    results = engine.generate(prompts, [varied(number) for number in range(len(prompts))])
    assert token_ids(results) == alone
    assert (engine.report().num_preemptions > 5) == (num_blocks == 22)
    assert_all_free(engine)


@pytest.mark.parametrize("num_blocks", [20, 200])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.1])
def test_samples_are_those_of_requests_with_the_seeds_that_follow(
    tiny_model: PreTrainedModel, prompts: list[list[int]], num_blocks: int, prefix_caching: bool, temperature: float
) -> None:
    engine = new_engine(tiny_model, num_blocks, prefix_caching=prefix_caching)
    params = SamplingParams(max_tokens=MAX_TOKENS, n=4, seed=50, temperature=temperature, ignore_eos=True, logprobs=1)
    results = engine.generate(prompts[:3], params)
    assert [(result.index, result.sample) for result in results] == [(i, n) for i in range(3) for n in range(4)]
    expected = []
    single = new_engine(tiny_model)
    for prompt in prompts[:3]:
        for number in range(4):
            one = SamplingParams(max_tokens=MAX_TOKENS, seed=50 + number, temperature=temperature, ignore_eos=True)
            expected += token_ids(single.generate([prompt], one))
    assert token_ids(results) == expected
    assert all(len(result.logprobs) == MAX_TOKENS for result in results)
    if num_blocks == 200:
        assert engine.cache.stats().num_copies > 0, "the prompts' ends are shared until they are written"
    assert_all_free(engine)


def test_samples_without_a_seed_differ(tiny_model: PreTrainedModel, prompts: list[list[int]]) -> None:
    engine = new_engine(tiny_model)
    params = SamplingParams(max_tokens=MAX_TOKENS, n=3, temperature=1.5, ignore_eos=True)
    first, second = engine.generate(prompts[:1], params), engine.generate(prompts[:1], params)
    assert len({tuple(answer) for answer in token_ids(first + second)}) == 6


@pytest.mark.parametrize("max_sequences", [2, 64])
def test_every_sample_has_the_log_probabilities_of_its_prompt(
    tiny_model: PreTrainedModel, prompts: list[list[int]], max_sequences: int
) -> None:
    engine = new_engine(tiny_model, max_sequences=max_sequences)
    params = SamplingParams(max_tokens=3, n=4, prompt_logprobs=1, temperature=1.0, seed=1, ignore_eos=True)
    results = engine.generate(prompts[:1], params)
    alone = engine.generate(prompts[:1], SamplingParams(max_tokens=1, prompt_logprobs=1))[0].prompt_logprobs
    assert len(alone) == len(prompts[0]) - 1
    for result in results:
        assert [one.token_id for one in result.prompt_logprobs] == [one.token_id for one in alone]
        assert [one.logprob for one in result.prompt_logprobs] == pytest.approx(
            [one.logprob for one in alone], abs=1e-4
        )
    assert_all_free(engine)


def test_a_processor_with_a_state_is_called_once_a_token(tiny_model: PreTrainedModel, prompts: list[list[int]]) -> None:
    seen: list[int] = []

    def watch(history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(history.shape[1])
        return scores

    def fail(history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if history.shape[1] == len(prompts[1]) + 2:
            raise LookupError
        return scores

    params = [SamplingParams(max_tokens=6, ignore_eos=True, logits_processors=[one]) for one in (watch, fail)]
    new_engine(tiny_model).generate(prompts[:2], params)
    assert seen == [len(prompts[0]) + number for number in range(6)]


@pytest.mark.parametrize("num_drafts", [1, 4])
def test_an_error_behind_a_wrong_draft_is_none(tiny_model: PreTrainedModel, num_drafts: int) -> None:
    prompt = [11, 12, 13, 14] * 4
    plain = SamplingParams(max_tokens=20, ignore_eos=True)
    (whole,) = new_engine(tiny_model).generate([prompt], plain)
    right = [*prompt, *whole.token_ids]

    def follow(history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if history[0].tolist() != right[: history.shape[1]]:
            raise LookupError
        return scores

    params = SamplingParams(
        max_tokens=20, ignore_eos=True, logits_processors=[follow], prompt_lookup_num_tokens=num_drafts
    )
    engine = new_engine(tiny_model)
    (result,) = engine.generate([prompt], params)
    assert (result.error, result.token_ids) == (None, whole.token_ids)
    assert engine.report().num_drafted > engine.report().num_accepted
    assert_all_free(engine)


@pytest.mark.parametrize("num_drafts", [1, 4, 9])
def test_speculation_changes_no_text_and_saves_steps(
    tiny_model: PreTrainedModel, generate_alone: Callable[..., list[list[int]]], num_drafts: int
) -> None:
    rng = random.Random(2)
    phrase = [rng.randrange(3, 259) for _ in range(12)]
    prompts = [phrase * 5, phrase[:7], [rng.randrange(3, 259) for _ in range(40)]]
    expected = generate_alone(tiny_model, prompts, 60, eos_token_id=None)
    params = SamplingParams(max_tokens=60, ignore_eos=True, prompt_lookup_num_tokens=num_drafts)
    engine = new_engine(tiny_model)
    assert token_ids(engine.generate(prompts, params)) == expected
    num_steps = []
    for prompt, answer in zip(prompts, expected, strict=True):
        assert token_ids(engine.generate([prompt], params)) == [answer]
        report = engine.report()
        num_steps.append(report.num_steps)
        assert report.num_drafted >= report.num_accepted == 60 - report.num_steps
    assert min(num_steps) < 60
    assert_all_free(engine)


def test_logprobs_are_those_of_one_pass_over_prompt_and_answer(
    tiny_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    prompt = prompts[0] + prompts[1]
    engine = new_engine(tiny_model, max_batch_tokens=17)
    params = SamplingParams(
        max_tokens=9,
        seed=3,
        temperature=1.0,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=1,
        prompt_lookup_num_tokens=2,
    )
    for _ in range(2):  # the second time the prompt would be in the cache
        (result,) = engine.generate([prompt], params)
        tokens = prompt + result.token_ids
        with torch.inference_mode():
            expected = tiny_model(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
        found = [*result.prompt_logprobs, *result.logprobs]
        assert [one.token_id for one in found] == tokens[1:]
        for place, one in enumerate(found):
            assert one.logprob == pytest.approx(float(expected[place, one.token_id]), abs=1e-4)
            assert list(one.top)[:1] == [int(expected[place].argmax())]
        assert [len(one.top) for one in found] == [1] * (len(prompt) - 1) + [2] * 9


def test_a_processor_that_raises_ends_its_own_request(tiny_model: PreTrainedModel, prompts: list[list[int]]) -> None:
    error = LookupError("mine")

    def fail(history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if history.shape[1] == len(prompts[1]) + 3:
            raise error
        return scores

    params = [
        SamplingParams(max_tokens=8, ignore_eos=True),
        SamplingParams(max_tokens=8, ignore_eos=True, logits_processors=[fail]),
        SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, seed=1),
    ]
    engine = new_engine(tiny_model)
    results = engine.generate(prompts[:3], params)
    assert [result.error for result in results] == [None, error, None]
    assert [len(result.token_ids) for result in results] == [8, 3, 8]
    whole = token_ids(new_engine(tiny_model).generate(prompts[:3:2], params[::2]))
    assert token_ids(results)[::2] == whole
    assert_all_free(engine)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_processor_that_raises_for_one_sample_ends_that_sample(
    tiny_model: PreTrainedModel, prompts: list[list[int]], failing: int
) -> None:
    calls = 0

    def fail(history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        if history.shape[1] == len(prompts[0]):
            calls += 1
            if calls == failing:
                raise LookupError
        return scores

    params = SamplingParams(max_tokens=4, n=3, seed=5, temperature=1.0, ignore_eos=True)
    engine = new_engine(tiny_model)
    whole = token_ids(engine.generate([prompts[0]], params))
    results = engine.generate([prompts[0]], replace(params, logits_processors=[fail]))
    failed = [True] * 3 if failing == 1 else [sample == failing - 1 for sample in range(3)]
    assert [isinstance(result.error, LookupError) for result in results] == failed
    assert [result.token_ids for result in results] == [
        [] if is_failed else whole[n] for n, is_failed in enumerate(failed)
    ]
    assert_all_free(engine)


def test_any_logits_processor_of_transformers_can_be_used(tiny_model: PreTrainedModel) -> None:
    from transformers import NoRepeatNGramLogitsProcessor  # noqa: PLC0415

    engine = new_engine(tiny_model)
    params = SamplingParams(max_tokens=40, ignore_eos=True, logits_processors=[NoRepeatNGramLogitsProcessor(2)])
    (result,) = engine.generate([[5, 6, 7]], params)
    pairs = list(zip(result.token_ids, result.token_ids[1:], strict=False))
    assert len(set(pairs)) == len(pairs)
    expected = tiny_model.generate(
        torch.tensor([[5, 6, 7]]),
        attention_mask=torch.ones(1, 3, dtype=torch.long),
        max_new_tokens=40,
        do_sample=False,
        no_repeat_ngram_size=2,
        eos_token_id=None,
    )
    assert result.token_ids == expected[0, 3:].tolist()


def test_a_stop_string_ends_an_answer_in_a_batch(
    tiny_model: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    engine = Engine(tiny_model, tiny_tokenizer, num_blocks=100)
    plain = SamplingParams(max_tokens=40, ignore_eos=True)
    whole = engine.generate(["one", "two"], plain)[1].text or ""
    stop = whole[6:8]
    place = whole.index(stop)
    for lookup in (0, 4):
        params = SamplingParams(max_tokens=40, ignore_eos=True, stop=stop, prompt_lookup_num_tokens=lookup)
        events = list(engine.stream(["one", "two"], [plain, params]))
        result = next(event.result for event in events if event.index == 1 and event.result)
        assert (result.text, result.finish_reason) == (whole[:place], "stop")
        assert "".join(event.text for event in events if event.index == 1) == whole[:place]
        assert len(result.token_ids) < 40
        assert_all_free(engine)
    with pytest.raises(InvalidArgument, match="stop strings need a tokenizer"):
        new_engine(tiny_model).generate([[1]], params)


def test_results_say_what_happened(tiny_model: PreTrainedModel) -> None:
    engine = new_engine(tiny_model)
    prompt = list(range(3, 60))
    first = engine.generate([prompt], SamplingParams(max_tokens=4, ignore_eos=True))[0]
    second = engine.generate([prompt], SamplingParams(max_tokens=4, ignore_eos=True))[0]
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 56)
    assert engine.report().num_cached_tokens == 56
    for result in (first, second):
        times = result.timings
        assert times.admitted is not None
        assert times.first_token is not None
        assert 0 <= times.admitted <= times.first_token <= times.finished


def test_a_request_that_means_a_token_outside_the_vocabulary_harms_no_other(tiny_model: PreTrainedModel) -> None:
    engine = new_engine(tiny_model)
    plain = SamplingParams(max_tokens=4, ignore_eos=True)
    with pytest.raises(InvalidArgument, match="logit_bias must be for token ids below 259, not 259"):
        engine.generate([[5, 6], [7]], [SamplingParams(max_tokens=4, logit_bias={259: 1.0}), plain])
    beams = SamplingParams(max_tokens=4, min_tokens=2, num_beams=2, ignore_eos=True, stop_token_ids=(999,))
    results = engine.generate([[5, 6], [7]], [beams, plain])
    assert [(len(result.token_ids), result.finish_reason) for result in results] == [(4, "length"), (4, "length")]
    assert_all_free(engine)
