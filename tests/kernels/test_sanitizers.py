"""The kernels without torch: under the sanitizers here, and on Arm where its tools are."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from looseleaf.machine import instruction_sets
from looseleaf.ops import build

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ["-std=c++20", "-w"]
SOURCES = ["check/grid.cpp", *build._DRIVER]


def _compile(compiler: str, folder: Path, sets: tuple[str, ...], flags: list[str], link: list[str]) -> Path:
    sources = build.find_sources()
    assert sources is not None
    definitions = [f"-DLOOSELEAF_{name.upper()}" for name in sets]
    units = [(f"cpu/{name}.cpp", instruction_sets.SETS[name]) for name in sets] + [(name, ()) for name in SOURCES]

    def one(unit: tuple[str, tuple[str, ...]]) -> str:
        target = folder / (unit[0].replace("/", "-") + ".o")
        places = [f"-I{sources / 'include'}", f"-I{sources}"]
        command = [
            compiler,
            *FLAGS,
            *flags,
            *definitions,
            *places,
            *unit[1],
            "-c",
            str(sources / unit[0]),
            "-o",
            str(target),
        ]
        subprocess.run(command, check=True)
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        objects = list(workers.map(one, units))
    program = folder / "grid"
    subprocess.run([compiler, *link, "-o", str(program), *objects, "-lpthread"], check=True)
    return program


def _num_cases(*command: str) -> int:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return int(done.stdout.split()[-2])


@pytest.mark.timeout(900)
def test_no_set_reads_or_writes_where_it_must_not(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sets = instruction_sets.chosen_sets()
    assert sets
    assert _num_cases(str(_compile(compiler, tmp_path, sets, ["-O1", "-g1", *sanitize], sanitize))) >= 100


@pytest.mark.timeout(900)
def test_portable_kernels_run_on_arm(tmp_path: Path) -> None:
    if platform.machine() == "aarch64":
        pytest.skip("every other test here runs on Arm already")
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64: apt-get install g++-aarch64-linux-gnu qemu-user")
    program = _compile(compiler, tmp_path, ("portable",), ["-O2"], ["-static"])
    assert _num_cases(emulator, str(program)) >= 100
