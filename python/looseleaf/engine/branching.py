"""Sequences that come from one: samples of a prompt, and the beams of a search, by fork and copy-on-write."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from looseleaf.engine.request import Branch
from looseleaf.errors import TooManySequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from looseleaf.engine.admission import Admission
    from looseleaf.engine.beam import BeamStep
    from looseleaf.engine.request import Request
    from looseleaf.engine.rows import Rows

__all__ = ["advance_beams", "begin_samples"]


def begin_samples(rows: Rows, request: Request, first_tokens: Sequence[int], admission: Admission) -> list[Request]:
    """Begin the other samples of a prompt as forks of the first, which has just computed it.

    A sample without a row waits in the queue like a request of its own: it has its first token. Rows that a beam search
    will need are not free.

    Args:
        rows: the running sequences.
        request: the first sample, which holds the prompt's sequence.
        first_tokens: one for each of its samples.
        admission: counts the free rows, and queues who gets none.

    Returns:
        The samples, which have their first token; some may be finished.
    """
    samples, request.samples = request.samples, []
    parent = request.branches[0].sequence
    prompt_len = len(request.prompt)
    num_free = admission.num_free_rows
    for sample, token_id in zip(samples, first_tokens, strict=True):
        sample.prompt_logprobs = request.prompt_logprobs.copy()
        sample.accept([token_id])
        if sample.finish_reason is not None:
            continue
        sample.num_cached_tokens, sample.num_at_admission = prompt_len, 0
        sample.times.admitted = request.times.admitted
        branch = sample.branches[0]
        if num_free > 0 and parent is not None:
            try:
                branch.sequence = parent.fork()
            except TooManySequences:  # somebody outside holds them
                num_free = 0
            else:
                rows.add(branch, num_known=prompt_len + 1, num_computed=prompt_len, last_token=token_id)
                num_free -= 1
                continue
        admission.put_back(sample)
    return samples


def advance_beams(rows: Rows, request: Request, step: BeamStep | None) -> list[Request]:
    """Let the branches of a beam search follow what it chose, or begin again after the prompt was computed again.

    Args:
        rows: the running sequences.
        request: whose step was computed.
        step: which branch each new one continues, and by which token; None while it computes what it knew.

    Returns:
        The request, if its branches got a token.

    Raises:
        TooManySequences: somebody outside holds them; each branch holds what it got.
    """
    if step is not None:
        request.times.first_token = request.times.first_token or perf_counter()
        _follow(rows, request, step)
        return [request]
    root = request.root
    if root is not None and root.sequence is not None:
        (row,) = rows.of(request)
        if rows.live["num_computed"][row] == len(request.prompt):
            _restore(rows, request, root)
    return []


def _follow(rows: Rows, request: Request, step: BeamStep) -> None:
    before = request.branches
    num_computed = len(request.prompt) + len(before[0].token_ids)
    rows.remove([request])
    used = set(step.parents)
    for place, branch in enumerate(before):
        if place not in used and branch.sequence is not None:  # before the forks, so that there is a place for them
            branch.sequence.release()
            branch.sequence = None
    assert request.beam is not None  # noqa: S101 - asked by the caller
    request.branches = [Branch(request, token_ids) for token_ids in request.beam.token_ids]
    if request.beam.is_done:
        request.finish_reason = "stop"
        request.branches += [branch for branch in before if branch.sequence is not None]  # to be released
        return
    heirs: dict[int, Branch] = {}
    for branch, parent in zip(request.branches, step.parents, strict=True):
        if parent not in heirs:
            heirs[parent] = branch
            branch.sequence = before[parent].sequence
    for branch, parent in zip(request.branches, step.parents, strict=True):
        sequence = heirs[parent].sequence
        assert sequence is not None  # noqa: S101 - a parent is a branch that ran
        if branch is not heirs[parent]:
            branch.sequence = sequence.fork()
        rows.add(branch, num_known=num_computed + 1, num_computed=num_computed, last_token=branch.token_ids[-1])


def _restore(rows: Rows, request: Request, root: Branch) -> None:
    """Fork every branch from the prompt; what each of them generated is computed again, then all go on together."""
    rows.remove([request])
    num_computed = len(request.prompt)
    num_generated = request.num_generated
    sequence, root.sequence, request.root = root.sequence, None, None
    assert sequence is not None  # noqa: S101 - it was computed
    request.branches[0].sequence = sequence
    for branch in request.branches:
        branch.sequence = branch.sequence or sequence.fork()
        rows.add(
            branch,
            num_known=num_computed + num_generated,
            num_computed=num_computed,
            last_token=branch.token_ids[-1],
            num_held=int(num_generated > 1),
        )
