"""The running sequences as arrays, so that planning a step takes the same few operations for one and for a thousand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from looseleaf.engine.request import Branch, Request

__all__ = ["Rows"]

_ROW = np.dtype(
    [
        ("handle", np.int64),
        ("num_known", np.int64),
        ("num_told", np.int64),
        ("num_computed", np.int64),
        ("num_held", np.int64),
        ("num_capacity", np.int64),
        ("last_token", np.int64),
    ]
)


class Rows:
    """The sequences that run, a row for every branch.

    Attributes:
        branches: whose row it is.
    """

    __slots__ = ("_is_greedy", "_rows", "branches")

    def __init__(self, most: int) -> None:
        """Make room for so many sequences."""
        self.branches: list[Branch] = []
        self._rows = np.zeros(most, dtype=_ROW)
        self._is_greedy: bool | None = None

    def __len__(self) -> int:
        return len(self.branches)

    @property
    def size(self) -> int:
        """Most rows that there can be."""
        return len(self._rows)

    @property
    def live(self) -> NDArray[np.void]:
        """The rows that are taken, a view. All fields are int64.

        `handle`: the sequence in the block manager. `num_known`: tokens of prompt and answer whose ids are known;
        `num_told`: those that the manager knows; `num_computed`: those whose keys and values are in the cache.
        `num_held`: last tokens that must wait although they are known: 1 while a beam search computes its branches
        again, which take their next step together. `num_capacity`: tokens that blocks were allocated for at admission.
        `last_token`: the last known token.
        """
        return self._rows[: len(self.branches)]

    @property
    def is_greedy(self) -> bool:
        """Whether each row takes the likeliest token of one row of logits, and has no samples to begin."""
        if self._is_greedy is None:
            requests = [branch.request for branch in self.branches]
            self._is_greedy = all(one.takes_one_row and one.is_greedy and not one.samples for one in requests)
        return self._is_greedy

    def pending(self) -> NDArray[np.int64]:
        """int64 [rows], tokens of each row that a step may compute now."""
        live = self.live
        pending: NDArray[np.int64] = live["num_known"] - live["num_computed"] - live["num_held"]
        return pending

    def add(
        self,
        branch: Branch,
        *,
        num_known: int,
        num_computed: int,
        last_token: int,
        num_told: int | None = None,
        num_held: int = 0,
        num_capacity: int = 0,
    ) -> None:
        """Append a row for a branch that holds a sequence; `num_told` is `num_computed` unless given."""
        assert branch.sequence is not None  # noqa: S101 - the scheduler's own promise
        num_told = num_computed if num_told is None else num_told
        handle = branch.sequence.handle
        row = (handle, num_known, num_told, num_computed, num_held, num_capacity, last_token)
        self._rows[len(self.branches)] = row
        self.branches.append(branch)
        self._is_greedy = None

    def remove(self, requests: Collection[Request]) -> None:
        """Drop the rows of requests; the others keep their order."""
        leaving = set(map(id, requests))
        stays = [id(branch.request) not in leaving for branch in self.branches]
        if all(stays):
            return
        self._is_greedy = None
        kept = self.live[stays]
        self._rows[: len(kept)] = kept
        self.branches = [branch for branch, is_kept in zip(self.branches, stays, strict=True) if is_kept]

    def of(self, request: Request) -> list[int]:
        """The rows of a request."""
        return [row for row, branch in enumerate(self.branches) if branch.request is request]

    def requests(self) -> list[Request]:
        """Those that run, each once."""
        return list({id(branch.request): branch.request for branch in self.branches}.values())

    def num_empty_slots(self, block_size: int, rows: NDArray[np.int64], num_computed: NDArray[np.int64]) -> int:
        """Slots of the allocated blocks that hold no token; those of a block that branches share count for each.

        Args:
            block_size: slots of a block.
            rows: int64, those that a step computes.
            num_computed: int64, what is computed of them afterwards.
        """
        live = self.live
        computed = live["num_computed"].copy()
        computed[rows] = num_computed
        filled = np.maximum(live["num_capacity"], computed)
        return int((filled - computed + -filled % block_size).sum())
