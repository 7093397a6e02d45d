"""Calls of the emulated operators in a file, and a program without Python that repeats them under a sanitizer."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.kernels import emulated, nvrtc
from tests.kernels.launches import Launches
from tests.kernels.ptx.memory import merge

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KERNELS_OF_A_UNIT = 4


@dataclass(slots=True)
class _Call:
    tensors: list[tuple[int, int]] = field(default_factory=list)  # start and end
    others: list[tuple[int, int]] = field(default_factory=list)
    before: list[bytes] = field(default_factory=list)
    after: list[bytes] = field(default_factory=list)
    launches: list[tuple[str, tuple[int, ...], bytes]] = field(default_factory=list)


class Recorder(Launches):  # type: ignore[no-untyped-call]
    """While entered, calls are recorded with what they start from and what the emulator leaves."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []

    @property
    def kernels(self) -> set[str]:
        """The kernels that were launched."""
        return {name for call in self._calls for name, _, _ in call.launches}

    def begin(self) -> None:
        self._calls.append(_Call())

    def allow(self, address: int, num_bytes: int) -> None:
        if num_bytes == 0:
            return
        call, span = self._calls[-1], (address, address + num_bytes)
        is_known = any(start <= address and span[1] <= end for start, end in call.tensors)
        if not call.before:
            call.tensors = merge([*call.tensors, span])
        elif not is_known:
            call.others = merge([*call.others, span])

    def launch(self, symbol: str, name: str, sizes: tuple[int, ...], parameters: bytes) -> None:  # noqa: ARG002 - for those who run PTX
        self._calls[-1].launches.append((name, sizes, parameters))

    def start(self) -> None:
        call = self._calls[-1]
        call.before = [ctypes.string_at(start, end - start) for start, end in call.tensors]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Records an emulated operator, then lets the emulator run it."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace != emulated.NAMESPACE:
            return result
        result = func(*args, **(kwargs or {}))
        call = self._calls[-1]
        call.after = [ctypes.string_at(start, end - start) for start, end in call.tensors]
        return result

    def write(self, path: Path) -> int:
        """Write the file that csrc/emu/replay.cpp reads; returns how many calls it holds."""
        with path.open("wb") as file:
            file.write(_words(len(self._calls)))
            for call in self._calls:
                file.write(_words(len(call.tensors) + len(call.others)))
                for (start, end), before, after in zip(call.tensors, call.before, call.after, strict=True):
                    file.write(_words(start, end - start, 1) + _padded(before) + _words(1) + _padded(after))
                for start, end in call.others:
                    file.write(_words(start, end - start, 0, 0))
                file.write(_words(len(call.launches)))
                for name, sizes, parameters in call.launches:
                    file.write(_words(len(name)) + _padded(name.encode()))
                    file.write(_words(*sizes, len(parameters)) + _padded(parameters))
        return len(self._calls)


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def compile_replay(folder: Path, kernels: Iterable[str], sanitize: str, includes: tuple[str, ...] = ()) -> Path:
    """The program for these kernels; `sanitize` is the compiler's word for what watches it."""
    flags = (f"-fsanitize={sanitize}", "-fno-sanitize-recover=all")
    units = []
    templates = sorted(name for name in kernels if "<" in name)
    groups = [templates[index : index + KERNELS_OF_A_UNIT] for index in range(0, len(templates), KERNELS_OF_A_UNIT)]
    groups.append(sorted(name for name in kernels if "<" not in name))  # functions: in one unit only
    for index, some in enumerate(groups):
        headers = {nvrtc.header_of(name) for name in some}
        lines = [f'#include "looseleaf/{header}.h"' for header in sorted(headers)]
        lines += ['#include "emu/replay.h"', "namespace {"]
        lines += [f"LOOSELEAF_REPLAYED(__LINE__, {name});" for name in some]
        unit = folder / f"kernels{index}.cpp"
        unit.write_text("\n".join([*lines, "}", ""]))
        units.append(str(unit))
    # ThreadSanitizer watches the kernels, and is told what the emulator does.
    runtime = ("-DLOOSELEAF_THREAD_SANITIZER",) if sanitize == "thread" else flags
    objects = emulated.compile_units(folder, (*units, "emu/replay.cpp"), (*includes, *flags))
    objects += emulated.compile_units(folder, emulated.EMULATOR, runtime)
    program = folder / "replay"
    subprocess.run([emulated.compiler_path(), *flags, "-o", str(program), *objects], check=True)
    return program
