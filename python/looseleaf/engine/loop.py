"""The loop of an engine: plan, reserve, run the model, choose, commit."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from looseleaf.engine.choose import choose
from looseleaf.engine.scheduler import Scheduler
from looseleaf.errors import OutOfBlocks, UnsupportedModel
from looseleaf.sizing import blocks_for_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch import Tensor

    from looseleaf.cache import PagedKVCache, Step
    from looseleaf.cache.swap import SwapSpace
    from looseleaf.engine.plan import Plan
    from looseleaf.engine.report import Meter
    from looseleaf.engine.request import Request

__all__ = ["Loop"]


class Loop:
    """Runs requests on a paged cache, a step at a time.

    Args:
        cache: the pool.
        forward: computes a step, and returns the logits of the given token rows (None: the last of each sequence).
        max_batch_tokens: most tokens of one step.
        swap_space: where blocks of preempted requests go; None: they are computed again.
        chooses_by_cost: swap out only what is dearer to compute again; False: whatever has room.
        meter: counts the steps.
    """

    def __init__(
        self,
        cache: PagedKVCache,
        forward: Callable[[Step, Tensor | None], Tensor],
        *,
        max_batch_tokens: int,
        meter: Meter,
        swap_space: SwapSpace | None = None,
        chooses_by_cost: bool = True,
    ) -> None:
        self.scheduler = Scheduler(
            cache.manager,
            max_batch_tokens=max_batch_tokens,
            swap_space=swap_space,
            prefers_swap=self._is_cheaper_swapped if chooses_by_cost else None,
        )
        self.meter = meter
        self._cache = cache
        self._forward = forward
        self._swap_space = swap_space
        self._seconds_per_token: float | None = None

    def step(self) -> list[Request]:
        """Run one step: its requests have more tokens afterwards, or their `finish_reason`.

        A model that raises ends the requests of its step with that error; the others go on.

        Returns:
            Those that have a new token or an error; some may stand there twice.

        Raises:
            UnsupportedModel: the model cannot be served at all; abort all requests.
        """
        start = perf_counter()
        plan, step = self._reserve()
        if plan is not None and step is not None:
            self._compute(plan, step)
            self.meter.add_seconds(perf_counter() - start)
        return self.scheduler.take_news()

    def abort(self, requests: Collection[Request]) -> None:
        """Drop requests and give back their blocks; those in flight when their copies are done."""
        self.scheduler.abort(requests)

    def _reserve(self) -> tuple[Plan | None, Step | None]:
        plan = self.scheduler.plan()
        while plan is not None:
            try:
                return plan, self._cache.step(plan.handles, num_new=plan.num_new, tokens=plan.token_ids)
            except OutOfBlocks as error:
                plan = self.scheduler.preempt(plan, error)
        return None, None

    def _compute(self, plan: Plan, step: Step) -> None:
        start = perf_counter()
        try:
            rows = plan.logits_rows()
            logits = self._forward(step, None if rows is None else torch.from_numpy(rows))
            choices = choose(logits, plan)
        except UnsupportedModel:
            raise
        except Exception as error:  # noqa: BLE001 - a model may raise anything; it becomes the error of its requests
            self.scheduler.fail(plan.requests, error)
            return
        if plan.num_tokens > 2 * len(plan.branches):
            self._measure((perf_counter() - start) / plan.num_tokens)
        step.commit(choices.num_computed)
        for place in np.flatnonzero(choices.num_computed < plan.num_computed).tolist():
            sequence = plan.branches[place].sequence
            if sequence is not None:
                sequence.truncate(int(choices.num_computed[place]))
        self.meter.add_step(
            num_running=self.scheduler.num_sequences,
            num_blocks=self._cache.manager.stats().num_in_use,
            num_empty=self.scheduler.num_empty_slots(plan, choices.num_computed),
        )
        self.scheduler.advance(
            plan, choices.num_computed, choices.answers, samples=choices.samples, beams=choices.beams
        )
        for request, reason in choices.failed:
            self.scheduler.fail([request], reason)

    def _measure(self, seconds_per_token: float) -> None:
        before = self._seconds_per_token
        self._seconds_per_token = seconds_per_token if before is None else 0.75 * before + 0.25 * seconds_per_token

    def _is_cheaper_swapped(self, num_tokens: int) -> bool:
        """Whether copying so many tokens out and in costs less than computing them again; yes while that is unknown."""
        per_block = None if self._swap_space is None else self._swap_space.seconds_per_block
        if per_block is None or self._seconds_per_token is None:
            return True
        num_blocks = blocks_for_tokens(num_tokens, self._cache.manager.block_size)
        return 2 * num_blocks * per_block < num_tokens * self._seconds_per_token
