"""One token from each of many distributions, by numbers that depend on seed and position only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from looseleaf.engine.params import SamplingParams

__all__ = ["draw", "uniform"]

_FEW = 1024
"""Candidates among which the cut of `top_p` is looked for first; few distributions need more."""

_BLOCK = 256
"""Tokens that are summed up in one: the inverse is looked for among the sums, then inside one block."""

_TEMPERATURES = (1e-30, 1e30)
"""Beyond these, logits divided by a temperature would leave float32."""


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the generated token at a position: a function of the two, and of nothing else.

    Hence neither the batch, nor a preemption, nor speculation can change what a seeded request gets. Philox, a
    counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), keyed by the seed.

    >>> uniform(7, 0) == uniform(7, 0), uniform(7, 0) == uniform(7, 1), uniform(7, 0) == uniform(8, 0)
    (True, False, False)
    """
    bits = np.random.Philox(key=seed, counter=position).random_raw()
    return float(bits >> 11) * 2.0**-53


def draw(scores: Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> Tensor:
    """Choose by `temperature`, `min_p`, `top_k`, `top_p`, and the inverse of the cumulative distribution.

    A token without probability is never chosen. Scores that make no distribution, because they hold NaN or positive
    infinity or nothing else than negative infinity, give what greedy gives.

    Args:
        scores: [rows, vocabulary], any floating dtype; not changed.
        params: of each row, all with a temperature above 0.
        numbers: of each row, in [0, 1).

    Returns:
        int64 [rows], on the device of `scores`.

    >>> from looseleaf.engine.params import SamplingParams
    >>> params = SamplingParams(max_tokens=1, temperature=1.0)
    >>> draw(torch.tensor([[0.6, 0.1, 0.3]]).log().expand(3, 3), [params] * 3, [0.5, 0.65, 0.8]).tolist()
    [0, 1, 2]
    """
    low, high = _TEMPERATURES
    temperatures = _column([min(max(one.temperature, low), high) for one in params], scores)
    probabilities = torch.softmax(scores.float() / temperatures, dim=-1)
    if any(one.min_p or one.top_k or one.top_p < 1 for one in params):
        least = _least_kept(probabilities, params)
        # A mask of floats: several times faster on a CPU than one of bools.
        probabilities.mul_(torch.ge(probabilities, least, out=torch.empty_like(probabilities)))
    token_ids, has_distribution = _invert(probabilities, numbers)
    if not bool(has_distribution.all()):
        token_ids = torch.where(has_distribution, token_ids, scores.argmax(dim=-1))
    return token_ids


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)[:, None]


def _invert(probabilities: Tensor, numbers: Sequence[float]) -> tuple[Tensor, Tensor]:
    """int64 [rows], the token whose interval of the cumulative sum holds the number; bool [rows], whether there is one.

    Points are kept below their totals: a number so near to 1 that its product is rounded up would find no token.
    """
    rows, size = probabilities.shape
    num_whole = size // _BLOCK
    whole, tail = probabilities[:, : num_whole * _BLOCK], probabilities[:, num_whole * _BLOCK :]
    sums = torch.cat([whole.view(rows, num_whole, _BLOCK).sum(dim=-1), tail.sum(dim=-1, keepdim=True)], dim=-1)
    # In double precision, so that the sum of many small ones does not stand still.
    ends = sums.double().cumsum(dim=-1)
    total = ends[:, -1:]
    points = _below(_column(numbers, probabilities, torch.float64) * total, total)
    block = (ends <= points).sum(dim=-1, keepdim=True)
    share = sums.gather(1, block).double()
    rest = (points - (ends.gather(1, block) - share)) / share

    places = block * _BLOCK + torch.arange(_BLOCK, device=probabilities.device)
    inside = probabilities.gather(1, places.clamp(max=size - 1)).double() * (places < size)
    ends = inside.cumsum(dim=-1)
    points = _below(rest.clamp(min=0.0) * ends[:, -1:], ends[:, -1:])
    token_ids = block[:, 0] * _BLOCK + (ends <= points).sum(dim=-1)
    return token_ids, total[:, 0] > 0


def _below(points: Tensor, total: Tensor) -> Tensor:
    return torch.minimum(points, torch.nextafter(total, torch.zeros_like(total)))


def _least_kept(probabilities: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """float32 [rows, 1], the smallest probability that `min_p`, then `top_k`, then `top_p` keep.

    Equal ones stay together, so that the order in which a sort leaves them decides nothing.
    """
    least = _column([one.min_p for one in params], probabilities) * probabilities.amax(dim=-1, keepdim=True)
    sorts = [place for place, one in enumerate(params) if one.top_k or one.top_p < 1]
    if sorts:
        some = probabilities if len(sorts) == len(params) else probabilities[sorts]
        least[sorts] = _last_of_best(some, [params[place] for place in sorts], least[sorts])
    return least


def _last_of_best(probabilities: Tensor, params: Sequence[SamplingParams], floor: Tensor) -> Tensor:
    """float32 [rows, 1], the smallest probability that `top_k`, then `top_p`, keep of those at or above the floor.

    The whole vocabulary is sorted only for rows without `top_k` whose likeliest `_FEW` do not reach `top_p`.
    """
    size = probabilities.shape[-1]
    few = min(max(one.top_k or _FEW for one in params), size)
    top_k = _column([min(one.top_k or size, size) for one in params], probabilities, torch.int64)
    top_p = _column([one.top_p for one in params], probabilities, torch.float64)
    least, is_found = _last(_best(probabilities, few), top_k, top_p, floor, size)
    if not bool(is_found.all()):
        rows = (~is_found[:, 0]).nonzero()[:, 0]
        every = _best(probabilities[rows], size)
        least[rows] = _last(every, top_k[rows], top_p[rows], floor[rows], size)[0]
    return least


def _last(best: Tensor, top_k: Tensor, top_p: Tensor, floor: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """float32 [rows, 1], the last that is kept of the best, the greatest first; bool [rows, 1], whether it is certain.

    `top_p` is a share of what `top_k` and the floor keep. Without them that is 1, whatever part of it is looked at.
    """
    seen = best.shape[-1]
    has_floor = floor > 0
    num_allowed = top_k.clamp(max=seen)
    if bool(has_floor.any()):
        num_allowed = torch.minimum(num_allowed, (best >= floor).sum(dim=-1, keepdim=True)).clamp(min=1)
    sums = best.cumsum(dim=-1, dtype=torch.float64)
    has_all = (top_k == size) & ~has_floor
    total = torch.where(has_all, torch.ones_like(top_p), sums.gather(1, num_allowed - 1))
    reached = torch.searchsorted(sums, top_p * total) + 1
    is_open = (num_allowed == seen) & (top_k > seen)  # more of them may be allowed
    is_found = ~is_open | (has_all & (reached <= seen))
    num_kept = torch.where(top_p < 1, torch.minimum(reached, num_allowed), num_allowed)
    return best.gather(1, num_kept - 1), is_found


def _best(probabilities: Tensor, number: int) -> Tensor:
    """float32 [rows, number], the greatest of each row, the greatest first."""
    if probabilities.device.type != "cpu":
        return probabilities.topk(number, dim=-1).values
    # NumPy partitions and sorts a row many times faster than PyTorch does on a CPU.
    values = probabilities.numpy()
    size = values.shape[-1]
    if number < size:
        values = np.partition(values, size - number, axis=-1)[:, size - number :]
    return torch.from_numpy(np.sort(values, axis=-1)[:, ::-1].copy())
