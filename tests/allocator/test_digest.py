from __future__ import annotations

from looseleaf import BlockManager


def digests() -> list[bytes]:
    """The digests of a new manager after each of a fixed series of calls."""
    manager = BlockManager(16, 4, max_sequences=4, max_sequence_len=32)
    noted = [manager.digest()]
    sequence = manager.admit([1, 2, 3, 4, 5])
    noted.append(manager.digest())
    manager.reserve([sequence])
    noted.append(manager.digest())
    manager.commit([sequence])
    noted.append(manager.digest())
    child = sequence.fork()
    noted.append(manager.digest())
    sequence.release()
    noted.append(manager.digest())
    child.release()
    noted.append(manager.digest())
    manager.evict(1)
    noted.append(manager.digest())
    return noted


def test_equal_calls_give_equal_digests_and_every_change_another_one() -> None:
    first = digests()
    # Each manager seeds its hashes anew.
    assert digests() == first
    assert len(set(first)) == len(first)
    assert {len(digest) for digest in first} == {32}
