"""The CUDA library is found, made and loaded only where it can be."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from looseleaf.ops import build, cuda_build, cuda_native

if TYPE_CHECKING:
    from pathlib import Path

OPERATORS = ("write", "attend", "attend_out", "copy_blocks", "gather", "swap_blocks", "merge_states")


def _home(folder: Path, version: str, *missing: str) -> Path:
    """A toolkit whose nvcc only tells its version."""
    for name in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart_static.a"):
        if name not in missing:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.1'\n")
            path.chmod(0o755)
    return folder


@pytest.fixture
def only_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The one place where a toolkit is looked for."""
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(cuda_build, "_homes", lambda: iter([tmp_path]))
    return tmp_path


def test_complete_toolkit_of_the_right_version_is_taken(only_home: Path) -> None:
    _home(only_home, "13.0")
    found = cuda_build.find_toolkit()
    assert found.nvcc == only_home / "bin/nvcc"
    assert found.libraries == only_home / "lib64"


@pytest.mark.parametrize(
    ("version", "missing", "words"),
    [
        ("13.2", "bin/nvcc", "lacks bin/nvcc"),
        ("13.2", "include/cuda_runtime.h", "lacks include/cuda_runtime.h"),
        ("13.2", "lib64/libcudart_static.a", r"lacks libcudart_static\.a"),
        ("12.9", "", r"is CUDA 12\.9, PyTorch was built with 13\.2"),
    ],
)
def test_unfit_toolkit_is_refused_with_its_fault(only_home: Path, version: str, missing: str, words: str) -> None:
    _home(only_home, version, missing)
    with pytest.raises(build.KernelsUnavailable, match=words):
        cuda_build.find_toolkit()


def test_torch_without_cuda_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Path:
        raise AssertionError

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(cuda_build, "build_library", never)
    monkeypatch.setattr(cuda_native, "_STATE", cuda_native._State())
    assert not cuda_native.load()
    with pytest.raises(build.KernelsUnavailable, match="without CUDA"):
        cuda_build.find_toolkit()


def test_missing_toolkit_is_said_once_and_torch_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(cuda_build, "_homes", lambda: iter([]))
    monkeypatch.setattr(cuda_build, "_architectures", lambda: ("90",))
    monkeypatch.setattr(cuda_native, "_STATE", cuda_native._State())
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="no CUDA toolkit was found"):
        assert not cuda_native.load()
    assert not cuda_native.load()


def test_library_registers_its_operators_without_a_gpu(tmp_path: Path) -> None:
    """Compiles for one architecture; in a process of its own, since operators cannot be taken back."""
    try:
        toolkit = cuda_build.find_toolkit()
    except build.KernelsUnavailable as error:
        pytest.skip(f"needs nvcc: {error.reason}")
    library = tmp_path / cuda_build.LIBRARY_NAME
    cuda_build.compile_library(library, toolkit, ("80",), with_ptx=True)
    program = (
        "import sys, torch; from looseleaf import ops; torch.ops.load_library(sys.argv[1]);"
        "print(*(torch._C._dispatch_has_kernel_for_dispatch_key('looseleaf::' + n, 'CUDA') for n in sys.argv[2:]))"
    )
    command = [sys.executable, "-c", program, str(library), *OPERATORS]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * len(OPERATORS)
