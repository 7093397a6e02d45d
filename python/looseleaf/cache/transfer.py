"""Copies of blocks between a pool and the host, and when they are done."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import torch

from looseleaf import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["Copier", "Transfer", "copier_for"]


class Transfer(Protocol):
    """Copies that were begun."""

    @property
    def is_done(self) -> bool:
        """Whether all of them are done; asks, and does not wait."""

    def wait(self) -> None:
        """Return when all of them are done."""

    @property
    def seconds(self) -> float:
        """How long they took; of use when they are done."""


class Copier(Protocol):
    """Begins copies."""

    def __call__(self, src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor) -> Transfer:
        """Begin to copy blocks, as `ops.swap_blocks`; neither side may be reused before the transfer is done."""


class _Done:
    """Copies on the host, which are done when they were begun."""

    def __init__(self, src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor) -> None:
        start = perf_counter()
        ops.swap_blocks(src, dst, block_mapping)
        self.seconds = perf_counter() - start
        self.is_done = True

    def wait(self) -> None:
        """Nothing is left to wait for."""


class _OnStream:
    """Copies between a GPU and pinned memory, on a stream of their own.

    They begin after what the current stream has been given so far, the writes of the steps before; `wait` also makes
    the current stream wait, so that a step may read what came in.
    """

    def __init__(
        self, stream: torch.cuda.Stream, src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor
    ) -> None:
        self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            self._begin.record()
            ops.swap_blocks(src, dst, block_mapping)
            self._end.record()

    @property
    def is_done(self) -> bool:
        return bool(self._end.query())  # type: ignore[no-untyped-call]

    @property
    def seconds(self) -> float:
        return float(self._begin.elapsed_time(self._end)) / 1000

    def wait(self) -> None:
        self._end.synchronize()


def copier_for(device: torch.device) -> Copier:
    """The copier between a pool on a device and the host."""
    if device.type == "cpu":
        return _Done
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor) -> Transfer:
        return _OnStream(stream, src, dst, block_mapping)

    return begin
