"""The baseline of the benchmarks is honest: it caches and gives up what the block manager does."""

from __future__ import annotations

import random

import numpy as np
import pytest

from looseleaf import BlockManager, OutOfBlocks, Sequence
from plain_manager import PlainManager

NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES = 24, 4, 6


class Both:
    """The two managers, driven alike; tables are compared by their shape, since block ids may differ."""

    def __init__(self, seed: int, *, prefix_caching: bool) -> None:
        self.rng = random.Random(seed)
        self.known = [[self.rng.randint(0, 1) for _ in range(36)] for _ in range(8)]
        self.real = BlockManager(
            NUM_BLOCKS, BLOCK_SIZE, max_sequences=MAX_SEQUENCES, max_sequence_len=64, prefix_caching=prefix_caching
        )
        self.batch = self.real.bind_batch(max_batch_tokens=512)
        self.plain = PlainManager(NUM_BLOCKS, BLOCK_SIZE, prefix_caching=prefix_caching)
        self.sequences: dict[int, Sequence] = {}
        self.num_hits = self.num_refused = 0

    def prompt(self) -> list[int]:
        """A part of one of eight prompts, and a few tokens more."""
        known = self.known[self.rng.randrange(8)][: self.rng.randint(0, 36)]
        return known + [self.rng.randint(0, 1) for _ in range(self.rng.randint(1, 6))]

    def admit(self, name: int) -> None:
        tokens = self.prompt()
        try:
            sequence = self.real.admit(tokens)
        except OutOfBlocks:
            self.num_refused += 1
            with pytest.raises(MemoryError):
                self.plain.admit(name, tokens)
            return
        assert self.plain.admit(name, tokens) == sequence.num_cached_tokens
        self.num_hits += sequence.num_cached_tokens
        self.sequences[name] = sequence
        self.reserve([name], None)
        self.commit([name])

    def reserve(self, names: list[int], tokens: list[int] | None) -> None:
        arrays = self.plain.reserve(names, tokens)
        self.real.reserve([self.sequences[name] for name in names], None if tokens is None else 1, tokens=tokens)
        assert np.array_equal(arrays["seq_lens"], self.batch.seq_lens)
        assert np.array_equal(arrays["cu_query_lens"], self.batch.cu_query_lens)
        assert np.array_equal(arrays["slot_mapping"] % BLOCK_SIZE, self.batch.slot_mapping % BLOCK_SIZE)
        width = arrays["block_table"].shape[1]
        assert np.array_equal(arrays["block_table"] > 0, self.batch.block_table[:, :width] > 0)
        # Each slot lies in the block that the table names.
        rows = np.repeat(np.arange(len(names)), np.diff(arrays["cu_query_lens"]))
        blocks = arrays["block_table"][rows, self.batch.positions // BLOCK_SIZE]
        assert np.array_equal(blocks, arrays["slot_mapping"] // BLOCK_SIZE)

    def commit(self, names: list[int]) -> None:
        self.plain.commit(names)
        self.real.commit([self.sequences[name] for name in names])

    def decode(self) -> None:
        names = [name for name, sequence in self.sequences.items() if sequence.num_tokens < 60]
        need = sum(self.sequences[name].num_tokens % BLOCK_SIZE == 0 for name in names)
        if names and need <= self.real.stats().num_available:
            self.reserve(names, [self.rng.randint(0, 1) for _ in names])
            self.commit(names)

    def release(self) -> None:
        name = self.rng.choice(list(self.sequences))
        self.sequences.pop(name).release()
        self.plain.release(name)

    def evict(self) -> None:
        num_blocks = self.rng.randint(1, 4)
        self.real.evict(num_blocks)
        self.plain.evict(num_blocks)

    def check(self) -> None:
        stats = self.real.stats()
        assert (len(self.plain.free), len(self.plain.idle)) == (stats.num_free, stats.num_idle)
        tokens = self.prompt()
        assert len(self.plain.find(tokens)[0]) * BLOCK_SIZE == self.real.lookup(tokens).num_tokens


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_find_the_same_prefixes(seed: int) -> None:
    both = Both(seed, prefix_caching=True)
    for step in range(800):
        choice = both.rng.random()
        if choice < 0.4 and len(both.sequences) < MAX_SEQUENCES:
            both.admit(step)
        elif choice < 0.7:
            both.decode()
        elif choice < 0.95 and both.sequences:
            both.release()
        elif choice >= 0.95:
            both.evict()
        both.check()
    both.real.validate()
    assert both.real.stats().num_evicted > 100
    assert both.num_hits > 500
    assert both.num_refused > 10


def test_without_a_prefix_cache_neither_finds_anything() -> None:
    both = Both(9, prefix_caching=False)
    for step in range(200):
        if len(both.sequences) < MAX_SEQUENCES:
            both.admit(step)
        both.decode()
        if both.sequences and both.rng.random() < 0.5:
            both.release()
        both.check()
    assert both.num_hits == 0
