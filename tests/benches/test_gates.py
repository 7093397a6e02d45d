"""The instruction gates fail when a limit is passed, and never pass without having counted."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benches" / "gates"
LIMITS = tomllib.loads((FOLDER / "limits.toml").read_text())


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gates_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "built", lambda: Path("gates"))
    monkeypatch.setattr(shutil, "which", lambda name: name)
    return module


def test_without_valgrind_the_gates_say_that_they_were_skipped(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py")]
    result = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert result.returncode == 77
    assert result.stdout.startswith("SKIPPED")


@pytest.mark.parametrize(("times_measured", "exit_code"), [(1.0, 0), (1.09, 0), (1.11, 1)])
def test_a_count_beyond_measured_and_slack_fails(
    gates: ModuleType, monkeypatch: pytest.MonkeyPatch, times_measured: float, exit_code: int
) -> None:
    def counted(_: Path, workload: str) -> float:
        measured: float = LIMITS["gates"][workload]["measured"]
        return measured * (times_measured if workload == "commit" else 1.0)

    monkeypatch.setattr(gates, "instructions_per_unit", counted)
    assert gates.main() == exit_code


def test_a_workload_in_which_nothing_was_counted_is_an_error(
    gates: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    valgrind = tmp_path / "valgrind"
    valgrind.write_text(
        '#!/bin/sh\nfor last; do case $last in *out-file=*) echo "summary: 0" > "${last#*=}";; esac; done\n'
    )
    valgrind.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SystemExit, match="nothing was counted"):
        gates.instructions_per_unit(Path("gates"), "reserve")


def test_every_workload_has_a_limit() -> None:
    workloads = set(re.findall(r'^ +"([a-z-]+)" => ', (FOLDER / "main.rs").read_text(), re.MULTILINE))
    assert len(workloads) > 4
    assert set(LIMITS["gates"]) == workloads
