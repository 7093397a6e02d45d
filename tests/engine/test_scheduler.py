from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf import BlockManager, NeverFits
from looseleaf.engine.request import Request
from looseleaf.engine.scheduler import Plan, Scheduler
from looseleaf.errors import EmptyPrompt, InvalidArgument, SequenceTooLong

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_SIZE = 16


def new_request(index: int, prompt_len: int, max_tokens: int, stop_token_ids: frozenset[int] = frozenset()) -> Request:
    prompt = np.arange(1, prompt_len + 1, dtype=np.int64)
    return Request(index, prompt, max_tokens=max_tokens, stop_token_ids=stop_token_ids)


def new_scheduler(
    num_blocks: int, max_batch_tokens: int = 64, max_sequences: int = 16, *, prefix_caching: bool = True
) -> Scheduler:
    manager = BlockManager(
        num_blocks,
        BLOCK_SIZE,
        max_sequences=max_sequences,
        max_sequence_len=2048,
        prefix_caching=prefix_caching,
    )
    return Scheduler(manager, max_batch_tokens=max_batch_tokens)


def compute(scheduler: Scheduler, plan: Plan) -> None:
    """Everything that a step does to the block manager."""
    manager = scheduler.manager
    manager.reserve(plan.handles, plan.num_new, tokens=plan.token_ids)
    manager.commit(plan.handles)


def run(
    scheduler: Scheduler, requests: list[Request], check: Callable[[Plan], None] = lambda _plan: None
) -> list[list[int]]:
    """Run to the end; the indices of the requests that got a token, for each step. The tokens count up from 100."""
    for request in requests:
        scheduler.submit(request)
    served = []
    while (plan := scheduler.plan()) is not None:
        compute(scheduler, plan)
        check(plan)
        served.append([r.index for r in scheduler.advance(plan, list(range(100, 100 + len(plan.handles))))])
        assert len(served) < 10_000
    return served


def assert_all_free(scheduler: Scheduler) -> None:
    assert scheduler.num_running == 0
    assert scheduler.num_waiting == 0
    assert scheduler.manager.stats().num_available == scheduler.manager.num_blocks
    assert scheduler.manager.stats().num_sequences == 0
    scheduler.manager.validate()


def test_a_step_decodes_everyone_and_fills_the_rest_with_prompts() -> None:
    scheduler = new_scheduler(num_blocks=50, max_batch_tokens=20)
    plans: list[list[int]] = []
    served = run(
        scheduler,
        [new_request(0, 8, 4), new_request(1, 30, 2), new_request(2, 5, 2)],
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
    served = run(scheduler, [new_request(0, 60, 10), new_request(1, 120, 8), new_request(2, 4, 1)])
    first = [next(i for i, step in enumerate(served) if index in step) for index in range(3)]
    assert first == sorted(first)
    assert 2 not in [index for step in served[: first[1]] for index in step]
    assert_all_free(scheduler)


def test_a_stop_token_ends_a_request_and_frees_its_row() -> None:
    scheduler = new_scheduler(num_blocks=50)
    requests = [new_request(0, 4, 9, frozenset({101})), new_request(1, 4, 3), new_request(2, 4, 9, frozenset({102}))]
    served = run(scheduler, requests)
    assert [request.finish_reason for request in requests] == ["length", "length", "stop"]
    assert [request.token_ids for request in requests][2] == [102]
    assert served[0] == [0, 1, 2]
    assert served[1] == [0, 1]
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
    assert len(run(scheduler, [new_request(4, 20, 5)])) == 5
    assert_all_free(scheduler)


def test_what_fills_the_pool_exactly_fits() -> None:
    scheduler = new_scheduler(num_blocks=50)
    run(scheduler, [new_request(0, 780, 20)])
    assert_all_free(scheduler)
    with pytest.raises(NeverFits):
        scheduler.submit(new_request(1, 780, 21))


def test_two_that_need_30_of_50_blocks_run_one_after_the_other() -> None:
    scheduler = new_scheduler(num_blocks=50)
    requests = [new_request(0, 440, 40), new_request(1, 440, 40)]
    running = []
    served = run(scheduler, requests, lambda _plan: running.append(scheduler.num_running))
    assert [len(request.token_ids) for request in requests] == [40, 40]
    assert set(running) == {1}
    prefill_steps = -(-440 // 64)
    assert len(served) <= 2 * (prefill_steps + 40)
    assert_all_free(scheduler)


def test_every_sequence_wastes_less_than_a_block() -> None:
    scheduler = new_scheduler(num_blocks=60, max_batch_tokens=40, prefix_caching=False)
    requests = [new_request(index, 3 + 17 * index, 20) for index in range(8)]
    wasted = []

    def measure(plan: Plan) -> None:
        slots = scheduler.manager.stats().num_in_use * BLOCK_SIZE
        tokens = sum(request.sequence.num_computed for request in requests if request.sequence is not None)
        assert 0 <= slots - tokens < len(plan.handles) * BLOCK_SIZE
        assert scheduler.num_empty_slots(plan) == slots - tokens
        wasted.append(slots - tokens)

    run(scheduler, requests, measure)
    assert len(wasted) > 20
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


def test_abort_gives_back_blocks_of_running_and_forgets_waiting() -> None:
    scheduler = new_scheduler(num_blocks=20)
    requests = [new_request(index, 100, 20) for index in range(4)]
    for request in requests:
        scheduler.submit(request)
    for _ in range(3):
        plan = scheduler.plan()
        assert plan is not None
        compute(scheduler, plan)
        scheduler.advance(plan, [100] * len(plan.handles))
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 2)
    in_use = scheduler.manager.stats().num_in_use
    scheduler.abort([requests[0], requests[3]])
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)
    assert scheduler.manager.stats().num_in_use < in_use
    scheduler.abort([requests[0]])
    run(scheduler, [])
    assert [request.finish_reason for request in requests] == [None, "length", "length", None]
    assert_all_free(scheduler)


def test_abort_after_a_step_that_was_reserved_and_never_computed() -> None:
    scheduler = new_scheduler(num_blocks=20)
    requests = [new_request(index, 30, 20) for index in range(3)]
    for request in requests:
        scheduler.submit(request)
    plan = scheduler.plan()
    assert plan is not None
    scheduler.manager.reserve(plan.handles, plan.num_new, tokens=plan.token_ids)
    scheduler.abort(requests)
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
    seed=st.integers(0, 2**16),
)
def test_everything_that_fits_runs_to_its_end(
    sizes: list[tuple[int, int]], num_blocks: int, max_batch_tokens: int, max_sequences: int, seed: int
) -> None:
    scheduler = new_scheduler(num_blocks, max_batch_tokens, max_sequences)
    rng = random.Random(seed)
    requests = [new_request(index, prompt_len, max_tokens) for index, (prompt_len, max_tokens) in enumerate(sizes)]
    aborted = {request.index for request in requests if rng.random() < 0.2}

    def check(plan: Plan) -> None:
        assert 1 <= plan.num_tokens <= max_batch_tokens
        assert plan.num_new.min() >= 1
        if rng.random() < 0.1:
            scheduler.manager.validate()

    for request in requests:
        scheduler.submit(request)
    num_steps = 0
    while (plan := scheduler.plan()) is not None:
        compute(scheduler, plan)
        check(plan)
        scheduler.advance(plan, [7] * len(plan.handles))
        num_steps += 1
        if num_steps == 3:
            scheduler.abort([request for request in requests if request.index in aborted])
    for request, (_, max_tokens) in zip(requests, sizes, strict=True):
        if request.index not in aborted:
            assert request.token_ids == [7] * max_tokens
    assert num_steps <= sum(prompt_len + max_tokens for prompt_len, max_tokens in sizes)
    assert_all_free(scheduler)
