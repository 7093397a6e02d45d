from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.engine.draft import propose


def naive(token_ids: list[int], num_tokens: int, max_ngram: int) -> list[int]:
    for length in range(min(max_ngram, len(token_ids) - 1), 0, -1):
        starts = [
            start + length
            for start in range(len(token_ids) - length)
            if token_ids[start : start + length] == token_ids[-length:]
        ]
        whole = [start for start in starts if start + num_tokens <= len(token_ids)]
        if starts:
            start = whole[-1] if whole else starts[0]
            return token_ids[start : start + num_tokens]
    return []


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1], []),
        ([1, 2, 3], []),
        ([1, 1], [1]),
        ([7, 8, 9, 1, 2, 7, 8], [9, 1, 2]),
        ([7, 8, 1, 0, 7, 8, 2, 0, 7, 8], [2, 0, 7]),  # the latest place
        ([5, 6, 7, 1, 9, 6, 7, 2, 5, 6, 7], [1, 9, 6]),  # the longest match
        ([4, 4, 4, 4, 4, 4], [4, 4, 4]),  # a place with enough behind it
    ],
)
def test_what_followed_the_latest_tokens_before_is_proposed(token_ids: list[int], expected: list[int]) -> None:
    assert propose(np.array(token_ids), 3).tolist() == expected


@given(
    token_ids=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    num_tokens=st.integers(1, 8),
    max_ngram=st.integers(1, 4),
)
def test_it_finds_what_a_plain_loop_finds(token_ids: list[int], num_tokens: int, max_ngram: int) -> None:
    found = propose(np.array(token_ids), num_tokens, max_ngram=max_ngram).tolist()
    assert found == naive(token_ids, num_tokens, max_ngram)
