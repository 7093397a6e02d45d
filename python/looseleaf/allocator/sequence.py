"""One sequence of a manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

from looseleaf.errors import InvalidType

if TYPE_CHECKING:
    from types import TracebackType

    from looseleaf import _core

__all__ = ["Sequence"]


class Sequence:
    """One sequence: its tokens, its three lengths and its block table, all kept by the manager.

    Made by `BlockManager.admit` and `Sequence.fork`. It ends with `release`, at the end of a `with` block, or when the
    object is collected; whichever comes first gives its blocks back.
    """

    __slots__ = ("__weakref__", "_core", "_manager")

    def __init__(self, core: _core.Sequence, manager: _core.BlockManager) -> None:
        """Wrap the core's object; users call `BlockManager.admit`."""
        self._core = core
        self._manager = manager

    @property
    def handle(self) -> int:
        """The integer by which the step path names the sequence (int64). Never used again for another sequence."""
        return self._core.handle

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that were in the cache when the sequence began and need no computing."""
        return self._core.num_cached_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens whose ids are known."""
        return self._core.lengths()[0]

    @property
    def num_reserved(self) -> int:
        """Slots that the current step may write, counted from position 0."""
        return self._core.lengths()[1]

    @property
    def num_computed(self) -> int:
        """Tokens whose keys and values are in the cache."""
        return self._core.lengths()[2]

    @property
    def blocks(self) -> list[int]:
        """The block table, in token order. For inspection; a step reads the batch buffers instead."""
        return self._core.blocks()

    def fork(self) -> Sequence:
        """Begin a sequence that shares all computed tokens with this one.

        Copies nothing: the first write into a shared block becomes a (source, destination) pair of the step's batch.

        Raises:
            StaleSequence: this sequence was released.
            TooManySequences: no place for another sequence.

        Example:
            >>> import looseleaf
            >>> manager = looseleaf.BlockManager(num_blocks=8, block_size=4)
            >>> parent = manager.admit([1, 2, 3, 4, 5, 6])
            >>> _ = manager.reserve([parent])
            >>> manager.commit([parent])
            >>> child = parent.fork()
            >>> child.blocks == parent.blocks, manager.stats().num_in_use
            (True, 2)
        """
        return Sequence(self._core.fork(), self._manager)

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens; blocks past them are given up, those kept for later included.

        Args:
            length: tokens to keep, 0 to the present length.

        Raises:
            StaleSequence: this sequence was released.
            InvalidArgument: the sequence is shorter than `length`.
        """
        self._core.truncate(length)

    def release(self, *, cache: bool = True) -> None:
        """End the sequence and give up its blocks. Again: does nothing.

        Args:
            cache: keep what it has added to the prefix cache; False drops what nobody else holds of it.
        """
        self._core.release(cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        raise InvalidType("a Sequence owns blocks of its manager, it cannot be copied or pickled; fork() shares them")

    def __repr__(self) -> str:
        return f"Sequence(handle={self.handle})"
