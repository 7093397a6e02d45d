"""From logits to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from looseleaf.engine.draw import draw, uniform
from looseleaf.engine.logprobs import TokenLogprobs, token_logprobs
from looseleaf.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from looseleaf.engine.params import SamplingParams

__all__ = ["Row", "Sampled", "change_logits", "greedy", "is_finite_at", "no_choice", "sample"]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One choice to make.

    Attributes:
        params: what was asked.
        token_ids: int64, prompt and what was generated before this choice, drafts included.
        prompt_len: tokens of the prompt.
        seed: of the draws.
        stop_token_ids: tokens that must not come before `params.min_tokens` were generated.
    """

    params: SamplingParams
    token_ids: NDArray[np.int64]
    prompt_len: int
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def num_generated(self) -> int:
        """Tokens that were generated before this choice."""
        return len(self.token_ids) - self.prompt_len


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What was chosen, for each row.

    Attributes:
        token_ids: the tokens; those of rows with an error mean nothing.
        logprobs: of the tokens, where `params.logprobs` asked for them.
        errors: by row, what its processors raised, or that there is nothing to choose from.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: dict[int, Exception]


def greedy(logits: Tensor) -> Tensor:
    """Choose the most likely token of each row, the lowest id among equals.

    Args:
        logits: [rows, vocabulary], any floating dtype.

    Returns:
        int64 [rows], on the device of `logits`.

    >>> import torch
    >>> greedy(torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 0.0]])).tolist()
    [1, 0]
    """
    return logits.argmax(dim=-1)


def sample(logits: Tensor, rows: Sequence[Row]) -> Sampled:
    """Choose a token for each row.

    In this order: the caller's logits processors, `logit_bias`, `min_tokens`, `repetition_penalty`,
    `frequency_penalty`, `presence_penalty`, then the likeliest token if `temperature` is 0; else `temperature`,
    `min_p`, `top_k`, `top_p`, and one draw by the inverse of the cumulative distribution over the token ids.
    Log-probabilities are those of the logits as they came.

    The order is the one that vLLM documents (`vllm/v1/sample/sampler.py`), whose parameters these are, but for the
    caller's processors: they come first and see the model's own logits, where vLLM calls them beside `logit_bias`.
    transformers applies `repetition_penalty` before the caller's processors, and `min_p` after `top_p`: with such
    pairs together, its distribution is another one. Tokens as likely as the last that `top_k` or `top_p` keeps are
    kept, too.

    Args:
        logits: [rows, vocabulary], any floating dtype; not changed.
        rows: what to choose by.

    A row fails alone, in `Sampled.errors`: with what a processor of its own raised, with InvalidArgument where a token
    id of a bias is outside the vocabulary, a processor returned another shape, or no token is possible or one
    infinitely likely, and with InvalidType where a processor returned no tensor of floats.

    >>> import torch
    >>> from looseleaf.engine.params import SamplingParams
    >>> row = Row(SamplingParams(max_tokens=1, temperature=1.0, top_k=1), np.array([1]), 1)
    >>> sample(torch.tensor([[0.0, 2.0, 1.0]]), [row]).token_ids
    [1]
    """
    changed = logits
    errors: dict[int, Exception] = {}
    if any(row.params.changes_logits for row in rows):
        changed = logits.to(torch.float32, copy=True)
        for place, (row, scores) in enumerate(zip(rows, changed, strict=True)):
            if row.params.changes_logits:
                try:
                    change_logits(scores, row)
                except Exception as error:  # noqa: BLE001 - a caller's code; whoever asked for the row gets it
                    errors[place] = error
    token_ids = _choose(changed, rows)
    is_possible = is_finite_at(changed, token_ids)
    if not bool(is_possible.all()):
        for place in (~is_possible).nonzero()[:, 0].tolist():
            errors.setdefault(place, no_choice())
    chosen_ids: list[int] = token_ids.tolist()
    logprobs: list[TokenLogprobs | None] = [None] * len(rows)
    asked = [place for place, row in enumerate(rows) if row.params.logprobs is not None]
    if asked:
        found = token_logprobs(
            logits[asked], [chosen_ids[place] for place in asked], [rows[place].params.logprobs or 0 for place in asked]
        )
        for place, one in zip(asked, found, strict=True):
            logprobs[place] = one
    return Sampled(chosen_ids, logprobs, errors)


def is_finite_at(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Bool [rows], whether the chosen token of each row has a finite score: the greatest is NaN where any is."""
    return torch.isfinite(scores.gather(1, token_ids[:, None])[:, 0])


def no_choice() -> InvalidArgument:
    """The error of a row of logits that gives nothing to choose."""
    return InvalidArgument(
        "logits must have a greatest that is finite: they are NaN, infinite, or leave no token possible"
    )


def _choose(scores: Tensor, rows: Sequence[Row]) -> Tensor:
    drawn = [place for place, row in enumerate(rows) if row.params.temperature > 0]
    params = [rows[place].params for place in drawn]
    numbers = [uniform(rows[place].seed, rows[place].num_generated) for place in drawn]
    if drawn and len(drawn) == len(rows):
        return draw(scores, params, numbers)
    token_ids = greedy(scores)
    if drawn:
        token_ids[drawn] = draw(scores[drawn], params, numbers)
    return token_ids


def change_logits(scores: Tensor, row: Row) -> None:
    """Apply to one row, in place, what looks at its own tokens: processors, biases, `min_tokens`, penalties.

    Args:
        scores: float32 [vocabulary]: logits, or log-probabilities of a beam search, as transformers does.
        row: whose they are.

    Raises:
        As `sample`.
    """
    params = row.params
    if params.logits_processors:
        _process(scores, row)
    if params.logit_bias:
        token_ids = list(params.logit_bias)
        if max(token_ids) >= len(scores):
            raise InvalidArgument(f"logit_bias must be for token ids below {len(scores)}, not {max(token_ids)}")
        scores[token_ids] += torch.tensor(list(params.logit_bias.values()), device=scores.device)
    if row.num_generated < params.min_tokens and row.stop_token_ids:
        scores[[token_id for token_id in row.stop_token_ids if token_id < len(scores)]] = -torch.inf
    if params.repetition_penalty != 1:
        # A token that stands there twice is looked up twice and written twice, with the same value.
        seen = torch.from_numpy(row.token_ids).to(scores.device)
        values = scores[seen]
        penalty = params.repetition_penalty
        scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if (params.frequency_penalty or params.presence_penalty) and row.num_generated:
        generated, counts = np.unique(row.token_ids[row.prompt_len :], return_counts=True)
        amount = params.frequency_penalty * counts + params.presence_penalty
        places = torch.from_numpy(generated).to(scores.device)
        scores[places] -= torch.tensor(amount, dtype=torch.float32, device=scores.device)


def _process(scores: Tensor, row: Row) -> None:
    """Let the caller's processors change one row."""
    history = torch.from_numpy(row.token_ids).to(scores.device, copy=True)[None]  # theirs: they may write into it
    for processor in row.params.logits_processors:
        returned: object = processor(history, scores[None])
        if not isinstance(returned, torch.Tensor) or not returned.is_floating_point():
            kind = returned.dtype if isinstance(returned, torch.Tensor) else type(returned).__name__
            raise InvalidType(f"logits_processors must return a tensor of floats, {processor!r} returned {kind}")
        if returned.shape != (1, len(scores)):
            raise InvalidArgument(
                f"logits_processors must return [1, {len(scores)}], {processor!r} returned {list(returned.shape)}"
            )
        scores.copy_(returned[0].detach())
