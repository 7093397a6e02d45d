"""The emulator stops kernels that do what CUDA leaves undefined, and lets sound ones pass."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.kernels import emulated

if TYPE_CHECKING:
    from pathlib import Path

NUM_FAULTS = 22
NUM_SCHEDULES = 5


@pytest.mark.parametrize("sanitize", [(), ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")])
def test_every_kind_of_fault_is_caught(tmp_path: Path, sanitize: tuple[str, ...]) -> None:
    objects = emulated.compile_units(tmp_path, ("emu/faults.cpp", *emulated.EMULATOR), sanitize)
    program = tmp_path / "faults"
    subprocess.run([emulated.compiler_path(), *sanitize, "-o", str(program), *objects], check=True)
    # A launch that is stopped leaves the frames of its threads as they are, with the messages in them.
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([str(program)], check=False, capture_output=True, text=True, env=environment)
    print(done.stdout)  # noqa: T201 - "caught k of k" of each schedule
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"caught (\d+) of (\d+)", done.stdout) == [(str(NUM_FAULTS),) * 2] * NUM_SCHEDULES
