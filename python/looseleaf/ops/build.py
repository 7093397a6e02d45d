"""Compile the CPU kernels of csrc/ into one library, once for each machine, and keep it in the user's cache.

A library is found, in this order: prebuilt beside the package (wheels), in the cache, compiled now. Its name in the
cache is a hash of the sources, the flags and PyTorch's version, and one of the compiler's own words about itself, so a
changed one of these makes another library. Where there is no compiler, or none may be used, any compiler's will do.
Nothing happens at import: the first call of an operator on CPU tensors asks for it.

Environment variables:
    LOOSELEAF_KERNELS: `compile` (the default) does all of the above; `prebuilt` never compiles, but takes a library
        that is there; `none` takes no library: the operators run in PyTorch.
    LOOSELEAF_ISA: the instruction set that the kernels use, `portable`, `avx2`, `avx512`, `avx512_bf16` or
        `avx512_amx`. A call fails where the library or the processor lacks it. Without it the library chooses.
    LOOSELEAF_SETS: the instruction sets that are compiled, separated by commas, or `all`. Without it, those that this
        processor chooses from.
    LOOSELEAF_CACHE: the cache folder, see `looseleaf.cached_folder`.
    CXX: the C++ compiler. Without it, the first of c++, g++ and clang++ that is there.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from looseleaf.cached_folder import MANIFEST, cache_root, ensure_folder, is_whole
from looseleaf.errors import CacheFolderUnavailable, InvalidArgument, LooseleafError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "LIBRARY_NAME",
    "SETS",
    "KernelsUnavailable",
    "all_sets",
    "build",
    "build_again",
    "check_isa",
    "compile_library",
    "find_sources",
    "mode",
]

LIBRARY_NAME = "looseleaf_cpu.so"

_AVX512 = ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
SETS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": _AVX512,
    "avx512_vbmi": (*_AVX512, "-mavx512vbmi"),
    "avx512_bf16": (*_AVX512, "-mavx512bf16"),
    "avx512_amx": (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
"""Each set is one file of csrc/cpu, compiled with these flags; `avx512_vbmi` only helps the AVX-512 ones."""

_FORCED_SETS = tuple(name for name in SETS if name != "avx512_vbmi")
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
_LOCK_TIMEOUT_SECONDS = 300.0
_COMPILER_TIMEOUT_SECONDS = 300


class KernelsUnavailable(LooseleafError):
    """There is no library of kernels, and none can be made; the text says why and what to do.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"no compiled CPU kernels: {self.reason}. Attention runs in PyTorch, several times slower. Install a C++20 "
            "compiler (g++ or clang++), name it with CXX, or set LOOSELEAF_KERNELS=none to keep PyTorch quietly"
        )


def mode() -> str:
    """The value of LOOSELEAF_KERNELS.

    Raises:
        InvalidArgument: another value than `compile`, `prebuilt` and `none`.

    >>> mode() in ("compile", "prebuilt", "none")
    True
    """
    chosen = os.environ.get("LOOSELEAF_KERNELS") or "compile"
    if chosen not in ("compile", "prebuilt", "none"):
        raise InvalidArgument(f"LOOSELEAF_KERNELS must be compile, prebuilt or none, was {chosen!r}")
    return chosen


def check_isa() -> None:
    """Check the value of LOOSELEAF_ISA.

    Raises:
        InvalidArgument: no name of a set that may be forced.

    >>> check_isa()
    """
    forced = os.environ.get("LOOSELEAF_ISA")
    if forced and forced not in _FORCED_SETS:
        raise InvalidArgument(f"LOOSELEAF_ISA must be {', '.join(_FORCED_SETS)} or empty, was {forced!r}")


def find_sources() -> Path | None:
    """The folder csrc: of the repository in an editable installation, of the package otherwise."""
    package = Path(__file__).parents[1]
    for folder in (package.parents[1] / "csrc", package / "csrc"):
        if (folder / _OPERATORS[0]).is_file():
            return folder
    return None


def chosen_sets() -> tuple[str, ...]:
    """The instruction sets to compile: those of LOOSELEAF_SETS, or those that this processor chooses from.

    Raises:
        InvalidArgument: LOOSELEAF_SETS names an unknown one.

    >>> set(chosen_sets()) <= set(SETS)
    True
    """
    text = os.environ.get("LOOSELEAF_SETS")
    if not text:
        return _host_sets()
    names = tuple(all_sets() if text == "all" else text.split(","))
    unknown = set(names) - set(SETS)
    if unknown:
        raise InvalidArgument(f"LOOSELEAF_SETS must name {', '.join(SETS)} or all, was {text!r}")
    return tuple(name for name in SETS if name in names)


def all_sets() -> tuple[str, ...]:
    """Every instruction set of this kind of processor, as wheels carry them.

    >>> "portable" in all_sets()
    True
    """
    return tuple(SETS) if _is_x86() else ("portable",)


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _host_sets() -> tuple[str, ...]:
    """The sets that this processor chooses from; every one of its kind where it does not say what it has."""
    if not _is_x86():
        return ("portable",)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return tuple(SETS)
    flags = next((set(line.split()) for line in text.splitlines() if line.startswith("flags")), set())
    forced = os.environ.get("LOOSELEAF_ISA")
    sets = [forced] if forced in _FORCED_SETS else []
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c", "fma"} <= flags:
        sets.append("avx512")
        sets += ["avx512_vbmi"] if "avx512vbmi" in flags else []
        sets += ["avx512_bf16"] if "avx512_bf16" in flags and "AuthenticAMD" in text else []
        sets += ["avx512_amx"] if "amx_bf16" in flags else []
    elif {"avx2", "fma", "f16c"} <= flags:
        sets.append("avx2")
    else:
        sets.append("portable")
    return tuple(name for name in SETS if name in sets)


@dataclass(frozen=True, slots=True)
class _Compiler:
    """A C++ compiler and what it says about itself."""

    path: str
    version: str

    @classmethod
    def find(cls) -> _Compiler:
        named = os.environ.get("CXX")
        for candidate in (named,) if named else ("c++", "g++", "clang++"):
            path = shutil.which(candidate)
            if path is not None:
                return cls(path, _run([path, "--version"]).splitlines()[0])
        raise KernelsUnavailable(f"CXX names {named}, which is not there" if named else "no C++ compiler was found")

    def key(self) -> str:
        return hashlib.sha256(f"{self.path}\0{self.version}".encode()).hexdigest()[:8]


def build(sets: tuple[str, ...] | None = None) -> Path:
    """The library with these instruction sets in the cache, compiled now where it is not there.

    Args:
        sets: names of `SETS`; None for `chosen_sets()`.

    Returns:
        The library's path: in the cache, or in a temporary folder, removed at exit, where the cache cannot be
        written.

    Raises:
        KernelsUnavailable: no sources, no compiler, a compiler that fails, or `LOOSELEAF_KERNELS` forbids to compile.
    """
    sources = find_sources()
    if sources is None:
        raise KernelsUnavailable("this installation carries no C++ sources")
    sets = chosen_sets() if sets is None else sets
    name = f"cpu-kernels-{_key(sources, sets)}"
    try:
        root = cache_root()
    except RuntimeError:  # there is no home
        root = None
    try:
        compiler = _allowed_compiler(name)
    except KernelsUnavailable:
        folder = None if root is None else _made_by_any(root, name)
        if folder is None:
            raise
        return folder / LIBRARY_NAME
    if root is None:
        return _compiled_for_itself("there is no home directory to keep them in", sources, compiler, sets)
    return _filled(root / f"{name}-{compiler.key()}", sources, compiler, sets) / LIBRARY_NAME


def _allowed_compiler(name: str) -> _Compiler:
    if mode() != "compile":
        raise KernelsUnavailable(f"LOOSELEAF_KERNELS={mode()} forbids to compile, and {name} is not in the cache")
    return _Compiler.find()


def build_again(library: Path) -> Path | None:
    """Compile a library anew that cannot be loaded: its size was right, its bytes were not.

    Args:
        library: from `build`.

    Returns:
        The new library's path; None where it cannot be put aside.
    """
    manifest = library.with_name(MANIFEST)
    try:
        manifest.unlink()  # a folder without one is made again, whole, by the one who holds the lock
    except OSError:
        return None
    return build()


def _made_by_any(root: Path, name: str) -> Path | None:
    """A whole folder of this name, whichever compiler filled it; the one that was made last."""
    try:
        folders = [folder for folder in root.glob(f"{name}-*") if is_whole(folder)]
        return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
    except OSError:
        return None


def compile_library(target: Path, sets: Iterable[str], *, include: Path | None = None, link: bool = True) -> None:
    """Compile the library, all files at once on as many processors as there are.

    Args:
        target: the library to write.
        sets: names of `SETS`.
        include: headers of PyTorch; None for those of the installed one.
        link: False to compile only, against headers without a library.

    Raises:
        KernelsUnavailable: no sources, no compiler or one that fails.
    """
    sources = find_sources()
    if sources is None:
        raise KernelsUnavailable("this installation carries no C++ sources")
    _compile(target, sources, _Compiler.find(), tuple(sets), include=include, link=link)


def _filled(folder: Path, sources: Path, compiler: _Compiler, sets: tuple[str, ...]) -> Path:
    def wait() -> None:
        _report("another process compiles the CPU kernels: waiting for it")

    def fill(new: Path) -> None:
        _fill(new, sources, compiler, sets)

    try:
        return ensure_folder(folder, fill, on_wait=wait, timeout_seconds=_LOCK_TIMEOUT_SECONDS)
    except CacheFolderUnavailable as error:
        return _compiled_for_itself(str(error), sources, compiler, sets).parent


def _compiled_for_itself(reason: str, sources: Path, compiler: _Compiler, sets: tuple[str, ...]) -> Path:
    _report(f"{reason}; this process compiles for itself")
    temporary = Path(tempfile.mkdtemp(prefix="looseleaf-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    _fill(temporary, sources, compiler, sets)
    return temporary / LIBRARY_NAME


def _fill(folder: Path, sources: Path, compiler: _Compiler, sets: tuple[str, ...]) -> None:
    _report(f"compiling CPU kernels ({', '.join(sets)}), once; this takes a while")
    start = time.monotonic()
    _compile(folder / LIBRARY_NAME, sources, compiler, sets)
    _report(f"compiled in {time.monotonic() - start:.1f} s")


def _compile(
    target: Path,
    sources: Path,
    compiler: _Compiler,
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
            _run([compiler.path, *_FLAGS, *definitions, *places, *flags, "-c", str(sources / name), "-o", compiled])
            return compiled

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as workers:
            objects = list(workers.map(compile_unit, units))
        if link:
            libraries = [f"-L{installed / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10", "-Wl,-z,defs"]
            _run([compiler.path, "-shared", "-o", str(target), *objects, *libraries])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler
            command, capture_output=True, text=True, check=False, timeout=_COMPILER_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelsUnavailable(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        told = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise KernelsUnavailable(f"{command[0]} failed: {told}")
    return done.stdout


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


def _report(text: str) -> None:
    print(f"looseleaf: {text}", file=sys.stderr, flush=True)  # noqa: T201 - progress of a step that takes seconds
