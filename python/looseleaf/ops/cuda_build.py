"""Compile the CUDA kernels of csrc/cuda for the cards of this machine, once, and keep the library in the user's cache.

A library is found in this order: prebuilt beside the package, where it serves every card (`cuda_prebuilt`), in the
cache, compiled now. `looseleaf.machine.cuda_toolkit` says where toolkits are looked for.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from looseleaf.machine.compiler import Compiler, CompilerUnavailable, run
from looseleaf.machine.cuda_driver import find_driver
from looseleaf.machine.cuda_toolkit import Toolkit, examine_homes
from looseleaf.ops import build
from looseleaf.ops.cuda_prebuilt import LIBRARY_NAME, Record, find_prebuilt
from looseleaf.ops.library_cache import KeptLibrary, KernelsUnavailable, Outlook, mode

__all__ = [
    "RELEASE_ARCHITECTURES",
    "CudaKernelsUnavailable",
    "CudaTools",
    "check_operators",
    "compile_library",
    "foresee",
    "kept",
    "prebuild",
]

RELEASE_ARCHITECTURES = ("80", "86", "89", "90", "100", "120")
"""Machine code that a release carries, with PTX of the last for cards to come."""

_KERNELS = ("cuda/attend_mma.cu", "cuda/attend_simt.cu", "cuda/attend.cu", "cuda/moves.cu")
_OPERATORS = "cuda/operators.cpp"
_DEVICE_FLAGS = ("-std=c++20", "-O3", "-w", "-Xcompiler", "-fPIC,-fvisibility=hidden")
_HOST_FLAGS = (*build._FLAGS, "-O1", "-DUSE_CUDA", build._STABLE_ABI)  # noqa: SLF001


class CudaKernelsUnavailable(KernelsUnavailable):
    """There is no library of CUDA kernels, and none can be made; the text says why and what to do."""

    def __str__(self) -> str:
        return (
            f"no compiled CUDA kernels: {self.reason}. Attention on CUDA tensors runs in PyTorch, many times slower. "
            f"Install nvcc, for example with pip install 'cuda-toolkit[nvcc,cccl]=={torch.version.cuda}.*'. "
            "Set LOOSELEAF_KERNELS=none to keep PyTorch quietly"
        )


@dataclass(frozen=True, slots=True)
class CudaTools:
    """What compiles the library: nvcc for the kernels, the C++ compiler for the operators and under nvcc."""

    toolkit: Toolkit
    compiler: Compiler

    @classmethod
    def find(cls) -> CudaTools:
        """The first toolkit that is complete and of PyTorch's major version, and the C++ compiler.

        Raises:
            CompilerUnavailable: one of them is missing; the text says what is wrong with each toolkit.
        """
        if torch.version.cuda is None:
            raise CompilerUnavailable("this PyTorch was built without CUDA")
        homes = examine_homes(torch.version.cuda)
        for found in homes.values():
            if isinstance(found, Toolkit):
                return cls(found, Compiler.find())
        raise CompilerUnavailable(
            "; ".join(f"{home} {fault}" for home, fault in homes.items()) or "no CUDA toolkit was found"
        )

    def key(self) -> str:
        """Eight characters that differ between tools and their versions."""
        words = (str(self.toolkit.nvcc), self.toolkit.release, self.compiler.key())
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def kept() -> KeptLibrary[CudaTools]:
    """The library for the cards of this machine in the cache.

    Raises:
        KernelsUnavailable: there are no sources or no cards.
    """
    driver = find_driver()
    if driver is None or not driver.cards:
        raise CudaKernelsUnavailable("there is no CUDA driver" if driver is None else f"no card: {driver.fault}")
    cards = sorted({card.capability for card in driver.cards})
    architectures = tuple(f"{major}{minor}" for major, minor in cards)
    return KeptLibrary(
        name=f"cuda-kernels-{_key(_sources(), architectures)}",
        file_name=LIBRARY_NAME,
        title=f"CUDA kernels ({', '.join(architectures)})",
        find_tools=CudaTools.find,
        compile=lambda target, tools: compile_library(target, tools, architectures),
        unavailable=CudaKernelsUnavailable,
    )


def foresee() -> Outlook:
    """Where the first call would take the library from; compiles and loads nothing.

    Raises:
        InvalidArgument: LOOSELEAF_KERNELS has a value that means nothing.

    >>> foresee().source in ("prebuilt", "cache", "compile", "none")
    True
    """
    if torch.version.cuda is None:
        return Outlook("none", reason="this PyTorch was built without CUDA")
    if mode() == "none":
        return Outlook("none", reason="LOOSELEAF_KERNELS=none")
    prebuilt, fault = find_prebuilt(find_driver())
    if fault is None:
        return Outlook("prebuilt", str(prebuilt))
    reason = f"the prebuilt library {fault}"
    try:
        found = kept().look()
    except KernelsUnavailable as error:
        return Outlook("none", reason=f"{reason}; {error.reason}")
    if isinstance(found, Path):
        return Outlook("cache", str(found), reason)
    return Outlook("compile", str(found.toolkit.nvcc), reason)


def prebuild(target: Path) -> str:
    """Compile the library of a release, if that can be done here.

    Args:
        target: the library to write.

    Returns:
        One line about what was made, or why nothing was.

    Raises:
        CompilerUnavailable: the tools are there and fail.
    """
    try:
        tools = CudaTools.find()
    except CompilerUnavailable as error:
        return f"without the CUDA library: {error}"
    compile_library(target, tools, RELEASE_ARCHITECTURES, with_ptx=True)
    return f"with the CUDA library for {', '.join(RELEASE_ARCHITECTURES)} and later, {target.stat().st_size >> 20} MiB"


def compile_library(target: Path, tools: CudaTools, architectures: tuple[str, ...], *, with_ptx: bool = False) -> None:
    """Compile the library, all files at once on as many processors as there are, and write its record beside it.

    Args:
        target: the library to write.
        tools: what compiles it.
        architectures: compute capabilities, `90` for 9.0.
        with_ptx: whether cards newer than the last of them can run it too.

    Raises:
        KernelsUnavailable: there are no sources.
        CompilerUnavailable: a compiler fails.
    """
    sources, toolkit = _sources(), tools.toolkit
    torch_home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(prefix="looseleaf-") as scratch:
        device = [str(toolkit.nvcc), *_DEVICE_FLAGS, "-ccbin", _host_program(tools.compiler, Path(scratch))]
        device += [*_codes(architectures, with_ptx=with_ptx), *_places(sources)]
        host = _host_command(tools, sources, torch_home / "include")

        def one(name: str) -> str:
            compiled = str(Path(scratch, name.replace("/", "-") + ".o"))
            run([*(host if name == _OPERATORS else device), "-c", str(sources / name), "-o", compiled])
            return compiled

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as workers:
            objects = list(workers.map(one, (*_KERNELS, _OPERATORS)))
        runtime = [f"-L{toolkit.libraries}", "-lcudart_static", "-lrt", "-lpthread", "-ldl"]
        libraries = [f"-L{torch_home / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cuda", "-ltorch_cpu", "-lc10"]
        run([*tools.compiler.command, "-shared", "-o", str(target), *objects, *runtime, *libraries, "-Wl,-z,defs"])
    Record(toolkit.version, architectures, architectures[-1:] if with_ptx else ()).write(target)


def check_operators(include: Path) -> None:
    """Compile the file that needs PyTorch's headers against others than the installed ones, and keep nothing.

    Args:
        include: the headers.

    Raises:
        CompilerUnavailable: no toolkit, no compiler, or one that refuses.
    """
    tools, sources = CudaTools.find(), _sources()
    run([*_host_command(tools, sources, include), "-fsyntax-only", str(sources / _OPERATORS)])


def _host_command(tools: CudaTools, sources: Path, include: Path) -> list[str]:
    places = [*_places(sources), f"-I{tools.toolkit.home / 'include'}", f"-isystem{include}"]
    return [*tools.compiler.command, *_HOST_FLAGS, *places]


def _host_program(compiler: Compiler, scratch: Path) -> str:
    """The compiler as nvcc takes it: one program, without arguments."""
    if len(compiler.command) == 1:
        return compiler.command[0]
    program = scratch / "host-compiler"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(compiler.command)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def _codes(architectures: tuple[str, ...], *, with_ptx: bool) -> list[str]:
    codes = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in architectures]
    if with_ptx:
        codes.append(f"-gencode=arch=compute_{architectures[-1]},code=compute_{architectures[-1]}")
    return codes


def _places(sources: Path) -> list[str]:
    return [f"-I{sources / 'include'}", f"-I{sources}"]


def _sources() -> Path:
    sources = build.find_sources()
    if sources is None or not (sources / _OPERATORS).is_file():
        raise CudaKernelsUnavailable("this installation carries no CUDA sources")
    return sources


def _key(sources: Path, architectures: tuple[str, ...]) -> str:
    made_from = (torch.__version__, torch.version.cuda, architectures, _DEVICE_FLAGS, _HOST_FLAGS)
    content = hashlib.sha256(repr(made_from).encode())
    for path in sorted(path for path in sources.rglob("*") if path.suffix in (".cpp", ".h", ".cu")):
        content.update(path.relative_to(sources).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]
