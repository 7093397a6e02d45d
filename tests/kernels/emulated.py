"""The CUDA kernels on CPU tensors: csrc/cuda compiled by the C++ compiler against the emulator of csrc/emu.

The operators stand in `torch.ops.looseleaf_emulated`, with the schemas of `torch.ops.looseleaf`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from looseleaf.cached_folder import cache_root, ensure_folder
from looseleaf.ops import build
from looseleaf.ops.schemas import SCHEMAS

NAMESPACE = "looseleaf_emulated"
EMULATOR = ("emu/block.cpp", "emu/fiber.cpp", "emu/shared.cpp", "emu/warp.cpp")
KERNELS = ("cuda/attend_mma.cu", "cuda/attend_simt.cu", "cuda/attend.cu", "cuda/moves.cu")
# Of csrc/emu/emulator.h, `Elsewhere`.
LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64))
ALLOW = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
ORDERS = {"round-robin": 0, "reverse": 1, "random": 2}
_FLAGS = (
    "-std=c++20",
    "-O1",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-attributes",
    "-Wno-unknown-pragmas",
)


def compiler_path() -> str:
    """The C++ compiler; skips the test where there is none."""
    path = shutil.which(os.environ.get("CXX", "c++"))
    if path is None:
        pytest.skip("no C++ compiler")
    return path


def sources() -> Path:
    found = build.find_sources()
    assert found is not None
    return found


def compile_units(folder: Path, units: tuple[str, ...], flags: tuple[str, ...] = ()) -> list[str]:
    """Object files of these sources, compiled at the same time."""
    compiler, root = compiler_path(), sources()
    include = Path(torch.__file__).parent / "include"

    def one(name: str) -> str:
        target = folder / (name.strip("/").replace("/", "-") + ".o")
        places = [f"-I{root / 'include'}", f"-I{root}"]
        needs_torch = name.endswith("operators.cpp")
        places += [build._STABLE_ABI, f"-isystem{include}"] if needs_torch else []
        command = [compiler, *_FLAGS, *flags, *places, "-x", "c++", "-c", str(root / name), "-o", str(target)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        return list(workers.map(one, units))


def _fill(folder: Path) -> None:
    objects = compile_units(folder, ("emu/operators.cpp", *KERNELS, *EMULATOR))
    libraries = [
        f"-L{Path(torch.__file__).parent / 'lib'}",
        "-Wl,--no-as-needed",
        "-ltorch_cpu",
        "-lc10",
        "-Wl,-z,defs",
    ]
    target = str(folder / "looseleaf_emulated.so")
    subprocess.run([compiler_path(), "-shared", "-o", target, *objects, *libraries], check=True)


def _key() -> str:
    content = hashlib.sha256(f"{torch.__version__} {compiler_path()} {_FLAGS}".encode())
    root = sources()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        content.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]


@cache
def load() -> ctypes.CDLL:
    """The library, its operators registered; compiled where the cache folder does not hold it."""
    folder = ensure_folder(cache_root() / f"emulated-kernels-{_key()}", _fill)
    definitions = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS.values():
        definitions.define(schema)  # type: ignore[no-untyped-call]
    _KEPT.append(definitions)
    path = folder / "looseleaf_emulated.so"
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    library = ctypes.CDLL(str(path))
    library.looseleaf_emulate.argtypes = [ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64]
    library.looseleaf_emulate.restype = None
    library.looseleaf_counts.argtypes = [ctypes.POINTER(ctypes.c_int64)]
    library.looseleaf_counts.restype = None
    library.looseleaf_elsewhere.argtypes = [LAUNCH, ALLOW]
    library.looseleaf_elsewhere.restype = None
    return library


_KEPT: list[torch.library.Library] = []


def schedule(order: str, seed: int = 0, processors: int = 4) -> None:
    """Say who runs first from now on, and how many multiprocessors there are."""
    load().looseleaf_emulate(ORDERS[order], seed, processors)


@dataclass(frozen=True, slots=True)
class Counts:
    """What kernels executed."""

    matrix_products: int
    matrix_loads: int
    bank_conflicts: int
    async_copies: int


def take_counts() -> Counts:
    """What was executed since the last call."""
    counts = (ctypes.c_int64 * 4)()
    load().looseleaf_counts(counts)
    return Counts(*counts)
