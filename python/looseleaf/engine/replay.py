"""Replay a trace of requests without a model: what a pool of some size would have hit, evicted and preempted.

Two kinds of files are read. Lines of JSON with `hash_ids` and `output_length`, as in the public traces of Mooncake: an
id stands for 512 tokens and all before them, so prompts that share an id share a prefix. Tables with the columns
ContextTokens and GeneratedTokens, as in the public traces of Azure: lengths only, so that no two prompts are alike.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from looseleaf.allocator import BlockManager
from looseleaf.engine.params import SamplingParams
from looseleaf.engine.request import Request
from looseleaf.engine.scheduler import Scheduler
from looseleaf.errors import InvalidArgument, NeverFits, OutOfBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Entry", "Outcome", "Replay", "read_trace"]

TOKENS_PER_ID = 512
_TOKENS_PER_BLOCK = 4
"""Of a scaled block: the fewest that leave room for lengths that end inside one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a trace: its prompt by ids of 512 tokens, or None; the prompt's length, and the answer's."""

    ids: list[int] | None
    prompt_len: int
    num_generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a replay found.

    Attributes:
        block_size: tokens of a block.
        num_blocks: blocks of the pool.
        num_requests: requests that were replayed.
        num_never_fit: requests that were refused because they are larger than the pool.
        hit_percent: prompt tokens that were in the cache, of those of all requests that were replayed.
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
    peak_blocks: int
    num_evicted: int
    num_preemptions: int
    num_steps: int


def read_trace(path: Path) -> list[Entry]:
    """Read a trace.

    Raises:
        InvalidArgument: the file is of neither kind; the text names the line.
    """
    text = path.read_text(encoding="utf-8")
    try:
        if text.lstrip().startswith("{"):
            return [_entry_of_json(line) for line in text.splitlines() if line.strip()]
        rows = csv.DictReader(text.splitlines())
        return [Entry(None, int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{path} is no trace: {type(error).__name__} {error}") from error


class Replay:
    """A trace, ready to be replayed on pools of several sizes.

    Tokens are scaled down, as far as all block sizes allow it, so that a block has few of them; block counts and hit
    rates stay what they are.

    Args:
        entries: the requests, in order of arrival.
        block_sizes: of all replays, in tokens.

    Raises:
        InvalidArgument: there is no request, or a block size does not divide 512, or is divided by it.

    >>> entries = [Entry([0, 1], 1024, 10), Entry([0, 2], 1000, 10)]
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
        self, block_size: int, *, num_blocks: int, max_sequences: int = 1, on_request: Callable[[], object] = int
    ) -> Outcome:
        """Replay.

        Args:
            block_size: tokens of a block.
            num_blocks: blocks of the pool.
            max_sequences: requests that run at once. 1: each prompt is computed and released before the next comes, and
                answers are left out: the hit rate of the prompts alone. More: all requests wait in a queue, and run
                with their answers in steps, a token each, as the engine's scheduler would let them.
            on_request: called when a request has ended.
        """
        size = block_size // self._scale
        # The token that is always left to compute lies in a block of its own.
        extra = 1 if max_sequences == 1 else 0
        prompts = [(self._tokens(number, entry), entry) for number, entry in enumerate(self._entries)]
        longest = max(len(tokens) + self._scaled(entry.num_generated) for tokens, entry in prompts) + 1
        manager = BlockManager(num_blocks + extra, size, max_sequences=max_sequences, max_sequence_len=longest)
        if max_sequences == 1:
            num_never_fit = _one_at_a_time(manager, prompts, on_request)
            num_preemptions = num_steps = 0
        else:
            requests = (
                Request(number, tokens, SamplingParams(max_tokens=self._scaled(entry.num_generated)))
                for number, (tokens, entry) in enumerate(prompts)
            )
            num_never_fit, num_preemptions, num_steps = _together(manager, requests, on_request)
        stats = manager.stats()
        # The extra token of each prompt is no token of the trace.
        asked = stats.num_looked_up - (len(self._entries) - num_never_fit) * extra
        return Outcome(
            block_size=block_size,
            num_blocks=num_blocks,
            num_requests=len(self._entries) - num_never_fit,
            num_never_fit=num_never_fit,
            hit_percent=100 * stats.num_hit_tokens / max(asked, 1),
            peak_blocks=stats.peak_in_use - extra,
            num_evicted=stats.num_evicted,
            num_preemptions=num_preemptions,
            num_steps=num_steps,
        )

    def _scaled(self, length: int) -> int:
        return max(-(-length // self._scale), 1)

    def _tokens(self, number: int, entry: Entry) -> NDArray[np.int64]:
        if entry.ids is None:
            tokens = np.arange(self._scaled(entry.prompt_len), dtype=np.int64)
            tokens[0] = 2**29 + number  # no other prompt begins so
            return tokens
        per_id = TOKENS_PER_ID // self._scale
        tokens = np.repeat(np.array(entry.ids, dtype=np.int64) * per_id, per_id)
        tokens += np.tile(np.arange(per_id, dtype=np.int64), len(entry.ids))
        return np.append(tokens, 0)


def _entry_of_json(line: str) -> Entry:
    record = json.loads(line)
    ids = [int(number) for number in record["hash_ids"]]
    prompt_len = int(record.get("input_length", len(ids) * TOKENS_PER_ID))
    return Entry(ids, prompt_len, int(record.get("output_length", 1)))


def _one_at_a_time(
    manager: BlockManager, prompts: Sequence[tuple[NDArray[np.int64], Entry]], on_request: Callable[[], object]
) -> int:
    num_never_fit = 0
    for tokens, _ in prompts:
        try:
            with manager.admit(tokens) as sequence:
                handles = np.array([sequence.handle], dtype=np.int64)
                manager.reserve(handles)
                manager.commit(handles)
        except NeverFits:
            num_never_fit += 1
        on_request()
    return num_never_fit


def _together(
    manager: BlockManager, requests: Iterator[Request], on_request: Callable[[], object]
) -> tuple[int, int, int]:
    """Requests that never fit, preemptions, steps."""
    scheduler = Scheduler(manager, max_batch_tokens=manager.max_sequences + 4 * manager.max_sequence_len)
    num_never_fit = num_steps = 0
    waiting = next(requests, None)
    while waiting is not None or not scheduler.is_idle:
        while waiting is not None and scheduler.num_waiting < manager.max_sequences:
            try:
                scheduler.submit(waiting)
            except NeverFits:
                num_never_fit += 1
                on_request()
            waiting = next(requests, None)
        plan = scheduler.plan()
        while plan is not None:
            try:
                manager.reserve(plan.handles, plan.num_new, tokens=plan.token_ids)
            except OutOfBlocks:
                plan = scheduler.preempt(plan)
            else:
                break
        if plan is None:
            continue
        manager.commit(plan.handles)
        # Generated tokens are like no prompt's: a number of the request, above those of the prompts.
        answers = [
            [2**30 + (branch.request.index * 4096 + branch.request.num_generated) % 2**30] if count else []
            for branch, count in zip(plan.branches, plan.num_logits.tolist(), strict=True)
        ]
        served = scheduler.advance(plan, plan.num_computed, answers, samples={}, beams={})
        num_steps += 1
        for request in served:
            if request.finish_reason is not None:
                on_request()
    return num_never_fit, scheduler.num_preemptions, num_steps
