"""`make gpu` says what it lacks on a machine without a card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_script_without_a_card_says_so() -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "python")}
    command = [sys.executable, str(ROOT / "benches" / "gpu" / "run.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "no CUDA device" in done.stdout
