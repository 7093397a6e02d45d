"""Which tokens run in the next step: continuous batching over a block manager. No tensors, no torch.

A step holds one decode row for every running request whose prompt is done, then as much of the prompts as
`max_batch_tokens` leaves: a long prompt is computed in chunks. Requests join and leave between any two steps, first
come, first served.

Promises, not blocks: a request is admitted when the pool could hold it at its longest beside the longest of everyone
running, so a running request never runs out. The blocks themselves are allocated step by step, as tokens need them.

The running requests stand in order of admission. A prompt gets tokens only when all before it got what they wanted, so
requests that decode stand before those that still compute their prompts, and a step is a prefix of the running ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from looseleaf.errors import EmptyPrompt, InvalidArgument, NeverFits, SequenceTooLong
from looseleaf.sizing import blocks_for_tokens

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from looseleaf.allocator import BlockManager
    from looseleaf.engine.request import Request

__all__ = ["Plan", "Scheduler"]

_ROW = np.dtype(
    [
        ("handle", np.int64),
        ("prompt_len", np.int64),
        ("num_computed", np.int64),
        ("num_promised", np.int64),
        ("next_token", np.int64),
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What one step computes.

    Attributes:
        handles: int64 [rows], the sequences of the step.
        num_new: int64 [rows], tokens that each of them computes, at least 1.
        token_ids: int64 [decode rows], the tokens of the decode rows; those of the prompts are known to the manager.
    """

    handles: NDArray[np.int64]
    num_new: NDArray[np.int64]
    token_ids: NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return int(self.num_new.sum())


class Scheduler:
    """The waiting and the running requests of one block manager.

    Args:
        manager: hands out the blocks; nobody else allocates from it while requests run.
        max_batch_tokens: most tokens of one step. Also the most requests that run at once, if that is fewer than the
            manager's `max_sequences`: every running request needs a row.

    Raises:
        InvalidArgument: `max_batch_tokens` is below 1.
    """

    def __init__(self, manager: BlockManager, *, max_batch_tokens: int) -> None:
        if max_batch_tokens < 1:
            raise InvalidArgument(f"max_batch_tokens must be at least 1, not {max_batch_tokens}")
        self.manager = manager
        self._max_batch_tokens = max_batch_tokens
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._rows = np.zeros(min(manager.max_sequences, max_batch_tokens), dtype=_ROW)

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a sequence."""
        return len(self._running)

    def num_empty_slots(self, plan: Plan) -> int:
        """Slots without a token in the blocks of the running requests, once the step of `plan` is computed.

        Blocks are allocated as tokens reach them, and shared ones are full: only the last block of a sequence has empty
        slots.
        """
        lengths = self._live_rows["num_computed"].copy()
        lengths[: len(plan.num_new)] += plan.num_new
        return int((-lengths % self.manager.block_size).sum())

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            EmptyPrompt: its prompt has no token.
            SequenceTooLong: prompt and answer may outgrow the manager's `max_sequence_len`.
            NeverFits: prompt and answer may need more blocks than the pool has.
        """
        if not len(request.prompt):
            raise EmptyPrompt
        if request.max_len > self.manager.max_sequence_len:
            raise SequenceTooLong(request.max_len, self.manager.max_sequence_len)
        if self._num_blocks(request) > self.manager.num_blocks:
            raise NeverFits(self._num_blocks(request), self.manager.num_blocks)
        self._waiting.append(request)

    def plan(self) -> Plan | None:
        """Admit who can be, and choose the tokens of the next step; None when no request is left."""
        rows = self._live_rows
        self._admit(self._max_batch_tokens - int(_wanted(rows).sum()))
        rows = self._live_rows
        if not len(rows):
            return None
        wanted = _wanted(rows)
        num_new = np.clip(self._max_batch_tokens - (np.cumsum(wanted) - wanted), 0, wanted)
        rows = rows[: np.count_nonzero(num_new)]
        return Plan(
            handles=rows["handle"].copy(),
            num_new=num_new[: len(rows)],
            token_ids=rows["next_token"][rows["num_computed"] >= rows["prompt_len"]],
        )

    def advance(self, plan: Plan, token_ids: Sequence[int]) -> list[Request]:
        """Book a step that was computed: every row whose prompt is done got a token; who finished leaves.

        Args:
            plan: what was computed, as `plan` returned it, with no call in between.
            token_ids: one token for each row of the plan; those of rows whose prompt is not done are not looked at.

        Returns:
            The requests that got a token, in order; it is the last of their `token_ids`.
        """
        rows = self._rows[: len(plan.handles)]
        rows["num_computed"] += plan.num_new
        rows["next_token"] = token_ids
        served = []
        for row in np.flatnonzero(rows["num_computed"] >= rows["prompt_len"]).tolist():
            request = self._running[row]
            request.accept(token_ids[row])
            served.append(request)
        self._remove([request for request in served if request.finish_reason])
        return served

    def abort(self, requests: Collection[Request]) -> None:
        """Drop requests, waiting or running, and give back their blocks; unknown and finished ones are left alone.

        Safe after an interrupt at any point of the other methods when it drops all requests.
        """
        leaving = set(map(id, requests))
        self._waiting = deque(request for request in self._waiting if id(request) not in leaving)
        self._remove(requests)

    @property
    def _live_rows(self) -> NDArray[np.void]:
        return self._rows[: len(self._running)]

    def _num_blocks(self, request: Request) -> int:
        return blocks_for_tokens(request.max_len, self.manager.block_size)

    def _admit(self, budget: int) -> None:
        num_promised = int(self._live_rows["num_promised"].sum())
        while self._waiting and budget > 0 and len(self._running) < len(self._rows):
            request = self._waiting[0]
            num_promised += self._num_blocks(request)
            if num_promised > self.manager.num_blocks:
                return
            request.sequence = self.manager.admit(request.prompt, reserve=min(len(request.prompt), budget))
            num_cached = request.sequence.num_cached_tokens
            self._rows[len(self._running)] = (
                request.sequence.handle,
                len(request.prompt),
                num_cached,
                self._num_blocks(request),
                0,
            )
            self._running.append(request)
            self._waiting.popleft()
            budget -= len(request.prompt) - num_cached

    def _remove(self, requests: Collection[Request]) -> None:
        if not requests:
            return
        leaving = set(map(id, requests))
        stays = np.fromiter((id(request) not in leaving for request in self._running), dtype=bool)
        rows = self._live_rows[stays]
        self._rows[: len(rows)] = rows
        self._running = [request for request in self._running if id(request) not in leaving]
        self.manager.release([request.sequence for request in requests if request.sequence is not None])
        for request in requests:
            request.sequence = None


def _wanted(rows: NDArray[np.void]) -> NDArray[np.int64]:
    """What is left of each prompt, or one token."""
    wanted: NDArray[np.int64] = np.maximum(rows["prompt_len"] - rows["num_computed"], 1)
    return wanted
