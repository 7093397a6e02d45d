"""What one decode step's metadata costs: filled by Rust, against the same tensors built from Python lists.

The baseline is what a plain engine does at every step: a dict of block lists, and `torch.tensor` of nested lists for
the block table, the slot mapping, the lengths and their prefix sums. Both sides are checked to hold the same values
before either is timed.

Floor: 256 rows read about two cache lines of sequence state each and write 8 + 4 bytes per buffer: about 3 ns a row,
0.8 us a step.

Run: python benches/step_metadata.py [--json FILE]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import looseleaf
from report import Report, median_seconds

NUM_SEQUENCES = 256
BLOCK_SIZE = 16
PROMPT_LEN = 1000
REPEATS = 15


class ListEngine:
    """A free list, a dict of tables, and tensors from lists: the tutorial's cache, batched."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks, 0, -1))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def admit(self, name: int, length: int) -> None:
        self.tables[name] = [self.free.pop() for _ in range(-(-length // BLOCK_SIZE))]
        self.lengths[name] = length

    def step(self, names: list[int]) -> dict[str, torch.Tensor]:
        """Append one token to each and build the tensors of the step."""
        slots = []
        for name in names:
            position = self.lengths[name]
            if position % BLOCK_SIZE == 0:
                self.tables[name].append(self.free.pop())
            slots.append(self.tables[name][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
            self.lengths[name] = position + 1
        width = max(len(self.tables[name]) for name in names)
        rows = [self.tables[name] + [0] * (width - len(self.tables[name])) for name in names]
        return {
            "block_table": torch.tensor(rows, dtype=torch.int32),
            "slot_mapping": torch.tensor(slots, dtype=torch.int64),
            "seq_lens": torch.tensor([self.lengths[name] for name in names], dtype=torch.int32),
            "cu_query_lens": torch.tensor(list(range(len(names) + 1)), dtype=torch.int32),
        }


def main() -> None:
    """Check that both sides agree, time them, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    num_blocks = NUM_SEQUENCES * 128
    manager = looseleaf.BlockManager(num_blocks, BLOCK_SIZE, max_sequences=NUM_SEQUENCES, max_sequence_len=2048)
    batch = manager.bind_batch(max_batch_tokens=2048, backend="torch")
    lists = ListEngine(num_blocks)
    prompt = np.arange(PROMPT_LEN, dtype=np.int32)
    sequences = []
    for name in range(NUM_SEQUENCES):
        sequence = manager.admit(prompt + 10_000 * name)  # different prompts: nothing is shared
        manager.reserve([sequence])
        manager.commit([sequence])
        lists.admit(name, PROMPT_LEN)
        sequences.append(sequence)
    handles = np.array([sequence.handle for sequence in sequences], dtype=np.int64)
    names = list(range(NUM_SEQUENCES))
    tokens = np.zeros(NUM_SEQUENCES, dtype=np.int32)

    def rust_step() -> None:
        manager.reserve(handles, 1, tokens=tokens)
        manager.commit(handles)

    expected = lists.step(names)
    rust_step()
    width = expected["block_table"].shape[1]
    assert torch.equal(batch.block_table[:, :width], expected["block_table"])
    for field in ("slot_mapping", "seq_lens", "cu_query_lens"):
        assert torch.equal(getattr(batch, field), expected[field]), field

    report = Report("step metadata, 256 sequences of about 1,000 tokens, one decode step", baseline="python lists")
    baseline = median_seconds(lambda: lists.step(names), repeats=REPEATS, calls=5)
    report.add("python lists", baseline)
    ours = median_seconds(rust_step, repeats=REPEATS, calls=20)
    report.add("looseleaf, reserve + commit", ours, note=f"{ours / NUM_SEQUENCES * 1e9:.1f} ns per sequence")
    report.finish(arguments.json)


if __name__ == "__main__":
    main()
