"""Beam search: the state of one search, from log-probabilities to the branches that go on. It knows no cache.

The rules are those of transformers' `generate(num_beams=...)`, so that the answers are the same: a step keeps the best
continuations of all beams, enough that `num_beams` of them do not end; of the best `num_beams`, those that end are
answers, scored by their log-probability over length ** length_penalty, and the best `num_beams` answers are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from looseleaf.engine.params import SamplingParams

__all__ = ["BeamSearch", "BeamStep"]

_NEVER = -1.0e9


@dataclass(frozen=True, slots=True)
class BeamStep:
    """How the beams go on.

    Attributes:
        parents: for each new beam, the beam that it continues.
        token_ids: and the token that it adds.
    """

    parents: list[int]
    token_ids: list[int]


class BeamSearch:
    """One search.

    Args:
        params: `num_beams`, `max_tokens`, `min_tokens`, `length_penalty`, `early_stopping`.
        stop_token_ids: tokens that end an answer.

    Attributes:
        token_ids: what each beam has generated.
        is_done: whether no beam has to go on.

    >>> from looseleaf.engine.params import SamplingParams
    >>> search = BeamSearch(SamplingParams(max_tokens=1, num_beams=2), frozenset())
    >>> search.advance(torch.tensor([[0.2, 0.5, 0.3]]).log())
    BeamStep(parents=[0, 0], token_ids=[1, 2])
    >>> search.is_done, [token_ids for token_ids, _ in search.best(2)]
    (True, [[1], [2]])
    """

    __slots__ = ("_answers", "_can_improve", "_params", "_scores", "_stop_token_ids", "is_done", "token_ids")

    def __init__(self, params: SamplingParams, stop_token_ids: frozenset[int]) -> None:
        self._params = params
        self._stop_token_ids = stop_token_ids
        self.token_ids: list[list[int]] = [[]]
        self._scores = torch.zeros(1)
        self._answers: list[tuple[list[int], float]] = []
        self._can_improve = True
        self.is_done = False

    def advance(self, logprobs: Tensor) -> BeamStep:
        """Take the log-probabilities of the next token after each beam, and choose how they go on.

        Args:
            logprobs: float32 [beams, vocabulary]; the first time one row, after the prompt.
        """
        params, num_beams = self._params, self._params.num_beams
        length = len(self.token_ids[0]) + 1
        if length <= params.min_tokens and self._stop_token_ids:
            logprobs = logprobs.clone()
            stops = [token_id for token_id in self._stop_token_ids if token_id < logprobs.shape[-1]]
            logprobs[:, stops] = -torch.inf
        totals = (logprobs.float().cpu() + self._scores[:, None]).flatten()
        num_kept = min(max(2, 1 + len(self._stop_token_ids)) * num_beams, len(totals))
        scores, places = totals.topk(num_kept)
        parents = (places // logprobs.shape[-1]).tolist()
        tokens = (places % logprobs.shape[-1]).tolist()
        ends = [token in self._stop_token_ids or length == params.max_tokens for token in tokens]
        self._keep_answers(
            [
                ([*self.token_ids[parent], token], float(score))
                for parent, token, score, is_end in zip(
                    parents[:num_beams],
                    tokens[:num_beams],
                    scores[:num_beams] / length**params.length_penalty,
                    ends[:num_beams],
                    strict=True,
                )
                if is_end
            ]
        )
        self._scores, order = (scores + torch.tensor(ends) * _NEVER).topk(min(num_beams, num_kept))
        chosen = order.tolist()
        step = BeamStep([parents[place] for place in chosen], [tokens[place] for place in chosen])
        self.token_ids = [
            [*self.token_ids[parent], token] for parent, token in zip(step.parents, step.token_ids, strict=True)
        ]
        self._decide(length, all_ended=all(ends))
        return step

    def best(self, number: int) -> list[tuple[list[int], float]]:
        """The best answers with their scores, the best first; beams that did not end stand behind those that did."""
        length = max(len(self.token_ids[0]), 1)
        scores = (self._scores / length**self._params.length_penalty).tolist()
        unended = [(tokens, score) for tokens, score in zip(self.token_ids, scores, strict=True) if score > _NEVER / 2]
        return [*self._answers, *unended][:number]

    @property
    def _is_full(self) -> bool:
        return len(self._answers) == self._params.num_beams

    def _keep_answers(self, new: list[tuple[list[int], float]]) -> None:
        if (self._is_full and self._params.early_stopping is True) or not self._can_improve:
            return
        answers = sorted([*self._answers, *new], key=lambda answer: -answer[1])
        self._answers = answers[: self._params.num_beams]

    def _decide(self, length: int, *, all_ended: bool) -> None:
        params = self._params
        if self._is_full:
            is_long = params.early_stopping == "never" and params.length_penalty > 0
            best_length = params.max_tokens if is_long else length
            best = float(self._scores[0] / best_length**params.length_penalty)
            self._can_improve = self._can_improve and best > min(score for _, score in self._answers)
        is_enough = self._is_full and params.early_stopping is True
        self.is_done = not self._can_improve or is_enough or all_ended
