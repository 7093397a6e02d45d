"""What a kernel can touch: spans of global memory, and the shared memory of each block.

Shared memory is watched for races, two bytes at a time, as the emulator does it: two accesses of different threads, one
of them a write, need a barrier of the block between them, or one of the warp if both are of one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FIRST_ADDRESS = 1 << 16  # below: the parameters of a kernel
SEVERAL_LANES = -2
SEVERAL_WARPS = -3


class Fault(RuntimeError):
    """What hardware would not take, or would make anything of."""


def merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans (start, end) in order, those that touch made one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


class Global:
    """Memory of this process, of which a kernel may touch the spans that it was given."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        self.base = 0
        self.bytes: Array = np.zeros(0, np.uint8)
        self._starts: Array = np.zeros(0, np.int64)
        self._ends: Array = np.zeros(0, np.int64)

    def allow(self, address: int, num_bytes: int) -> None:
        """Let kernels touch a span."""
        if num_bytes == 0:
            return
        self._spans = spans = merge([*self._spans, (address, address + num_bytes)])
        self._starts, self._ends = (np.array(side, np.int64) for side in zip(*spans, strict=True))
        self.base = spans[0][0] // 256 * 256
        size = spans[-1][1] - self.base  # with what lies between: `index` lets nobody touch it
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.base))

    def index(self, addresses: Array, width: int, text: str) -> Array:
        """Places of accesses in `bytes`, checked."""
        start = addresses.astype(np.int64)
        if len(self._starts) == 0:
            raise Fault(f"global memory out of range: none was given; {text}")
        span = np.maximum(np.searchsorted(self._starts, start, "right") - 1, 0)
        is_wrong = (start < self._starts[span]) | (start + width > self._ends[span])
        if is_wrong.any():
            raise Fault(f"global memory out of range: {int(addresses[is_wrong][0]):#x}; {text}")
        if (start % width).any():
            raise Fault(f"global memory misaligned for {width} bytes; {text}")
        index: Array = start - self.base
        return index


class Shared:
    """Shared memory of all blocks side by side."""

    def __init__(self, num_blocks: int, limit: int, block: Array, warp: Array) -> None:
        self.limit = limit
        self.stride = -(-limit // 16) * 16 + 16
        self.bytes = np.full(num_blocks * self.stride, 0xFF, np.uint8)
        self.block, self.warp = block, warp  # of each lane
        self.block_epoch = np.zeros(num_blocks, np.int64)
        self.warp_epoch = np.zeros(int(warp[-1]) + 1, np.int64)
        count = len(self.bytes) // 2
        self.writer, self.reader = np.full(count, -1), np.full(count, -1)
        self.reader_warp = np.full(count, -1)
        self.write_epochs, self.read_epochs = np.zeros((2, count), np.int64), np.zeros((2, count), np.int64)

    def index(self, lanes: Array, addresses: Array, width: int, text: str) -> Array:
        """Places of accesses, checked."""
        offset = addresses.astype(np.int64)
        is_wrong = (offset < 0) | (offset + width > self.limit)
        if is_wrong.any():
            raise Fault(f"shared memory out of range: byte {int(offset[is_wrong][0])} of {self.limit}; {text}")
        if (offset % width).any():
            raise Fault(f"shared memory misaligned for {width} bytes; {text}")
        index: Array = offset + self.block[lanes] * self.stride
        return index

    def watch(self, lanes: Array, index: Array, width: int, *, is_write: bool, text: str) -> None:
        """Look for a race, and remember the access."""
        half = max(1, width // 2)
        granules = (index[:, None] // 2 + np.arange(half)).reshape(-1)
        threads = np.repeat(lanes, half)
        warps = self.warp[threads]
        block_epoch, warp_epoch = self.block_epoch[self.block[threads]], self.warp_epoch[warps]
        writer = self.writer[granules]
        is_race = (writer >= 0) & (writer != threads) & (self.write_epochs[0, granules] == block_epoch)
        is_race &= (self.warp[writer] != warps) | (self.write_epochs[1, granules] == warp_epoch)
        reader = self.reader[granules]
        is_same_warp = (reader != SEVERAL_WARPS) & (self.reader_warp[granules] == warps)
        is_recent = (reader != -1) & (self.read_epochs[0, granules] == block_epoch)
        is_recent &= ~is_same_warp | (self.read_epochs[1, granules] == warp_epoch)
        if is_write:
            is_race |= is_recent & (reader != threads)
            if len(np.unique(granules)) != len(granules):
                is_race[:] = True
        if is_race.any():
            at = int(np.flatnonzero(is_race)[0])
            byte = int(granules[at] * 2 - self.block[threads[at]] * self.stride)
            raise Fault(f"race in shared memory at byte {byte}, thread {int(threads[at])}; {text}")
        if is_write:
            self.writer[granules], self.reader[granules] = threads, -1
            self.write_epochs[:, granules] = block_epoch, warp_epoch
            return
        self.reader[granules] = np.where(
            ~is_recent | (reader == threads), threads, np.where(is_same_warp, SEVERAL_LANES, SEVERAL_WARPS)
        )
        shared_now = np.bincount(granules)[granules] > 1  # several lanes in this one instruction
        self.reader[granules[shared_now]] = SEVERAL_LANES
        self.reader_warp[granules] = warps
        self.read_epochs[:, granules] = block_epoch, warp_epoch
