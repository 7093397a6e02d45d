"""How many requests of a trace fit into the same KV memory at once: paged, and contiguous at the longest.

Baseline: one region for each request, as long as the longest request of the trace, since nobody knows beforehand how
long it will get. Paged: blocks for the tokens that each has at its end, which is more than it ever holds before. No
prefix is shared. Requests are taken in order from many places of the trace; the mean counts.

Run: python benches/admitted.py [TRACE.csv] [--tokens 1000000]; without a trace lengths are drawn from a log-normal.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from looseleaf import BlockManager, OutOfBlocks
from looseleaf.engine.trace import read_trace

BLOCK_SIZE = 16
GOAL = 4.0


def lengths_of(path: str | None) -> list[int]:
    """Tokens of prompt and answer of each request."""
    if path is not None:
        return [entry.prompt_len + entry.num_generated for entry in read_trace(Path(path))]
    rng = np.random.default_rng(0)
    return [min(int(length) + 16, 16_000) for length in rng.lognormal(6.9, 0.9, 5000)]


def paged(lengths: list[int], num_tokens: int) -> int:
    """Requests that are admitted before there are not enough blocks."""
    manager = BlockManager(
        num_tokens // BLOCK_SIZE, BLOCK_SIZE, max_sequences=len(lengths), max_sequence_len=max(lengths)
    )
    sequences = []
    for number, length in enumerate(lengths):
        try:
            sequences.append(manager.admit([number], reserve=length, cache=False))
        except OutOfBlocks:
            break
    return len(sequences)


def main() -> None:
    """Print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="KV memory, in tokens")
    options = parser.parse_args()
    lengths = lengths_of(options.trace)
    starts = np.linspace(0, len(lengths) // 2, 10).astype(int).tolist()
    found = [paged(lengths[start : start + 4000], options.tokens) for start in starts]
    contiguous = options.tokens // max(lengths)
    mean = float(np.mean(found))
    print(f"contiguous at {max(lengths):,} tokens  {contiguous:>8,} requests   baseline")
    ratio = mean / contiguous
    print(
        f"paged, blocks of {BLOCK_SIZE}          {mean:>8,.0f} requests   {ratio:.1f}x   goal {GOAL:g}x"
        f"{'' if ratio >= GOAL else ', missed'}"
    )


if __name__ == "__main__":
    main()
