"""Small inputs with the right outcome, each from a kind of fault that allocators of this sort have had."""

from __future__ import annotations

import gc
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from looseleaf import BlockManager, Namespace, OutOfBlocks
from looseleaf.errors import DuplicateSequence, NeverFits

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf import Batch, Sequence

EIGHT = [1, 2, 3, 4, 5, 6, 7, 8]


def compute(manager: BlockManager, tokens: list[int], namespace: Namespace | None = None) -> Sequence:
    """Admit and compute a prompt."""
    sequence = manager.admit(tokens, namespace=namespace)
    manager.reserve([sequence])
    manager.commit([sequence])
    return sequence


def append(manager: BlockManager, sequence: Sequence, token: int) -> None:
    manager.reserve([sequence], 1, tokens=[token])
    manager.commit([sequence])


def run(batch: Batch[Any], memory: np.ndarray[Any, Any]) -> None:
    """What kernels do with a batch: its copies, then its writes."""
    blocks = memory.reshape(-1, 4)
    blocks[batch.copies[:, 1]] = blocks[batch.copies[:, 0]]
    memory[batch.slot_mapping] = batch.token_ids


def read(sequence: Sequence, memory: np.ndarray[Any, Any]) -> list[int]:
    tokens: list[int] = memory.reshape(-1, 4)[sequence.blocks].reshape(-1)[: sequence.num_reserved].tolist()
    return tokens


def test_a_block_that_is_named_twice_is_free_once() -> None:
    manager = BlockManager(8, 4, prefix_caching=False)
    sequence = manager.admit([1])
    for twice in ([sequence, sequence], np.array([sequence.handle, sequence.handle])):
        with pytest.raises(DuplicateSequence):
            manager.release(twice)
        assert manager.stats().num_free == 7
    fork = compute(manager, [2, 3]).fork()
    manager.release([sequence, fork, fork.fork()])
    assert manager.stats().num_free == 8
    kept = [manager.admit([number]) for number in range(8)]
    assert sorted(block for sequence in kept for block in sequence.blocks) == [*range(1, 9)]
    with pytest.raises(OutOfBlocks):
        manager.admit([9])


@pytest.mark.parametrize(("length", "last_page_len"), [(1, 1), (3, 3), (4, 4), (5, 1), (7, 3), (8, 4), (9, 1)])
def test_the_last_block_is_full_before_the_next_begins(length: int, last_page_len: int) -> None:
    manager = BlockManager(8, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    sequence = compute(manager, [*range(length)])
    indptr, indices, last = np.zeros(2, np.int32), np.zeros(8, np.int32), np.zeros(1, np.int32)
    num_blocks = manager.csr([sequence], indptr, indices, last)
    assert (num_blocks, last.tolist()) == (-(-length // 4), [last_page_len])
    append(manager, sequence, 100)
    assert batch.slot_mapping.tolist() == [sequence.blocks[length // 4] * 4 + length % 4]


def test_one_token_of_a_cached_prompt_is_left_to_compute() -> None:
    manager = BlockManager(8, 4)
    compute(manager, EIGHT).release()
    found = [manager.lookup(tokens).num_tokens for tokens in (EIGHT, [*EIGHT, 9], EIGHT[:4], EIGHT[:1])]
    assert found == [4, 8, 0, 0]
    assert manager.admit(EIGHT).num_cached_tokens == 4


def test_only_what_is_computed_is_found() -> None:
    manager = BlockManager(8, 4)
    sequence = manager.admit([*EIGHT, 9])
    found = []
    for computed in (3, 6, 8):
        manager.reserve([sequence])
        manager.commit([sequence], computed)
        found.append(manager.lookup([*EIGHT, 10]).num_tokens)
    assert found == [0, 4, 8]


def test_a_draft_that_was_not_accepted_is_never_found() -> None:
    manager = BlockManager(8, 4)
    sequence = compute(manager, [1, 2, 3])
    manager.reserve([sequence], 5, tokens=[4, 5, 66, 77, 88])
    manager.commit([sequence], 5)
    sequence.truncate(5)
    manager.reserve([sequence], 3, tokens=[6, 7, 8])
    assert manager.lookup([1, 2, 3, 4, 5, 66, 77, 88, 9]).num_tokens == 4
    manager.commit([sequence])
    assert manager.lookup([*EIGHT, 9]).num_tokens == 8
    assert manager.lookup([1, 2, 3, 4, 5, 66, 77, 88, 9]).num_tokens == 4


def test_the_tail_is_evicted_first_whatever_the_ids() -> None:
    shuffle = random.Random(3)
    tables = set()
    for _ in range(200):
        manager = BlockManager(3, 4)
        singles = [manager.admit([number], cache=False) for number in range(3)]
        shuffle.shuffle(singles)
        for single in singles:
            single.release()
        sequence = compute(manager, [*EIGHT, 9, 10, 11, 12])
        tables.add(tuple(sequence.blocks))
        sequence.release()
        kept = manager.admit([100])
        assert manager.lookup([*EIGHT, 9, 10, 11, 12, 0]).num_tokens == 8
        kept.release()
        manager.validate()
    assert len(tables) == 6


def test_a_recycled_block_forgets_what_it_was_found_by() -> None:
    manager = BlockManager(3, 4)
    compute(manager, [1, 2, 3, 4, 9]).release()
    assert manager.lookup([1, 2, 3, 4, 5]).num_tokens == 4
    manager.admit([*range(100, 112)]).release()
    assert manager.lookup([1, 2, 3, 4, 5]).num_tokens == 0


def test_a_fork_and_its_parent_write_apart() -> None:
    manager = BlockManager(8, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    memory = np.full(9 * 4, -1)
    parent = manager.admit(EIGHT[:6])
    manager.reserve([parent])
    run(batch, memory)
    manager.commit([parent])
    child = parent.fork()
    copies = []
    for sequence, token in ((child, 100), (parent, 200)):
        manager.reserve([sequence], 1, tokens=[token])
        run(batch, memory)
        copies.append(batch.num_copies)
        manager.commit([sequence])
    assert copies == [1, 0]
    assert (parent.blocks[0], manager.stats().num_in_use) == (child.blocks[0], 3)
    assert (read(parent, memory), read(child, memory)) == ([*EIGHT[:6], 200], [*EIGHT[:6], 100])
    manager.release([parent, child])
    assert manager.stats().num_available == 8


def test_the_source_of_a_copy_that_has_not_run_is_nobody_elses() -> None:
    manager = BlockManager(4, 4)
    batch = manager.bind_batch(max_batch_tokens=16)
    parent = compute(manager, EIGHT[:6])
    child = parent.fork()
    manager.reserve([child], 1, tokens=[100])
    ((source, _),) = batch.copies.tolist()
    parent.release()
    manager.evict(4)
    other = manager.admit([1])
    assert source not in other.blocks
    with pytest.raises(OutOfBlocks):
        manager.admit([2])
    manager.commit([child])
    assert manager.admit([2]).blocks == [source]


def test_an_admission_does_not_evict_what_it_has_found() -> None:
    manager = BlockManager(7, 4)
    living = manager.admit([60])
    sequence = compute(manager, EIGHT)
    table = sequence.blocks
    sequence.release()
    # The younger one: what the prompt finds is the oldest of all.
    compute(manager, [50, 51, 52, 53]).release()
    before = manager.digest()
    # Six blocks can be had, but the two that are found are among them.
    with pytest.raises(OutOfBlocks) as refused:
        manager.admit([*EIGHT, *range(100, 120)])
    assert (refused.value.requested, refused.value.free, refused.value.evictable) == (7, 3, 3)
    assert manager.digest() == before
    sequence = manager.admit([*EIGHT, *range(100, 116)])
    assert (sequence.num_cached_tokens, sequence.blocks[:2]) == (8, table)
    assert (manager.stats().num_available, manager.stats().num_evicted) == (0, 1)
    assert manager.lookup([50, 51, 52, 53, 54]).num_tokens == 0
    assert len(living.blocks) == 1
    manager.validate()


def test_a_step_does_not_evict_what_it_reads() -> None:
    manager = BlockManager(4, 4)
    compute(manager, [50, 51, 52, 53]).release()
    sequence = compute(manager, EIGHT)
    child = sequence.fork()
    table = sequence.blocks
    append(manager, sequence, 9)
    assert sequence.blocks[:2] == child.blocks == table
    append(manager, child, 9)
    with pytest.raises(OutOfBlocks):
        manager.admit([1])
    assert manager.lookup([*EIGHT, 9]).num_tokens == 8
    manager.validate()


def test_a_request_that_never_fits_is_not_one_that_has_to_wait() -> None:
    manager = BlockManager(50, 16, max_sequence_len=1024)
    with pytest.raises(NeverFits) as refused:
        manager.admit([*range(912)])
    assert (refused.value.requested, refused.value.capacity) == (57, 50)
    waiting = manager.admit([*range(480)], cache=False)
    with pytest.raises(OutOfBlocks):
        manager.admit([*range(480)], cache=False)
    waiting.release()
    assert len(manager.admit([*range(480)], cache=False).blocks) == 30


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_two_requests_that_do_not_fit_together_both_finish(prefix_caching: bool) -> None:
    manager = BlockManager(50, 16, prefix_caching=prefix_caching)
    texts = [[1000 * number + position for position in range(16)] for number in range(2)]
    running: list[tuple[int, Sequence]] = []
    waiting = [0, 1]
    finished: list[int] = []
    num_steps = num_preempted = 0
    lengths = [0, 0]
    while len(finished) < 2:
        num_steps += 1
        assert num_steps <= 10 * 2 * 480
        while waiting and manager.can_admit(texts[waiting[0]]):
            number = waiting.pop(0)
            running.append((number, manager.admit(texts[number])))
        decoding = [(number, sequence) for number, sequence in running if sequence.num_computed == sequence.num_tokens]
        try:
            new = [texts[number][sequence.num_computed] for number, sequence in decoding]
            manager.reserve([sequence for _, sequence in running], tokens=new)
        except OutOfBlocks:
            number, sequence = running.pop()
            assert len(texts[number]) > lengths[number], "preempted without a token of progress"
            lengths[number] = len(texts[number])
            sequence.release()
            waiting.insert(0, number)
            num_preempted += 1
            continue
        manager.commit([sequence for _, sequence in running])
        for number, sequence in [*running]:
            texts[number].append(len(texts[number]))
            if len(texts[number]) == 480:
                running.remove((number, sequence))
                sequence.release()
                finished.append(number)
    assert num_preempted > 0
    assert manager.stats().num_available == 50
    manager.validate()


def test_newer_weights_find_nothing_of_the_older_ones() -> None:
    manager = BlockManager(16, 4)
    older, newer = Namespace(salt="s", weight_epoch=7), Namespace(salt="s", weight_epoch=8)
    compute(manager, [*EIGHT, 9], older).release()
    living = compute(manager, [*EIGHT, 10], older)
    table = living.blocks
    assert manager.lookup([*EIGHT, 9], namespace=newer) == (0, "namespace")
    first = compute(manager, [*EIGHT, 9], newer)
    assert first.num_cached_tokens == 0
    assert not {*first.blocks} & {*table}
    assert (living.blocks, living.num_computed) == (table, 9)
    for token in (11, 12, 13):
        append(manager, living, token)
    assert manager.lookup([*EIGHT, 10, 11, 12, 13, 0], namespace=older).num_tokens == 12
    assert manager.lookup([*EIGHT, 10, 11, 12, 13, 0], namespace=newer).num_tokens == 8
    assert manager.invalidate(older) == (3, 3)
    assert manager.lookup([*EIGHT, 9], namespace=older).num_tokens == 0
    assert manager.lookup([*EIGHT, 9], namespace=newer).num_tokens == 8
    append(manager, living, 14)
    assert living.num_computed == 13
    manager.validate()


def test_equal_placeholders_of_two_images_are_two_contents() -> None:
    manager = BlockManager(16, 4)
    images = [Namespace(parts={"image": digest}) for digest in (b"a" * 32, b"b" * 32)]
    compute(manager, [0] * 9, images[0])
    assert [manager.lookup([0] * 9, namespace=image).num_tokens for image in images] == [8, 0]


def test_calls_finalizers_and_threads_do_not_wait_for_each_other() -> None:  # noqa: C901 - three threads of work
    manager = BlockManager(600, 4, max_sequences=16, max_sequence_len=2000)
    compute(manager, [*range(1500)]).release()
    batch = manager.bind_batch(max_batch_tokens=16)
    stop = threading.Event()
    counts = dict.fromkeys(("long", "garbage"), 0)
    failures: list[BaseException] = []

    class Garbage:
        """In a cycle, so that the collector calls back within whatever call runs then."""

        def __init__(self, sequence: Sequence) -> None:
            self.held = self, sequence

        def __del__(self) -> None:
            manager.admit([1, 2, 3]).fork().release()
            counts["garbage"] += 1

    def long() -> None:
        manager.validate()
        manager.digest()
        counts["long"] += 1

    def litter() -> None:
        Garbage(manager.admit([1, 2, 3, 4, 5]))
        gc.collect(0)

    def repeat(call: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                call()
        except BaseException as failure:  # noqa: BLE001 - reported below
            failures.append(failure)

    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in (long, litter)]
    for thread in threads:
        thread.start()
    while not failures and (counts["long"] < 20 or counts["garbage"] < 200):
        with manager.admit([1, 2, 3, 4, 5]) as sequence:
            manager.reserve([sequence], batch=batch)
            assert batch.block_table[0, :2].tolist() == sequence.blocks
            manager.commit([sequence])
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    gc.collect()
    manager.validate()
    assert manager.stats().num_in_use == 0
