"""How sequences end: by name, when they are collected, in any thread and in the middle of a call."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from looseleaf import BlockManager, OutOfBlocks, StaleSequence
from looseleaf.errors import InvalidType, SequenceTooLong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from looseleaf import Sequence

TOKENS = list(range(10))


@pytest.fixture
def manager() -> BlockManager:
    return BlockManager(64, 4, max_sequences=16, max_sequence_len=64)


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Collects at every chance, so that objects die within calls."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*thresholds)


class Cycle:
    """Garbage that only the collector can find."""

    def __init__(self, content: object) -> None:
        self.content = content
        self.itself = self


class Meddler(Cycle):
    """Garbage that calls back when it is collected."""

    def __init__(self, call: Callable[[], object], calls: list[str]) -> None:
        super().__init__(call)
        self.calls = calls

    def __del__(self) -> None:
        assert callable(self.content)
        self.content()
        self.calls.append("collected")


def test_a_collected_sequence_gives_its_blocks_back(manager: BlockManager) -> None:
    sequence = manager.admit(TOKENS)
    assert manager.stats().num_available == 61
    del sequence
    assert (manager.stats().num_available, manager.stats().num_sequences) == (64, 0)
    manager.validate()


def test_a_sequence_that_is_not_kept_is_gone_at_once(manager: BlockManager) -> None:
    for _ in range(40):
        manager.admit(TOKENS)
    assert manager.stats().num_available == 64
    assert manager.stats().peak_in_use == 3


def test_a_fork_outlives_its_parent(manager: BlockManager) -> None:
    parent = manager.admit(TOKENS)
    manager.reserve([parent])
    manager.commit([parent])
    child = parent.fork()
    del parent
    assert (manager.stats().num_in_use, child.num_computed) == (3, 10)
    del child
    assert manager.stats().num_in_use == 0


def test_a_with_block_ends_its_sequence(manager: BlockManager) -> None:
    with manager.admit(TOKENS) as sequence:
        assert manager.stats().num_in_use == 3
    assert manager.stats().num_in_use == 0
    with pytest.raises(StaleSequence):
        _ = sequence.blocks
    with pytest.raises(ZeroDivisionError), manager.admit(TOKENS):
        _ = 1 / 0
    assert manager.stats().num_in_use == 0


def test_sequences_in_a_cycle_wait_for_the_collector(manager: BlockManager) -> None:
    gc.disable()
    try:
        Cycle(manager.admit(TOKENS))
        assert manager.stats().num_in_use == 3
        gc.collect()
        assert manager.stats().num_in_use == 0
    finally:
        gc.enable()


def test_a_sequence_may_die_in_another_thread(manager: BlockManager) -> None:
    sequences = [manager.admit(TOKENS) for _ in range(8)]
    thread = threading.Thread(target=sequences.clear)
    thread.start()
    thread.join()
    assert manager.stats().num_available == 64
    manager.validate()


@pytest.mark.usefixtures("eager_collector")
def test_sequences_may_die_in_the_middle_of_any_call(manager: BlockManager) -> None:
    batch = manager.bind_batch(max_batch_tokens=64)
    for _ in range(100):
        Cycle(manager.admit(TOKENS))
        sequence = manager.admit(TOKENS)
        Cycle(sequence.fork())
        manager.reserve([sequence])
        Cycle(manager.admit(TOKENS))
        manager.commit([sequence])
        assert len(sequence.blocks) == 3
        assert batch.block_table[0, :3].tolist() == sequence.blocks
        manager.validate()
        sequence.release()
    gc.collect()
    assert (manager.stats().num_available, manager.stats().num_sequences) == (64, 0)


@pytest.mark.usefixtures("eager_collector")
def test_a_finalizer_may_call_the_manager_in_the_middle_of_any_call(manager: BlockManager) -> None:
    calls: list[str] = []
    kept = manager.admit(TOKENS)

    def call_back() -> None:
        child = manager.admit(TOKENS).fork()
        assert manager.stats().num_sequences >= 2
        child.release()
        assert len(kept.blocks) == 3

    def meddle() -> None:
        Meddler(call_back, calls)

    for _ in range(50):
        meddle()
        sequence = manager.admit(TOKENS)
        meddle()
        manager.reserve([sequence])
        meddle()
        _ = sequence.blocks
        meddle()
        with pytest.raises(SequenceTooLong):
            manager.reserve([kept, sequence], 65)
        meddle()
        sequence.release()
    gc.collect()
    assert len(calls) == 250
    assert manager.stats().num_sequences == 1
    manager.validate()


def test_two_threads_share_a_manager() -> None:
    manager = BlockManager(256, 4, max_sequences=64, max_sequence_len=64)
    num_refused = [0, 0]
    failures: list[BaseException] = []
    start = threading.Barrier(2)

    def work(thread: int) -> None:
        batch = manager.bind_batch(max_batch_tokens=256)
        start.wait()
        for round_ in range(150):
            parents = [manager.admit(TOKENS) for _ in range(4)]
            manager.reserve(parents, batch=batch)
            tables = [sequence.blocks for sequence in parents]
            assert [row[: len(table)] for row, table in zip(batch.block_table.tolist(), tables, strict=True)] == tables
            manager.commit(parents)
            children = [parent.fork() for parent in parents]
            manager.reserve([*parents, *children], batch=batch)
            assert batch.num_copies == 4
            assert len(set(batch.slot_mapping.tolist())) == 8
            manager.commit([*parents, *children])
            try:
                manager.admit(list(range(64)), reserve=64)
            except OutOfBlocks:
                num_refused[thread] += 1
            if round_ % 2:
                manager.release(parents)
            del parents, children

    def run(thread: int) -> None:
        try:
            work(thread)
        except BaseException as failure:  # noqa: BLE001 - reported below, in the test's own thread
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (manager.stats().num_available, manager.stats().num_sequences) == (256, 0)
    assert manager.stats().num_copies == 2 * 150 * 4
    manager.validate()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_owns_blocks_is_neither_copied_nor_pickled(
    manager: BlockManager, duplicate: Callable[[object], object]
) -> None:
    sequence: Sequence = manager.admit(TOKENS)
    owners: list[Any] = [manager, sequence, manager.bind_batch(max_batch_tokens=4)]
    for owner in owners:
        with pytest.raises(InvalidType, match=f"a {type(owner).__name__} .* cannot be copied or pickled"):
            duplicate(owner)
    assert manager.stats().num_sequences == 1


def test_a_manager_lives_as_long_as_its_sequences() -> None:
    sequence = BlockManager(8, 4).admit(TOKENS[:8])
    gc.collect()
    assert len(sequence.blocks) == 2
    sequence.release()
