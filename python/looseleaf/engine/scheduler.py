"""Which tokens run in the next step: continuous batching over a block manager. No tensors, no torch.

A step holds one token of every sequence that decodes, then as much of the prompts as `max_batch_tokens` leaves, in
order of admission, then drafts: a long prompt is computed in chunks beside the others' answers. Requests join and leave
between any two steps, in the order that `looseleaf.engine.admission` says.

Blocks are promised to nobody. When those that run need more than there are, the newest of them gives up its own, to be
computed again or swapped in again, and goes back to its place in the queue. Only who generated a token since its
admission is preempted; where that is nobody, the newest that need a block sit this step out. A prompt's blocks are all
allocated at its admission, so it gets to its next token without more. Hence each preemption is paid for by a token at
least, and all requests end.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from looseleaf.engine import branching
from looseleaf.engine.admission import Admission
from looseleaf.engine.draft import propose
from looseleaf.engine.plan import Plan
from looseleaf.engine.rows import Rows
from looseleaf.errors import EmptyPrompt, InvalidArgument, NeverFits, SequenceTooLong, TooManySequences
from looseleaf.sizing import blocks_for_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from looseleaf.allocator import BlockManager
    from looseleaf.cache.swap import SwapSpace
    from looseleaf.engine.beam import BeamStep
    from looseleaf.engine.request import Branch, Request
    from looseleaf.errors import OutOfBlocks

__all__ = ["Scheduler"]


class Scheduler:
    """The waiting and the running requests of one block manager.

    Args:
        manager: hands out the blocks; nobody else allocates from it while requests run.
        max_batch_tokens: most tokens of one step. Also the most sequences that run at once, if that is fewer than the
            manager's `max_sequences`: every one needs a row.
        swap_space: where blocks of preempted requests go; None: they are always computed again.
        prefers_swap: whether a preempted request of so many computed tokens is swapped out; None: whenever its blocks
            have room there.

    Raises:
        InvalidArgument: `max_batch_tokens` is below 1.
    """

    def __init__(
        self,
        manager: BlockManager,
        *,
        max_batch_tokens: int,
        swap_space: SwapSpace | None = None,
        prefers_swap: Callable[[int], bool] | None = None,
    ) -> None:
        if max_batch_tokens < 1:
            raise InvalidArgument(f"max_batch_tokens must be at least 1, not {max_batch_tokens}")
        self.manager = manager
        self._max_batch_tokens = max_batch_tokens
        self._prefers_swap = prefers_swap
        self._rows = Rows(min(manager.max_sequences, max_batch_tokens))
        self._admission = Admission(manager, self._rows, swap_space)
        self._stalled: set[int] = set()
        self._news: list[Request] = []
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Requests that hold no sequence."""
        return len(self._admission.waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a sequence."""
        return len(self._rows.requests()) + len(self._admission.arriving)

    @property
    def num_sequences(self) -> int:
        """Sequences that run: one for each sample, one for each beam."""
        return len(self._rows.branches)

    @property
    def is_idle(self) -> bool:
        """Whether no request is left, and no block in flight."""
        return not (self._rows.branches or self.num_waiting or self._admission.is_in_flight)

    def num_empty_slots(self, plan: Plan, num_computed: NDArray[np.int64]) -> int:
        """Slots without a token in the blocks of the running requests once a plan is computed, as for `advance`."""
        return self._rows.num_empty_slots(self.manager.block_size, plan.rows, num_computed)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            EmptyPrompt: its prompt has no token.
            SequenceTooLong: prompt and answer may outgrow the manager's `max_sequence_len`.
            NeverFits: prompt and answer may need more blocks than the pool has.
            InvalidArgument: it has more beams than sequences can run at once.
        """
        if not len(request.prompt):
            raise EmptyPrompt
        if request.max_len > self.manager.max_sequence_len:
            raise SequenceTooLong(request.max_len, self.manager.max_sequence_len)
        num_blocks = blocks_for_tokens(request.max_len, self.manager.block_size)
        if request.num_rows > 1:
            # Beams share the prompt's full blocks; each has its answer for itself, and a copy of the prompt's end.
            own = blocks_for_tokens(request.params.max_tokens, self.manager.block_size) + 1
            num_blocks += request.num_rows * own
        if num_blocks > self.manager.num_blocks:
            raise NeverFits(num_blocks, self.manager.num_blocks)
        if request.num_rows > self._rows.size:
            raise InvalidArgument(f"num_beams must be at most {self._rows.size}, the rows of a step")
        self._admission.submit(request)

    def plan(self) -> Plan | None:
        """Admit who can be, and choose the tokens of the next step; None when no request is left that runs.

        A request that is alone, and still does not get its blocks, ends with that error.
        """
        self._stalled.clear()
        while True:
            self._admission.settle()
            self._release_held()
            if self._admission.waiting:
                refused = self._admission.admit(self._max_batch_tokens - int(self._rows.pending().sum()))
                if refused is not None:
                    self.fail([refused[0]], refused[1])
            plan = self._compose(with_drafts=True)
            if plan is not None or not self._admission.is_in_flight:
                return plan
            self._admission.settle(wait=True)

    def preempt(self, plan: Plan, error: OutOfBlocks) -> Plan | None:
        """Make room after `reserve` had not enough blocks for a plan, and plan again.

        Drafts go first, then the blocks of the newest request that may be preempted, never those of the oldest; then
        the newest requests that need a block sit this step out.

        Args:
            plan: the newest.
            error: what `reserve` raised; a request that is alone ends with it.

        Returns:
            What to try now; None: nothing can run without blocks that somebody else holds, or that are in flight; call
            `plan` again.
        """
        if plan.drafts:
            return self._compose(with_drafts=False)
        running = sorted(self._rows.requests(), key=lambda request: request.arrival)
        victims = [request for request in running[1:] if request.has_progressed]
        if victims and not self._admission.num_leaving_blocks:
            self._preempt(victims[-1])
            return self._compose(with_drafts=False)
        # Beams are among them although their branches may need blocks for what they generated before.
        needy = [request for request in running if request.has_progressed or request.beam is not None]
        left = [request for request in needy if id(request) not in self._stalled]
        if left:
            self._stalled.add(id(left[-1]))
            shorter = self._compose(with_drafts=False)
            if shorter is None and self._admission.is_in_flight:
                self._admission.settle(wait=True)
                return None
            if shorter is not None:
                return shorter
        if len(running) > 1:
            self._preempt(running[-1])
        else:
            self.fail(running, error)  # somebody else holds the blocks that are missing
        return None

    def advance(
        self,
        plan: Plan,
        num_computed: NDArray[np.int64],
        answers: Sequence[Sequence[int]],
        *,
        samples: Mapping[int, Sequence[int]],
        beams: Mapping[int, BeamStep],
    ) -> list[Request]:
        """Book a step that was computed and committed; who finished leaves.

        Args:
            plan: what was computed, as `plan` or `preempt` returned it, with no call in between.
            num_computed: int64 [sequences], computed tokens of each, without the drafts that were not accepted; the
                manager was told by `commit`, and to forget those by `truncate`.
            answers: the tokens of each sequence that follow the known ones; none where its tokens are not all computed,
                and for beams.
            samples: by the request's `arrival`, the first token of each of the samples that begin with its own.
            beams: by the request's `arrival`, what its beam search chose.

        Returns:
            The requests that got a token, in order; it is the last of their `token_ids`.
        """
        live = self._rows.live
        live["num_computed"][plan.rows] = num_computed
        live["num_told"] = np.maximum(live["num_told"], live["num_computed"])
        places = [place for place, answer in enumerate(answers) if answer]
        if len(places) < len(answers):
            answers = [answers[place] for place in places]
        rows = plan.rows[places] if len(places) < len(plan.rows) else plan.rows
        live["num_known"][rows] += np.fromiter(map(len, answers), np.int64, len(answers))
        live["last_token"][rows] = [answer[-1] for answer in answers]
        served = [plan.branches[place].request for place in places]
        for request, answer in zip(served, answers, strict=True):
            request.accept(answer)
        for request in [request for request in served if request.samples]:
            served += branching.begin_samples(self._rows, request, samples[request.arrival], self._admission)
        searches = {id(branch.request): branch.request for branch in plan.branches if branch.request.beam is not None}
        refused = []
        for request in searches.values():
            try:
                served += branching.advance_beams(self._rows, request, beams.get(request.arrival))
            except TooManySequences as error:
                refused.append((request, error))
        for request, reason in refused:
            self.fail([request], reason)
        self._leave([request for request in served if request.finish_reason])
        self._news += served
        return served

    def take_news(self) -> list[Request]:
        """Requests that got a token or failed since the last call; some may stand there twice."""
        news, self._news = self._news, []
        return news

    def abort(self, requests: Collection[Request]) -> None:
        """Drop requests, waiting or running, and give back their blocks; unknown and finished ones are left alone.

        Blocks that are in flight are given back when their copies are done. Samples that have not begun leave with the
        request that they would begin with. Safe after an interrupt at any point of the other methods when it drops all
        requests.
        """
        for request in requests:
            request.finish_reason = request.finish_reason or "abort"
            for sample in request.samples:
                sample.finish_reason = sample.finish_reason or "abort"
        self._admission.drop(requests)
        self._leave(requests)

    def fail(self, requests: Collection[Request], error: Exception) -> None:
        """End requests with an error, samples that have not begun among them; their blocks are given back."""
        for request in requests:
            self._news += (request, *request.samples)
            request.fail(error)
        self.abort(requests)

    def close(self) -> None:
        """Wait for all copies that are in flight."""
        self._admission.settle(wait=True)

    def _compose(self, *, with_drafts: bool) -> Plan | None:
        live, branches = self._rows.live, self._rows.branches
        pending = self._rows.pending()
        if self._rows.is_greedy and not self._stalled and len(pending) and (pending == 1).all():
            return self._compose_decode(pending)
        if self._stalled:
            pending[[id(branch.request) in self._stalled for branch in branches]] = 0
        num_new = (pending == 1).astype(np.int64)
        prompts = np.where(pending > 1, pending, 0)
        left = self._max_batch_tokens - int(num_new.sum())
        num_new += np.clip(left - (np.cumsum(prompts) - prompts), 0, prompts)
        rows = np.flatnonzero(num_new)
        if not len(rows):
            return None
        num_new, chosen = num_new[rows], live[rows]
        chosen_branches = [branches[row] for row in rows.tolist()] if len(rows) < len(branches) else list(branches)
        num_computed = chosen["num_computed"] + num_new
        num_logits = (num_computed == chosen["num_known"]).astype(np.int64)
        drafts: dict[int, NDArray[np.int64]] = {}
        left = self._max_batch_tokens - int(num_new.sum())
        for place in [place for place, branch in enumerate(chosen_branches) if not branch.request.takes_one_row]:
            branch, request = chosen_branches[place], chosen_branches[place].request
            if request.params.prompt_logprobs is not None and chosen["num_computed"][place] < len(request.prompt):
                num_logits[place] = num_new[place]
                continue
            if branch not in request.branches:
                num_logits[place] = 0
            if with_drafts and num_logits[place] and num_new[place] == 1:
                wanted = min(request.params.prompt_lookup_num_tokens, left, request.num_left - 1)
                found = propose(branch.history(), wanted) if wanted > 0 else np.empty(0, np.int64)
                if len(found):
                    drafts[place] = found
                    left -= len(found)
                    for counts in (num_new, num_computed, num_logits):
                        counts[place] += len(found)
        return Plan(
            rows=rows,
            branches=chosen_branches,
            handles=chosen["handle"].copy(),
            num_new=num_new,
            num_computed=num_computed,
            num_logits=num_logits,
            token_ids=_unknown_tokens(chosen, chosen_branches, num_computed, drafts),
            drafts=drafts,
            is_greedy=self._rows.is_greedy,
        )

    def _compose_decode(self, ones: NDArray[np.int64]) -> Plan:
        """The most frequent plan in fewer operations: every row computes its last token, and needs its logits."""
        live = self._rows.live
        num_computed = live["num_known"].copy()
        return Plan(
            rows=np.arange(len(ones)),
            branches=self._rows.branches.copy(),
            handles=live["handle"].copy(),
            num_new=ones,
            num_computed=num_computed,
            num_logits=ones,
            token_ids=live["last_token"][live["num_told"] < num_computed],
            drafts={},
            is_greedy=True,
        )

    def _release_held(self) -> None:
        """Let a beam search go on once all of its branches are computed again."""
        live = self._rows.live
        if not live["num_held"].any():
            return
        for row in np.flatnonzero(live["num_held"]).tolist():
            rows = self._rows.of(self._rows.branches[row].request)
            if not (live["num_known"] - live["num_computed"] - live["num_held"])[rows].any():
                live["num_held"][rows] = 0

    def _preempt(self, request: Request) -> None:
        self.num_preemptions += 1
        request.num_preemptions += 1
        (row,) = self._rows.of(request)[:1]
        num_computed = int(self._rows.live["num_computed"][row])
        self._rows.remove([request])
        is_swapped = request.beam is None and (self._prefers_swap is None or self._prefers_swap(num_computed))
        if is_swapped and self._admission.swap_out(request):
            request.num_swaps += 1
        else:
            self._give_up(request)
        self._admission.put_back(request)

    def _leave(self, requests: Collection[Request]) -> None:
        if requests:
            self._rows.remove(requests)
            now = perf_counter()
            for request in requests:
                request.times.finished = request.times.finished or now
                self._give_up(request)

    def _give_up(self, request: Request) -> None:
        held = [branch.sequence for branch in request.held_branches() if branch.sequence is not None]
        if held:
            self.manager.release(held)
        for branch in request.held_branches():
            branch.sequence = None


def _unknown_tokens(
    chosen: NDArray[np.void],
    branches: Sequence[Branch],
    num_computed: NDArray[np.int64],
    drafts: Mapping[int, NDArray[np.int64]],
) -> NDArray[np.int64]:
    """What the manager must be told: nearly always the last token of each sequence that decodes."""
    unknown = num_computed - chosen["num_told"]
    if not drafts and (chosen["num_known"] - chosen["num_told"]).max() <= 1:
        tokens: NDArray[np.int64] = chosen["last_token"][unknown > 0]
        return tokens
    told = []
    for place in np.flatnonzero(unknown > 0).tolist():
        start, end = int(chosen["num_told"][place]), int(num_computed[place])
        told.append(branches[place].history()[start:end])
        told.append(drafts.get(place, np.empty(0, np.int64)))
    return np.concatenate(told) if told else np.empty(0, np.int64)
