"""What ends a manager: a panic inside it, and a fork of its process."""

from __future__ import annotations

import multiprocessing
import os
import pickle

import pytest

from looseleaf import BlockManager
from looseleaf.errors import CorruptState, ForkedProcess


def test_a_panic_is_an_exception_and_poisons_the_manager() -> None:
    manager = BlockManager(8, 4)
    sequence = manager.admit([1, 2, 3])
    with pytest.raises(CorruptState, match=r"panicked inside the manager \(asked to\)"):
        manager._core._panic()
    for call in (manager.stats, manager.validate, sequence.release, lambda: manager.admit([1])):
        with pytest.raises(CorruptState, match="build a new one"):
            call()
    # A dropped handle still takes no lock.
    del sequence


def report(connection: multiprocessing.connection.Connection, manager: BlockManager) -> None:
    """What a child can do with its parent's manager, and with one of its own."""
    try:
        manager.stats()
    except ForkedProcess as error:
        connection.send(error)
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
    child = context.Process(target=report, args=(theirs, manager))
    child.start()
    theirs.close()
    error = ours.recv()
    assert isinstance(error, ForkedProcess)
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
