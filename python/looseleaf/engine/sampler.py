"""From logits to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from looseleaf.engine.logprobs import TokenLogprobs, token_logprobs
from looseleaf.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from looseleaf.engine.params import SamplingParams

__all__ = ["Row", "Sampled", "greedy", "sample", "uniform"]

_FEW = 1024
"""Candidates among which the cut of `top_p` is looked for first; few distributions need more."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One choice to make.

    Attributes:
        params: what was asked.
        prompt: int64 [prompt_len].
        token_ids: what was generated before this choice, drafts included.
        seed: of the draws.
        stop_token_ids: tokens that must not come before `params.min_tokens` were generated.
    """

    params: SamplingParams
    prompt: NDArray[np.int64]
    token_ids: Sequence[int]
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What was chosen, for each row.

    Attributes:
        token_ids: the tokens.
        logprobs: of the tokens, where `params.logprobs` asked for them.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]


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


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the generated token at a position: a function of the two, and of nothing else.

    Hence neither the batch, nor a preemption, nor speculation can change what a seeded request gets. Philox, a
    counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), keyed by the seed.

    >>> uniform(7, 0) == uniform(7, 0), uniform(7, 0) == uniform(7, 1), uniform(7, 0) == uniform(8, 0)
    (True, False, False)
    """
    bits = np.random.Philox(key=seed, counter=position).random_raw()
    return float(bits >> 11) * 2.0**-53


def sample(logits: Tensor, rows: Sequence[Row]) -> Sampled:
    """Choose a token for each row.

    In this order, as vLLM does it: the caller's logits processors, `logit_bias`, `min_tokens`, `repetition_penalty`,
    `frequency_penalty` and `presence_penalty`, then the likeliest token if `temperature` is 0; else `temperature`,
    `min_p`, `top_k`, `top_p`, and one draw by the inverse of the cumulative distribution over the token ids.
    Log-probabilities are those of the logits as they came.

    Args:
        logits: [rows, vocabulary], any floating dtype; not changed.
        rows: what to choose by.

    Raises:
        InvalidArgument: a token id of a bias is outside the vocabulary, or a processor returned another shape; whatever
            a processor raises.

    >>> import torch
    >>> from looseleaf.engine.params import SamplingParams
    >>> row = Row(SamplingParams(max_tokens=1, temperature=1.0, top_k=1), np.array([1]), [])
    >>> sample(torch.tensor([[0.0, 2.0, 1.0]]), [row]).token_ids
    [1]
    """
    changed = logits
    if not all(row.params.is_plain for row in rows):
        changed = logits.to(torch.float32, copy=True)
        for row, scores in zip(rows, changed, strict=True):
            _change(scores, row)
    token_ids = greedy(changed)
    drawn = [place for place, row in enumerate(rows) if row.params.temperature > 0]
    if drawn:
        chosen = _draw(changed[drawn] if len(drawn) < len(rows) else changed, [rows[place] for place in drawn])
        token_ids[drawn] = chosen
    chosen_ids: list[int] = token_ids.tolist()
    logprobs: list[TokenLogprobs | None] = [None] * len(rows)
    asked = [place for place, row in enumerate(rows) if row.params.logprobs is not None]
    if asked:
        found = token_logprobs(
            logits[asked], [chosen_ids[place] for place in asked], [rows[place].params.logprobs or 0 for place in asked]
        )
        for place, one in zip(asked, found, strict=True):
            logprobs[place] = one
    return Sampled(chosen_ids, logprobs)


def _change(scores: Tensor, row: Row) -> None:
    """Apply to one row, in place, what looks at its own tokens."""
    params = row.params
    if params.logits_processors:
        history = torch.tensor([[*row.prompt.tolist(), *row.token_ids]], device=scores.device)
        for processor in params.logits_processors:
            returned = processor(history, scores[None])
            if returned.shape != (1, len(scores)):
                raise InvalidArgument(
                    f"logits_processors must return [1, {len(scores)}], {processor!r} returned {list(returned.shape)}"
                )
            scores.copy_(returned[0])
    if params.logit_bias:
        token_ids = list(params.logit_bias)
        if max(token_ids) >= len(scores):
            raise InvalidArgument(f"logit_bias must be for token ids below {len(scores)}, not {max(token_ids)}")
        scores[token_ids] += torch.tensor(list(params.logit_bias.values()), device=scores.device)
    if len(row.token_ids) < params.min_tokens and row.stop_token_ids:
        scores[[token_id for token_id in row.stop_token_ids if token_id < len(scores)]] = -torch.inf
    if params.repetition_penalty != 1:
        seen = torch.tensor(np.union1d(row.prompt, np.array(row.token_ids, np.int64)), device=scores.device)
        values = scores[seen]
        penalty = params.repetition_penalty
        scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if (params.frequency_penalty or params.presence_penalty) and row.token_ids:
        generated, counts = np.unique(np.array(row.token_ids, np.int64), return_counts=True)
        amount = params.frequency_penalty * counts + params.presence_penalty
        scores[torch.from_numpy(generated)] -= torch.tensor(amount, dtype=torch.float32, device=scores.device)


def _draw(scores: Tensor, rows: Sequence[Row]) -> Tensor:
    """int64 [rows], one token of each distribution."""
    device = scores.device
    temperature = torch.tensor([row.params.temperature for row in rows], dtype=torch.float32, device=device)
    probabilities = torch.softmax(scores / temperature[:, None], dim=-1)
    if any(row.params.min_p for row in rows):
        least = torch.tensor([row.params.min_p for row in rows], dtype=torch.float32, device=device)
        probabilities[probabilities < least[:, None] * probabilities.amax(dim=-1, keepdim=True)] = 0
    cut = [place for place, row in enumerate(rows) if row.params.top_k or row.params.top_p < 1]
    if cut:
        all_rows = len(cut) == len(rows)
        chosen = probabilities if all_rows else probabilities[cut]
        least_kept = _cut(chosen, [rows[place].params for place in cut])
        chosen[chosen < least_kept] = 0
        if not all_rows:
            probabilities[cut] = chosen
    # In double precision, so that the sum of many small ones does not stand still.
    cumulative = probabilities.double().cumsum(dim=-1)
    numbers = [uniform(row.seed, len(row.token_ids)) for row in rows]
    points = torch.tensor(numbers, dtype=torch.float64, device=device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, points, right=True)[:, 0].clamp_(max=scores.shape[-1] - 1)


def _cut(probabilities: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """float32 [rows, 1], the smallest probability that `top_k`, then `top_p`, keep; equal ones stay together.

    The whole vocabulary is sorted only where the likeliest `_FEW` do not reach the bounds.
    """
    size = probabilities.shape[-1]
    few = min(max(_FEW, *(one.top_k for one in params)), size)
    best = probabilities.topk(few, dim=-1).values
    device = probabilities.device
    top_k = torch.tensor([min(one.top_k or size, size) for one in params], device=device)[:, None]
    top_p = torch.tensor([one.top_p for one in params], dtype=torch.float64, device=device)[:, None]
    total = probabilities.double().sum(dim=-1, keepdim=True)
    ends = _ends(best, top_k, top_p, total)
    needs_all = (ends == few) & (top_k > few) & (top_p < 1)
    least = best.gather(1, ends - 1)
    if few < size and bool(needs_all.any()):
        rows = needs_all[:, 0].nonzero()[:, 0]
        whole = probabilities[rows].sort(dim=-1, descending=True).values
        least[rows] = whole.gather(1, _ends(whole, top_k[rows], top_p[rows], total[rows]) - 1)
    # Without a bound of its own a row keeps all.
    return torch.where((top_k == size) & (top_p >= 1), torch.zeros_like(least), least)


def _ends(best: Tensor, top_k: Tensor, top_p: Tensor, total: Tensor) -> Tensor:
    """int64 [rows, 1], how many of the sorted probabilities are kept: the first that add up to `top_p` of `top_k`."""
    places = torch.arange(best.shape[-1], device=best.device)
    kept = best.double() * (places < top_k)
    sums = kept.cumsum(dim=-1)
    whole = torch.where(top_k < best.shape[-1] + 1, sums[:, -1:], total)
    ends = (sums < top_p * whole).sum(dim=-1, keepdim=True) + 1
    return torch.minimum(torch.minimum(ends, top_k), torch.full_like(ends, best.shape[-1]))
