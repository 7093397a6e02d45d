"""Compile the CUDA kernels of csrc/cuda for the cards of this machine, once, and keep the library in the user's cache.

A toolkit is looked for in this order: NVIDIA's packages for the CUDA of the installed PyTorch, CUDA_HOME, CUDA_PATH,
the `nvcc` of the path, /usr/local/cuda. A home counts only if it holds nvcc, the headers and the static runtime, and
has the major version that PyTorch was built with. LOOSELEAF_KERNELS is that of the CPU kernels (`looseleaf.ops.build`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from looseleaf.cached_folder import cache_root, ensure_folder, is_whole
from looseleaf.errors import CacheFolderUnavailable
from looseleaf.ops import build
from looseleaf.ops.build import KernelsUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LIBRARY_NAME", "RELEASE_ARCHITECTURES", "Toolkit", "build_library", "compile_library", "find_toolkit"]

LIBRARY_NAME = "looseleaf_cuda.so"
RELEASE_ARCHITECTURES = ("80", "86", "89", "90", "100", "120")
"""Machine code that a release carries, with PTX of the last for cards to come."""

_KERNELS = ("cuda/attend_mma.cu", "cuda/attend_simt.cu", "cuda/attend.cu", "cuda/moves.cu")
_OPERATORS = "cuda/operators.cpp"


class CudaKernelsUnavailable(KernelsUnavailable):
    """There is no library of CUDA kernels, and none can be made; the text says why and what to do."""

    def __str__(self) -> str:
        return (
            f"no compiled CUDA kernels: {self.reason}. Attention on CUDA tensors runs in PyTorch, many times slower. "
            f"{_advice()} Set LOOSELEAF_KERNELS=none to keep PyTorch quietly"
        )


def _advice() -> str:
    return f"Install nvcc, for example with pip install 'cuda-toolkit[nvcc,cccl]=={torch.version.cuda}.*'."


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit that can compile for the installed PyTorch."""

    home: Path
    version: str
    libraries: Path

    @property
    def nvcc(self) -> Path:
        """The compiler."""
        return self.home / "bin" / "nvcc"


def find_toolkit() -> Toolkit:
    """The first toolkit that is complete and of PyTorch's major version.

    Raises:
        KernelsUnavailable: this PyTorch has no CUDA, or no toolkit fits; the text says what is wrong with each.
    """
    if torch.version.cuda is None:
        raise CudaKernelsUnavailable("this PyTorch was built without CUDA")
    refused = []
    for home in dict.fromkeys(_homes()):
        found = _examine(home)
        if isinstance(found, Toolkit):
            return found
        refused.append(f"{home} {found}")
    raise CudaKernelsUnavailable("; ".join(refused) or "no CUDA toolkit was found")


def _homes() -> Iterator[Path]:
    major = str(torch.version.cuda).partition(".")[0]
    packages = find_spec("nvidia")
    for place in (packages.submodule_search_locations or ()) if packages else ():
        yield Path(place) / f"cu{major}"
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parents[1]
    if Path("/usr/local/cuda").is_dir():
        yield Path("/usr/local/cuda")


def _examine(home: Path) -> Toolkit | str:
    """The toolkit of a home, or what is wrong with it."""
    libraries = next((home / name for name in ("lib64", "lib") if (home / name / "libcudart_static.a").is_file()), None)
    for path in (home / "bin" / "nvcc", home / "include" / "cuda_runtime.h"):
        if not path.is_file():
            return f"lacks {path.relative_to(home)}"
    if libraries is None:
        return "lacks libcudart_static.a"
    version = re.search(r"release (\d+\.\d+)", build._run([str(home / "bin" / "nvcc"), "--version"]))  # noqa: SLF001
    if version is None:
        return "has an nvcc that does not tell its version"
    if version[1].partition(".")[0] != str(torch.version.cuda).partition(".")[0]:
        return f"is CUDA {version[1]}, PyTorch was built with {torch.version.cuda}"
    return Toolkit(home, version[1], libraries)


def build_library() -> Path:
    """The library for the cards of this machine in the cache, compiled now where it is not there.

    Raises:
        KernelsUnavailable: no sources, toolkit or compiler, one that fails, or LOOSELEAF_KERNELS forbids to compile.
    """
    architectures = _architectures()
    key = _key(architectures)
    folder = cache_root() / f"cuda-kernels-{key}"
    if is_whole(folder):
        return folder / LIBRARY_NAME
    if build.mode() != "compile":
        raise CudaKernelsUnavailable(f"LOOSELEAF_KERNELS={build.mode()} forbids to compile, and {folder} is not there")
    toolkit = find_toolkit()

    def fill(new: Path) -> None:
        build._report(f"compiling CUDA kernels ({', '.join(architectures)}) with {toolkit.nvcc}, once")  # noqa: SLF001
        start = time.monotonic()
        compile_library(new / LIBRARY_NAME, toolkit, architectures)
        build._report(f"compiled in {time.monotonic() - start:.1f} s")  # noqa: SLF001

    try:
        return ensure_folder(folder, fill, timeout_seconds=600.0) / LIBRARY_NAME
    except CacheFolderUnavailable:
        temporary = Path(tempfile.mkdtemp(prefix="looseleaf-"))
        fill(temporary)
        return temporary / LIBRARY_NAME


def _architectures() -> tuple[str, ...]:
    """Compute capabilities of the cards that are there, as nvcc names them."""
    found = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    return tuple(f"{major}{minor}" for major, minor in sorted(found))


def compile_library(target: Path, toolkit: Toolkit, architectures: tuple[str, ...], *, with_ptx: bool = False) -> None:
    """Compile the library, all files at once on as many processors as there are.

    Args:
        target: the library to write.
        toolkit: what compiles it.
        architectures: compute capabilities, `90` for 9.0.
        with_ptx: whether cards newer than the last of them can run it too.

    Raises:
        KernelsUnavailable: no sources, no C++ compiler, or one that fails.
    """
    sources = _sources()
    compiler = build._Compiler.find()  # noqa: SLF001
    torch_home = Path(torch.__file__).parent
    places = [f"-I{sources / 'include'}", f"-I{sources}"]
    codes = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in architectures]
    if with_ptx:
        codes.append(f"-gencode=arch=compute_{architectures[-1]},code=compute_{architectures[-1]}")
    device = [str(toolkit.nvcc), "-std=c++20", "-O3", "-w", "-ccbin", compiler.path, *codes]
    device += ["-Xcompiler", "-fPIC,-fvisibility=hidden", *places]
    host = [compiler.path, *build._FLAGS, "-O1", *places, f"-I{toolkit.home / 'include'}", "-DUSE_CUDA"]  # noqa: SLF001
    host += [build._STABLE_ABI, f"-isystem{torch_home / 'include'}"]  # noqa: SLF001
    with tempfile.TemporaryDirectory(prefix="looseleaf-") as scratch:

        def one(name: str) -> str:
            compiled = str(Path(scratch, name.replace("/", "-") + ".o"))
            command = host if name == _OPERATORS else device
            build._run([*command, "-c", str(sources / name), "-o", compiled])  # noqa: SLF001
            return compiled

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as workers:
            objects = list(workers.map(one, (*_KERNELS, _OPERATORS)))
        runtime = [f"-L{toolkit.libraries}", "-lcudart_static", "-lrt", "-lpthread", "-ldl"]
        libraries = [f"-L{torch_home / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cuda", "-ltorch_cpu", "-lc10"]
        build._run(  # noqa: SLF001
            [compiler.path, "-shared", "-o", str(target), *objects, *runtime, *libraries, "-Wl,-z,defs"]
        )


def _sources() -> Path:
    sources = build.find_sources()
    if sources is None or not (sources / _OPERATORS).is_file():
        raise CudaKernelsUnavailable("this installation carries no CUDA sources")
    return sources


def _key(architectures: tuple[str, ...]) -> str:
    sources = _sources()
    content = hashlib.sha256(repr((torch.__version__, torch.version.cuda, architectures)).encode())
    for path in sorted(path for path in sources.rglob("*") if path.suffix in (".cpp", ".h", ".cu")):
        content.update(path.relative_to(sources).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]
