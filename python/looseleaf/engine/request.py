"""One generation on its way through the scheduler, and the sequences that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence as PySequence

    from numpy.typing import NDArray

    from looseleaf.allocator import Sequence
    from looseleaf.cache.swap import SwappedOut
    from looseleaf.engine.beam import BeamSearch
    from looseleaf.engine.logprobs import TokenLogprobs
    from looseleaf.engine.params import SamplingParams

__all__ = ["Branch", "FinishReason", "Request", "Times"]

FinishReason = Literal["stop", "length", "error", "abort"]
"""A stop token or string was generated; `max_tokens` were generated; it failed or was refused; the caller left."""


class Branch:
    """One sequence of a request: a sample has one, a beam search as many as beams.

    Attributes:
        request: whose branch it is.
        token_ids: what was generated so far, the stop token included.
        sequence: its sequence in the block manager; None while it waits.
    """

    __slots__ = ("_history", "_num_written", "request", "sequence", "token_ids")

    def __init__(self, request: Request, token_ids: list[int]) -> None:
        self.request = request
        self.token_ids = token_ids
        self.sequence: Sequence | None = None
        self._history: NDArray[np.int64] | None = None
        self._num_written = 0

    def history(self) -> NDArray[np.int64]:
        """Prompt and generated tokens, int64 [len]. A view that the next call extends; O(new tokens)."""
        prompt = self.request.prompt
        if self._history is None:
            self._history = np.empty(self.request.max_len, dtype=np.int64)
            self._history[: len(prompt)] = prompt
        start, end = len(prompt) + self._num_written, len(prompt) + len(self.token_ids)
        if start < end:
            self._history[start:end] = self.token_ids[self._num_written :]
            self._num_written = len(self.token_ids)
        return self._history[:end]


@dataclass(slots=True)
class Times:
    """When things happened to a request, in seconds of `time.perf_counter`; None for what has not happened."""

    submitted: float = 0.0
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(slots=True, eq=False)
class Request:
    """A prompt, how far it may run, and what came out so far. Its branches run in the same steps, or not at all.

    Attributes:
        index: the caller's number of the prompt.
        sample: which of the prompt's answers this is.
        prompt: int64 [prompt_len], the prompt's token ids.
        params: what was asked.
        stop_token_ids: token ids that end it.
        seed: of its draws; sample i of a request with seed s has s + i.
        beam: state of its beam search; None for a sample.
        samples: further answers to the same prompt, which begin as forks once the prompt is computed.
        branches: its sequences.
        root: the prompt's sequence, while a preempted beam search computes it again; set by the scheduler.
        finish_reason: None while it waits or runs.
        error: why it failed.
        logprobs: of each generated token, if asked for.
        prompt_logprobs: of each prompt token but the first, if asked for.
        num_cached_tokens: tokens of the prompt that were in the cache when it was first admitted.
        num_preemptions: how often its blocks were taken.
        num_swaps: how often they were swapped out.
        num_drafted: tokens that were proposed for it.
        num_accepted: those that were right.
        times: when it was submitted, admitted, served and finished.
        arrival: its place in the order of submission; set by the scheduler.
        num_at_admission: tokens that it had generated when it was last admitted; set by the scheduler.
        swapped: where its blocks are while it is swapped out; set by the scheduler.
        takes_one_row: whether a step of it is one token from one row of logits.
        is_greedy: whether that is the likeliest of the untouched logits.
    """

    index: int
    prompt: NDArray[np.int64]
    params: SamplingParams
    sample: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    seed: int = 0
    beam: BeamSearch | None = None
    samples: list[Request] = field(default_factory=list)
    branches: list[Branch] = field(init=False)
    root: Branch | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    times: Times = field(default_factory=Times)
    arrival: int = -1
    num_at_admission: int = 0
    swapped: SwappedOut | None = None
    takes_one_row: bool = field(init=False)
    is_greedy: bool = field(init=False)

    def __post_init__(self) -> None:
        self.branches = [Branch(self, [])]
        params = self.params
        speculates = params.prompt_lookup_num_tokens > 0
        self.takes_one_row = self.beam is None and params.prompt_logprobs is None and not speculates
        self.is_greedy = params.is_greedy

    @property
    def token_ids(self) -> list[int]:
        """What its first branch generated; the only one of a sample."""
        return self.branches[0].token_ids

    @property
    def num_generated(self) -> int:
        """Tokens that each of its branches has generated."""
        return len(self.branches[0].token_ids)

    @property
    def max_len(self) -> int:
        """Tokens that a branch may hold at the end: prompt and answer."""
        return len(self.prompt) + self.params.max_tokens

    @property
    def num_rows(self) -> int:
        """Sequences that it may hold at once."""
        return self.params.num_beams

    @property
    def num_left(self) -> int:
        """Tokens that it may still generate."""
        return self.params.max_tokens - self.num_generated

    @property
    def has_progressed(self) -> bool:
        """Whether it generated a token since it was last admitted: only then may its blocks be taken."""
        return self.num_generated > self.num_at_admission

    @property
    def is_cached(self) -> bool:
        """Whether it takes part in the prefix cache; not if the logits of its whole prompt are wanted."""
        return self.params.prompt_logprobs is None

    def held_branches(self) -> list[Branch]:
        """Its branches that may hold a sequence."""
        return self.branches if self.root is None else [*self.branches, self.root]

    def accept(self, token_ids: PySequence[int]) -> None:
        """Take generated tokens up to the one that ends it."""
        answer = self.branches[0].token_ids
        if not answer:
            self.times.first_token = perf_counter()
        for token_id in token_ids:
            answer.append(token_id)
            if token_id in self.stop_token_ids:
                self.finish_reason = "stop"
                return
            if len(answer) >= self.params.max_tokens:
                self.finish_reason = "length"
                return

    def fail(self, error: Exception) -> None:
        """End it with an error, and its samples that have not begun."""
        for one in (self, *self.samples):
            one.finish_reason, one.error = "error", error
            one.times.finished = perf_counter()
        self.samples = []
