"""Arguments that only somebody who means harm, or is tired, would pass. Each refusal is typed and changes nothing."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from looseleaf import BlockManager, Namespace, content_keys, low64
from looseleaf.errors import InvalidArgument, InvalidType, OutOfMemory, StaleSequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf import Sequence


class Index:
    """A number that runs code when it is read."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __index__(self) -> int:
        self.call()
        return 1


@pytest.fixture
def manager() -> BlockManager:
    manager = BlockManager(16, 4, max_sequences=4, max_sequence_len=32)
    manager.bind_batch(max_batch_tokens=16)
    return manager


@pytest.fixture
def sequences(manager: BlockManager) -> list[Sequence]:
    admitted = [manager.admit([1, 2, 3]), manager.admit([4, 5, 6, 7, 8])]
    manager.reserve(admitted)
    return admitted


def refuse(manager: BlockManager, call: Callable[[], object], error: type[Exception], text: str) -> None:
    before = manager.digest(), manager.stats()
    with pytest.raises(error, match=text):
        call()
    assert (manager.digest(), manager.stats()) == before


@pytest.mark.parametrize("oom", [["prefix"], {}, None, 1, "PREFIX"])
def test_a_wish_that_is_none_of_the_two_is_refused(
    manager: BlockManager, sequences: list[Sequence], oom: object
) -> None:
    refuse(manager, lambda: manager.reserve(sequences, oom=cast("Any", oom)), InvalidArgument, "oom is")


@pytest.mark.parametrize("flag", ["no", 1, 0, None, [True]])
def test_what_only_counts_as_true_or_false_is_refused(
    manager: BlockManager, sequences: list[Sequence], flag: object
) -> None:
    wrong = cast("Any", flag)
    refuse(manager, lambda: BlockManager(4, prefix_caching=wrong), InvalidType, "prefix_caching has type .*a bool")
    calls: list[Callable[[], object]] = [
        lambda: manager.admit([1], cache=wrong),
        lambda: manager.can_admit([1], cache=wrong),
        lambda: manager.release(sequences, cache=wrong),
        lambda: sequences[0].release(cache=wrong),
    ]
    for call in calls:
        refuse(manager, call, InvalidType, "cache has type .*a bool")


class Liar(np.ndarray[Any, Any]):
    """An array that tells wrong shapes."""

    told: object = None

    @property  # type: ignore[misc]
    def shape(self) -> Any:
        return self.told


@pytest.mark.parametrize("told", [(2, 2**62), (2, -1), (2, "columns"), (3,), None])
def test_the_shape_of_a_table_is_that_of_its_memory(
    manager: BlockManager, sequences: list[Sequence], told: object
) -> None:
    memory = np.full((3, 4), -7, np.int32)
    liar = memory[:2].view(Liar)
    liar.told = told
    manager.gather_rows(sequences, liar)
    assert memory.tolist() == [[1, 0, 0, 0], [2, 3, 0, 0], [-7] * 4]


def test_handles_of_another_dimension_are_refused(manager: BlockManager, sequences: list[Sequence]) -> None:
    table, handle = np.zeros((1, 4), np.int32), sequences[0].handle
    refuse(manager, lambda: manager.gather_rows(np.array(handle), table), InvalidType, "^sequences must be")
    refuse(manager, lambda: manager.gather_rows(np.array([[handle]]), table), InvalidArgument, "sequences has 2 dim")


def test_tables_of_any_memory_are_filled_and_others_refused(manager: BlockManager, sequences: list[Sequence]) -> None:
    shared: Any = (ctypes.c_int32 * 8)()
    manager.gather_rows(sequences, np.frombuffer(shared, np.int32).reshape(2, 4))
    assert [*shared] == [1, 0, 0, 0, 2, 3, 0, 0]
    manager.gather_rows([], np.zeros((0, 2**40), np.int32))
    wrong: list[tuple[Any, str]] = [
        (np.zeros((2, 4), ">i4"), '">i"'),
        (np.zeros((2, 4), np.uint32), '"I", must be int32'),
        (np.frombuffer(bytearray(33), np.int32, offset=1).reshape(2, 4), "aligned"),
        (shared, "must be an array"),
        (None, "must be an array"),
    ]
    for table, text in wrong:
        refuse(manager, lambda table=table: manager.gather_rows(sequences, table), InvalidType, f"^table .*{text}")  # type: ignore[misc]
    for table in (np.zeros((2, 4), np.int32)[::-1], np.zeros((2, 4), np.int32, order="F")):
        refuse(manager, lambda table=table: manager.gather_rows(sequences, table), InvalidArgument, "contiguous")  # type: ignore[misc]


def test_compressed_tables_of_no_room_or_another_kind_are_refused(
    manager: BlockManager, sequences: list[Sequence]
) -> None:
    def room(size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.full(size, -7, np.int32)

    assert manager.csr([], room(1), room(0), room(0)) == 0
    whole = room(12)
    arrays: list[tuple[Any, Any, Any, type[Exception], str]] = [
        (room(0), room(0), room(0), InvalidArgument, "indptr"),
        (room(3), room(4), room(1), InvalidArgument, "last_page_len"),
        (room(3)[::-1], room(4), room(2), InvalidArgument, "indptr is not C-contiguous"),
        (whole[:4], whole[3:8], whole[8:], InvalidArgument, "indptr and indices overlap"),
        (whole[:4], whole[4:8], whole[:2], InvalidArgument, "overlap"),
        (room(3).astype(np.int64), room(4), room(2), InvalidType, 'indptr has array format "l"'),
        ([0, 0, 0], room(4), room(2), InvalidType, "indptr must be an array"),
        (room(3), memoryview(bytes(16)).cast("i"), room(2), InvalidArgument, "indices is read-only"),
    ]
    for indptr, indices, last_page_len, error, text in arrays:
        refuse(manager, lambda a=(indptr, indices, last_page_len): manager.csr(sequences, *a), error, text)  # type: ignore[misc]
    assert (whole == -7).all()


def test_native_integers_are_taken_however_they_are_labelled(manager: BlockManager) -> None:
    with manager.admit([7, 8, 9, 7, 8]) as sequence:
        manager.reserve([sequence])
        manager.commit([sequence])
    little = np.dtype(np.int32).newbyteorder("<")
    misaligned = np.frombuffer(b"-" + np.array([7, 8, 9, 7, 8], np.int32).tobytes(), np.int32, offset=1)
    labelled: list[Any] = [misaligned]
    if little.isnative:
        labelled += [misaligned.astype(little), misaligned.astype(np.dtype(np.int64).newbyteorder("<"))]
    for tokens in labelled:
        assert manager.lookup(tokens) == (4, "capped")
    # What Python itself cannot read.
    view = memoryview((ctypes.c_int32 * 4)())
    refuse(manager, lambda: manager.lookup(cast("Any", view)), InvalidType, '^tokens has array format "<i"')


def test_an_error_of_the_callers_own_code_is_passed_on(manager: BlockManager, sequences: list[Sequence]) -> None:
    number = cast("Any", Index(lambda: 1 // 0))
    calls: list[Callable[[], object]] = [
        lambda: manager.lookup([number]),
        lambda: manager.evict(number),
        lambda: manager.reserve(sequences, number),
        lambda: manager.reserve(sequences, [1, number]),
        lambda: manager.commit(sequences, number),
        lambda: manager.reserve(sequence for sequence in [sequences[0], 1 // 0]),  # type: ignore[arg-type]
    ]
    for call in calls:
        refuse(manager, call, ZeroDivisionError, "zero")


def test_what_dies_while_arguments_are_read_is_stale(manager: BlockManager, sequences: list[Sequence]) -> None:
    number = cast("Any", Index(sequences[0].release))
    with pytest.raises(StaleSequence):
        manager.reserve(sequences, number)
    with pytest.raises(StaleSequence):
        manager.reserve(manager.admit([1]) for _ in range(2))  # type: ignore[arg-type] # gone once its handle is read
    assert manager.stats().num_sequences == 1
    manager.validate()


def test_keys_and_namespaces_refuse_what_is_no_content() -> None:
    for key in ("x" * 32, [1] * 32, 5, None, np.zeros(32, np.int32)):
        with pytest.raises(InvalidType, match="key has type"):
            low64(cast("Any", key))
    # A lone surrogate stands for no text.
    for arguments in ({"salt": "\ud800"}, {"adapter": ("a", "\ud800")}, {"parts": {"\ud800": "a"}}):
        with pytest.raises(InvalidArgument, match="no UTF-8 form"):
            Namespace(**cast("Any", arguments))
    with pytest.raises(InvalidArgument, match='two parts named "a"'):
        Namespace(parts={"a": "1", cast("Any", b"a"): "2"})
    for tokens, error in (([1.5], InvalidType), ([2**31], InvalidArgument), (np.zeros(4, ">i4"), InvalidType)):
        with pytest.raises(error, match="tokens"):
            content_keys(cast("Any", tokens), 4)


def test_buffers_that_no_machine_has_are_refused() -> None:
    manager = BlockManager(4, 1, max_sequences=2**20, max_sequence_len=2**31 - 1)
    with pytest.raises(OutOfMemory) as refused:
        manager.bind_batch(max_batch_tokens=4)
    assert refused.value.requested_bytes > 4 * 2**20 * 2**30
    assert manager.reserve([]) == 0
