"""The prefix cache gives up what a plain list of least recently used blocks gives up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from replay import BLOCK_SIZE, RealReplay, count_hits, prompt_tokens
from traces import conversations, read_trace

if TYPE_CHECKING:
    from pathlib import Path

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
    hits = count_hits(RealReplay(capacity, longest), [prompt_tokens(ids) for ids in requests])
    assert hits == least_recently_used_hits(requests, capacity)


def test_the_trace_tells_the_capacities_apart(requests: list[list[int]]) -> None:
    hits = [least_recently_used_hits(requests, capacity) for capacity in (80, 200, 600, 2_000, 6_000)]
    assert hits == sorted(set(hits))
    assert hits[0] > 0


def test_without_a_limit_every_repeated_prefix_hits(requests: list[list[int]]) -> None:
    num_unique = len({block for ids in requests for block in ids})
    hits = count_hits(RealReplay(num_unique, max(map(len, requests))), [prompt_tokens(ids) for ids in requests])
    assert hits == sum(map(len, requests)) - num_unique


def test_a_prompt_is_a_block_for_each_id_and_one_token() -> None:
    assert BLOCK_SIZE == 4
    assert np.array_equal(prompt_tokens([7, 0]), [28, 29, 30, 31, 0, 1, 2, 3, 0])


def test_a_trace_is_read_from_lines_of_json(tmp_path: Path) -> None:
    lines = [{"timestamp": 0, "input_length": 700, "hash_ids": [0, 1]}, {"hash_ids": [0, 2, 3]}]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_trace(str(path)) == [[0, 1], [0, 2, 3]]
