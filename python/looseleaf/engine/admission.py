"""Who runs next: the queue, what an admission needs, and the way back in for those that were preempted. No tensors.

First come, first served: nobody overtakes the first in the queue. It is admitted when the pool has blocks for its whole
prompt, for the tokens it expects (`SamplingParams.expected_tokens`), and a reserve of a hundredth of the pool for those
that run already; alone, it needs no reserve. It waits while a running request computes a prefix that both have: a step
later that is in the cache.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from looseleaf.engine.request import Branch
from looseleaf.errors import OutOfBlocks, TooManySequences
from looseleaf.sizing import blocks_for_tokens

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from looseleaf.allocator import BlockManager
    from looseleaf.cache.swap import SwappedIn, SwapSpace
    from looseleaf.engine.request import Request
    from looseleaf.engine.rows import Rows

__all__ = ["Admission"]


@dataclass(slots=True, eq=False)
class _Arriving:
    request: Request
    swapped: SwappedIn
    num_capacity: int


class Admission:
    """The waiting requests, and those whose blocks come back.

    Args:
        manager: as of the scheduler.
        rows: the running sequences, to which the admitted are added.
        swap_space: as of the scheduler.

    Attributes:
        waiting: requests without a sequence, in order of arrival.
        arriving: requests whose blocks are being copied in.
    """

    def __init__(self, manager: BlockManager, rows: Rows, swap_space: SwapSpace | None) -> None:
        self.waiting: list[Request] = []
        self.arriving: list[_Arriving] = []
        self._manager = manager
        self._rows = rows
        self._swap_space = swap_space
        self._num_arrived = 0
        self._watermark = max(1, manager.num_blocks // 100)

    @property
    def num_leaving_blocks(self) -> int:
        """Blocks of the pool that are given back when their copies are done."""
        return 0 if self._swap_space is None else self._swap_space.num_leaving_blocks

    @property
    def is_in_flight(self) -> bool:
        """Whether blocks are being copied in or out."""
        return bool(self.arriving or self.num_leaving_blocks)

    @property
    def num_free_rows(self) -> int:
        """Sequences that may begin now: without those that beams will need, that come back, or that are in flight."""
        num_rows = sum(one.num_rows for one in self._rows.requests()) + len(self.arriving)
        num_leaving = 0 if self._swap_space is None else self._swap_space.num_leaving_sequences
        return min(self._rows.size, self._manager.max_sequences - num_leaving) - num_rows

    def submit(self, request: Request) -> None:
        """Queue a new request."""
        request.times.submitted = perf_counter()
        for one in (request, *request.samples):
            one.arrival = self._num_arrived
            one.times.submitted = request.times.submitted
            self._num_arrived += 1
        self.waiting.append(request)

    def put_back(self, request: Request) -> None:
        """Queue a request again, in its old place."""
        insort(self.waiting, request, key=lambda other: other.arrival)

    def swap_out(self, request: Request) -> bool:
        """Let a request's blocks be copied out; False if there is no room for them."""
        (branch,) = request.branches
        if self._swap_space is None or branch.sequence is None:
            return False
        try:
            request.swapped = self._swap_space.swap_out(branch.sequence)
        except OutOfBlocks:
            return False
        branch.sequence = None
        return True

    def settle(self, *, wait: bool = False) -> None:
        """Run those whose blocks are back."""
        if self._swap_space is None:
            return
        self._swap_space.settle(wait=wait)
        for arriving in [arriving for arriving in self.arriving if arriving.swapped.is_done]:
            self.arriving.remove(arriving)
            branch = arriving.request.branches[0]
            branch.sequence = arriving.swapped.sequence
            num_computed = branch.sequence.num_computed
            self._run(branch, branch.history(), num_computed=num_computed, num_capacity=arriving.num_capacity)

    def admit(self, budget: int) -> tuple[Request, Exception] | None:
        """Admit from the front of the queue while a step has tokens for them.

        Returns:
            Who must fail, and why: a request that is alone, and for which somebody outside holds what is missing.
        """
        while self.waiting and budget > 0:
            request = self.waiting[0]
            tokens = self._tokens(request)
            is_alone = not (self._rows.branches or self.is_in_flight)
            if not self._may_run(request, tokens, is_alone=is_alone):
                return None
            try:
                budget -= self._begin(request, tokens)
            except (OutOfBlocks, TooManySequences) as error:
                return (request, error) if is_alone else None
            self.waiting.pop(0)
        return None

    def drop(self, requests: Collection[Request]) -> None:
        """Forget requests; blocks that are in flight are given back when their copies are done."""
        leaving = set(map(id, requests))
        for request in self.waiting:
            request.samples = [sample for sample in request.samples if id(sample) not in leaving]
        self.waiting = [request for request in self.waiting if id(request) not in leaving]
        for arriving in [arriving for arriving in self.arriving if id(arriving.request) in leaving]:
            self.arriving.remove(arriving)
            if self._swap_space is not None:
                self._swap_space.discard(arriving.swapped)
        for request in requests:
            if request.swapped is not None and self._swap_space is not None:
                self._swap_space.discard(request.swapped)
            request.swapped = None

    def _tokens(self, request: Request) -> NDArray[np.int64]:
        """What its sequence begins with: a beam search begins again with its prompt."""
        return request.prompt if request.beam is not None else request.branches[0].history()

    def _may_run(self, request: Request, tokens: NDArray[np.int64], *, is_alone: bool) -> bool:
        if request.num_rows > self.num_free_rows:
            return False
        if request.swapped is not None and not request.swapped.is_done:
            return False
        if is_alone:
            return True
        spare = self._watermark
        if request.num_rows > 1:  # what its branches generated is computed for each of them
            spare += request.num_rows * (blocks_for_tokens(request.num_generated, self._manager.block_size) + 1)
        reserve = self._num_reserved(request, tokens)
        if not self._manager.can_admit(tokens, reserve=reserve, cache=request.is_cached, num_spare=spare):
            return False
        return not (request.is_cached and self._is_being_computed(tokens))

    def _num_reserved(self, request: Request, tokens: NDArray[np.int64]) -> int:
        expected = len(request.prompt) + (request.params.expected_tokens or 0)
        return max(len(tokens), min(expected, request.max_len))

    def _is_being_computed(self, tokens: NDArray[np.int64]) -> bool:
        """Whether a running request computes a longer prefix of these tokens than the cache holds."""
        block_size = self._manager.block_size
        longest = 0
        for row in np.flatnonzero(self._rows.pending() > 1).tolist():
            branch = self._rows.branches[row]
            if branch.request.is_cached:
                other = branch.history()
                most = min(len(other), len(tokens) - 1) // block_size * block_size
                same = tokens[:most] == other[:most]
                longest = max(longest, most if same.all() else int(same.argmin()) // block_size * block_size)
        if not longest:
            return False
        found = self._manager.lookup(tokens)
        return found.reason != "disabled" and found.num_tokens < longest

    def _begin(self, request: Request, tokens: NDArray[np.int64]) -> int:
        """Admit a request; the tokens that a step may now compute of it."""
        reserve = self._num_reserved(request, tokens)
        if request.swapped is not None and self._swap_space is not None:
            swapped = self._swap_space.swap_in(request.swapped, tokens, reserve=reserve, cache=request.is_cached)
            self.arriving.append(_Arriving(request, swapped, reserve))
            request.num_at_admission, request.swapped = request.num_generated, None
            self.settle()
            return 1
        sequence = self._manager.admit(tokens, reserve=reserve, cache=request.is_cached)
        request.num_at_admission = request.num_generated
        branch = request.branches[0]
        if request.beam is not None and request.num_generated:
            branch = request.root = Branch(request, [])
        branch.sequence = sequence
        if request.times.admitted is None:
            request.times.admitted = perf_counter()
            request.num_cached_tokens = sequence.num_cached_tokens
        self._run(branch, tokens, num_computed=sequence.num_cached_tokens, num_capacity=reserve)
        return len(tokens) - sequence.num_cached_tokens

    def _run(self, branch: Branch, tokens: NDArray[np.int64], *, num_computed: int, num_capacity: int = 0) -> None:
        self._rows.add(
            branch,
            num_known=len(tokens),
            num_told=len(tokens),
            num_computed=num_computed,
            last_token=int(tokens[-1]),
            num_capacity=num_capacity,
        )
