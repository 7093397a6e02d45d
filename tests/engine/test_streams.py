"""Calls that are open together: who may stop, open and close when, and what a step costs them."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import warnings
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import pytest
from tests.engine.test_engine import assert_all_free

from looseleaf import Engine, SamplingParams
from looseleaf.engine.loop import Loop
from looseleaf.engine.output import Output
from looseleaf.engine.request import Request
from looseleaf.errors import LooseleafError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from looseleaf.engine import TokenEvent


def calling(hook: Callable[[], object], **params: object) -> SamplingParams:
    """Greedy, with a hook that runs inside every step."""

    def process(_history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        hook()
        return scores

    return SamplingParams(**{"max_tokens": 8, "ignore_eos": True, "logits_processors": [process]} | params)  # type: ignore[arg-type]


def stop_after_three(engine: Engine, tokenizer: PreTrainedTokenizerBase) -> str:
    """The last character of the first three tokens after [5, 6, 7]."""
    (whole,) = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=8, ignore_eos=True))
    text: str = tokenizer.decode(whole.token_ids[:3])
    return text[-1]


def test_a_stream_that_is_closed_inside_a_step_is_dropped_after_it(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    plain = SamplingParams(max_tokens=8, ignore_eos=True)
    expected = engine.generate([[9, 8, 7], [5, 6]], plain)
    first = engine.stream([[3, 4, 5]], SamplingParams(max_tokens=100, ignore_eos=True))
    next(first)
    results = engine.generate([[9, 8, 7], [5, 6]], [calling(first.close), plain])
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
    assert list(first) == []
    assert_all_free(engine)


def test_a_stream_that_is_collected_inside_a_step_is_dropped_after_it(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    plain = SamplingParams(max_tokens=8, ignore_eos=True)
    expected = engine.generate([[9, 8, 7], [5, 6]], plain)

    def forget() -> None:
        cycle: list[object] = [engine.stream([[3, 4, 5]], SamplingParams(max_tokens=100, ignore_eos=True))]
        next(cycle[0])  # type: ignore[call-overload]
        cycle.append(cycle)

    gc.disable()
    try:
        forget()
        assert engine.cache.stats().num_sequences == 1
        results = engine.generate([[9, 8, 7], [5, 6]], [calling(gc.collect), plain])
    finally:
        gc.enable()
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
    assert_all_free(engine)


def test_a_call_from_inside_a_step_is_refused(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    other = SamplingParams(max_tokens=3, ignore_eos=True)
    (failed, whole) = engine.generate([[3, 4], [5, 6]], [calling(lambda: engine.generate([[7]], other)), other])
    assert isinstance(failed.error, LooseleafError)
    assert "from inside a step" in str(failed.error)
    assert (whole.error, len(whole.token_ids)) == (None, 3)
    assert_all_free(engine)


def test_tasks_open_and_leave_streams_while_a_step_runs(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    entered, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert goes_on.wait(timeout=60)

    async def answer(params: SamplingParams) -> list[TokenEvent]:
        return [event async for event in engine.stream_async([[3, 4, 5]], params)]

    async def everyone() -> tuple[list[TokenEvent], list[TokenEvent]]:
        first = asyncio.create_task(answer(calling(wait)))
        assert await asyncio.to_thread(entered.wait, 60)
        second = asyncio.create_task(answer(SamplingParams(max_tokens=5, ignore_eos=True)))
        leaving = asyncio.create_task(answer(SamplingParams(max_tokens=5, ignore_eos=True)))
        await asyncio.sleep(0.01)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving  # the step still waits for us
        goes_on.set()
        return await first, await second

    first, second = asyncio.run(everyone())
    assert (len(first), len(second)) == (8, 5)
    assert_all_free(engine)


def test_a_step_looks_at_nobody_who_waits(tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    num_looks, take = 0, Output.take

    def counting(output: Output) -> list[TokenEvent]:
        nonlocal num_looks
        num_looks += 1
        return take(output)

    monkeypatch.setattr(Output, "take", counting)
    engine = Engine(tiny_model, num_blocks=60, max_sequences=2)
    results = engine.generate([[3 + number] for number in range(40)], SamplingParams(max_tokens=5, ignore_eos=True))
    assert sum(len(result.token_ids) for result in results) == 200
    assert num_looks == 200


def test_times_are_those_of_the_steps_and_not_of_the_reader(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    late, early = engine.stream([[3, 4]], params), engine.stream([[5, 6, 7]], params)
    start = perf_counter()
    events = [next(late)]
    list(early)  # runs all steps of both
    seconds = perf_counter() - start
    sleep(0.01)
    events += late
    assert events[-1].result is not None
    timings = events[-1].result.timings
    assert timings.first_token is not None
    assert timings.first_token < timings.finished <= seconds


def test_a_report_may_be_asked_for_inside_the_first_step(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    reports = []
    engine.generate([[3, 4]], calling(lambda: reports.append(engine.report())))
    assert reports[0].tokens_per_second == 0
    assert [report.num_generated_tokens for report in reports] == list(range(8))


def test_a_stop_string_that_came_before_a_failing_step_ends_the_answer(
    tiny_model: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    engine = Engine(tiny_model, tiny_tokenizer, num_blocks=60)
    stop = stop_after_three(engine, tiny_tokenizer)
    steps = 0

    def hook(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:
            raise LookupError

    waiting = engine.stream([[5, 6, 7]], SamplingParams(max_tokens=8, ignore_eos=True, stop=stop))
    other = engine.stream([[9, 9]], SamplingParams(max_tokens=8, ignore_eos=True))
    events = [next(waiting)]
    handle = tiny_model.model.layers[-1].register_forward_pre_hook(hook)
    try:
        *_, failed = other
    finally:
        handle.remove()
    assert failed.result is not None
    assert isinstance(failed.result.error, LookupError)
    events += waiting
    assert events[-1].result is not None
    assert (events[-1].result.finish_reason, events[-1].result.error) == ("stop", None)
    assert_all_free(engine)


def test_a_stream_that_opens_and_closes_while_another_is_dropped_leaves_nothing(
    tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    abort, calls = Loop.abort, 0

    def opening_another(loop: Loop, requests: list[Request]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            with pytest.raises(LooseleafError, match="inside a step"):
                next(engine.stream([[7, 8]], params))
        abort(loop, requests)

    first = engine.stream([[3, 4]], params)
    next(first)
    monkeypatch.setattr(Loop, "abort", opening_another)
    first.close()
    for _ in range(3):
        engine.generate([[5, 6]], params)
        assert engine.report().num_requests == 1, "each run is a run of its own"
    assert_all_free(engine)


def test_an_iterator_that_is_left_with_its_event_loop_closed_gives_back_its_blocks(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=60)

    async def begin() -> AsyncGenerator[TokenEvent, None]:
        events = engine.stream_async([[3, 4]], SamplingParams(max_tokens=100, ignore_eos=True))
        await anext(events)
        return events

    loop = asyncio.new_event_loop()
    events = loop.run_until_complete(begin())
    loop.close()
    assert engine.cache.stats().num_sequences == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, for the loop that is closed
        del events
        gc.collect()
    assert_all_free(engine)
    engine.generate([[5, 6]], SamplingParams(max_tokens=5, ignore_eos=True))
    assert engine.report().num_requests == 1


FORKED = """
import asyncio, os, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from looseleaf import Engine, SamplingParams

config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
engine = Engine(LlamaForCausalLM(config).eval(), num_blocks=8)

async def run():
    return [event async for event in engine.stream_async([[5]], SamplingParams(max_tokens=2, ignore_eos=True))]

async def limited():
    return await asyncio.wait_for(run(), 30)

torch.set_num_threads(1)
asyncio.run(run())
if os.fork() == 0:
    try:
        asyncio.run(limited())
    except Exception as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_forked_process_is_told_and_does_not_wait() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "ForkedProcess\n"


def test_what_ended_just_before_an_error_gives_back_its_blocks(
    tiny_model: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model, tiny_tokenizer, num_blocks=60)
    stop = stop_after_three(engine, tiny_tokenizer)
    take = Output.take

    def failing(output: Output) -> list[TokenEvent]:
        if output.request.index == 1 and output.request.num_generated == 3:
            raise LookupError
        return take(output)

    monkeypatch.setattr(Output, "take", failing)
    params = [SamplingParams(max_tokens=100, ignore_eos=True, stop=stop), SamplingParams(max_tokens=9, ignore_eos=True)]
    with pytest.raises(LookupError):
        engine.generate([[5, 6, 7], [9, 9]], params)
    assert_all_free(engine)


def test_an_error_that_one_caller_meets_is_the_result_of_the_others(
    tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    other, first = engine.stream([[3, 4]], params), engine.stream([[5, 6]], params)
    next(other), next(first)

    def fail(_loop: Loop) -> list[Request]:
        raise LookupError

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "step", fail)
        with pytest.raises(LookupError):
            list(first)
    *_, last = other
    assert last.result is not None
    assert (last.result.finish_reason, type(last.result.error)) == ("error", LookupError)
    assert_all_free(engine)


def test_an_engine_that_is_never_idle_keeps_no_request_that_ended(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=60)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    open_all_along = engine.stream([[3, 4]], SamplingParams(max_tokens=200, ignore_eos=True))
    next(open_all_along)
    gc.collect()
    before = sum(type(one) is Request for one in gc.get_objects())
    for _ in range(5):
        engine.generate([[5, 6], [7, 8]], params)
    gc.collect()
    assert sum(type(one) is Request for one in gc.get_objects()) == before
    report = engine.report()
    assert (report.num_requests, report.num_finished) == (11, 10)
    assert report.num_generated_tokens > 20
    open_all_along.close()
    assert engine.report().num_requests == 11
