"""The tables of a decode step: filled by the block manager, or built from Python lists as engines do without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from looseleaf.allocator import BlockManager
from looseleaf.bench.measure import Measurement, Settings, measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["run"]

_BLOCK_SIZE = 16


def run(settings: Settings) -> list[Measurement]:
    """Decode steps of 64 and 256 sequences of 1,024 tokens."""
    found = []
    for num_sequences in (64,) if settings.is_quick else (64, 256):
        case = f"tables of a decode step, {num_sequences} x 1,024 tokens"
        managed, listed = _managed(num_sequences, 1024), _listed(num_sequences, 1024)
        for one, other in zip(managed(), listed(), strict=True):
            if not np.array_equal(one, other):
                raise AssertionError("the tables differ")
        found += measure(case, {"Python lists": listed, "looseleaf": managed}, settings, calls=10)
    return found


def _managed(num_sequences: int, length: int) -> Callable[[], tuple[NDArray[np.generic], ...]]:
    """Steps of a manager, the same one again and again: none is committed."""
    per_sequence = length // _BLOCK_SIZE + 1
    manager = BlockManager(
        num_sequences * per_sequence,
        _BLOCK_SIZE,
        max_sequences=num_sequences,
        max_sequence_len=length + _BLOCK_SIZE,
        prefix_caching=False,
    )
    sequences = [manager.admit(np.arange(length), reserve=length + 1) for _ in range(num_sequences)]
    handles = np.array([sequence.handle for sequence in sequences], dtype=np.int64)
    manager.reserve(handles, length)
    manager.commit(handles)
    batch = manager.bind_batch(max_batch_tokens=num_sequences)  # after the prompts, which have more tokens
    tokens = np.zeros(num_sequences, dtype=np.int64)
    manager.reserve(handles, 1, tokens=tokens)

    def step(_alive: object = sequences) -> tuple[NDArray[np.generic], ...]:
        manager.reserve(handles, 1)
        return batch.block_table[:, :per_sequence], batch.seq_lens, batch.slot_mapping

    return step


def _listed(num_sequences: int, length: int) -> Callable[[], tuple[NDArray[np.generic], ...]]:
    """The same from lists of block ids."""
    per_sequence = length // _BLOCK_SIZE + 1
    tables = [[1 + row * per_sequence + column for column in range(per_sequence)] for row in range(num_sequences)]

    def step() -> tuple[NDArray[np.generic], ...]:
        longest = max(map(len, tables))
        block_table = np.array([table + [0] * (longest - len(table)) for table in tables], dtype=np.int32)
        lengths = np.array([length + 1] * num_sequences, dtype=np.int32)
        slots = [table[length // _BLOCK_SIZE] * _BLOCK_SIZE + length % _BLOCK_SIZE for table in tables]
        return block_table, lengths, np.array(slots, dtype=np.int64)

    return step
