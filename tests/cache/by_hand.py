"""Copies of blocks that are done when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from looseleaf import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Flight:
    """Copies that were begun. Nothing is copied before they are done, as late as a device may be."""

    def __init__(self, hand: ByHand, src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor) -> None:
        self._hand = hand
        self._copies = src, dst, block_mapping
        self.is_done = False
        self.seconds = 0.5 * len(block_mapping)

    def finish(self) -> None:
        """Copy."""
        ops.swap_blocks(*self._copies)
        self.is_done = True

    def wait(self) -> None:
        """Refuse to wait for ever."""
        if not self.is_done:
            assert self._hand.finishes_when_waited_for, "waits for copies that nobody finishes"
            self._hand.flying.remove(self)
            self.finish()


class ByHand:
    """A copier."""

    def __init__(self, *, finishes_when_waited_for: bool = False) -> None:
        self.finishes_when_waited_for = finishes_when_waited_for
        self.flying: list[Flight] = []
        self.num_begun = 0

    def __call__(self, src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor) -> Flight:
        """Begin."""
        self.flying.append(Flight(self, src, dst, block_mapping))
        self.num_begun += 1
        return self.flying[-1]

    def finish(self, number: int | None = None) -> None:
        """Finish the oldest ones, by default all."""
        for _ in range(len(self.flying) if number is None else number):
            self.flying.pop(0).finish()
