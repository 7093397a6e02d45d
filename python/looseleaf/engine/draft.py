"""Prompt lookup: tokens that may come next, because they came after the same tokens before.

The method is Saxena's prompt lookup decoding (2023): no second model, a match of the latest tokens in prompt and
answer. It pays where the answer repeats its prompt: summaries, corrections, code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["propose"]


def propose(token_ids: NDArray[np.int64], num_tokens: int, *, max_ngram: int = 3) -> NDArray[np.int64]:
    """Find the latest tokens earlier on, the longest match first, and return what followed them.

    Of several places the last one counts: text nearby is more like what comes next. A place so near the end that it
    has fewer tokens after it than wanted gives way to an earlier one that has enough.

    Args:
        token_ids: int64 [len], prompt and answer.
        num_tokens: tokens to propose at most.
        max_ngram: longest match to look for; 1 is the shortest.

    Returns:
        int64 [up to num_tokens]; empty without a match.

    >>> propose(np.array([5, 6, 7, 8, 1, 5, 6]), 2).tolist()
    [7, 8]
    """
    for length in range(min(max_ngram, len(token_ids) - 1), 0, -1):
        pattern = token_ids[-length:]
        # Every place but the last itself: a window that ends before the last token.
        windows = np.lib.stride_tricks.sliding_window_view(token_ids[:-1], length)
        places = np.flatnonzero((windows == pattern).all(axis=1)) + length
        if len(places):
            whole = places[places + num_tokens <= len(token_ids)]
            start = int(whole[-1] if len(whole) else places[0])
            return token_ids[start : start + num_tokens].copy()
    return np.empty(0, dtype=np.int64)
