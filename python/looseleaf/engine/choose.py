"""From the logits of a step to the next tokens of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from looseleaf.engine.logprobs import TokenLogprobs, prompt_logprobs
from looseleaf.engine.sampler import Row, change_logits, greedy, is_finite_at, no_choice, sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from looseleaf.engine.beam import BeamStep
    from looseleaf.engine.plan import Plan
    from looseleaf.engine.request import Branch, Request

    _Drawn: TypeAlias = tuple[int, TokenLogprobs | None] | Exception

__all__ = ["Choices", "choose"]


@dataclass(slots=True, eq=False)
class Choices:
    """What a step decided.

    Attributes:
        num_computed: int64 [sequences], computed tokens of each without the drafts that were not accepted.
        answers: by place in the plan, the tokens that follow the known ones.
        samples: by the request's `arrival`, the first token of each sample that begins with it.
        beams: by the request's `arrival`, what its search chose.
        failed: requests whose own logits processors raised, or whose logits are no choice, with the error.
    """

    num_computed: NDArray[np.int64]
    answers: list[list[int]]
    samples: dict[int, list[int]] = field(default_factory=dict)
    beams: dict[int, BeamStep] = field(default_factory=dict)
    failed: list[tuple[Request, Exception]] = field(default_factory=list)


def choose(logits: Tensor, plan: Plan) -> Choices:
    """Choose the next tokens of all requests of a step.

    A draft is accepted where it is the very token that is chosen at its place; so speculation changes no text.

    Args:
        logits: [sum of `plan.num_logits`, vocabulary].
        plan: of the step.
    """
    if plan.is_greedy:
        token_ids = greedy(logits)
        if bool(is_finite_at(logits, token_ids).all()):
            tokens = token_ids.tolist()
            if len(tokens) == len(plan.branches):
                return Choices(plan.num_computed, [[token] for token in tokens])
            left = iter(tokens)
            return Choices(plan.num_computed, [[next(left)] if count else [] for count in plan.num_logits.tolist()])
    return _Chooser(logits, plan).choose()


class _Chooser:
    """Gathers the rows that must be drawn, draws them at once, and hands them out."""

    def __init__(self, logits: Tensor, plan: Plan) -> None:
        self._logits = logits
        self._plan = plan
        self._rows: list[Row] = []
        self._places: list[int] = []
        self._choices = Choices(plan.num_computed.copy(), [[] for _ in plan.branches])

    def choose(self) -> Choices:
        plan, choices = self._plan, self._choices
        starts = (np.cumsum(plan.num_logits) - plan.num_logits).tolist()
        spans: list[tuple[int, Request, int, int]] = []
        beams: dict[int, tuple[Request, list[tuple[Branch, int]]]] = {}
        for place, (branch, begin) in enumerate(zip(plan.branches, starts, strict=True)):
            start, count = begin, int(plan.num_logits[place])
            request = branch.request
            if not count:
                continue
            is_prompt = int(plan.num_computed[place] - plan.num_new[place]) < len(request.prompt)
            if request.params.prompt_logprobs is not None and is_prompt:
                self._read_prompt(place, request, start, count)
                known = len(request.prompt) + request.num_generated
                if int(plan.num_computed[place]) < known:
                    continue
                start += count - 1  # the last row chooses
            if request.beam is not None:
                beams.setdefault(request.arrival, (request, []))[1].append((branch, start))
                continue
            first = len(self._rows)
            self._add_rows(request, start, plan.drafts.get(place, ()))
            spans.append((place, request, first, len(self._rows)))
        for request, places in beams.values():
            self._search(request, places)
        drawn = self._draw()
        for place, request, first, end in spans:
            self._hand_out(place, request, drawn[first:end])
        return choices

    def _search(self, request: Request, beams: list[tuple[Branch, int]]) -> None:
        assert request.beam is not None  # noqa: S101 - asked by the caller
        logprobs = torch.log_softmax(self._logits[[start for _, start in beams]].float(), dim=-1)
        try:
            if request.params.changes_logits:
                for scores, (branch, _) in zip(logprobs, beams, strict=True):
                    change_logits(scores, _row(request, branch.history()))
        except Exception as error:  # noqa: BLE001 - the caller's code; it becomes the request's error
            self._choices.failed.append((request, error))
            return
        peaks = logprobs.amax(dim=-1)
        # A beam without a way on ends there; the others go on.
        if bool(peaks.isnan().any() | peaks.isposinf().any() | peaks.isneginf().all()):
            self._choices.failed.append((request, no_choice()))
            return
        self._choices.beams[request.arrival] = request.beam.advance(logprobs)

    def _add_rows(self, request: Request, start: int, drafts: Sequence[int] | NDArray[np.int64]) -> None:
        proposed = np.asarray(drafts, dtype=np.int64)
        for number in range(len(proposed) + 1):
            self._add_row(request, start + number, proposed[:number])
        for other in request.samples:
            self._add_row(other, start)

    def _add_row(self, request: Request, place: int, proposed: NDArray[np.int64] | None = None) -> None:
        history = request.branches[0].history()
        if proposed is not None and len(proposed):
            history = np.concatenate([history, proposed])
        self._rows.append(_row(request, history))
        self._places.append(place)

    def _draw(self) -> list[_Drawn]:
        """Token and log-probabilities of each row, or why it has none."""
        if not self._rows:
            return []
        is_every = self._places == list(range(len(self._logits)))
        sampled = sample(self._logits if is_every else self._logits[self._places], self._rows)
        drawn = zip(sampled.token_ids, sampled.logprobs, strict=True)
        return [sampled.errors.get(place, one) for place, one in enumerate(drawn)]

    def _hand_out(self, place: int, request: Request, drawn: list[_Drawn]) -> None:
        drafts = self._plan.drafts.get(place, ())
        own, others = drawn[: len(drafts) + 1], drawn[len(drafts) + 1 :]
        if isinstance(own[0], Exception):
            self._choices.failed.append((request, own[0]))
            return
        accepted = [own[0]]
        for draft, one in zip(drafts, own[1:], strict=True):
            # What comes after a draft counts if the draft is right. An error there is met again without it.
            if accepted[-1][0] != draft or isinstance(one, Exception):
                break
            accepted.append(one)
        request.num_drafted += len(drafts)
        request.num_accepted += len(accepted) - 1
        self._choices.num_computed[place] -= len(own) - len(accepted)
        self._choices.answers[place] = [token_id for token_id, _ in accepted]
        request.logprobs += [logprobs for _, logprobs in accepted if logprobs is not None]
        if others:
            self._begin_samples(request, others)

    def _begin_samples(self, request: Request, drawn: list[_Drawn]) -> None:
        """Those that have a first token; the others fail."""
        begun = []
        first_tokens = self._choices.samples[request.arrival] = []
        for other, one in zip(request.samples, drawn, strict=True):
            if isinstance(one, Exception):
                self._choices.failed.append((other, one))
                continue
            begun.append(other)
            first_tokens.append(one[0])
            if one[1] is not None:
                other.logprobs.append(one[1])
        request.samples = begun

    def _read_prompt(self, place: int, request: Request, start: int, count: int) -> None:
        """Log-probabilities of prompt tokens; a row tells those of the token after it."""
        assert request.params.prompt_logprobs is not None  # noqa: S101 - asked by the caller
        end = int(self._plan.num_computed[place])
        begin = end - count
        done = len(request.prompt_logprobs)  # computed before a preemption
        targets = request.prompt[max(begin, done) + 1 : end + 1]
        if len(targets):
            first = start + max(begin, done) - begin
            rows = self._logits[first : first + len(targets)]
            request.prompt_logprobs += prompt_logprobs(rows, targets, num_top=request.params.prompt_logprobs)


def _row(request: Request, history: NDArray[np.int64]) -> Row:
    return Row(
        params=request.params,
        token_ids=history,
        prompt_len=len(request.prompt),
        seed=request.seed,
        stop_token_ids=request.stop_token_ids,
    )
