"""Replay a trace of requests without a model: what a pool of some size would have hit, evicted and preempted."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd
from typing import TYPE_CHECKING

import numpy as np

from looseleaf.allocator import BlockManager
from looseleaf.engine.params import SamplingParams
from looseleaf.engine.request import Request
from looseleaf.engine.scheduler import Scheduler
from looseleaf.engine.trace import TOKENS_PER_ID
from looseleaf.errors import InvalidArgument, NeverFits, OutOfBlocks
from looseleaf.sizing import blocks_for_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from looseleaf.engine.trace import Entry

__all__ = ["MAX_BATCH_TOKENS", "Outcome", "Replay"]

MAX_BATCH_TOKENS = 2048
"""Of a step, or as many as sequences run at once if those are more."""
_TOKENS_PER_BLOCK = 4
"""Of a scaled block: the fewest that leave room for lengths that end inside one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a replay found.

    Attributes:
        block_size: tokens of a block.
        num_blocks: blocks of the pool.
        num_requests: requests that were replayed.
        num_never_fit: requests that were refused because they are larger than the pool.
        hit_percent: prompt tokens that were in the cache when their request was first admitted, of all requests that
            were replayed.
        block_hit_percent: the same for blocks; what a prompt's last block has of it counts as one.
        peak_blocks: most blocks in use at once.
        num_evicted: cached blocks that gave way.
        num_preemptions: how often a running request gave up its blocks.
        num_steps: steps; 0 where requests come one at a time.
    """

    block_size: int
    num_blocks: int
    num_requests: int
    num_never_fit: int
    hit_percent: float
    block_hit_percent: float
    peak_blocks: int
    num_evicted: int
    num_preemptions: int
    num_steps: int


class Replay:
    """A trace, ready to be replayed on pools of several sizes.

    Args:
        entries: the requests, in order of arrival.
        block_sizes: of all replays, in tokens.

    Raises:
        InvalidArgument: there is no request, or a block size does not divide 512, or is divided by it.

    >>> from looseleaf.engine.trace import Entry
    >>> entries = [Entry([0, 1], 1024, 10), Entry([0, 2], 1024, 10)]
    >>> Replay(entries, [512]).run(512, num_blocks=8).hit_percent
    25.0
    """

    def __init__(self, entries: Sequence[Entry], block_sizes: Sequence[int]) -> None:
        if not entries:
            raise InvalidArgument("a trace must have a request")
        self._entries = entries
        has_ids = any(entry.ids is not None for entry in entries)
        common = gcd(*block_sizes, TOKENS_PER_ID) if has_ids else gcd(*block_sizes)
        if has_ids and any(size % TOKENS_PER_ID and TOKENS_PER_ID % size for size in block_sizes):
            raise InvalidArgument(f"block sizes must divide {TOKENS_PER_ID} or be multiples of it, not {block_sizes}")
        self._scale = max(common // _TOKENS_PER_BLOCK, 1)

    def run(
        self,
        block_size: int,
        *,
        num_blocks: int,
        max_sequences: int = 1,
        step_seconds: float | None = None,
        on_request: Callable[[], object] = lambda: None,
    ) -> Outcome:
        """Replay.

        Args:
            block_size: tokens of a block.
            num_blocks: blocks of the pool.
            max_sequences: requests that run at once. 1: each prompt is computed and released before the next comes, and
                answers are left out: the hit rate of the prompts alone, on tokens that are scaled down, which changes
                neither block counts nor hits. More: requests run with their answers, as the engine's scheduler lets
                them, in steps of at most `MAX_BATCH_TOKENS` tokens: one of every answer, then prompts.
            step_seconds: what a step takes, so that requests come at their times; None: all wait from the start.
            on_request: called when a request has ended.
        """
        tally = _Tally(block_size)
        if max_sequences == 1:
            # The token that is always left to compute lies in a block of its own.
            size = block_size // self._scale
            longest = max(blocks_for_tokens(entry.prompt_len, TOKENS_PER_ID) for entry in self._entries)
            longest = longest * TOKENS_PER_ID // self._scale + 1
            manager = BlockManager(num_blocks + 1, size, max_sequences=1, max_sequence_len=longest)
            self._one_at_a_time(manager, tally, on_request)
        else:
            longest = max(entry.prompt_len + entry.num_generated for entry in self._entries)
            manager = BlockManager(num_blocks, block_size, max_sequences=max_sequences, max_sequence_len=longest)
            self._together(manager, tally, step_seconds, on_request)
        stats = manager.stats()
        return Outcome(
            block_size=block_size,
            num_blocks=num_blocks,
            num_requests=len(self._entries) - tally.num_never_fit,
            num_never_fit=tally.num_never_fit,
            hit_percent=100 * tally.num_hit_tokens / max(tally.num_tokens, 1),
            block_hit_percent=100 * tally.num_hit_blocks / max(tally.num_blocks, 1),
            peak_blocks=max(stats.peak_in_use - (max_sequences == 1), 0),
            num_evicted=stats.num_evicted,
            num_preemptions=tally.num_preemptions,
            num_steps=tally.num_steps,
        )

    def _one_at_a_time(self, manager: BlockManager, tally: _Tally, on_request: Callable[[], object]) -> None:
        for number, entry in enumerate(self._entries):
            try:
                with manager.admit(self._scaled_tokens(number)) as sequence:
                    handles = np.array([sequence.handle], dtype=np.int64)
                    manager.reserve(handles)
                    manager.commit(handles)
                    tally.add(entry, sequence.num_cached_tokens * self._scale)
            except NeverFits:
                tally.num_never_fit += 1
            on_request()

    def _together(
        self, manager: BlockManager, tally: _Tally, step_seconds: float | None, on_request: Callable[[], object]
    ) -> None:
        scheduler = Scheduler(manager, max_batch_tokens=max(MAX_BATCH_TOKENS, manager.max_sequences))
        number, step, start = 0, 0, self._entries[0].seconds
        while number < len(self._entries) or not scheduler.is_idle:
            # Nobody overtakes, so those behind a full queue need not be in it.
            while number < len(self._entries) and scheduler.num_waiting < manager.max_sequences:
                entry = self._entries[number]
                arrival = 0 if step_seconds is None else ceil((entry.seconds - start) / step_seconds)
                if scheduler.is_idle:
                    step = max(step, arrival)  # nothing happens before
                if arrival > step:
                    break
                params = SamplingParams(max_tokens=entry.num_generated)
                try:
                    scheduler.submit(Request(number, self._tokens(number), params))
                except NeverFits:
                    tally.num_never_fit += 1
                    on_request()
                number += 1
            finished = _step(scheduler)
            if finished is None:
                continue
            step += 1
            tally.num_steps += 1
            for request in finished:
                tally.add(self._entries[request.index], request.num_cached_tokens)
                on_request()
        tally.num_preemptions = scheduler.num_preemptions

    def _scaled_tokens(self, number: int) -> NDArray[np.int64]:
        """A prompt of whole ids, and one token more, so that the one that is always left to compute costs no hit."""
        entry = self._entries[number]
        if entry.ids is None:
            return np.append(_unlike_others(number, -(-entry.prompt_len // self._scale)), 0)
        return np.append(_of_ids(entry.ids, TOKENS_PER_ID // self._scale), 0)

    def _tokens(self, number: int) -> NDArray[np.int64]:
        """A prompt as long as the trace says."""
        entry = self._entries[number]
        if entry.ids is None:
            return _unlike_others(number, entry.prompt_len)
        return _of_ids(entry.ids, TOKENS_PER_ID)[: entry.prompt_len]


class _Tally:
    """What the requests of a replay had in the cache, and what became of them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.num_tokens = self.num_hit_tokens = self.num_blocks = self.num_hit_blocks = 0
        self.num_never_fit = self.num_preemptions = self.num_steps = 0

    def add(self, entry: Entry, num_cached_tokens: int) -> None:
        num_hits = min(num_cached_tokens, entry.prompt_len)
        self.num_tokens += entry.prompt_len
        self.num_hit_tokens += num_hits
        self.num_blocks += blocks_for_tokens(entry.prompt_len, self._block_size)
        self.num_hit_blocks += blocks_for_tokens(num_hits, self._block_size)


def _step(scheduler: Scheduler) -> list[Request] | None:
    """Run one step; who finished in it, or None if nothing could run."""
    manager = scheduler.manager
    plan = scheduler.plan()
    while plan is not None:
        try:
            manager.reserve(plan.handles, plan.num_new, tokens=plan.token_ids)
        except OutOfBlocks as error:
            plan = scheduler.preempt(plan, error)
        else:
            break
    if plan is None:
        return None
    manager.commit(plan.handles)
    # Generated tokens are like no prompt's: a number of the request, above those of the prompts.
    answers = [
        [2**30 + (branch.request.index * 4096 + branch.request.num_generated) % 2**30] if count else []
        for branch, count in zip(plan.branches, plan.num_logits.tolist(), strict=True)
    ]
    scheduler.advance(plan, plan.num_computed, answers, samples={}, beams={})
    return [request for request in scheduler.take_news() if request.finish_reason is not None]


def _unlike_others(number: int, length: int) -> NDArray[np.int64]:
    tokens = np.arange(length, dtype=np.int64)
    tokens[0] = 2**29 + number  # no other prompt begins so
    return tokens


def _of_ids(ids: Sequence[int], per_id: int) -> NDArray[np.int64]:
    return np.add.outer(np.array(ids, dtype=np.int64) * per_id, np.arange(per_id)).ravel()
