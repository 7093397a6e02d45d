"""The emulated operators with their kernels compiled: each launch runs what NVRTC made of the kernel, in numpy.

Everything else is the operator's own: its checks, its launches, the memory of its tensors. A kernel may touch what its
call was given, and nothing else.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tests.kernels import emulated, nvrtc
from tests.kernels.ptx.machine import Machine
from tests.kernels.ptx.memory import Fault, Global
from tests.kernels.ptx.parse import parse
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kernels.ptx.parse import Kernel

ARCHITECTURES = ("compute_80", "compute_90", "compute_100")
_NOWHERE = (emulated.LAUNCH(0), emulated.ALLOW(0))


@cache
def _kernel_names() -> dict[int, tuple[str, str]]:
    """The kernels of the emulated library by their addresses: symbol, and name in C++."""
    library = emulated.load()
    if shutil.which("nm") is None:
        pytest.skip("needs nm of binutils")

    def symbols(*options: str) -> list[tuple[int, str]]:
        command = ["nm", "--defined-only", *options, str(library._name)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        return [(int(place, 16), name) for place, _, name in (line.split(None, 2) for line in lines)]

    addresses = {name: place for place, name in symbols()}
    own = ctypes.cast(library.looseleaf_emulate, ctypes.c_void_p).value
    assert own is not None
    base = own - addresses["looseleaf_emulate"]
    readable = {place: re.sub(r"^void |\(.*$", "", name) for place, name in symbols("-C")}
    return {base + place: (name, readable[place]) for name, place in addresses.items() if "_kernel" in name}


@cache
def _kernel(text: str, symbol: str) -> Kernel:
    return parse(text)[symbol]


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Address and bytes, from its first to its last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size() if tensor.numel() else 0


class Compiled(TorchDispatchMode):
    """While entered, launches of the emulated operators run as PTX of one architecture.

    Args:
        architecture: `compute_80` and the like.
        change: what is done to the compiler's text before it runs.
    """

    def __init__(self, architecture: str, change: Callable[[str], str] = str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.architecture = architecture
        self.kernels: Counter[str] = Counter()  # that ran
        self.conflicts = 0
        self.copied_sectors = 0
        self.issued: Counter[str] = Counter()  # instructions of warps, by kernel
        self._change = change
        self._memory = Global()
        self._error: Exception | None = None
        self._callbacks = emulated.LAUNCH(self._launch), emulated.ALLOW(self._allow)

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: Any,  # noqa: ANN401 - not looked at
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the operator returns
        """Lets an emulated operator run its kernels here; others are left alone."""
        kwargs = kwargs or {}
        if func.namespace != emulated.NAMESPACE:
            return func(*args, **kwargs)
        self._memory, self._error = Global(), None
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._memory.allow(*_extent(value))
        emulated.load().looseleaf_elsewhere(*self._callbacks)
        try:
            result = func(*args, **kwargs)
        finally:
            emulated.load().looseleaf_elsewhere(*_NOWHERE)
        if self._error is not None:
            raise self._error
        return result

    def _allow(self, address: int, num_bytes: int) -> None:
        self._memory.allow(address, num_bytes)

    def _launch(self, kernel: int, parameters: int, sizes: Any) -> None:  # noqa: ANN401 - a pointer of ctypes
        if self._error is not None:
            return
        try:
            symbol, name = _kernel_names()[kernel]
            grid_x, grid_y, threads, shared_bytes, num_bytes = sizes[:5]
            text = self._change(nvrtc.ptx_of(name, self.architecture))
            content = ctypes.string_at(parameters, num_bytes)
            machine = Machine(_kernel(text, symbol), self._memory, (grid_x, grid_y), threads, shared_bytes, content)
            machine.run()
        except Exception as error:  # noqa: BLE001 - raised again when the operator is done
            self._error = error
            return
        self.kernels[name] += 1
        self.conflicts += machine.conflicts
        self.copied_sectors += machine.copied_sectors
        self.issued[name] += machine.issued


__all__ = ["ARCHITECTURES", "Compiled", "Fault"]
