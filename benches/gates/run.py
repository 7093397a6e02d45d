"""Count the instructions of the step path under callgrind, and hold them to the limits in limits.toml.

Instruction counts are the same on a busy machine, so they can be asserted where times cannot. Collecting is off at the
start and switched at the function `counted_by_callgrind` of the workload, so that set-up is not counted; a workload in
which nothing is counted is an error.

Exit code: 0 within the limits, 1 beyond one, 77 without valgrind, when nothing was counted.

Run: python benches/gates/run.py
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
SKIPPED = 77
SWITCH = "*counted_by_callgrind*"


def built() -> Path:
    """Compile the workloads."""
    cargo = ["cargo", "build", "--quiet", "--release", "--package", "looseleaf-benches", "--bin", "gates"]
    subprocess.run(cargo, cwd=HERE, check=True)
    metadata = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    found = subprocess.run(metadata, cwd=HERE, check=True, capture_output=True, text=True)
    return Path(json.loads(found.stdout)["target_directory"], "release", "gates")


def instructions_per_unit(program: Path, workload: str) -> float:
    """Run one workload under callgrind."""
    with tempfile.NamedTemporaryFile() as counts:
        command = ["valgrind", "--tool=callgrind", "--demangle=no", "--collect-atstart=no"]
        command += [f"--toggle-collect={SWITCH}", f"--callgrind-out-file={counts.name}", str(program), workload]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{workload}: {done.stderr}")
        total = re.search(r"^summary: (\d+)$", Path(counts.name).read_text(), re.MULTILINE)
    num_instructions = int(total.group(1)) if total else 0
    if num_instructions == 0:
        sys.exit(f"{workload}: nothing was counted in {SWITCH}")
    return num_instructions / int(done.stdout)


def main() -> int:
    """Count every workload, print all, and return the exit code."""
    if not shutil.which("valgrind"):
        print("SKIPPED: no instructions were counted, valgrind is not installed (Debian: apt-get install valgrind)")
        return SKIPPED
    limits = tomllib.loads((HERE / "limits.toml").read_text())
    program = built()
    num_beyond = 0
    for workload, gate in limits["gates"].items():
        limit = gate["measured"] * limits["slack"]
        counted = instructions_per_unit(program, workload)
        verdict = "ok" if counted <= limit else "BEYOND"
        num_beyond += counted > limit
        unit = gate["unit"]
        print(f"{workload:<20} {counted:8.2f} instructions per {unit:<10} limit {limit:8.2f}  {verdict}")
    return min(num_beyond, 1)


if __name__ == "__main__":
    sys.exit(main())
