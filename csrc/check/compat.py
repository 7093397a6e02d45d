"""Compile the kernels against the headers of the oldest PyTorch that they run on.

The stable ABI promises that a library made with newer headers runs there; only these headers say that nothing newer is
used. They are unpacked from PyTorch's own wheel, which is large: fetched once, kept in the cache folder. Without them
this says so and is no failure.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from looseleaf.cached_folder import cache_root, ensure_folder
from looseleaf.machine.compiler import CompilerUnavailable
from looseleaf.ops import build, cuda_build

OLDEST = "2.10.0"


def fetch(folder: Path) -> None:
    """Fill a folder with torch/include of that version."""
    print(f"fetching the headers of torch {OLDEST} (0.9 GB, once)", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"torch=={OLDEST}", "-d", scratch]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("torch/include/")])


def main() -> None:
    """Fetch and compile."""
    try:
        folder = ensure_folder(cache_root() / f"torch-{OLDEST}-headers", fetch)
    except subprocess.CalledProcessError:
        print(f"the wheel of torch {OLDEST} could not be had: not compiled against its headers")
        return
    include = folder / "torch" / "include"
    build.compile_library(Path("unused"), (), include=include, link=False)
    print(f"the CPU operators compile against the headers of torch {OLDEST}")
    if fault := missing_toolkit():
        print(f"the CUDA operators were not compiled: {fault}")
        return
    cuda_build.check_operators(include)
    print(f"the CUDA operators compile against the headers of torch {OLDEST}")


def missing_toolkit() -> str:
    """Why the CUDA operators cannot be compiled here at all; empty where they can."""
    try:
        cuda_build.CudaTools.find()
    except CompilerUnavailable as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
