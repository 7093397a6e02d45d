"""Log-probabilities of tokens, as the model gives them: before penalties, biases and temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["TokenLogprobs", "prompt_logprobs", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was at its place.

    Attributes:
        token_id: the token that stands there.
        logprob: natural logarithm of its probability.
        rank: 1 for the likeliest token; one more for each that is likelier.
        top: log-probabilities of the likeliest tokens by id, the likeliest first.
    """

    token_id: int
    logprob: float
    rank: int
    top: dict[int, float]


def token_logprobs(logits: Tensor, token_ids: list[int], num_top: list[int]) -> list[TokenLogprobs]:
    """Log-probabilities of one token in each row.

    Args:
        logits: [rows, vocabulary], as the model gives them.
        token_ids: one for each row.
        num_top: how many of the likeliest tokens to return, for each row.

    >>> found = token_logprobs(torch.tensor([[0.0, 0.0, -torch.inf]]), [1], [1])
    >>> round(found[0].logprob, 4), found[0].rank, list(found[0].top)
    (-0.6931, 1, [0])
    """
    if not token_ids:
        return []
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    most = min(max(num_top), logits.shape[-1])
    values, ids = logprobs.topk(most, dim=-1)
    rows = zip(token_ids, chosen[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), num_top, strict=True)
    return [
        TokenLogprobs(token_id, logprob, rank, dict(zip(top_ids[:number], top_values[:number], strict=True)))
        for token_id, logprob, rank, top_ids, top_values, number in rows
    ]


def prompt_logprobs(logits: Tensor, token_ids: NDArray[np.int64], *, num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities of prompt tokens.

    Args:
        logits: [tokens, vocabulary], each row after the token before.
        token_ids: int64 [tokens], the tokens that stand there.
        num_top: how many of the likeliest tokens to return for each.
    """
    return token_logprobs(logits, token_ids.tolist(), [num_top] * len(token_ids))
