from __future__ import annotations

import numpy as np
import pytest

from looseleaf import BlockManager, Sequence, StaleSequence
from looseleaf.errors import BatchTooSmall, DuplicateSequence, InvalidArgument, InvalidType, LooseleafError


@pytest.fixture
def manager() -> BlockManager:
    return BlockManager(16, 4, max_sequences=4, max_sequence_len=32)


@pytest.fixture
def sequences(manager: BlockManager) -> list[Sequence]:
    """5, 3 (not reserved yet) and 8 tokens."""
    admitted = [manager.admit(list(range(start, start + length))) for start, length in ((0, 5), (20, 3), (40, 8))]
    manager.reserve([admitted[0], admitted[2]])
    return admitted


def test_rows_are_the_tables_of_the_sequences(manager: BlockManager, sequences: list[Sequence]) -> None:
    handles = np.array([sequences[2].handle, sequences[0].handle])
    table = np.full((2, 3), -7, np.int32)
    manager.gather_rows(handles, table)
    assert table.tolist() == [[*sequences[2].blocks, 0], [*sequences[0].blocks, 0]]


def test_rows_that_cannot_be_are_refused_unwritten(manager: BlockManager, sequences: list[Sequence]) -> None:
    released = manager.admit([1])
    released.release()
    whole = np.full((3, 8), -7, np.int32)
    cases: list[tuple[list[Sequence], object, type[LooseleafError], str]] = [
        (sequences, whole[:, :1].copy(), BatchTooSmall, "columns"),
        (sequences, whole[:2], InvalidArgument, "table"),
        (sequences, whole[0], InvalidArgument, "table"),
        (sequences, whole[:, ::2], InvalidArgument, "table"),
        (sequences, whole.astype(np.int64), InvalidType, "table"),
        (sequences, whole.tolist(), InvalidType, "table"),
        ([sequences[0]] * 3, whole, DuplicateSequence, "twice"),
        ([*sequences[:2], released], whole, StaleSequence, "released"),
    ]
    for named, table, error, text in cases:
        with pytest.raises(error, match=text):
            manager.gather_rows(named, table)  # type: ignore[arg-type]
    readonly = whole.copy()
    readonly.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        manager.gather_rows(sequences, readonly)
    assert (whole == -7).all()


def test_a_compressed_table_is_what_flashinfer_reads(manager: BlockManager, sequences: list[Sequence]) -> None:
    indptr, indices, last_page_len = (np.full(size, -7, np.int32) for size in (6, 8, 4))
    assert manager.csr(sequences, indptr, indices, last_page_len) == 4
    assert indptr.tolist() == [0, 2, 2, 4, 4, 4]
    assert indices[:4].tolist() == sequences[0].blocks + sequences[2].blocks
    assert last_page_len.tolist() == [1, 0, 4, 0]
    with pytest.raises(BatchTooSmall, match="indices"):
        manager.csr(sequences, indptr, indices[:3], last_page_len)
    with pytest.raises(InvalidArgument, match="overlap"):
        manager.csr(sequences, indptr, indptr, last_page_len)


def test_the_arrays_of_a_bound_batch_are_refused(manager: BlockManager, sequences: list[Sequence]) -> None:
    batch = manager.bind_batch(max_batch_tokens=16)
    manager.reserve(sequences, 1)
    before = batch.block_table.copy()
    indptr, indices, last_page_len = (np.full(size, -7, np.int32) for size in (6, 8, 4))
    for table in (batch.buffers.block_table[:3], batch.buffers.block_table[1:4]):
        with pytest.raises(InvalidArgument, match="table overlaps the block_table of a bound batch"):
            manager.gather_rows(sequences, table)
    with pytest.raises(InvalidArgument, match="indptr overlaps the cu_query_lens of a bound batch"):
        manager.csr(sequences, batch.buffers.cu_query_lens, indices, last_page_len)
    with pytest.raises(InvalidArgument, match="last_page_len overlaps the seq_lens of a bound batch"):
        manager.csr(sequences, indptr, indices, batch.buffers.seq_lens)
    assert (batch.block_table == before).all()
    # Once the batch is gone, its memory is anybody's.
    table = batch.buffers.block_table
    del batch
    manager._batch = None
    manager.gather_rows(sequences, table[:3])
