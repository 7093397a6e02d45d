"""Launches of the emulated operators, taken away from the emulator: what a kernel is given, and what it may touch."""

from __future__ import annotations

import ctypes
import re
import subprocess
from abc import ABC, abstractmethod
from functools import cache
from typing import Any

from tests.kernels import emulated
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NOWHERE = (emulated.LAUNCH(0), emulated.ALLOW(0))


@cache
def kernel_names() -> dict[int, tuple[str, str]]:
    """The kernels of the emulated library by their addresses: symbol, and name in C++."""
    library = emulated.load()

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


def extent(tensor: Tensor) -> tuple[int, int]:
    """Address and bytes, from its first to its last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size() if tensor.numel() else 0


class Launches(ABC, TorchDispatchMode):
    """While entered, launches of the emulated operators go to `launch`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._error: Exception | None = None
        self._callbacks = emulated.LAUNCH(self._launch), emulated.ALLOW(self.allow)

    @abstractmethod
    def begin(self) -> None:
        """A call of an operator begins."""

    @abstractmethod
    def allow(self, address: int, num_bytes: int) -> None:
        """The call's kernels may touch this memory."""

    def start(self) -> None:
        """The tensors of the call are known; what is allowed from now on is its own."""

    @abstractmethod
    def launch(self, symbol: str, name: str, sizes: tuple[int, ...], parameters: bytes) -> None:
        """Do what a launch does; `sizes` are grid x and y, threads, bytes of shared memory."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Lets an emulated operator run with its launches taken away; others are left alone."""
        kwargs = kwargs or {}
        if func.namespace != emulated.NAMESPACE:
            return func(*args, **kwargs)
        self._error = None
        self.begin()
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self.allow(*extent(value))
        self.start()
        emulated.load().looseleaf_elsewhere(*self._callbacks)
        try:
            result = func(*args, **kwargs)
        finally:
            emulated.load().looseleaf_elsewhere(*_NOWHERE)
        if self._error is not None:
            raise self._error
        return result

    def _launch(self, kernel: int, parameters: int, sizes: Any) -> None:
        if self._error is not None:
            return
        try:
            symbol, name = kernel_names()[kernel]
            *shape, num_bytes = sizes[:5]
            self.launch(symbol, name, tuple(shape), ctypes.string_at(parameters, num_bytes))
        except Exception as error:  # noqa: BLE001 - raised again when the operator is done
            self._error = error
