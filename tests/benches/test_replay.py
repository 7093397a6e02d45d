"""The prefix cache gives up what a plain list of least recently used blocks gives up."""

from __future__ import annotations

import pytest

from replay import count_hits, count_plain_hits, entries_of
from traces import conversations

NUM_REQUESTS = 1_500


def least_recently_used_hits(requests: list[list[int]], capacity: int) -> int:
    """Hits of a cache that is one list, oldest first; a prompt's last block counts as used before its first."""
    cached: list[int] = []
    num_hits = 0
    for ids in requests:
        present = set(cached)
        misses = [index for index, block in enumerate(ids) if block not in present]
        num_hits += misses[0] if misses else len(ids)
        used = set(ids)
        cached = [block for block in cached if block not in used]
        room = capacity - len(ids)
        cached = cached[max(0, len(cached) - room) :] + ids[::-1]
    return num_hits


@pytest.fixture(scope="module")
def requests() -> list[list[int]]:
    made_up = conversations(NUM_REQUESTS, seed=7)
    assert len(made_up) == NUM_REQUESTS
    return made_up


@pytest.mark.parametrize("capacity", [80, 200, 600, 2_000, 6_000])
def test_replayed_prompts_hit_as_often_as_in_a_plain_list(requests: list[list[int]], capacity: int) -> None:
    longest = max(len(ids) for ids in requests)
    assert longest < capacity
    hits = least_recently_used_hits(requests, capacity)
    assert count_hits(entries_of(requests), capacity) == hits
    assert count_plain_hits(entries_of(requests), capacity) == hits


def test_the_trace_tells_the_capacities_apart(requests: list[list[int]]) -> None:
    hits = [least_recently_used_hits(requests, capacity) for capacity in (80, 200, 600, 2_000, 6_000)]
    assert hits == sorted(set(hits))
    assert hits[0] > 0


def test_without_a_limit_every_repeated_prefix_hits(requests: list[list[int]]) -> None:
    num_unique = len({block for ids in requests for block in ids})
    assert count_hits(entries_of(requests), num_unique) == sum(map(len, requests)) - num_unique
