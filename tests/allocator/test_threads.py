"""Threads that meet under a manager's mutex. Calls are made to detach, which short ones otherwise never do."""

from __future__ import annotations

import threading

import numpy as np

from looseleaf import BlockManager, OutOfBlocks, Sequence

NUM_THREADS = 8
NUM_ROUNDS = 10_000
BLOCK_SIZE = 4


class Worker(threading.Thread):
    """Makes calls as an engine does; a failure is kept for the test."""

    def __init__(self, manager: BlockManager, number: int, start: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self.manager = manager
        self.number = number
        self.barrier = start
        self.num_steps = 0
        self.num_refused = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        self.barrier.wait()
        try:
            for round_ in range(NUM_ROUNDS):
                self.work(round_)
        except BaseException as failure:  # noqa: BLE001 - the test's own thread reports it
            self.failure = failure

    def work(self, round_: int) -> None:
        """Admit, compute, fork, write into what is shared, and let go, in one way or another."""
        prompt = np.arange(9, dtype=np.int32) + 9 * (round_ % 7 if round_ % 2 else 100 * self.number + round_ % 50)
        try:
            parent = self.manager.admit(prompt)
            self.manager.reserve([parent])
            self.manager.commit([parent])
            child = parent.fork()
            self.manager.reserve([parent, child], 1, tokens=[self.number, round_])
            self.manager.commit([parent, child])
        except OutOfBlocks:
            self.num_refused += 1
            return
        assert not {*parent.blocks[-1:]} & {*child.blocks[-1:]}
        self.num_steps += 1
        match round_ % 3:
            case 0:
                self.manager.release([parent, child], cache=round_ % 2 == 0)
            case 1:
                child.truncate(5)
                child.release()
        # What is left is collected here: the drop takes no lock.


def test_eight_threads_end_with_a_clean_manager() -> None:
    # Not enough for all at once: some calls are refused, and cached blocks are evicted all the time.
    manager = BlockManager(40, BLOCK_SIZE, max_sequences=2 * NUM_THREADS, max_sequence_len=64)
    manager._core._detach_always()
    start = threading.Barrier(NUM_THREADS)
    workers = [Worker(manager, number, start) for number in range(NUM_THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.failure for worker in workers] == [None] * NUM_THREADS
    assert all(worker.num_steps > NUM_ROUNDS // 10 for worker in workers)
    manager.validate()
    stats = manager.stats()
    assert (stats.num_available, stats.num_sequences) == (40, 0)
    assert stats.num_evicted > 0
    assert stats.num_hit_tokens > 0
    assert stats.num_copies > 0


def test_a_long_call_lets_other_threads_run() -> None:
    manager = BlockManager(2100, BLOCK_SIZE, max_sequences=4, max_sequence_len=8000)
    kept: list[Sequence] = [manager.admit(list(range(7999)))]
    manager.reserve(kept)
    manager.commit(kept)
    stop = threading.Event()
    num_calls = 0

    def call() -> None:
        nonlocal num_calls
        while not stop.is_set():
            manager.validate()
            num_calls += 1

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for _ in range(20):
            manager.admit([1, 2, 3]).release()
            manager.stats()
    finally:
        stop.set()
        thread.join()
    assert num_calls > 0
    manager.validate()
