from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.simulation import (
    BLOCK_SIZE,
    assert_all_free,
    compute,
    new_request,
    new_scheduler,
    other_request,
    reserve,
    run,
)

from looseleaf import BlockManager, NeverFits, OutOfBlocks
from looseleaf.engine.scheduler import Scheduler
from looseleaf.errors import EmptyPrompt, InvalidArgument, SequenceTooLong

if TYPE_CHECKING:
    from looseleaf.engine.request import Request


def test_a_step_decodes_everyone_and_fills_the_rest_with_prompts() -> None:
    scheduler = new_scheduler(num_blocks=50, max_batch_tokens=20)
    plans: list[list[int]] = []
    served = run(
        scheduler,
        [other_request(0, 8, 4), other_request(1, 30, 2), other_request(2, 5, 2)],
        lambda plan: plans.append(plan.num_new.tolist()),
    )
    assert plans == [
        [8, 12],  # all of the first prompt, a chunk of the second
        [1, 18, 1],  # one decode row, the rest of the second prompt, a first token of the third
        [1, 1, 4],
        [1, 1],
    ]
    assert served == [[0], [0, 1], [0, 1, 2], [0, 2]]
    assert_all_free(scheduler)


def test_the_manager_learns_every_token_but_the_last() -> None:
    scheduler = new_scheduler(num_blocks=8)
    batch = scheduler.manager.bind_batch(max_batch_tokens=64)
    seen: list[list[int]] = []
    run(scheduler, [new_request(0, 3, 3)], lambda _plan: seen.append(batch.token_ids.tolist()))
    assert seen == [[1, 2, 3], [100], [100]]


def test_requests_start_in_order_and_a_long_one_is_not_overtaken() -> None:
    scheduler = new_scheduler(num_blocks=10)
    served = run(scheduler, [other_request(0, 60, 10), other_request(1, 120, 8), other_request(2, 4, 1)])
    first = [next(i for i, step in enumerate(served) if index in step) for index in range(3)]
    assert first == sorted(first)
    assert 2 not in [index for step in served[: first[1]] for index in step]
    assert_all_free(scheduler)


def test_a_stop_token_ends_a_request_and_frees_its_row() -> None:
    scheduler = new_scheduler(num_blocks=50)
    requests = [new_request(0, 4, 9, frozenset({101})), new_request(1, 4, 3), new_request(2, 4, 9, frozenset({102}))]
    served = run(scheduler, requests)
    assert [request.finish_reason for request in requests] == ["length", "length", "stop"]
    assert requests[2].token_ids == [102]
    assert served[:2] == [[0, 1, 2], [0, 1]]
    assert_all_free(scheduler)


def test_a_request_that_never_fits_is_refused_at_once_and_others_run() -> None:
    scheduler = new_scheduler(num_blocks=50)
    scheduler.submit(new_request(0, 20, 5))
    with pytest.raises(NeverFits, match="need 57 blocks, the pool has 50"):
        scheduler.submit(new_request(1, 900, 12))
    with pytest.raises(SequenceTooLong):
        scheduler.submit(new_request(2, 2040, 9))
    with pytest.raises(EmptyPrompt):
        scheduler.submit(new_request(3, 0, 9))
    assert scheduler.num_waiting == 1
    assert len(run(scheduler, [new_request(4, 20, 5)])) <= 6
    assert_all_free(scheduler)


def test_what_fills_the_pool_exactly_fits() -> None:
    scheduler = new_scheduler(num_blocks=50)
    run(scheduler, [new_request(0, 780, 20)])
    assert_all_free(scheduler)
    with pytest.raises(NeverFits):
        scheduler.submit(new_request(1, 780, 21))


def test_two_that_need_30_of_50_blocks_both_finish_in_bounded_steps() -> None:
    scheduler = new_scheduler(num_blocks=50)
    requests = [other_request(0, 440, 40), other_request(1, 440, 40)]
    served = run(scheduler, requests)
    assert [len(request.token_ids) for request in requests] == [40, 40]
    prefill_steps = -(-440 // 64)
    assert len(served) <= 2 * (prefill_steps + 40)
    assert_all_free(scheduler)


def test_no_more_requests_run_than_have_a_row_or_a_token_in_a_step() -> None:
    for max_batch_tokens, max_sequences in ((4, 16), (64, 4)):
        scheduler = new_scheduler(50, max_batch_tokens, max_sequences)
        most: list[int] = []
        run(
            scheduler,
            [new_request(index, 2, 9) for index in range(12)],
            lambda _plan, scheduler=scheduler, most=most: most.append(scheduler.num_running),  # type: ignore[misc]
        )
        assert max(most) == 4
        assert_all_free(scheduler)


def test_a_pool_that_is_too_small_for_all_preempts_the_newest_and_everyone_ends() -> None:
    scheduler = new_scheduler(num_blocks=24)
    requests = [other_request(index, 30, 100) for index in range(8)]
    num_steps = len(run(scheduler, requests))
    assert scheduler.num_preemptions >= 8
    assert [len(request.token_ids) for request in requests] == [100] * 8
    # Whoever is preempted generated a token since its admission: the oldest never is.
    assert requests[0].num_preemptions == 0
    assert num_steps < 8 * 110
    assert all(request.num_preemptions <= 100 for request in requests)
    assert_all_free(scheduler)


def test_nobody_is_preempted_before_its_first_token_after_an_admission() -> None:
    scheduler = new_scheduler(num_blocks=10, max_batch_tokens=8)
    requests = [other_request(index, 10, 90) for index in range(6)]
    for request in requests:
        scheduler.submit(request)
    generated: dict[int, int] = {}
    preempted = [0] * 6
    num_seen = 0
    while not scheduler.is_idle:
        plan = reserve(scheduler)
        for request in requests:
            if request.num_preemptions > preempted[request.index]:
                preempted[request.index] = request.num_preemptions
                assert request.num_generated > generated.get(request.index, 0)
                generated[request.index] = request.num_generated
                num_seen += 1
        if plan is not None:
            compute(scheduler, plan)
    assert num_seen > 5
    assert_all_free(scheduler)


def test_a_thousand_requests_end_in_a_pool_of_a_twentieth_of_their_tokens() -> None:
    rng = random.Random(0)
    sizes = [(rng.randint(1, 400), rng.randint(1, 200)) for _ in range(1000)]
    num_tokens = sum(prompt_len + max_tokens for prompt_len, max_tokens in sizes)
    scheduler = new_scheduler(num_tokens // 20 // BLOCK_SIZE, max_batch_tokens=512, max_sequences=256)
    requests = [other_request(index, *size) for index, size in enumerate(sizes)]
    num_steps = len(run(scheduler, requests))
    assert [request.num_generated for request in requests] == [max_tokens for _, max_tokens in sizes]
    begun = [request.times.admitted or 0.0 for request in requests]
    assert begun[0] > 0, "it was admitted"
    assert begun == sorted(begun), "first come, first served"
    assert scheduler.num_preemptions > 20
    recomputed = sum(request.num_preemptions * request.max_len for request in requests)
    assert num_steps < 200 + 2 * (num_tokens + recomputed) / 64
    assert_all_free(scheduler)


def test_a_shared_prefix_is_computed_once_for_requests_that_arrive_together() -> None:
    scheduler = new_scheduler(num_blocks=200, max_batch_tokens=512, max_sequences=64)
    requests = [new_request(index, 1000, 4) for index in range(32)]
    for request in requests:
        request.prompt = np.append(request.prompt, [90_000 + request.index, 1])
    num_computed = []
    run(scheduler, requests, lambda plan: num_computed.append(plan.num_tokens))
    assert [request.num_cached_tokens for request in requests] == [0] + [992] * 31
    assert sum(num_computed) == 1002 + 31 * 10 + 32 * 3
    assert_all_free(scheduler)


def test_generated_tokens_are_found_by_the_next_prompt() -> None:
    scheduler = new_scheduler(num_blocks=20)
    first = new_request(0, 20, 30)
    run(scheduler, [first])
    second = new_request(1, 20, 4)
    second.prompt = np.append(first.branches[0].history(), [7, 8])
    run(scheduler, [second])
    assert second.num_cached_tokens == 48
    assert_all_free(scheduler)


def test_blocks_of_an_expected_answer_are_allocated_at_admission() -> None:
    scheduler = new_scheduler(num_blocks=20)
    scheduler.submit(other_request(0, 20, 100, expected_tokens=90))
    scheduler.submit(other_request(1, 20, 200, expected_tokens=200))
    assert reserve(scheduler) is not None
    assert scheduler.manager.stats().num_in_use == 7
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)


def test_an_admission_leaves_a_reserve_unless_nobody_runs() -> None:
    scheduler = new_scheduler(num_blocks=400, max_batch_tokens=2048)
    scheduler.submit(other_request(0, 200 * BLOCK_SIZE - 1200, 1))
    scheduler.submit(other_request(1, 1000, 1))
    for index in range(2, 8):
        scheduler.submit(other_request(index, 100 * BLOCK_SIZE, 1))
    assert reserve(scheduler) is not None
    assert scheduler.manager.stats().num_available >= 4
    assert scheduler.num_waiting > 0


def test_the_reserve_is_not_bounded_by_the_longest_sequence() -> None:
    manager = BlockManager(26 * 39 + 4, BLOCK_SIZE, max_sequences=64, max_sequence_len=40 * BLOCK_SIZE)
    scheduler = Scheduler(manager, max_batch_tokens=2000 * BLOCK_SIZE)
    for index in range(30):
        scheduler.submit(other_request(index, 39 * BLOCK_SIZE, 1))
    assert reserve(scheduler) is not None
    assert (scheduler.num_running, manager.stats().num_available) == (25, 39 + 4), "26 would leave less than 10"


def test_abort_gives_back_blocks_of_running_and_forgets_waiting() -> None:
    scheduler = new_scheduler(num_blocks=16)
    requests = [other_request(index, 100, 20) for index in range(4)]
    for request in requests:
        scheduler.submit(request)
    for _ in range(3):
        plan = reserve(scheduler)
        assert plan is not None
        compute(scheduler, plan)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 2)
    in_use = scheduler.manager.stats().num_in_use
    scheduler.abort([requests[0], requests[3]])
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)
    assert scheduler.manager.stats().num_in_use < in_use
    scheduler.abort([requests[0]])
    run(scheduler, [])
    assert [request.finish_reason for request in requests] == ["abort", "length", "length", "abort"]
    assert_all_free(scheduler)


def test_abort_after_a_step_that_was_reserved_and_never_computed() -> None:
    scheduler = new_scheduler(num_blocks=20)
    requests = [new_request(index, 30, 20) for index in range(3)]
    for request in requests:
        scheduler.submit(request)
    assert reserve(scheduler) is not None
    scheduler.abort(requests)
    assert_all_free(scheduler)


def test_each_request_aborted_at_each_step_leaks_nothing_and_changes_no_other() -> None:
    def requests() -> list[Request]:
        return [other_request(index, 30 + 7 * index, 24) for index in range(4)]

    whole = requests()
    num_steps = len(run(new_scheduler(num_blocks=12, max_batch_tokens=20), whole))
    for index in range(4):
        for number in range(num_steps):
            scheduler = new_scheduler(num_blocks=12, max_batch_tokens=20)
            ours = requests()
            for request in ours:
                scheduler.submit(request)
            for step in range(10_000):
                if step == number:
                    scheduler.abort([ours[index]])
                plan = reserve(scheduler)
                if plan is None:
                    break
                if step == number:
                    assert ours[index] not in plan.requests
                compute(scheduler, plan)
            for request in ours:
                assert request is ours[index] or request.num_generated == 24
            assert_all_free(scheduler)


def test_a_failing_allocation_at_every_call_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_run(failing: int) -> tuple[int, list[Request]]:
        """Calls that allocate, the given one of which finds no block."""
        scheduler = new_scheduler(num_blocks=12, max_batch_tokens=20)
        manager = type(scheduler.manager)
        count = 0

        def fails(name: str) -> None:
            original = getattr(manager, name)

            def call(*arguments: object, **keywords: object) -> object:
                nonlocal count
                count += 1
                if count == failing:
                    raise OutOfBlocks(1, 0, 0)
                return original(*arguments, **keywords)

            context.setattr(manager, name, call)

        requests = [other_request(index, 30 + 7 * index, 24) for index in range(4)]
        with monkeypatch.context() as context:
            fails("admit")
            fails("reserve")
            run(scheduler, requests)
        assert_all_free(scheduler)
        return count, requests

    num_calls, _ = one_run(-1)
    assert num_calls > 40
    for failing in range(1, num_calls + 1):
        _, requests = one_run(failing)
        failed = [request for request in requests if request.error is not None]
        assert len(failed) <= 1
        assert all(request.num_generated == 24 for request in requests if request not in failed)


def test_blocks_that_somebody_else_holds_end_the_request_with_that_error() -> None:
    scheduler = new_scheduler(num_blocks=12)
    others = scheduler.manager.admit(list(range(900, 900 + 8 * BLOCK_SIZE)))
    requests = [other_request(0, 70, 5), other_request(1, 30, 60), other_request(2, 30, 5)]
    run(scheduler, requests)
    assert [type(request.error) for request in requests] == [OutOfBlocks, OutOfBlocks, type(None)]
    assert requests[1].num_generated > 0
    others.release()
    assert_all_free(scheduler)


def test_a_step_of_no_tokens_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="max_batch_tokens must be at least 1, not 0"):
        new_scheduler(num_blocks=4, max_batch_tokens=0)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=12),
    num_blocks=st.integers(9, 40),
    max_batch_tokens=st.integers(1, 100),
    max_sequences=st.integers(1, 8),
    is_shared=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_everything_that_fits_runs_to_its_end(
    sizes: list[tuple[int, int]],
    num_blocks: int,
    max_batch_tokens: int,
    max_sequences: int,
    is_shared: bool,
    seed: int,
) -> None:
    scheduler = new_scheduler(num_blocks, max_batch_tokens, max_sequences)
    rng = random.Random(seed)
    new = new_request if is_shared else other_request
    requests = [new(index, prompt_len, max_tokens) for index, (prompt_len, max_tokens) in enumerate(sizes)]
    aborted = {request.index for request in requests if rng.random() < 0.2}
    for request in requests:
        scheduler.submit(request)
    num_steps = 0
    while not scheduler.is_idle:
        plan = reserve(scheduler)
        if plan is None:
            continue
        assert 1 <= plan.num_tokens <= max_batch_tokens
        assert plan.num_new.min() >= 1
        if rng.random() < 0.1:
            scheduler.manager.validate()
        compute(scheduler, plan)
        num_steps += 1
        if num_steps == 3:
            scheduler.abort([request for request in requests if request.index in aborted])
    for request, (_, max_tokens) in zip(requests, sizes, strict=True):
        if request.index not in aborted:
            assert request.num_generated == max_tokens
    again = sum(request.num_preemptions * request.max_len for request in requests)
    assert num_steps <= again + sum(prompt_len + max_tokens for prompt_len, max_tokens in sizes)
    assert_all_free(scheduler)
