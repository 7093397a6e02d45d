"""An engine without a model: everything that a step does to the block manager, with tokens that count up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from looseleaf import BlockManager, OutOfBlocks, SamplingParams
from looseleaf.engine.request import Request
from looseleaf.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf.engine.plan import Plan

BLOCK_SIZE = 16


def new_request(
    index: int, prompt_len: int, max_tokens: int, stop_token_ids: frozenset[int] = frozenset(), **params: Any
) -> Request:
    """A request whose prompt begins as all others do."""
    prompt = np.arange(1, prompt_len + 1, dtype=np.int64)
    return Request(index, prompt, SamplingParams(max_tokens=max_tokens, **params), stop_token_ids=stop_token_ids)


def other_request(index: int, prompt_len: int, max_tokens: int, **params: Any) -> Request:
    """A request that shares no prefix with another."""
    prompt = np.arange(1, prompt_len + 1, dtype=np.int64) + 10_000 * (index + 1)
    return Request(index, prompt, SamplingParams(max_tokens=max_tokens, **params))


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


def reserve(scheduler: Scheduler) -> Plan | None:
    """Plan a step, and preempt until there are blocks for it."""
    plan = scheduler.plan()
    while plan is not None:
        try:
            scheduler.manager.reserve(plan.handles, plan.num_new, tokens=plan.token_ids)
        except OutOfBlocks as error:
            plan = scheduler.preempt(plan, error)
        else:
            return plan
    return None


def compute(scheduler: Scheduler, plan: Plan, first_token: int = 100) -> list[Request]:
    """Commit a reserved step; row i of it gets the token `first_token` + i, drafts are never accepted."""
    num_computed = plan.num_computed - np.maximum(plan.num_logits - 1, 0)
    scheduler.manager.commit(plan.handles, num_computed)
    for place in np.flatnonzero(num_computed < plan.num_computed).tolist():
        sequence = plan.branches[place].sequence
        assert sequence is not None
        sequence.truncate(int(num_computed[place]))
    answers = [[first_token + place] if count else [] for place, count in enumerate(plan.num_logits.tolist())]
    return scheduler.advance(plan, num_computed, answers, samples={}, beams={})


def run(
    scheduler: Scheduler, requests: list[Request], check: Callable[[Plan], None] = lambda _plan: None
) -> list[list[int]]:
    """Run to the end; the indices of the requests that got a token, for each step."""
    for request in requests:
        scheduler.submit(request)
    served: list[list[int]] = []
    while not scheduler.is_idle:
        plan = reserve(scheduler)
        if plan is not None:
            check(plan)
            served.append([request.index for request in compute(scheduler, plan)])
        assert len(served) < 100_000
    return served


def assert_all_free(scheduler: Scheduler) -> None:
    assert scheduler.is_idle
    assert scheduler.manager.stats().num_available == scheduler.manager.num_blocks
    assert scheduler.manager.stats().num_sequences == 0
    scheduler.manager.validate()
