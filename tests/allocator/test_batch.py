"""The buffers of a step: allocated once, padded, and seen through views of their live part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from looseleaf import Batch, BlockManager, OutOfBlocks, Sequence
from looseleaf.allocator import BatchBuffers
from looseleaf.errors import InvalidArgument, InvalidType, OutOfMemory

INT32 = ("block_table", "seq_lens", "query_lens", "cu_query_lens", "copies")
INT64 = ("slot_mapping", "positions", "token_ids")


@pytest.fixture
def manager() -> BlockManager:
    return BlockManager(32, 4, max_sequences=3, max_sequence_len=18)


@pytest.fixture
def batch(manager: BlockManager) -> Batch[Any]:
    return manager.bind_batch(max_batch_tokens=10)


def prefill(manager: BlockManager, tokens: list[int]) -> Sequence:
    sequence = manager.admit(tokens)
    manager.reserve([sequence])
    manager.commit([sequence])
    return sequence


def test_buffers_have_the_documented_shapes(batch: Batch[Any]) -> None:
    shapes = {name: getattr(batch.buffers, name).shape for name in BatchBuffers.__slots__}
    assert shapes == {
        "block_table": (3, 5),
        "seq_lens": (3,),
        "query_lens": (3,),
        "cu_query_lens": (4,),
        "slot_mapping": (10,),
        "positions": (10,),
        "token_ids": (10,),
        "copies": (3, 2),
    }
    assert {*INT32, *INT64} == set(shapes)
    for names, dtype in ((INT32, np.int32), (INT64, np.int64)):
        assert all(getattr(batch.buffers, name).dtype == dtype for name in names)


def test_a_new_batch_is_padding(batch: Batch[Any]) -> None:
    for name in ("block_table", "seq_lens", "query_lens", "cu_query_lens", "positions", "token_ids"):
        assert not getattr(batch.buffers, name).any()
    for name in ("slot_mapping", "copies"):
        assert (getattr(batch.buffers, name) == -1).all()
    assert (batch.num_sequences, batch.num_tokens, batch.num_copies) == (0, 0, 0)
    assert (batch.max_query_len, batch.max_seq_len) == (0, 0)
    assert batch.cu_query_lens.tolist() == [0]


def test_views_show_the_live_part(manager: BlockManager, batch: Batch[Any]) -> None:
    first, second = manager.admit([1, 2, 3, 4, 5]), manager.admit([6, 7])
    manager.reserve([second, first])
    assert batch.block_table.tolist() == [[3, 0, 0, 0, 0], [1, 2, 0, 0, 0]]
    assert batch.seq_lens.tolist() == [2, 5]
    assert batch.query_lens.tolist() == [2, 5]
    assert batch.cu_query_lens.tolist() == [0, 2, 7]
    assert batch.slot_mapping.tolist() == [12, 13, 4, 5, 6, 7, 8]
    assert batch.positions.tolist() == [0, 1, 0, 1, 2, 3, 4]
    assert batch.token_ids.tolist() == [6, 7, 1, 2, 3, 4, 5]
    assert batch.copies.shape == (0, 2)
    assert (batch.num_sequences, batch.num_tokens, batch.max_query_len, batch.max_seq_len) == (2, 7, 5, 5)
    assert batch.buffers.cu_query_lens.tolist() == [0, 2, 7, 7]
    assert batch.buffers.slot_mapping.tolist() == [12, 13, 4, 5, 6, 7, 8, -1, -1, -1]
    for name in BatchBuffers.__slots__:
        view, buffer = getattr(batch, name), getattr(batch.buffers, name)
        assert view.size == 0 or np.shares_memory(view, buffer)


def test_a_smaller_step_leaves_nothing_of_the_one_before(manager: BlockManager, batch: Batch[Any]) -> None:
    parent = prefill(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    child = parent.fork()
    manager.reserve([parent, child], 5)
    assert batch.num_copies == 1
    manager.reserve([])
    untouched = manager.bind_batch(max_batch_tokens=10)
    for name in BatchBuffers.__slots__:
        assert np.array_equal(getattr(batch.buffers, name), getattr(untouched.buffers, name)), name


def test_addresses_are_stable(manager: BlockManager, batch: Batch[Any]) -> None:
    addresses = {name: getattr(batch.buffers, name).ctypes.data for name in BatchBuffers.__slots__}
    sequences = [prefill(manager, [1, 2, 3])]
    for _ in range(12):
        manager.reserve(sequences)
        manager.commit(sequences)
        if len(sequences) < 3:
            sequences.append(sequences[0].fork())
    for name, address in addresses.items():
        assert getattr(batch.buffers, name).ctypes.data == address
        assert getattr(batch, name).ctypes.data == address


def test_the_first_batch_is_filled_unless_another_is_named(manager: BlockManager, batch: Batch[Any]) -> None:
    other = manager.bind_batch(max_batch_tokens=4)
    sequence = prefill(manager, [1, 2, 3])
    assert (batch.num_sequences, other.num_sequences) == (1, 0)
    manager.reserve([sequence], 2, batch=other)
    assert (batch.query_lens.tolist(), other.query_lens.tolist()) == ([3], [2])
    manager.reserve([sequence], 1)
    assert (batch.query_lens.tolist(), other.query_lens.tolist()) == ([1], [2])


def test_two_batches_keep_their_own_deltas(manager: BlockManager, batch: Batch[Any]) -> None:
    other = manager.bind_batch(max_batch_tokens=10)
    sequence = prefill(manager, [1, 2, 3])
    for step in range(12):
        manager.reserve([sequence], batch=other if step % 3 else batch)
        newest = other if step % 3 else batch
        cells = newest.block_table[0].tolist()
        assert cells == sequence.blocks + [0] * (5 - len(sequence.blocks))
        manager.commit([sequence])


def test_a_manager_without_a_batch_keeps_tables_only(manager: BlockManager) -> None:
    sequence = manager.admit([1, 2, 3])
    assert manager.reserve([sequence]) == 1
    assert sequence.num_reserved == 3


def test_a_refused_step_leaves_the_batch_as_it_was(manager: BlockManager, batch: Batch[Any]) -> None:
    sequence = prefill(manager, [1, 2, 3])
    before = {name: getattr(batch.buffers, name).copy() for name in BatchBuffers.__slots__}
    for num_new in (11, 100):
        with pytest.raises(InvalidArgument):
            manager.reserve([sequence], num_new)
    with pytest.raises(InvalidArgument):
        manager.reserve([sequence, sequence])
    for name, buffer in before.items():
        assert np.array_equal(getattr(batch.buffers, name), buffer), name
    assert (batch.num_sequences, batch.num_tokens) == (1, 3)


def test_a_batch_outlives_its_manager(manager: BlockManager) -> None:
    batch = manager.bind_batch(max_batch_tokens=4)
    sequence = prefill(manager, [1, 2, 3])
    del manager
    assert batch.token_ids.tolist() == [1, 2, 3]
    assert sequence.num_computed == 3


def test_an_unknown_backend_is_refused(manager: BlockManager) -> None:
    with pytest.raises(InvalidArgument, match="backend is 'jax', must be"):
        manager.bind_batch(max_batch_tokens=4, backend="jax")  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="pin_memory"):
        manager.bind_batch(max_batch_tokens=4, pin_memory=True)  # type: ignore[call-overload]
    with pytest.raises(InvalidType, match="max_batch_tokens has type float"):
        manager.bind_batch(max_batch_tokens=4.0)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="max_batch_tokens is 0"):
        manager.bind_batch(max_batch_tokens=0)


def test_a_double_buffered_batch_leaves_the_last_step_alone(manager: BlockManager) -> None:
    plain = manager.bind_batch(max_batch_tokens=10)
    double = manager.bind_batch(max_batch_tokens=10, double_buffer=True)
    sequences = [prefill(manager, list(range(start, start + 5))) for start in (0, 50)]
    shown = []
    for step in range(9):
        # Rows come, go and change places, so that each set misses what the other one was told.
        rows = sequences[:1] if step % 4 == 1 else sequences[:: 1 if step % 3 else -1]
        before = {name: getattr(double.buffers, name).copy() for name in BatchBuffers.__slots__}
        last = double.buffers
        manager.reserve(rows, 1, tokens=[step] * len(rows), batch=double)
        assert double.buffers is not last
        assert all((getattr(last, name) == values).all() for name, values in before.items())
        # The same step again, without new ids: the tables are as they were.
        manager.reserve(rows, 1, batch=plain)
        for name in BatchBuffers.__slots__:
            assert (getattr(double.buffers, name) == getattr(plain.buffers, name)).all(), (step, name)
        manager.commit(rows)
        shown.append(id(double.buffers))
    assert len({*shown}) == 2


def test_a_step_that_is_short_of_blocks_serves_a_prefix_if_asked_to() -> None:
    manager = BlockManager(3, 4, prefix_caching=False)
    batch = manager.bind_batch(max_batch_tokens=8)
    sequences = [prefill(manager, [1, 2, 3, 4]), prefill(manager, [5, 6, 7, 8])]
    before = manager.digest()
    with pytest.raises(OutOfBlocks):
        manager.reserve(sequences, 1, tokens=[10, 20])
    assert manager.digest() == before
    assert manager.reserve(sequences, 1, tokens=[10, 20], oom="prefix") == 1
    assert batch.token_ids.tolist() == [10]
    assert [sequence.num_tokens for sequence in sequences] == [5, 4]
    manager.commit(sequences[:1])
    assert manager.reserve(sequences[1:], 1, tokens=[20], oom="prefix") == 0
    assert batch.num_sequences == 0
    with pytest.raises(InvalidArgument, match="oom is 'wait'"):
        manager.reserve(sequences, oom="wait")  # type: ignore[arg-type]


def test_a_batch_larger_than_the_memory_is_refused_before_it_is_touched(
    manager: BlockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three rows of five columns, five further numbers in each row and one more; three arrays of ten tokens.
    num_bytes = 4 * (3 * 10 + 1) + 8 * 3 * 10
    monkeypatch.setattr("looseleaf.allocator.batch.available_host_memory", lambda: num_bytes - 1)
    with pytest.raises(OutOfMemory) as refused:
        manager.bind_batch(max_batch_tokens=10)
    assert (refused.value.requested_bytes, refused.value.available_bytes) == (num_bytes, num_bytes - 1)
    monkeypatch.setattr("looseleaf.allocator.batch.available_host_memory", lambda: num_bytes)
    assert manager.bind_batch(max_batch_tokens=10).num_tokens == 0
