"""What callers pass: token ids, handles and numbers of every kind, right or wrong."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from looseleaf import BlockManager, StaleSequence
from looseleaf.errors import (
    BatchTooSmall,
    DuplicateSequence,
    EmptyPrompt,
    InvalidArgument,
    InvalidType,
    LooseleafError,
    UnknownSequence,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf import Sequence
    from looseleaf.allocator.manager import Integers

HUGE = [2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30]
NEGATIVE = [-1, -(2**31), -(2**63), -(2**63) - 1]


@pytest.fixture
def manager() -> BlockManager:
    manager = BlockManager(16, 4, max_sequences=4, max_sequence_len=32)
    manager.bind_batch(max_batch_tokens=16)
    return manager


@pytest.fixture
def sequence(manager: BlockManager) -> Sequence:
    sequence = manager.admit([1, 2, 3, 4, 5])
    manager.reserve([sequence])
    manager.commit([sequence])
    return sequence


def known_ids(manager: BlockManager, tokens: Integers) -> list[int]:
    batch = manager.bind_batch(max_batch_tokens=32)
    with manager.admit(tokens) as sequence:
        manager.reserve([sequence], batch=batch)
        ids: list[int] = batch.token_ids.tolist()
    return ids


@pytest.mark.parametrize(
    "tokens",
    [
        [7, 8, 9],
        (7, 8, 9),
        range(7, 10),
        [np.int64(7), np.int32(8), 9],
        np.array([7, 8, 9]),
        np.array([7, 8, 9], dtype=np.int32),
        np.array([7, 0, 8, 0, 9, 0])[::2],
        np.array([7, 0, 8, 0, 9, 0], dtype=np.int32)[::2],
        np.array([9, 8, 7])[::-1],
        np.array([[7, 0], [8, 0], [9, 0]])[:, 0],
        np.asfortranarray(np.array([[7, 8, 9], [0, 0, 0]]))[0],
        pytest.param(memoryview(array.array("q", [7, 8, 9])), id="memoryview"),
        array.array("i", [7, 8, 9]),
        array.array("q", [7, 8, 9]),
    ],
    ids=repr,
)
def test_tokens_are_taken_as_they_are(manager: BlockManager, tokens: Integers) -> None:
    assert known_ids(manager, tokens) == [7, 8, 9]


@pytest.mark.parametrize(
    "wrong",
    [
        [1.0],
        ["1"],
        [None],
        [[1]],
        "123",
        b"123",
        {1},
        {1: 2},
        pytest.param(iter([1]), id="iterator"),
        1,
        None,
        np.array([1.0]),
        np.array([True]),
        np.array([1], dtype=np.int16),
        np.array([1], dtype=np.uint32),
        np.array([1], dtype=np.uint64),
        np.array([1], dtype=object),
        np.array(1),
        np.array(["1"]),
        np.array([1 + 0j]),
        # Read as native, these would be 16777216 and 72057594037927936.
        np.array([1], dtype=np.dtype(np.int32).newbyteorder()),
        np.array([1], dtype=np.dtype(np.int64).newbyteorder()),
    ],
    ids=repr,
)
def test_tokens_of_another_type_are_refused(manager: BlockManager, sequence: Sequence, wrong: object) -> None:
    tokens = cast("Any", wrong)
    before = manager.stats()
    calls: list[Callable[[], object]] = [
        lambda: manager.admit(tokens),
        lambda: manager.lookup(tokens),
    ]
    if tokens is not None:  # what reserve and commit take for "not known"
        calls.append(lambda: manager.reserve([sequence], 1, tokens=tokens))
        calls.append(lambda: manager.commit([sequence], tokens=tokens))
    for call in calls:
        with pytest.raises(InvalidType, match="tokens"):
            call()
    assert manager.stats() == before


@pytest.mark.parametrize("token", [*HUGE, *NEGATIVE])
def test_tokens_that_do_not_fit_are_refused(manager: BlockManager, token: int) -> None:
    values: list[Any] = [[0, token]]
    if -(2**63) <= token < 2**63:
        values.append(np.array([0, token]))
    if -(2**31) <= token < 2**31:
        values.append(np.array([0, token], dtype=np.int32))
    for tokens in values:
        with pytest.raises(InvalidArgument, match="tokens"):
            manager.admit(tokens)
    assert manager.stats().num_sequences == 0


def test_the_largest_token_id_is_taken(manager: BlockManager) -> None:
    assert known_ids(manager, [2**31 - 1, 0]) == [2**31 - 1, 0]


def test_tokens_of_two_dimensions_are_refused(manager: BlockManager) -> None:
    with pytest.raises(InvalidArgument, match="tokens has 2 dimensions, must have 1"):
        manager.admit(np.array([[1, 2]]))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_empty_array_is_an_empty_prompt(manager: BlockManager, dtype: type[np.integer[Any]]) -> None:
    with pytest.raises(EmptyPrompt):
        manager.admit(np.array([], dtype=dtype))


def test_exactly_the_unknown_tokens_must_be_given(manager: BlockManager, sequence: Sequence) -> None:
    for tokens in ([], [1], [1, 2, 3]):
        with pytest.raises(InvalidArgument, match=rf"tokens has {len(tokens)} values, 2 of"):
            manager.reserve([sequence], 2, tokens=tokens)
    manager.reserve([sequence], 2, tokens=[6, 7])
    assert sequence.num_tokens == 7
    with pytest.raises(InvalidArgument, match="tokens has 1 values, 0 of"):
        manager.commit([sequence], tokens=[6])


def test_sequences_are_objects_or_an_array_of_handles(manager: BlockManager, sequence: Sequence) -> None:
    handles = np.array([sequence.handle])
    padded = np.array([sequence.handle, 0, sequence.handle, 0])
    for sequences in ([sequence], (sequence,), {sequence}, iter([sequence]), handles, padded[:1], padded[::4]):
        assert manager.reserve(sequences) == 1  # type: ignore[arg-type] # a set and an iterator work, and need no promise
    nobodies: list[Any] = [[], np.array([], dtype=np.int64)]
    for nobody in nobodies:
        assert manager.reserve(nobody) == 0
        manager.commit(nobody)
        manager.release(nobody)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        1,
        [1],
        [None],
        "ab",
        np.array([1.0]),
        np.array([], dtype=np.float64),
        np.array([True]),
        np.array([1 << 32], dtype=np.uint64),
        np.array([1 << 32], dtype=np.dtype(np.int64).newbyteorder()),
        np.array([None]),
    ],
    ids=repr,
)
def test_sequences_of_another_type_are_refused(manager: BlockManager, sequence: Sequence, wrong: object) -> None:
    sequences = cast("Any", wrong)
    for call in (manager.reserve, manager.commit, manager.release):
        with pytest.raises(InvalidType, match="sequences"):
            call(sequences)
    assert sequence.num_computed == 5


def test_one_sequence_is_not_a_list_of_sequences(manager: BlockManager, sequence: Sequence) -> None:
    with pytest.raises(InvalidType, match="sequences has type Sequence, must be"):
        manager.reserve(sequence)  # type: ignore[arg-type]


def test_handles_of_two_dimensions_are_refused(manager: BlockManager, sequence: Sequence) -> None:
    with pytest.raises(InvalidArgument, match="sequences has 2 dimensions"):
        manager.reserve(np.array([[sequence.handle]]))


def test_a_handle_that_was_never_issued_is_unknown(manager: BlockManager, sequence: Sequence) -> None:
    for handle in (0, 1, -1, 2**63 - 1, -(2**63), sequence.handle + 1, sequence.handle + 2**32):
        for call in (manager.reserve, manager.commit, manager.release):
            with pytest.raises(UnknownSequence, match=f"handle {handle} was never issued") as unknown:
                call(np.array([sequence.handle, handle]))
            assert unknown.value.handle == handle
    assert sequence.num_computed == 5


def test_a_released_handle_is_stale_and_may_be_released_again(manager: BlockManager, sequence: Sequence) -> None:
    handle = sequence.handle
    sequence.release()
    sequence.release()
    manager.release([sequence])
    manager.release(np.array([handle, handle]))
    calls: list[Callable[[], object]] = [
        lambda: manager.reserve([sequence]),
        lambda: manager.commit(np.array([handle])),
        sequence.fork,
        lambda: sequence.truncate(0),
        lambda: sequence.blocks,
        lambda: sequence.num_tokens,
        lambda: sequence.num_reserved,
        lambda: sequence.num_computed,
    ]
    for call in calls:
        with pytest.raises(StaleSequence, match=f"handle {handle} was released") as stale:
            call()
        assert stale.value.handle == handle
    assert (sequence.handle, sequence.num_cached_tokens) == (handle, 0)
    assert manager.stats().num_available == 16


def test_a_sequence_that_stands_twice_is_refused(manager: BlockManager, sequence: Sequence) -> None:
    other = manager.admit([1])
    for call in (manager.reserve, manager.commit, manager.release):
        with pytest.raises(DuplicateSequence, match="stands twice") as twice:
            call([sequence, other, sequence])
        assert twice.value.handle == sequence.handle
    assert manager.stats().num_sequences == 2


def test_a_sequence_of_another_manager_is_refused(sequence: Sequence) -> None:
    other = BlockManager(16, 4)
    namesake = other.admit([1])
    assert namesake.handle == sequence.handle
    for call in (other.reserve, other.commit, other.release):
        with pytest.raises(UnknownSequence):
            call([sequence])
        with pytest.raises(UnknownSequence):
            call([sequence.fork()])
    assert (namesake.num_reserved, other.stats().num_sequences) == (0, 1)


def test_a_batch_of_another_manager_is_refused(manager: BlockManager, sequence: Sequence) -> None:
    batch = BlockManager(16, 4).bind_batch(max_batch_tokens=16)
    with pytest.raises(InvalidArgument, match="batch was bound by another manager"):
        manager.reserve([sequence], batch=batch)
    with pytest.raises(InvalidType, match="batch has type int"):
        manager.reserve([sequence], batch=5)  # type: ignore[arg-type]
    assert (sequence.num_reserved, batch.num_sequences) == (5, 0)


@pytest.mark.parametrize("number", [*HUGE, *NEGATIVE])
def test_numbers_that_do_not_fit_are_refused(manager: BlockManager, sequence: Sequence, number: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: BlockManager(number),
        lambda: BlockManager(8, number),
        lambda: BlockManager(8, max_sequences=number),
        lambda: BlockManager(8, max_sequence_len=number),
        lambda: manager.bind_batch(max_batch_tokens=number),
        lambda: manager.admit([1], reserve=number),
        lambda: manager.reserve([sequence], [number]),
        lambda: manager.commit([sequence], number),
        lambda: manager.commit([sequence], [number]),
        lambda: sequence.truncate(number),
        lambda: manager.reserve([sequence], number),
    ]
    if not 0 <= number < 2**32:  # whatever fits is no more than a large number
        calls.append(lambda: manager.can_admit(number))
        calls.append(lambda: manager.reserve([sequence], lookahead=number))
    before = manager.stats()
    for call in calls:
        with pytest.raises(LooseleafError) as refused:
            call()
        assert isinstance(refused.value, ValueError)
        # Of a sequence with 5 tokens, `number` new ones are refused as 5 more.
        assert any(str(named) in str(refused.value) for named in (number, number + 5, "fit int64"))
    assert manager.stats() == before
    assert (sequence.num_tokens, sequence.num_reserved, sequence.num_computed) == (5, 5, 5)


@pytest.mark.parametrize("wrong", [1.0, 1.5, "1", [[1]], np.array([1.0]), np.float64(1)], ids=repr)
def test_numbers_of_another_type_are_refused(manager: BlockManager, sequence: Sequence, wrong: object) -> None:
    number = cast("Any", wrong)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("num_blocks", lambda: BlockManager(number)),
        ("block_size", lambda: BlockManager(8, number)),
        ("max_sequences", lambda: BlockManager(8, max_sequences=number)),
        ("max_sequence_len", lambda: BlockManager(8, max_sequence_len=number)),
        ("max_batch_tokens", lambda: manager.bind_batch(max_batch_tokens=number)),
        ("tokens", lambda: manager.can_admit(number)),
        ("reserve", lambda: manager.admit([1], reserve=number)),
        ("num_new", lambda: manager.reserve([sequence], number)),
        ("lookahead", lambda: manager.reserve([sequence], lookahead=number)),
        ("num_computed", lambda: manager.commit([sequence], number)),
        ("length", lambda: sequence.truncate(number)),
    ]
    for argument, call in calls:
        with pytest.raises((InvalidType, InvalidArgument), match=argument):
            call()
    assert (sequence.num_tokens, sequence.num_reserved, sequence.num_computed) == (5, 5, 5)


def test_a_number_may_be_for_all_or_for_each(manager: BlockManager, sequence: Sequence) -> None:
    other = manager.admit([1, 2, 3])
    batch = manager.bind_batch(max_batch_tokens=16)
    numbers: list[tuple[Any, list[int]]] = [
        (2, [2, 2]),
        (np.int64(2), [2, 2]),
        (np.array(2), [2, 2]),
        ([1, 3], [1, 3]),
        ((1, 0), [1, 0]),
        (np.array([1, 3]), [1, 3]),
        (np.array([1, 3], dtype=np.int32), [1, 3]),
        (np.array([1, 9, 3, 9])[::2], [1, 3]),
        (None, [1, 3]),
    ]
    for num_new, query_lens in numbers:
        manager.reserve([sequence, other], num_new, batch=batch)
        assert batch.query_lens.tolist() == query_lens
    for wrong in ([], [1], [1, 2, 3], np.array([1])):
        with pytest.raises(InvalidArgument, match=rf"num_new has {len(wrong)} values for 2 sequences"):
            manager.reserve([sequence, other], wrong)


def test_a_step_larger_than_its_batch_is_refused(manager: BlockManager, sequence: Sequence) -> None:
    with pytest.raises(BatchTooSmall, match="max_batch_tokens >= 17, the buffers have 16") as too_small:
        manager.reserve([sequence], 17)
    assert (too_small.value.what, too_small.value.requested, too_small.value.limit) == ("max_batch_tokens", 17, 16)
    assert sequence.num_reserved == 5
    manager.reserve([sequence], 16)
    assert sequence.num_reserved == 21
