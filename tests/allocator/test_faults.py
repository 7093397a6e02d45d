"""What ends a manager: a panic inside it, and a fork of its process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest

from looseleaf import BlockManager
from looseleaf.errors import CorruptState, ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf import Sequence


def test_a_panic_is_an_exception_and_poisons_the_manager() -> None:
    manager = BlockManager(8, 4)
    sequence = manager.admit([1, 2, 3])
    with pytest.raises(CorruptState, match=r"panicked inside the manager \(asked to\)"):
        manager._core._panic()
    for call in every_call(manager, sequence):
        with pytest.raises(CorruptState, match="build a new one"):
            call()
    # A dropped handle still takes no lock.
    del sequence


def every_call(manager: BlockManager, sequence: Sequence) -> list[Callable[[], object]]:
    array = np.zeros(4, np.int32)
    return [
        manager.stats,
        manager.validate,
        manager.digest,
        manager.reset,
        manager.invalidate,
        lambda: manager.evict(1),
        lambda: manager.admit([1]),
        lambda: manager.can_admit(1),
        lambda: manager.can_admit([1]),
        lambda: manager.lookup([1]),
        lambda: manager.reserve([sequence]),
        lambda: manager.commit([sequence]),
        lambda: manager.release([sequence]),
        lambda: manager.gather_rows([sequence], array.reshape(1, 4)),
        lambda: manager.csr([], array[:1], array[1:2], array[2:]),
        sequence.fork,
        sequence.release,
        lambda: sequence.truncate(0),
        lambda: sequence.blocks,
        lambda: sequence.num_computed,
    ]


def report(connection: multiprocessing.connection.Connection, manager: BlockManager, sequence: Sequence) -> None:
    """What a child can do with its parent's manager, and with one of its own."""
    for call in every_call(manager, sequence):
        try:
            call()
        except ForkedProcess as error:
            connection.send(error)
        else:
            connection.send(f"{call} was answered")
    own = BlockManager(8, 4)
    own.admit([1, 2, 3]).release()
    connection.send(own.stats().num_available)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_may_not_use_its_parents_manager() -> None:
    manager = BlockManager(8, 4)
    sequence = manager.admit([1, 2, 3])
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=report, args=(theirs, manager, sequence))
    child.start()
    theirs.close()
    for _ in every_call(manager, sequence):
        error = ours.recv()
        assert isinstance(error, ForkedProcess), error
        assert error.process == os.getpid()
    assert ours.recv() == 8
    child.join()
    assert child.exitcode == 0
    manager.validate()
    assert manager.stats().num_in_use == 1
    sequence.release()


def test_a_manager_cannot_be_pickled_and_says_so() -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(BlockManager(8, 4))
