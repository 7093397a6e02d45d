"""Block tables, copies and admissions, as documented, through Python."""

from __future__ import annotations

import numpy as np
import pytest

import looseleaf
from looseleaf import BlockManager, Sequence
from looseleaf.errors import EmptyPrompt, InvalidArgument, NeverFits, OutOfBlocks, SequenceTooLong, TooManySequences


def prefill(manager: BlockManager, tokens: list[int]) -> Sequence:
    sequence = manager.admit(tokens)
    manager.reserve([sequence])
    manager.commit([sequence])
    return sequence


def append(manager: BlockManager, sequence: Sequence, token: int) -> None:
    manager.reserve([sequence], 1, tokens=[token])
    manager.commit([sequence])


def test_a_table_grows_by_one_block_at_a_boundary() -> None:
    manager = BlockManager(8, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    sequence = prefill(manager, list(range(10, 17)))
    assert sequence.blocks == [1, 2]
    assert batch.slot_mapping.tolist() == [4, 5, 6, 7, 8, 9, 10]
    append(manager, sequence, 17)
    assert batch.slot_mapping.tolist() == [2 * 4 + 3]
    append(manager, sequence, 18)
    assert batch.slot_mapping.tolist() == [3 * 4]
    assert batch.block_table[0, :4].tolist() == [1, 2, 3, 0]
    assert (batch.seq_lens.tolist(), batch.token_ids.tolist(), batch.positions.tolist()) == ([9], [18], [8])


@pytest.mark.parametrize(("length", "num_new_blocks"), [(3, 0), (4, 1), (5, 0), (7, 0), (8, 1), (9, 0)])
def test_an_appended_token_takes_a_block_only_where_one_begins(length: int, num_new_blocks: int) -> None:
    manager = BlockManager(8, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    sequence = prefill(manager, list(range(length)))
    num_free = manager.stats().num_available
    append(manager, sequence, 100)
    assert num_free - manager.stats().num_available == num_new_blocks
    assert batch.slot_mapping.tolist() == [sequence.blocks[length // 4] * 4 + length % 4]


def test_a_refused_admission_changes_nothing() -> None:
    manager = BlockManager(4, 4, prefix_caching=False)
    alive = prefill(manager, list(range(8)))
    before = manager.stats()
    with pytest.raises(OutOfBlocks) as refused:
        manager.admit(list(range(12)))
    assert (refused.value.requested, refused.value.free, refused.value.evictable) == (3, 2, 0)
    assert str(refused.value) == "need 3 blocks, 2 free, 0 evictable"
    assert manager.stats() == before
    assert (len(alive.blocks), alive.num_computed) == (2, 8)
    manager.validate()


def test_fork_then_write_copies_one_block() -> None:
    manager = BlockManager(8, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    parent = prefill(manager, [1, 2, 3, 4, 5, 6])
    child = parent.fork()
    shared = parent.blocks
    assert child.blocks == shared
    assert child.num_cached_tokens == 6

    append(manager, child, 100)
    assert batch.copies.tolist() == [[shared[1], child.blocks[1]]]
    append(manager, parent, 200)
    assert batch.copies.tolist() == []
    assert (parent.blocks[0], child.blocks[0]) == (shared[0], shared[0])
    assert parent.blocks == shared
    assert (manager.stats().num_in_use, manager.stats().num_copies) == (3, 1)
    manager.release([parent, child])
    assert manager.stats().num_available == 8


def test_a_write_after_a_full_block_copies_nothing() -> None:
    manager = BlockManager(8, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    parent = prefill(manager, list(range(8)))
    child = parent.fork()
    for sequence in (child, parent):
        append(manager, sequence, 100)
        assert batch.num_copies == 0
    assert manager.stats().num_in_use == 4


def test_a_failed_step_is_repeated_with_its_copies() -> None:
    manager = BlockManager(8, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    parent = prefill(manager, [1, 2, 3, 4, 5, 6])
    child = parent.fork()
    manager.reserve([child], tokens=[7])
    copies = batch.copies.tolist()
    manager.reserve([child])  # token 7 is known by now
    assert batch.copies.tolist() == copies
    assert batch.token_ids.tolist() == [7]
    manager.commit([child])
    manager.reserve([child])
    assert batch.copies.tolist() == []


def test_a_request_larger_than_the_pool_never_fits() -> None:
    manager = BlockManager(50, 16)
    with pytest.raises(NeverFits) as refused:
        manager.admit(list(range(912)))
    assert (refused.value.requested, refused.value.capacity) == (57, 50)
    assert not isinstance(refused.value, OutOfBlocks)
    assert not manager.can_admit(912)
    assert manager.can_admit(800)
    assert manager.stats().num_sequences == 0


def test_every_limit_has_its_own_error() -> None:
    manager = BlockManager(8, 4, max_sequences=2, max_sequence_len=16)
    with pytest.raises(EmptyPrompt, match="at least 1 token"):
        manager.admit([])
    with pytest.raises(SequenceTooLong, match="17 tokens, max_sequence_len is 16") as too_long:
        manager.admit(list(range(17)))
    assert (too_long.value.requested, too_long.value.max_sequence_len) == (17, 16)
    sequences = [manager.admit([1]), manager.admit([2])]
    with pytest.raises(TooManySequences, match="all 2 sequences") as full:
        manager.admit([3])
    assert full.value.max_sequences == 2
    with pytest.raises(TooManySequences):
        sequences[0].fork()
    assert not manager.can_admit(1)


def test_a_long_limit_costs_no_memory_that_the_pool_cannot_fill() -> None:
    manager = BlockManager(8, 4, max_sequence_len=2**31 - 1)
    assert manager.max_blocks_per_sequence == 2**29
    assert manager.admit([1, 2, 3]).blocks == [1]


def test_truncate_gives_back_blocks_and_draft_tokens() -> None:
    manager = BlockManager(8, 4)
    sequence = prefill(manager, [1, 2, 3])
    manager.reserve([sequence], 5, tokens=[4, 5, 6, 7, 8])
    manager.commit([sequence], 5)
    assert (sequence.num_tokens, sequence.num_reserved, sequence.num_computed) == (8, 8, 5)
    sequence.truncate(5)
    assert (sequence.num_tokens, sequence.num_reserved, sequence.num_computed) == (5, 5, 5)
    sequence.truncate(0)
    assert (sequence.blocks, manager.stats().num_available) == ([], 8)
    with pytest.raises(InvalidArgument, match="length is 1, the sequence has 0 tokens"):
        sequence.truncate(1)


def test_token_ids_may_come_with_the_commit() -> None:
    manager = BlockManager(8, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    sequence = prefill(manager, [1, 2, 3])
    manager.reserve([sequence])
    assert batch.token_ids.tolist() == [-1]
    manager.commit([sequence])
    assert (sequence.num_tokens, sequence.num_computed) == (3, 4)
    manager.reserve([sequence], 1)
    manager.commit([sequence], tokens=np.array([4, 5]))
    assert (sequence.num_tokens, sequence.num_computed) == (5, 5)


def test_lookahead_is_capacity_and_no_more() -> None:
    manager = BlockManager(8, 4)
    sequence = prefill(manager, [1, 2, 3])
    manager.reserve([sequence], 1, lookahead=9)
    assert (len(sequence.blocks), sequence.num_reserved) == (4, 4)
    manager.commit([sequence])
    assert len(sequence.fork().blocks) == 1


def test_interleaved_sequences_leak_nothing() -> None:
    manager = BlockManager(64, 4, max_sequences=8, max_sequence_len=64)
    manager.bind_batch(max_batch_tokens=512)
    sequences: list[Sequence] = []
    for step in range(200):
        if step % 3 == 0 and manager.can_admit(10):
            sequences.append(manager.admit(list(range(10))))
        if step % 7 == 0 and sequences and len(sequences) < 8:
            sequences.append(sequences[0].fork())
        running = sequences[step % 2 :: 2]
        try:
            manager.reserve(running)
            manager.commit(running)
        except looseleaf.OutOfBlocks:
            sequences.pop().release()
        sequences = [sequence for sequence in sequences if sequence.num_computed < 30]
    manager.validate()
    assert manager.stats().num_copies > 0
    sequences.clear()
    running.clear()
    assert (manager.stats().num_available, manager.stats().num_sequences) == (64, 0)
    manager.validate()


def test_a_lookup_finds_nothing_while_prefixes_are_not_cached() -> None:
    manager = BlockManager(8, 4, prefix_caching=False)
    prefill(manager, list(range(8)))
    assert manager.lookup(list(range(9))) == (0, "disabled")
