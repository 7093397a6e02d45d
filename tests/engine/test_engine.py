from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from looseleaf import Engine, NeverFits, SamplingParams
from looseleaf.errors import EmptyPrompt, InvalidArgument, InvalidType, SequenceTooLong, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    from looseleaf.engine import Result, TokenEvent

MAX_TOKENS = 40


def new_engine(model: PreTrainedModel, *, num_slots: int = 320, block_size: int = 16, **sizes: Any) -> Engine:
    return Engine(model, num_blocks=num_slots // block_size, block_size=block_size, **sizes)


def assert_all_free(engine: Engine) -> None:
    manager = engine.cache.manager
    assert manager.stats().num_available == manager.num_blocks
    assert manager.stats().num_sequences == 0
    manager.validate()


def token_ids(results: list[Result]) -> list[list[int]]:
    return [result.token_ids for result in results]


@contextmanager
def failing_in_step(model: PreTrainedModel, number: int, error: BaseException) -> Iterator[None]:
    """The real model, whose last layer raises in the given step."""
    calls = 0

    def hook(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise error

    handle = model.model.layers[-1].register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def alone(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], generate_alone: Callable[..., list[list[int]]]
) -> list[list[int]]:
    answers = generate_alone(tiny_model, tiny_prompts, MAX_TOKENS, eos_token_id=None)
    assert len({tuple(answer) for answer in answers}) == len(answers)
    assert min(len(set(answer)) for answer in answers) > 10
    return answers


@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("max_batch_tokens", [12, 24, 1024])
def test_a_batch_answers_what_each_prompt_alone_answers(
    tiny_model: PreTrainedModel,
    tiny_prompts: list[list[int]],
    alone: list[list[int]],
    block_size: int,
    max_batch_tokens: int,
) -> None:
    engine = new_engine(tiny_model, block_size=block_size, max_batch_tokens=max_batch_tokens)
    results = engine.generate(tiny_prompts, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True))
    assert token_ids(results) == alone
    assert [result.prompt_token_ids for result in results] == tiny_prompts
    assert {result.finish_reason for result in results} == {"length"}
    assert engine.report().num_preemptions > 0, "the pool was to be too small for all at once"
    assert_all_free(engine)


def test_stop_tokens_end_answers_in_the_middle_of_a_batch(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]
) -> None:
    stops = alone[0][3], alone[4][11], alone[6][20]
    engine = new_engine(tiny_model)
    results = engine.generate(
        tiny_prompts, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, stop_token_ids=stops)
    )
    for result, answer in zip(results, alone, strict=True):
        ends = [place + 1 for place, token_id in enumerate(answer) if token_id in stops]
        assert result.token_ids == answer[: min(ends, default=MAX_TOKENS)]
        assert result.finish_reason == ("stop" if ends else "length")
    assert {result.finish_reason for result in results} == {"stop", "length"}
    assert_all_free(engine)


@pytest.mark.parametrize("as_list", [False, True])
def test_the_models_own_end_stops_unless_ignored(
    tiny_model: PreTrainedModel,
    tiny_prompts: list[list[int]],
    alone: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    as_list: bool,
) -> None:
    end = alone[2][5]
    monkeypatch.setattr(tiny_model.generation_config, "eos_token_id", [end, 0] if as_list else end)
    engine = new_engine(tiny_model)
    stopped, ignored = engine.generate(
        [tiny_prompts[2]] * 2,
        [SamplingParams(max_tokens=MAX_TOKENS), SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)],
    )
    assert stopped.token_ids == alone[2][: alone[2].index(end) + 1]
    assert stopped.finish_reason == "stop"
    assert ignored.token_ids == alone[2]


def test_one_token_each(tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]) -> None:
    engine = new_engine(tiny_model)
    results = engine.generate(tiny_prompts, SamplingParams(max_tokens=1, ignore_eos=True))
    assert token_ids(results) == [answer[:1] for answer in alone]
    assert_all_free(engine)


def test_each_prompt_may_have_its_own_params(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]
) -> None:
    lengths = [5, 40, 1, 12, 33, 7, 20, 2]
    engine = new_engine(tiny_model)
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    results = engine.generate(tiny_prompts, params)
    assert token_ids(results) == [answer[:length] for answer, length in zip(alone, lengths, strict=True)]


def test_an_engine_is_used_again(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]
) -> None:
    engine = new_engine(tiny_model)
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    for number in (3, 0, 5):
        assert token_ids(engine.generate([tiny_prompts[number]], params)) == [alone[number]]
    assert engine.generate([], params) == []
    assert engine.report().num_requests == 0


def test_what_never_fits_is_refused_and_the_others_are_answered(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]
) -> None:
    engine = Engine(tiny_model, num_blocks=50, block_size=16)
    prompts = [tiny_prompts[0], [5] * 900, [5] * 1020, tiny_prompts[1]]
    params = [SamplingParams(max_tokens=number, ignore_eos=True) for number in (MAX_TOKENS, 12, 12, MAX_TOKENS)]
    events = list(engine.stream(prompts, params))
    assert [event.index for event in events[:2]] == [1, 2]
    results = engine.generate(prompts, params)
    assert [result.finish_reason for result in results] == ["length", "error", "error", "length"]
    assert isinstance(results[1].error, NeverFits)
    assert (results[1].error.requested, results[1].error.capacity) == (57, 50)
    assert isinstance(results[2].error, SequenceTooLong)
    assert token_ids(results) == [alone[0], [], [], alone[1]]
    assert_all_free(engine)


def test_two_that_need_30_of_50_blocks_both_finish_in_bounded_steps(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=50, block_size=16, max_batch_tokens=64)
    results = engine.generate([[5] * 440, [6] * 440], SamplingParams(max_tokens=40, ignore_eos=True))
    assert [len(result.token_ids) for result in results] == [40, 40]
    assert engine.report().num_steps == 2 * (7 + 39)
    assert engine.report().peak_blocks == 30
    assert_all_free(engine)


def test_closing_a_stream_early_frees_every_block(tiny_model: PreTrainedModel, tiny_prompts: list[list[int]]) -> None:
    engine = new_engine(tiny_model)
    attention = tiny_model.config._attn_implementation
    events = engine.stream(tiny_prompts, SamplingParams(max_tokens=MAX_TOKENS))
    for _ in range(20):
        next(events)
    assert engine.cache.manager.stats().num_in_use > 0
    events.close()
    assert_all_free(engine)
    assert tiny_model.config._attn_implementation == attention
    assert 20 <= engine.report().num_generated_tokens < MAX_TOKENS * len(tiny_prompts)


def test_a_stream_that_is_dropped_frees_every_block(tiny_model: PreTrainedModel, tiny_prompts: list[list[int]]) -> None:
    engine = new_engine(tiny_model)
    for _ in engine.stream(tiny_prompts, SamplingParams(max_tokens=MAX_TOKENS)):
        break
    assert_all_free(engine)


@pytest.mark.parametrize("number", [1, 2, 9])
def test_an_interrupt_in_a_step_leaves_no_block_in_use(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]], number: int
) -> None:
    engine = new_engine(tiny_model, max_batch_tokens=24)
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    with failing_in_step(tiny_model, number, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        engine.generate(tiny_prompts, params)
    assert_all_free(engine)
    assert token_ids(engine.generate(tiny_prompts, params)) == alone


def test_a_model_that_fails_in_a_step_ends_the_requests_of_that_step_and_no_others(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]
) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    engine = new_engine(tiny_model, max_batch_tokens=24)
    engine.generate(tiny_prompts, params)
    num_steps = engine.report().num_steps
    num_unharmed = 0
    for number in range(1, num_steps + 1, 5):
        engine = new_engine(tiny_model, max_batch_tokens=24)
        error = RuntimeError("out of luck")
        with failing_in_step(tiny_model, number, error):
            results = engine.generate(tiny_prompts, params)
        failed = [result for result in results if result.finish_reason == "error"]
        assert failed
        assert {id(result.error) for result in failed} == {id(error)}
        for result, answer in zip(results, alone, strict=True):
            assert result.token_ids == (answer[: len(result.token_ids)] if result.error else answer)
            num_unharmed += result.error is None
        assert_all_free(engine)
    assert num_unharmed > num_steps // 5


def test_an_error_of_the_caller_between_events_leaves_no_block_in_use(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]]
) -> None:
    engine = new_engine(tiny_model)

    def fail(_event: TokenEvent) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        engine.generate(tiny_prompts, SamplingParams(max_tokens=MAX_TOKENS), on_event=fail)
    assert_all_free(engine)


def test_streams_that_are_open_together_share_steps(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]
) -> None:
    engine = new_engine(tiny_model, num_slots=1600)
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    first, second = engine.stream(tiny_prompts[:4], params), engine.stream(tiny_prompts[4:], params)
    answers: list[list[int]] = [[] for _ in tiny_prompts]
    for one, other in zip(first, second, strict=True):
        for event, start in ((one, 0), (other, 4)):
            assert event.token_id is not None
            answers[start + event.index].append(event.token_id)
    assert answers == alone
    assert engine.report().num_steps < MAX_TOKENS + 4
    assert_all_free(engine)


def test_threads_may_have_a_stream_each(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]
) -> None:
    engine = new_engine(tiny_model)
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    with ThreadPoolExecutor(max_workers=4) as threads:
        results = list(threads.map(lambda prompt: engine.generate([prompt], params)[0], tiny_prompts))
    assert token_ids(results) == alone
    assert_all_free(engine)


def test_tasks_may_stream_beside_each_other_and_one_that_is_cancelled_frees_its_blocks(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], alone: list[list[int]]
) -> None:
    engine = Engine(tiny_model, num_blocks=100, block_size=16)
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)

    async def answer(prompt: list[int]) -> list[int | None]:
        return [event.token_id async for event in engine.stream_async([prompt], params)]

    async def leave_early(prompt: list[int]) -> None:
        async for _ in engine.stream_async([prompt], SamplingParams(max_tokens=900, ignore_eos=True)):
            await asyncio.sleep(0)

    async def everyone() -> list[list[int | None]]:
        leaving = asyncio.create_task(leave_early(tiny_prompts[1]))
        answers = await asyncio.gather(*(answer(prompt) for prompt in tiny_prompts))
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return answers

    assert asyncio.run(everyone()) == alone
    assert_all_free(engine)


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ("one string", InvalidType, "prompts must be a list of prompts, not one string"),
        ([[1], []], EmptyPrompt, "tokens is empty"),
        (["text"], InvalidArgument, "text prompts need a tokenizer"),
        ([[1, 259]], InvalidArgument, r"token ids must be in \[0, 259\), not 259"),
        ([[1, -1]], InvalidArgument, r"token ids must be in \[0, 259\), not -1"),
        ([[1, 2.5]], InvalidType, "a prompt must be a string or a flat list of integers"),
        ([[True]], InvalidType, "a prompt must be a string or a flat list of integers"),
        ([[[1], [2, 3]]], InvalidType, "a prompt must be a string or a flat list of integers"),
        ([7], InvalidType, "a prompt must be a string or a flat list of integers"),
        (None, InvalidType, "prompts must be a list, not NoneType"),
        (5, InvalidType, "prompts must be a list, not int"),
        ([torch.empty(3, device="meta", dtype=torch.int64)], InvalidType, "a prompt must be a string or a flat list"),
    ],
)
def test_wrong_prompts_are_refused_before_anything_runs(
    tiny_model: PreTrainedModel, prompts: list[list[int]], error: type[Exception], message: str
) -> None:
    engine = new_engine(tiny_model)
    with pytest.raises(error, match=message):
        engine.stream(prompts, SamplingParams(max_tokens=1))
    assert_all_free(engine)


def test_a_model_in_training_mode_is_refused(tiny_model: PreTrainedModel) -> None:
    try:
        with pytest.raises(InvalidArgument, match="must be in eval mode"):
            new_engine(tiny_model.train())
    finally:
        tiny_model.eval()


def test_a_model_that_is_put_into_training_mode_later_is_refused(tiny_model: PreTrainedModel) -> None:
    engine = new_engine(tiny_model)
    try:
        tiny_model.train()
        (result,) = engine.generate([[5, 6]], SamplingParams(max_tokens=2))
        assert isinstance(result.error, InvalidArgument)
        assert "is in training mode" in str(result.error)
    finally:
        tiny_model.eval()
    assert_all_free(engine)


def test_a_model_without_a_head_is_refused(tiny_model: PreTrainedModel) -> None:
    with pytest.raises(UnsupportedModel, match="LlamaModel has no head for language"):
        new_engine(tiny_model.model)


@pytest.mark.parametrize("model", [None, "HuggingFaceTB/SmolLM2-135M"])
def test_what_is_no_model_is_refused(model: object) -> None:
    with pytest.raises(InvalidType, match=f"model has type {type(model).__name__}"):
        Engine(model, num_blocks=4)


@pytest.mark.parametrize("sizes", [{}, {"num_blocks": 4, "memory": "1MiB"}, {"num_blocks": 4, "max_sequence_len": 0}])
def test_wrong_sizes_are_refused(tiny_model: PreTrainedModel, sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Engine(tiny_model, **sizes)


@pytest.mark.parametrize("sizes", [{"max_batch_tokens": True}, {"max_batch_tokens": None}, {"max_sequences": 2.0}])
def test_sizes_of_another_type_are_refused(tiny_model: PreTrainedModel, sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidType, match=f"{next(iter(sizes))} must be an int"):
        Engine(tiny_model, num_blocks=4, **sizes)
    with pytest.raises(InvalidType, match="tokenizer must be"):
        Engine(tiny_model, 5, num_blocks=4)


@pytest.mark.parametrize("params", [[None], [{}], "p", {"max_tokens": 3}, None, 5])
def test_params_of_another_type_are_refused(tiny_model: PreTrainedModel, params: Any) -> None:
    with pytest.raises(InvalidType, match="params"):
        new_engine(tiny_model).generate([[1]], params)


def test_prompts_may_come_from_an_iterator_and_their_arrays_be_used_again(tiny_model: PreTrainedModel) -> None:
    engine, params = new_engine(tiny_model), SamplingParams(max_tokens=4, ignore_eos=True)
    expected = token_ids(engine.generate([[5, 6, 7], [8, 9, 10]], params))
    assert token_ids(engine.generate(iter([[5, 6, 7], [8, 9, 10]]), params)) == expected
    buffers: list[Any] = [np.array([5, 6, 7]), torch.tensor([8, 9, 10])]
    stream = engine.stream(buffers, params)
    for buffer in buffers:
        buffer[:] = 40
    results = [event.result for event in stream if event.result is not None]
    assert token_ids(results) == expected
    assert results[0].prompt_token_ids == [5, 6, 7]


def test_an_engine_cannot_be_copied(tiny_model: PreTrainedModel) -> None:
    with pytest.raises(InvalidType, match="cannot be copied"):
        copy.copy(new_engine(tiny_model))


def test_as_many_params_as_prompts(tiny_model: PreTrainedModel) -> None:
    with pytest.raises(InvalidArgument, match="params must be one, or as many as the 2 prompts, not 1"):
        new_engine(tiny_model).generate([[1], [2]], [SamplingParams(max_tokens=1)])


def test_the_report_counts_what_ran(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=20, block_size=16, max_batch_tokens=64)
    engine.generate([[5] * 16, [6] * 20, [7] * 1020], SamplingParams(max_tokens=5, ignore_eos=True))
    report = engine.report()
    assert (report.num_requests, report.num_finished) == (3, 2)
    assert (report.num_prompt_tokens, report.num_generated_tokens) == (36, 10)
    assert (report.num_steps, report.peak_running, report.peak_blocks) == (5, 2, 4)
    token_bytes = 3 * 2 * 2 * 16 * 4
    assert report.paged_bytes == 4 * 16 * token_bytes
    assert report.padded_bytes == 2 * 25 * token_bytes
    assert report.contiguous_bytes == 2 * 1024 * token_bytes
    slots = 16 * (3 + 4 + 4 + 4 + 4)
    tokens = 36 * 5 + 2 * (0 + 1 + 2 + 3 + 4)
    assert report.wasted_slots_percent == pytest.approx(100 * (slots - tokens) / slots)
    assert report.tokens_per_second == pytest.approx(10 / report.seconds)


def test_inference_mode_does_not_leak_between_events(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]]
) -> None:
    for _ in new_engine(tiny_model).stream(tiny_prompts, SamplingParams(max_tokens=2)):
        assert not torch.is_inference_mode_enabled()
