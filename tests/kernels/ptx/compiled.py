"""The emulated operators with their kernels compiled: each launch runs what NVRTC made of the kernel, in numpy.

Everything else is the operator's own: its checks, its launches, the memory of its tensors. A kernel may touch what its
call was given, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from tests.kernels import nvrtc
from tests.kernels.launches import Launches
from tests.kernels.ptx.machine import Machine
from tests.kernels.ptx.memory import Global
from tests.kernels.ptx.parse import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kernels.ptx.parse import Kernel

ARCHITECTURES = ("compute_80", "compute_90", "compute_100")


@cache
def _kernel(text: str, symbol: str) -> Kernel:
    return parse(text)[symbol]


class Compiled(Launches):  # type: ignore[no-untyped-call]
    """While entered, launches of the emulated operators run as PTX of one architecture.

    Args:
        architecture: `compute_80` and the like.
        change: what is done to the compiler's text before it runs.
    """

    def __init__(self, architecture: str, change: Callable[[str], str] = str) -> None:
        super().__init__()
        self.architecture = architecture
        self.kernels: Counter[str] = Counter()  # that ran
        self.conflicts = 0
        self.copied_sectors = 0
        self.issued: Counter[str] = Counter()  # instructions of warps, by kernel
        self._change = change
        self._memory = Global()

    def begin(self) -> None:
        self._memory = Global()

    def allow(self, address: int, num_bytes: int) -> None:
        self._memory.allow(address, num_bytes)

    def launch(self, symbol: str, name: str, sizes: tuple[int, ...], parameters: bytes) -> None:
        grid_x, grid_y, threads, shared_bytes = sizes
        text = self._change(nvrtc.ptx_of(name, self.architecture))
        machine = Machine(_kernel(text, symbol), self._memory, (grid_x, grid_y), threads, shared_bytes, parameters)
        machine.run()
        self.kernels[name] += 1
        self.conflicts += machine.conflicts
        self.copied_sectors += machine.copied_sectors
        self.issued[name] += machine.issued
