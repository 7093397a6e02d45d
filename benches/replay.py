"""Replay a trace of prompts on the block manager: how much of them the prefix cache holds at several capacities.

One prompt at a time: admit, reserve all, commit, release; what would be generated is left out. An id of the trace
stands for one block, here of four tokens that are derived from it. Each prompt has one token more, so that the token
which is always left to compute costs no hit, and the pool one block more, where that token lies.

Baseline: the same on the plain Python manager, which has to find the same blocks.

Floor: each token of a prompt read once, 16 bytes a block, and for each new block about four cache misses, which a
thousand blocks side by side overlap.

Run: python benches/replay.py [TRACE.jsonl ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

import looseleaf
from plain_manager import PlainManager
from report import Report
from traces import conversations, read_trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_SIZE = 4
CAPACITIES = [1_000, 3_000, 10_000, 30_000, 100_000]


def prompt_tokens(ids: list[int]) -> NDArray[np.int32]:
    """The tokens of a prompt, and one more."""
    blocks = np.repeat(np.array(ids, dtype=np.int32) * BLOCK_SIZE, BLOCK_SIZE)
    blocks += np.tile(np.arange(BLOCK_SIZE, dtype=np.int32), len(ids))
    return np.append(blocks, np.int32(0))


class Replay(Protocol):
    """A manager that serves one prompt and says how many of its tokens it had."""

    def serve(self, tokens: NDArray[np.int32]) -> int: ...

    def finish(self) -> None: ...


class RealReplay:
    """On the block manager."""

    def __init__(self, capacity: int, longest: int) -> None:
        self.manager = looseleaf.BlockManager(
            capacity + 1, BLOCK_SIZE, max_sequences=1, max_sequence_len=(longest + 1) * BLOCK_SIZE
        )

    def serve(self, tokens: NDArray[np.int32]) -> int:
        with self.manager.admit(tokens) as sequence:
            handles = np.array([sequence.handle], dtype=np.int64)
            self.manager.reserve(handles)
            self.manager.commit(handles)
            return sequence.num_cached_tokens

    def finish(self) -> None:
        """Every block is accounted for."""
        self.manager.validate()
        assert self.manager.stats().num_available == self.manager.num_blocks


class PlainReplay:
    """On the baseline."""

    def __init__(self, capacity: int) -> None:
        self.manager = PlainManager(capacity + 1, BLOCK_SIZE)

    def serve(self, tokens: NDArray[np.int32]) -> int:
        num_cached = self.manager.admit(0, tokens.tolist())
        self.manager.reserve([0])
        self.manager.commit([0])
        self.manager.release(0)
        return num_cached

    def finish(self) -> None:
        assert not any(self.manager.ref_counts)


def count_hits(replay: Replay, prompts: list[NDArray[np.int32]]) -> int:
    """Blocks of the prompts that were cached when they came."""
    num_tokens = sum(replay.serve(tokens) for tokens in prompts)
    replay.finish()
    return num_tokens // BLOCK_SIZE


def run(name: str, requests: list[list[int]], report: Report) -> None:
    """Replay a trace at every capacity that it can fill, and without a limit."""
    prompts = [prompt_tokens(ids) for ids in requests]
    longest = max(len(ids) for ids in requests)
    num_blocks = sum(len(ids) for ids in requests)
    num_unique = len({block for ids in requests for block in ids})
    capacities = {f"{capacity:,} blocks": capacity for capacity in CAPACITIES if longest <= capacity < num_unique}
    for label, capacity in {**capacities, "no limit": num_unique}.items():
        found = []
        replays: list[tuple[str, Replay]] = [
            ("plain Python", PlainReplay(capacity)),
            ("looseleaf", RealReplay(capacity, longest)),
        ]
        for who, replay in replays:
            start = time.thread_time()
            found.append(count_hits(replay, prompts))
            seconds = time.thread_time() - start
            report.add(
                f"{name}, {label}, {who}",
                seconds / len(requests),
                note=f"{100 * found[-1] / num_blocks:.1f} % of {num_blocks:,} blocks hit",
                baseline=who == "plain Python",
            )
        assert found[0] == found[1], f"{label}: {found}"


def main() -> None:
    """Replay the traces given, or one that is made up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", metavar="TRACE.jsonl", help="lines of JSON with hash_ids")
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    report = Report("replay of prompts, CPU time per request", baseline="plain Python")
    if not arguments.traces:
        run("made up", conversations(4_000, seed=1), report)
    for path in arguments.traces:
        run(Path(path).stem, read_trace(path), report)
    report.finish(arguments.json)


if __name__ == "__main__":
    main()
