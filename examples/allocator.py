"""The block allocator alone, without torch: admit, step, fork with copy-on-write, roll back, run out of blocks.

Run: python examples/allocator.py
"""

from __future__ import annotations

import numpy as np

import looseleaf


def main() -> None:
    """Walk one prompt through the life of a sequence and print what a kernel would read."""
    manager = looseleaf.BlockManager(num_blocks=8, block_size=4, max_sequences=4, max_sequence_len=32)
    batch = manager.bind_batch(max_batch_tokens=16)

    # Prefill: blocks for the whole prompt, one slot for each token.
    prompt = [11, 12, 13, 14, 15, 16]
    parent = manager.admit(prompt)
    manager.reserve([parent])
    print("prefill  blocks", parent.blocks, "slots", batch.slot_mapping.tolist())
    manager.commit([parent])

    # A fork shares every block; nothing is copied until one of the two writes.
    child = parent.fork()
    print("fork     blocks", child.blocks, "in use", manager.stats().num_in_use)

    # One decode step for both, named by their handles. The first write into the shared last block becomes a copy.
    handles = np.array([parent.handle, child.handle], dtype=np.int64)
    manager.reserve(handles, 1, tokens=[17, 18])
    print("decode   copies", batch.copies.tolist(), "slots", batch.slot_mapping.tolist())
    manager.commit(handles)
    print("after    parent", parent.blocks, "child", child.blocks)

    # Rejected draft tokens: back to 4 tokens; the block past them is free again.
    child.truncate(4)
    print("truncate child", child.blocks, "in use", manager.stats().num_in_use)

    try:
        manager.admit(list(range(28)))
    except looseleaf.OutOfBlocks as error:
        print("full    ", error)

    manager.release([parent, child])
    print("released", manager.stats())


if __name__ == "__main__":
    main()
