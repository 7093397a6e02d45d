"""Compile the CPU kernels of csrc/ into one library, once for each machine, and keep it in the user's cache.

A library is found, in this order: prebuilt beside the package (wheels), in the cache, compiled now; `library_cache`
says how it is kept, `looseleaf.machine` which compiler and which instruction sets it takes. Nothing happens at import:
the first call of an operator on CPU tensors asks for it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from looseleaf.machine.compiler import Compiler, run
from looseleaf.machine.instruction_sets import SETS, chosen_sets
from looseleaf.ops.library_cache import PREBUILT, KeptLibrary, KernelsUnavailable, Outlook, mode

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LIBRARY_NAME", "CpuKernelsUnavailable", "compile_library", "find_sources", "foresee", "kept"]

LIBRARY_NAME = "looseleaf_cpu.so"

_DRIVER = ("cpu/attend.cpp", "cpu/dispatch.cpp", "cpu/moves.cpp", "cpu/plan.cpp", "cpu/threads.cpp")
_OPERATORS = ("operators.cpp",)
_FLAGS = (
    "-std=c++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-w",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# What the two passes would copy is branches that rarely turn: less to compile, same speed. Cloning is needed: without
# it, 8-bit caches cost a fifth more.
_KERNEL_FLAGS = ("-O3", "-fno-unswitch-loops", "-fno-split-loops")
_STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"  # runs on PyTorch 2.10 and newer


class CpuKernelsUnavailable(KernelsUnavailable):
    """There is no library of CPU kernels, and none can be made; the text says why and what to do."""

    def __str__(self) -> str:
        return (
            f"no compiled CPU kernels: {self.reason}. Attention runs in PyTorch, several times slower. Install a C++20 "
            "compiler (g++ or clang++), name it with CXX, or set LOOSELEAF_KERNELS=none to keep PyTorch quietly"
        )


def find_sources() -> Path | None:
    """The folder csrc: of the repository in an editable installation, of the package otherwise."""
    package = Path(__file__).parents[1]
    for folder in (package.parents[1] / "csrc", package / "csrc"):
        if (folder / _OPERATORS[0]).is_file():
            return folder
    return None


def kept(sets: tuple[str, ...] | None = None) -> KeptLibrary[Compiler]:
    """The library with these instruction sets in the cache.

    Args:
        sets: names of `looseleaf.machine.instruction_sets.SETS`; None for `chosen_sets()`.

    Raises:
        KernelsUnavailable: there are no sources.
        InvalidArgument: LOOSELEAF_SETS names an unknown set.

    >>> kept(("portable",)).file_name
    'looseleaf_cpu.so'
    """
    sources = _sources()
    chosen = chosen_sets() if sets is None else sets
    return KeptLibrary(
        name=f"cpu-kernels-{_key(sources, chosen)}",
        file_name=LIBRARY_NAME,
        title=f"CPU kernels ({', '.join(chosen)})",
        find_tools=Compiler.find,
        compile=lambda target, compiler: _compile(target, sources, compiler, chosen),
        unavailable=CpuKernelsUnavailable,
    )


def foresee() -> Outlook:
    """Where the first call would take the library from; compiles and loads nothing.

    Raises:
        InvalidArgument: LOOSELEAF_KERNELS or LOOSELEAF_SETS has a value that means nothing.

    >>> foresee().source in ("prebuilt", "cache", "compile", "none")
    True
    """
    if mode() == "none":
        return Outlook("none", reason="LOOSELEAF_KERNELS=none")
    if (PREBUILT / LIBRARY_NAME).is_file():
        return Outlook("prebuilt", str(PREBUILT / LIBRARY_NAME))
    try:
        found = kept().look()
    except KernelsUnavailable as error:
        return Outlook("none", reason=error.reason)
    return Outlook("cache", str(found)) if isinstance(found, Path) else Outlook("compile", " ".join(found.command))


def compile_library(target: Path, sets: Iterable[str], *, include: Path | None = None, link: bool = True) -> None:
    """Compile the library, all files at once on as many processors as there are.

    Args:
        target: the library to write.
        sets: names of `looseleaf.machine.instruction_sets.SETS`.
        include: headers of PyTorch; None for those of the installed one.
        link: False to compile only, against headers without a library.

    Raises:
        KernelsUnavailable: there are no sources.
        CompilerUnavailable: no compiler, or one that fails.
    """
    _compile(target, _sources(), Compiler.find(), tuple(sets), include=include, link=link)


def _sources() -> Path:
    sources = find_sources()
    if sources is None:
        raise CpuKernelsUnavailable("this installation carries no C++ sources")
    return sources


def _compile(
    target: Path,
    sources: Path,
    compiler: Compiler,
    sets: tuple[str, ...],
    *,
    include: Path | None = None,
    link: bool = True,
) -> None:
    installed = Path(torch.__file__).parent
    definitions = [f"-DLOOSELEAF_{name.upper()}" for name in sets]
    torch_flags = (_STABLE_ABI, f"-isystem{include or installed / 'include'}")
    # The longest first, so that none is left alone at the end.
    units = [(f"cpu/{name}.cpp", (*_KERNEL_FLAGS, *SETS[name])) for name in sets]
    units += [(name, ("-O1", *torch_flags)) for name in _OPERATORS]
    units += [(name, ("-O2",)) for name in _DRIVER]
    with tempfile.TemporaryDirectory(prefix="looseleaf-") as scratch:

        def compile_unit(unit: tuple[str, tuple[str, ...]]) -> str:
            name, flags = unit
            compiled = str(Path(scratch, name.replace("/", "-") + ".o"))
            places = [f"-I{sources / 'include'}", f"-I{sources}"]
            run([*compiler.command, *_FLAGS, *definitions, *places, *flags, "-c", str(sources / name), "-o", compiled])
            return compiled

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as workers:
            objects = list(workers.map(compile_unit, units))
        if link:
            libraries = [f"-L{installed / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10", "-Wl,-z,defs"]
            run([*compiler.command, "-shared", "-o", str(target), *objects, *libraries])


def _key(sources: Path, sets: tuple[str, ...]) -> str:
    content = hashlib.sha256()
    for part in (
        torch.__version__,
        platform.machine(),
        repr((_FLAGS, _KERNEL_FLAGS, SETS)),
        repr(sets),
    ):
        content.update(part.encode() + b"\0")
    for path in sorted(path for path in sources.rglob("*") if path.suffix in (".cpp", ".h")):
        content.update(path.relative_to(sources).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]
