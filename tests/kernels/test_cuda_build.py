"""The CUDA library is found, made and loaded only where it can be."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from looseleaf.machine import cuda_toolkit
from looseleaf.machine.compiler import Compiler, CompilerUnavailable
from looseleaf.machine.cuda_driver import Card, Driver
from looseleaf.machine.cuda_toolkit import Toolkit, examine_homes
from looseleaf.ops import cuda_build, cuda_native, cuda_prebuilt
from looseleaf.ops.cuda_prebuilt import Record, refusal
from looseleaf.ops.library_cache import KernelsUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATORS = ("write", "attend", "attend_out", "copy_blocks", "gather", "swap_blocks", "merge_states")
H200 = Card("H200", (9, 0))
RELEASE = Record("13.2", cuda_build.RELEASE_ARCHITECTURES, ("120",))


def _home(folder: Path, version: str, *missing: str) -> Path:
    """A toolkit whose nvcc only tells its version."""
    for name in ("bin/nvcc", "include/cuda_runtime.h", "include/crt/host_config.h", "lib64/libcudart_static.a"):
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
    monkeypatch.setattr(cuda_toolkit, "_homes", lambda _: iter([tmp_path]))
    return tmp_path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Driver | None], None]:
    """Invents a driver for a PyTorch with CUDA, with an empty cache and no wheel's libraries; nothing loaded yet."""
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(cuda_native, "_STATE", cuda_native._State())
    monkeypatch.setattr(cuda_prebuilt, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "cache"))

    def invent(driver: Driver | None) -> None:
        for module in (cuda_build, cuda_native):
            monkeypatch.setattr(module, "find_driver", lambda: driver)

    return invent


def test_complete_toolkit_of_the_right_version_is_taken(only_home: Path) -> None:
    _home(only_home, "13.0")
    found = cuda_build.CudaTools.find().toolkit
    assert found.nvcc == only_home / "bin/nvcc"
    assert found.libraries == only_home / "lib64"


@pytest.mark.parametrize(
    ("version", "missing", "words"),
    [
        ("13.2", "bin/nvcc", "lacks bin/nvcc"),
        ("13.2", "include/cuda_runtime.h", "lacks include/cuda_runtime.h"),
        ("13.2", "include/crt/host_config.h", "lacks include/crt/host_config.h"),
        ("13.2", "lib64/libcudart_static.a", r"lacks libcudart_static\.a"),
        ("12.9", "", r"is CUDA 12\.9, PyTorch was built with 13\.2"),
    ],
)
def test_unfit_toolkit_is_refused_with_its_fault(only_home: Path, version: str, missing: str, words: str) -> None:
    _home(only_home, version, missing)
    with pytest.raises(CompilerUnavailable, match=words):
        cuda_build.CudaTools.find()


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (Driver((13, 2), (H200,)), None),
        (Driver((13, 0), (H200,)), None),  # machine code needs the major version only
        (Driver((14, 1), (H200,)), None),
        (Driver((13, 2), (Card("A10", (8, 6)), Card("Orin", (8, 7)), Card("B300", (10, 3)))), None),
        (Driver((13, 2), (Card("Future", (15, 0)),)), None),  # by PTX
        (None, "needs a CUDA driver, and there is none"),
        (Driver((13, 2), (), "no CUDA-capable device is detected"), "shows none: no CUDA-capable device is detected"),
        (Driver((12, 8), (H200,)), "was made with CUDA 13.2, and the driver supports 12.8"),
        (Driver((13, 2), (H200, Card("T4", (7, 5)))), "none of which runs on T4 (7.5)"),
        (Driver((13, 2), (Card("Thor", (11, 0)),)), "none of which runs on Thor (11.0)"),
        (Driver((13, 0), (Card("Future", (15, 0)),)), "holds only PTX for Future (15.0), of CUDA 13.2"),
    ],
)
def test_prebuilt_library_is_taken_only_where_it_serves_every_card(driver: Driver | None, reason: str | None) -> None:
    said = refusal(RELEASE, driver)
    assert said is None if reason is None else said is not None and reason in said


def test_prebuilt_library_of_a_later_minor_architecture_is_refused() -> None:
    assert refusal(Record("13.2", ("86",), ()), Driver((13, 2), (Card("A100", (8, 0)),))) is not None
    assert refusal(Record("13.2", ("86",), ()), Driver((13, 2), (Card("L4", (8, 9)),))) is None


def test_record_is_read_as_it_was_written_and_nothing_else_is_one(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    RELEASE.write(library)
    assert Record.read(library) == RELEASE
    for text in ("", "{", "[]", "{}", '{"cuda": "13", "architectures": 1, "ptx": []}'):
        (tmp_path / "library.json").write_text(text)
        with pytest.raises(ValueError, match=r".+"):
            Record.read(library)


def test_torch_without_cuda_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError

    monkeypatch.setattr(torch.version, "cuda", None)
    for module, name in ((cuda_native, "_open"), (cuda_native, "find_driver"), (cuda_build, "find_driver")):
        monkeypatch.setattr(module, name, never)
    monkeypatch.setattr(cuda_native, "_STATE", cuda_native._State())
    assert not cuda_native.load()
    assert cuda_build.foresee().source == "none"
    with pytest.raises(CompilerUnavailable, match="without CUDA"):
        cuda_build.CudaTools.find()


def test_every_refusal_is_said_once_and_torch_goes_on(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[[Driver | None], None], tmp_path: Path
) -> None:
    machine(Driver((13, 2), (H200,)))
    monkeypatch.setattr(cuda_toolkit, "_homes", lambda _: iter([tmp_path / "first", tmp_path / "second"]))
    words = "the prebuilt library is not there; .*first lacks bin/nvcc; .*second lacks bin/nvcc"
    with pytest.warns(RuntimeWarning, match=words):
        assert not cuda_native.load()
    assert not cuda_native.load()
    assert re.search(words, cuda_build.foresee().reason)


def test_prebuilt_library_goes_first_and_one_that_does_not_load_gives_way(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[[Driver | None], None], tmp_path: Path
) -> None:
    machine(Driver((13, 2), (H200,)))
    library = tmp_path / "prebuilt" / cuda_prebuilt.LIBRARY_NAME
    library.parent.mkdir()
    library.write_bytes(b"no library")
    RELEASE.write(library)
    monkeypatch.setattr(cuda_toolkit, "_homes", lambda _: iter([]))
    assert cuda_build.foresee().source == "prebuilt"
    with pytest.warns(RuntimeWarning, match="the prebuilt library cannot be loaded: .*; no CUDA toolkit was found"):
        assert not cuda_native.load()
    loaded: list[Path] = []
    monkeypatch.setattr(cuda_native, "_STATE", cuda_native._State())
    monkeypatch.setattr(cuda_native, "_load", loaded.append)
    assert cuda_native.load()
    assert loaded == [library]


def test_other_tools_or_cards_are_another_library(machine: Callable[[Driver | None], None]) -> None:
    names = set()
    for capability in ((9, 0), (8, 0)):
        machine(Driver((13, 2), (Card("card", capability), Card("same", capability))))
        names.add(cuda_build.kept().name)
    assert len(names) == 2
    compilers = (Compiler(("g++",), "12"), Compiler(("g++",), "13"))
    toolkits = (Toolkit(Path("a"), "13.2", "build 1", Path("b")), Toolkit(Path("a"), "13.2", "build 2", Path("b")))
    assert len({cuda_build.CudaTools(one, other).key() for one in toolkits for other in compilers}) == 4


def test_without_a_card_nothing_is_compiled(machine: Callable[[Driver | None], None]) -> None:
    machine(None)
    with pytest.raises(KernelsUnavailable, match="there is no CUDA driver"):
        cuda_build.kept()


@pytest.mark.timeout(600)
def test_library_of_a_release_registers_its_operators_and_holds_every_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Loaded in a process of its own, since operators cannot be taken back.

    The kernels are written for sm_80, so that here one translation to PTX serves every assembler, and nothing is
    optimized. A release translates for each architecture.
    """
    monkeypatch.setenv("CXX", f"env {Compiler.find().command[0]}" if shutil.which("env") else "")
    try:
        cuda_build.CudaTools.find()
    except CompilerUnavailable as error:
        pytest.skip(f"needs nvcc: {error}")

    def share_ptx(architectures: tuple[str, ...], *, with_ptx: bool) -> list[str]:
        assert with_ptx
        codes = [f"sm_{name}" for name in architectures]
        return [f"-gencode=arch=compute_80,code=[{','.join((*codes, 'compute_80'))}]"]

    monkeypatch.setattr(cuda_build, "_codes", share_ptx)
    quick = ("-Xcicc", "-O0", "-Xptxas", "-O0")
    monkeypatch.setattr(cuda_build, "_DEVICE_FLAGS", (*cuda_build._DEVICE_FLAGS, *quick))
    library = tmp_path / cuda_prebuilt.LIBRARY_NAME
    assert cuda_build.prebuild(library).startswith("with the CUDA library for 80, 86, 89, 90, 100, 120 and later")
    program = (
        "import sys, torch; from looseleaf import ops; torch.ops.load_library(sys.argv[1]);"
        "print(*(torch._C._dispatch_has_kernel_for_dispatch_key('looseleaf::' + n, 'CUDA') for n in sys.argv[2:]))"
    )
    command = [sys.executable, "-c", program, str(library), *OPERATORS]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * len(OPERATORS)
    held = _held_code(library)
    assert set(Record.read(library).architectures) == set(cuda_build.RELEASE_ARCHITECTURES)
    for name in cuda_build.RELEASE_ARCHITECTURES:
        assert len(re.findall(rf"\.sm_{name}\.cubin", held)) == len(cuda_build._KERNELS)


def test_without_a_toolkit_a_wheel_is_made_without_the_library(only_home: Path) -> None:
    target = only_home / "library.so"
    assert cuda_build.prebuild(target) == f"without the CUDA library: {only_home} lacks bin/nvcc"
    assert not target.exists()


def test_flags_ask_for_machine_code_of_each_architecture_and_ptx_of_the_last() -> None:
    flags = cuda_build._codes(("80", "90"), with_ptx=True)
    assert flags == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]


def test_homes_come_in_the_order_of_preference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "path"))
    named = [home for home in examine_homes("13.2") if home.is_relative_to(tmp_path)]
    assert named == [tmp_path / "home", tmp_path / "path"]


def _held_code(library: Path) -> str:
    """What the library's fat binaries hold, by the tool that comes with triton."""
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, "--list-elf", str(library)], check=True, capture_output=True, text=True).stdout
