"""Replay a trace of prompts on the block manager: how much of them the prefix cache holds at several capacities.

One prompt at a time, as `looseleaf replay` does it: its tokens are made from its ids, one block for each; it is
admitted, computed and released; what would be generated is left out. What the manager alone takes, manager.py tells.

Baseline: the same on the plain Python manager, which has to find the same blocks.

Floor: each token of a prompt made and read once, and for each new block about four cache misses, which a thousand
blocks side by side overlap.

Run: python benches/replay.py [TRACE.jsonl ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from looseleaf.engine.replay import Replay
from looseleaf.engine.trace import TOKENS_PER_ID, Entry, read_trace
from looseleaf.sizing import blocks_for_tokens
from plain_manager import PlainManager
from report import Report
from traces import conversations

CAPACITIES = [1_000, 3_000, 10_000, 30_000, 100_000]
BLOCK_SIZE = 4
"""Of the plain manager, in tokens."""


def entries_of(requests: list[list[int]]) -> list[Entry]:
    """Requests for prompts of whole ids."""
    return [Entry(ids, TOKENS_PER_ID * len(ids), 1) for ids in requests]


def num_blocks_of(entries: list[Entry]) -> int:
    """Blocks of all prompts together."""
    return sum(blocks_for_tokens(entry.prompt_len, TOKENS_PER_ID) for entry in entries)


def count_hits(entries: list[Entry], capacity: int) -> int:
    """Blocks of the prompts that were cached when they came."""
    outcome = Replay(entries, [TOKENS_PER_ID]).run(TOKENS_PER_ID, num_blocks=capacity)
    return round(outcome.block_hit_percent * num_blocks_of(entries) / 100)


def count_plain_hits(entries: list[Entry], capacity: int) -> int:
    """The same on the baseline. Each prompt has a token more, which lies in a block more: one is always computed."""
    manager = PlainManager(capacity + 1, BLOCK_SIZE)
    num_tokens = 0
    for entry in entries:
        ids = entry.ids or []
        tokens = [BLOCK_SIZE * number + place for number in ids for place in range(BLOCK_SIZE)]
        num_tokens += manager.admit(0, [*tokens, 0])
        manager.reserve([0])
        manager.commit([0])
        manager.release(0)
    assert not any(manager.ref_counts)
    return num_tokens // BLOCK_SIZE


def run(name: str, entries: list[Entry], report: Report) -> None:
    """Replay a trace at every capacity that it can fill, and without a limit."""
    longest = max(num_blocks_of([entry]) for entry in entries)
    num_blocks = num_blocks_of(entries)
    num_unique = len({number for entry in entries for number in entry.ids or ()})
    capacities = {f"{capacity:,} blocks": capacity for capacity in CAPACITIES if longest <= capacity < num_unique}
    for label, capacity in {**capacities, "no limit": num_unique}.items():
        start = time.thread_time()
        plain = count_plain_hits(entries, capacity)
        middle = time.thread_time()
        found = count_hits(entries, capacity)
        seconds = {"plain Python": middle - start, "looseleaf": time.thread_time() - middle}
        assert found == plain, f"{label}: {found} blocks hit, {plain} on the plain manager"
        for who, took in seconds.items():
            report.add(
                f"{name}, {label}, {who}",
                took / len(entries),
                note=f"{100 * found / num_blocks:.1f} % of {num_blocks:,} blocks hit",
                baseline=who == "plain Python",
            )


def main() -> None:
    """Replay the traces given, or one that is made up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", metavar="TRACE.jsonl", help="lines of JSON with hash_ids")
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    report = Report("replay of prompts, CPU time per request", baseline="plain Python")
    if not arguments.traces:
        run("made up", entries_of(conversations(4_000, seed=1)), report)
    for path in arguments.traces:
        run(Path(path).stem, read_trace(Path(path)), report)
    report.finish(arguments.json)


if __name__ == "__main__":
    main()
