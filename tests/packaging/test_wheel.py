"""The wheel and the source distribution, installed where nothing else of this repository is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
OLDEST = (3, 11)
PROBE = """
import sys, sysconfig, ensurepip, venv
print(*sys.version_info[:2], bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
"""
IMPORT = """
import sys
import looseleaf
manager = looseleaf.BlockManager(num_blocks=4)
assert manager.stats().num_available == 4
heavy = sorted({"torch", "transformers", "typer", "rich"} & set(sys.modules))
assert not heavy, heavy
print(looseleaf.__file__)
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    version: tuple[int, int]
    path: Path

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    result = subprocess.run(
        command,
        cwd=cwd,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}"
    return result.stdout


def find_interpreters() -> list[Interpreter]:
    """One usable interpreter for each version from 3.11 on: in PATH, and those that pyenv keeps out of it."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    folders = [Path(sys.base_prefix) / "bin", *map(Path, os.get_exec_path()), *sorted(pyenv.glob("versions/*/bin"))]
    found: dict[tuple[int, int], Interpreter] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("python3.[0-9][0-9]"))):
        probe = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            continue  # a shim of a version that is not active, or one that cannot make virtual environments
        major, minor, is_free_threaded = probe.stdout.split()
        version = (int(major), int(minor))
        if version >= OLDEST and is_free_threaded == "False":
            found.setdefault(version, Interpreter(version, path))
    return [found[version] for version in sorted(found)]


INTERPRETERS = find_interpreters()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "maturin", "build", "--release", "--out", out, cwd=ROOT)
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("source")
    run(sys.executable, "-m", "maturin", "sdist", "--out", out, cwd=ROOT)
    (path,) = out.iterdir()
    return path


def install(interpreter: Path, package: Path, folder: Path) -> Path:
    """Install a package and what it requires into a new virtual environment; its interpreter."""
    run(interpreter, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", package, cwd=folder)
    return python


def check_install(python: Path, folder: Path) -> None:
    """The package imports from the new environment, without torch, and runs the allocator's example."""
    assert run(python, "-c", IMPORT, cwd=folder).startswith(f"{folder / 'venv'}{os.sep}")
    assert "copies [[2, 3]]" in run(python, ROOT / "examples" / "allocator.py", cwd=folder)


def test_an_interpreter_was_found() -> None:
    assert sys.version_info[:2] in [interpreter.version for interpreter in INTERPRETERS]


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=str)
def test_one_wheel_serves_every_python_without_torch(interpreter: Interpreter, wheel: Path, tmp_path: Path) -> None:
    check_install(install(interpreter.path, wheel, tmp_path), tmp_path)


def test_the_source_distribution_builds_the_same_package(source: Path, wheel: Path, tmp_path: Path) -> None:
    # Without isolation, so that maturin is the one of this environment; into a target folder of its own, because cargo
    # judges by modification times, which an archive does not keep.
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", tmp_path / "built", source),
        cwd=tmp_path,
        CARGO_TARGET_DIR=str(tmp_path / "target"),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    )
    (built,) = (tmp_path / "built").iterdir()
    assert python_files(built) == python_files(wheel)
    check_install(install(Path(sys.executable), built, tmp_path), tmp_path)


def python_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith((".py", ".pyi"))}


def test_the_wheel_is_tagged_for_the_stable_abi(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = run("git", "ls-files", "python/looseleaf", cwd=ROOT).splitlines() if (ROOT / ".git").exists() else []
    assert {"looseleaf/py.typed", "looseleaf/_core.pyi", "looseleaf/_core.abi3.so"} <= names
    assert {name.removeprefix("python/") for name in tracked} <= names
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in names} == {"looseleaf"}
    sources = {name for name in names if name.startswith("looseleaf/csrc/")}
    assert {"looseleaf/csrc/operators.cpp", "looseleaf/csrc/cpu/portable.cpp"} <= sources
    assert {Path(name).suffix for name in sources} == {".cpp", ".cu", ".h"}
    package = {name for name in names - sources if name.startswith("looseleaf/")}
    strangers = {Path(name).suffix for name in package} - {".py", ".pyi", ".typed", ".so", ""}
    assert not strangers, strangers
    assert sum(name.endswith(".so") for name in names) == 1
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_source_distribution_holds_both_crates_and_the_license(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = {"LICENSE", "README.md", "pyproject.toml", "Cargo.toml", "Cargo.lock", "PKG-INFO"}
    assert needed <= names
    assert {
        "csrc/operators.cpp",
        "rust/core/Cargo.toml",
        "rust/core/src/lib.rs",
        "rust/bindings/Cargo.toml",
        "rust/bindings/src/lib.rs",
    } <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
