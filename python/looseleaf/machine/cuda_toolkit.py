"""CUDA toolkits: where they may be, and whether one can compile.

Looked at in this order: NVIDIA's packages for the CUDA that is asked for, CUDA_HOME, CUDA_PATH, the `nvcc` of the path,
/usr/local/cuda. A home counts only if it holds nvcc, the headers and the static runtime, and has the right major
version.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from looseleaf.machine.compiler import CompilerUnavailable, run

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Toolkit", "examine_homes"]

_HEADERS = ("cuda_runtime.h", "crt/host_config.h")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit that can compile.

    Attributes:
        home: its folder.
        version: of CUDA, `13.2`.
        release: what its nvcc says about itself, which tells two builds of one version apart.
        libraries: the folder of the static runtime.
    """

    home: Path
    version: str
    release: str
    libraries: Path

    @property
    def nvcc(self) -> Path:
        """The compiler."""
        return self.home / "bin" / "nvcc"


def examine_homes(cuda: str | None) -> dict[Path, Toolkit | str]:
    """Every home that there may be, in the order of preference, with its toolkit or what is wrong with it.

    Args:
        cuda: the version of CUDA that PyTorch was built with; None to take any.

    >>> all(isinstance(found, Toolkit | str) for found in examine_homes("13.0").values())
    True
    """
    return {home: _examine(home, cuda) for home in _homes(cuda)}


def _homes(cuda: str | None) -> Iterator[Path]:
    folder = "cu*" if cuda is None else f"cu{_major(cuda)}"
    packages = find_spec("nvidia")
    for place in (packages.submodule_search_locations or ()) if packages else ():
        yield from sorted(path for path in Path(place).glob(folder) if re.fullmatch(r"cu\d+", path.name))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parents[1]
    if Path("/usr/local/cuda").is_dir():
        yield Path("/usr/local/cuda")


def _examine(home: Path, cuda: str | None) -> Toolkit | str:
    """The toolkit of a home, or what is wrong with it."""
    for path in (home / "bin" / "nvcc", *(home / "include" / name for name in _HEADERS)):
        if not path.is_file():
            return f"lacks {path.relative_to(home)}"
    libraries = next((home / name for name in ("lib64", "lib") if (home / name / "libcudart_static.a").is_file()), None)
    if libraries is None:
        return "lacks libcudart_static.a"
    try:
        told = run([str(home / "bin" / "nvcc"), "--version"])
    except CompilerUnavailable as error:
        return f"has an nvcc that does not run: {error}"
    version = re.search(r"release (\d+\.\d+)", told)
    if version is None:
        return "has an nvcc that does not tell its version"
    if cuda is not None and _major(version[1]) != _major(cuda):
        return f"is CUDA {version[1]}, PyTorch was built with {cuda}"
    return Toolkit(home, version[1], told.strip().splitlines()[-1], libraries)


def _major(version: str) -> str:
    return version.partition(".")[0]
