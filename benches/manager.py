"""The block manager through Python, against the plain Python manager of the same run: what each call costs.

CPU time of the thread. Both managers are given the same work, and what they answer is compared before it is timed.
Goals that are missed are printed as missed.

Floors count what has to be read and written at least, at 60 bytes per nanosecond in a second-level cache, 15 from
memory, and 15 ns for a cache miss that others overlap; `cargo bench -p looseleaf-benches --bench speed` measures those
rates. A decoded token moves 168 bytes of state, arguments and batch, a block that is found 160, one computed 512.

Run: python benches/manager.py [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, TypeVar

import numpy as np

import looseleaf
from plain_manager import PlainManager
from report import Goal, Report, median_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

T = TypeVar("T")

BLOCK_SIZE = 16
MILLION = 1 << 20
DECODE = ("168 B / 60 B/ns", 2.8)
PUBLISH = ("168 B / 60 B/ns + (128 B / 15 B/ns + 3 misses) / 16", 6.1)
HIT = ("511 x 160 B / 60 B/ns", 1_363.0)
COMPUTE = ("128 B / 15 B/ns + 384 B / 60 B/ns + 3 misses", 59.9)
EVICT = ("5 misses", 75.0)
GATHER = ("8 B an id / 60 B/ns", 6_600.0)
BUILD = ("8 B a block / 15 B/ns", 559_000.0)


class Pair:
    """A block manager and a plain one of the same size, and the requests that run on both."""

    def __init__(self, num_blocks: int, num_rows: int, max_len: int, *, prefix_caching: bool = True) -> None:
        self.real = looseleaf.BlockManager(
            num_blocks,
            BLOCK_SIZE,
            max_sequences=num_rows + 1,
            max_sequence_len=max_len,
            prefix_caching=prefix_caching,
        )
        self.batch = self.real.bind_batch(max_batch_tokens=max(num_rows, max_len))
        self.plain = PlainManager(num_blocks, BLOCK_SIZE, prefix_caching=prefix_caching)
        self.rng = np.random.default_rng(7)
        self.sequences: list[looseleaf.Sequence] = []
        self.names: list[int] = []
        self.next_name = 0

    def prompt(self, length: int) -> NDArray[np.int32]:
        return self.rng.integers(0, 50_000, length, dtype=np.int32)

    def admit(self, tokens: NDArray[np.int32]) -> tuple[looseleaf.Sequence, int]:
        """Admit and compute a prompt on both."""
        sequence = self.real.admit(tokens)
        handles = np.array([sequence.handle])
        self.real.reserve(handles)
        self.real.commit(handles)
        self.next_name += 1
        assert self.plain.admit(self.next_name, tokens.tolist()) == sequence.num_cached_tokens
        self.plain.commit([self.next_name])
        return sequence, self.next_name

    def run(self, lengths: list[int]) -> None:
        """Admit prompts that share nothing, as the rows of the next steps."""
        for length in lengths:
            sequence, name = self.admit(self.prompt(length))
            self.sequences.append(sequence)
            self.names.append(name)

    def fill(self) -> None:
        """Cache prompts of 4,096 tokens until no block is free."""
        while self.real.stats().num_free:
            sequence, name = self.admit(self.prompt(4_096))
            sequence.release()
            self.plain.release(name)

    @property
    def handles(self) -> NDArray[np.int64]:
        return np.array([sequence.handle for sequence in self.sequences], dtype=np.int64)

    def check_step(self, tokens: NDArray[np.int32]) -> None:
        """One step on both: the same lengths, and each slot in the block that the table names."""
        arrays = self.plain.reserve(self.names, tokens.tolist())
        self.real.reserve(self.handles, 1, tokens=tokens)
        assert np.array_equal(arrays["seq_lens"], self.batch.seq_lens)
        assert np.array_equal(arrays["cu_query_lens"], self.batch.cu_query_lens)
        assert np.array_equal(arrays["slot_mapping"] % BLOCK_SIZE, self.batch.slot_mapping % BLOCK_SIZE)
        columns = self.batch.positions // BLOCK_SIZE
        rows = np.arange(len(self.names))
        assert np.array_equal(self.batch.block_table[rows, columns], self.batch.slot_mapping // BLOCK_SIZE)
        self.commit()

    def commit(self) -> None:
        self.plain.commit(self.names)
        self.real.commit(self.handles)

    def step(self, handles: NDArray[np.int64], tokens: NDArray[np.int32]) -> None:
        self.real.reserve(handles, 1, tokens=tokens)
        self.real.commit(handles)

    def plain_step(self, tokens: list[int]) -> None:
        self.plain.reserve(self.names, tokens)
        self.plain.commit(self.names)

    def serve(self, tokens: NDArray[np.int32]) -> None:
        with self.real.admit(tokens) as sequence:
            handles = np.array([sequence.handle])
            self.real.reserve(handles)
            self.real.commit(handles)

    def plain_serve(self, tokens: list[int]) -> None:
        self.plain.admit(0, tokens)
        self.plain.reserve([0])
        self.plain.commit([0])
        self.plain.release(0)


def staggered(num_rows: int, length: int = 1_000) -> list[int]:
    """Lengths of which one in sixteen crosses into a new block at each step."""
    return [length + row % BLOCK_SIZE for row in range(num_rows)]


class Laps:
    """Times parts of rounds, and takes off what the clock costs."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.clock = float(np.median([-(time.thread_time() - time.thread_time()) for _ in range(1_000)]))

    def time(self, call: Callable[..., T], *arguments: object, **named: object) -> T:
        start = time.thread_time()
        result = call(*arguments, **named)
        self.samples.append(max(0.0, time.thread_time() - start - self.clock))
        return result

    def median(self) -> float:
        return float(np.median(self.samples))


def decode(report: Report) -> None:
    """One token for each row: a step as an engine calls it, and the one call that writes tables and slots."""
    num_rows = 256
    pair = Pair(num_rows * 128, num_rows, 2_048)
    pair.run(staggered(num_rows))
    tokens, handles, plain_tokens = np.zeros(num_rows, dtype=np.int32), pair.handles, [0] * num_rows
    pair.check_step(tokens)
    plain, real = Laps(), Laps()
    for _ in range(16):
        plain.time(pair.plain_step, plain_tokens)
    for _ in range(320):
        real.time(pair.step, handles, tokens)
    label = "reserve + commit, one token each, B = 256"
    report.add(f"{label}, plain Python", plain.median(), each=num_rows, baseline=True)
    report.add(label, real.median(), each=num_rows, note=f"{1e6 * real.median():.1f} us a step")

    num_rows = 1_024
    pair = Pair(num_rows * 128, num_rows, 2_048, prefix_caching=False)
    pair.run(staggered(num_rows))
    tokens, handles, plain_tokens = np.zeros(num_rows, dtype=np.int32), pair.handles, [0] * num_rows
    pair.check_step(tokens)
    plain, real = Laps(), Laps()
    for _ in range(16):
        plain.time(pair.plain.reserve, pair.names, plain_tokens)
        pair.plain.commit(pair.names)
    for _ in range(320):
        real.time(pair.real.reserve, handles, 1, tokens=tokens)
        pair.real.commit(handles)
    label = "reserve, one token each, B = 1024, no prefix cache"
    report.add(f"{label}, plain", plain.median(), each=num_rows, baseline=True)
    report.add(label, real.median(), each=num_rows, goal=Goal(12.0, *DECODE))


def tables(report: Report) -> None:
    """The dense tables of 256 sequences, 49.7 k ids."""
    pair = Pair(256 * 256, 256, 4_096, prefix_caching=False)
    pair.run([3_004 + 13 * (row % BLOCK_SIZE) for row in range(256)])
    handles = pair.handles
    table = np.empty((256, 256), dtype=np.int32)
    pair.real.gather_rows(handles, table)
    expected = pair.plain.table(pair.names)
    assert np.array_equal(table[:, : expected.shape[1]] > 0, expected > 0)
    assert table[7].tolist()[:180] == pair.sequences[7].blocks[:180]
    plain = median_seconds(lambda: pair.plain.table(pair.names), repeats=15)
    real = median_seconds(lambda: pair.real.gather_rows(handles, table), repeats=15, calls=20)
    note = f"{np.count_nonzero(table):,} ids"
    report.add("gather_rows, B = 256, plain Python", plain, baseline=True)
    report.add("gather_rows, B = 256", real, goal=Goal(60_000.0, *GATHER), note=note)


def million(report: Report) -> None:
    """A million blocks, all cached: decode steps that publish and evict, and prompts from admission to release."""
    num_rows, replaced = 1_024, 4
    pair = Pair(MILLION, num_rows, 4_096)
    pair.fill()
    prompts(report, pair)
    pair.run(staggered(num_rows))
    plain, real = Laps(), Laps()
    for step in range(256):
        tokens = pair.prompt(num_rows)
        plain_tokens, handles = tokens.tolist(), pair.handles
        if step < 2:
            pair.check_step(tokens)
            continue
        real.time(pair.step, handles, tokens)
        if step < 34:
            plain.time(pair.plain_step, plain_tokens)
        for row in range(step * replaced % num_rows, step * replaced % num_rows + replaced):
            pair.sequences[row].release()
            pair.sequences[row] = pair.real.admit(pair.prompt(1_000 + (step + 5 * row) % BLOCK_SIZE))
            pair.real.reserve([pair.sequences[row]])
            pair.real.commit([pair.sequences[row]])
    assert pair.real.stats().num_free == 0
    pair.real.validate()
    label = "reserve + commit with publish + evict, 1 M blocks, B = 1024"
    report.add(f"{label}, plain Python", plain.median(), each=num_rows, baseline=True, note="without replaced requests")
    report.add(label, real.median(), each=num_rows, goal=Goal(25.0, *PUBLISH))


def prompts(report: Report, pair: Pair) -> None:
    """Prompts of 4,096 tokens that are not cached."""
    evicted = pair.real.stats().num_evicted
    plain, real = Laps(), Laps()
    for call in range(200):
        tokens = pair.prompt(4_096)
        plain_tokens = tokens.tolist()
        real.time(pair.serve, tokens)
        if call < 20:
            plain.time(pair.plain_serve, plain_tokens)
    assert pair.real.stats().num_evicted - evicted == 200 * 256
    label = "admit + reserve + commit + release of 4,096 tokens, cache full"
    report.add(f"{label}, plain", plain.median(), each=256, baseline=True)
    report.add(label, real.median(), each=256, goal=Goal(80.0, *COMPUTE))


def admissions(report: Report) -> None:
    """A prompt of 8,192 tokens of which 511 blocks are cached, by somebody else or idle."""
    pair = Pair(2_048, 2, 8_192)
    tokens = pair.prompt(8_192)
    plain_tokens = tokens.tolist()
    holder, name = pair.admit(tokens)
    for how, goal in (("held", 6_000.0), ("idle", 10_000.0)):
        if how == "idle":
            holder.release()
            pair.plain.release(name)
        plain, real = Laps(), Laps()
        for call in range(500):
            sequence = real.time(pair.real.admit, tokens)
            assert sequence.num_cached_tokens == 511 * BLOCK_SIZE
            sequence.release()
            if call < 50:
                plain.time(pair.plain.admit, 0, plain_tokens)
                assert pair.plain.requests[0].computed == 511 * BLOCK_SIZE
                pair.plain.release(0)
        label = f"admit of 8,192 tokens, 511 blocks cached, {how}"
        report.add(f"{label}, plain Python", plain.median(), baseline=True)
        report.add(label, real.median(), goal=Goal(goal, *HIT))


def evictions(report: Report) -> None:
    """A million idle blocks, of sequences of 16 that were released in random order."""
    num_rows = MILLION // 16
    pair = Pair(MILLION, num_rows, 256)
    pair.run([256] * num_rows)
    for row in pair.rng.permutation(num_rows).tolist():
        pair.sequences[row].release()
        pair.plain.release(pair.names[row])
    assert pair.real.stats().num_idle == len(pair.plain.idle) == MILLION
    plain, real = Laps(), Laps()
    for _ in range(1_024):
        real.time(pair.real.evict, 256)
        plain.time(pair.plain.evict, 256)
    assert pair.real.stats().num_idle == len(pair.plain.idle) == MILLION - (1_024 << 8)
    report.add("evict, 256 a call, 1 M blocks, plain Python", plain.median(), each=256, baseline=True)
    report.add("evict, 256 a call, 1 M blocks", real.median(), each=256, goal=Goal(80.0, *EVICT))


def build(report: Report) -> None:
    """A manager of a million blocks."""
    plain = median_seconds(lambda: PlainManager(MILLION), repeats=5)
    real = median_seconds(lambda: looseleaf.BlockManager(MILLION), repeats=5)
    report.add("build a manager of 1 M blocks, plain Python", plain, baseline=True)
    report.add("build a manager of 1 M blocks", real, goal=Goal(20e6, *BUILD))


def main() -> None:
    """Run all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    report = Report("block manager through Python, CPU time", baseline="plain Python")
    for rows in (build, decode, tables, admissions, evictions, million):
        rows(report)
    report.finish(arguments.json)


if __name__ == "__main__":
    main()
