"""Everything that needs a CUDA card, in one run of at most 10 minutes: tests, benchmark, sanitizer; JSON and one table.

Needs torch >= 2.10 and nvcc, no network; pytest for the tests, transformers for those of the engine. Decode is memory:
what counts is the share of the read bandwidth that the same run measures. Every call of a benchmark reads other blocks
than the one before, so that nothing comes from the L2 cache, and calls are replayed from a CUDA graph.

Floor: all keys and values once, over the read ceiling. Run: make gpu
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gpu.classic import Classic, compile_classic
from gpu.clock import read_ceiling
from gpu.decode import Case, Timing, measure
from gpu.targets import CASES, verdicts
from looseleaf.machine.compiler import CompilerUnavailable
from looseleaf.ops import cuda_native

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET_SECONDS = 570.0
TEST_SECONDS = 240.0
TIMING_SECONDS = 200.0
SANITIZER_SECONDS = 90.0
CASE_SECONDS = 20.0  # that are left, or no further case begins
COLD_BYTES = 1 << 30  # far more than any L2 cache
CEILING_BYTES = 1 << 32
ROOT = Path(__file__).parents[2]
TESTS = ("tests/kernels/test_gpu.py", "tests/engine/test_devices.py", "tests/engine/test_graphs.py")


def run(command: list[str], seconds: float) -> dict[str, object]:
    """A command's end, and its last lines."""
    if seconds < 10:
        return {"result": "no time was left"}
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"result": f"not done after {seconds:.0f} s"}
    lines = (done.stdout + done.stderr).strip().splitlines()[-12:]
    return {"exit": done.returncode, "seconds": round(time.monotonic() - start, 1), "last_lines": lines}


def compiled_classic() -> Classic | str:
    """The baseline's kernel, or why there is none."""
    try:
        return compile_classic(Path(tempfile.mkdtemp(prefix="looseleaf-")))
    except (CompilerUnavailable, subprocess.SubprocessError, OSError) as error:
        return str(getattr(error, "stderr", None) or error)[-300:]


def time_cases(path: Path, device: str, cases: tuple[Case, ...], sizes: tuple[int, int], kernel: Classic | str) -> None:
    """Time cases one by one and write what there is after each.

    Args:
        path: the JSON file.
        device: `cuda`; tests run this on `cpu`.
        cases: what is timed.
        sizes: bytes of blocks that calls go through, and bytes of the read ceiling.
        kernel: the classic one, or why there is none.
    """
    end = time.monotonic() + TIMING_SECONDS
    cold_bytes, ceiling_bytes = sizes
    ceiling = read_ceiling(device, ceiling_bytes)
    results: dict[str, object] = {"read_ceiling_gigabytes": ceiling / 1e9}
    if isinstance(kernel, str):
        results["classic"] = kernel
    timings: list[dict[str, object]] = []
    results["timings"] = timings
    for case in cases:
        if time.monotonic() > end - CASE_SECONDS:
            timings.append({"name": case.name, "result": "no time was left"})
        else:
            try:
                found = measure(case, device, cold_bytes, ceiling, None if isinstance(kernel, str) else kernel)
                timings.append(asdict(found))
            except RuntimeError as error:  # memory, or a wrong result: the other cases still count
                timings.append({"name": case.name, "result": str(error)[:300]})
            if device == "cuda":
                torch.cuda.empty_cache()
        path.write_text(json.dumps(results), encoding="utf-8")


def print_tables(results: dict[str, object]) -> bool:
    """The timings, then each goal; whether every case was measured and right."""
    entries = results.get("timings")
    assert isinstance(entries, list)
    timings = {entry["name"]: Timing(**entry) for entry in entries if "result" not in entry}
    print(f"read ceiling {results['read_ceiling_gigabytes']:.0f} GB/s")
    print(f"{'case':24} {'us':>9} {'GB':>7} {'share':>6}  seconds of others over ours")
    for entry in entries:
        timing = timings.get(entry["name"])
        if timing is None:
            print(f"{entry['name']:24} {entry['result']}")
            continue
        others = ", ".join(
            f"{name} {value / timing.seconds:.2f}x" if isinstance(value, float) else f"{name}: {value}"
            for name, value in timing.others.items()
        )
        figures = f"{timing.seconds * 1e6:9.1f} {timing.num_bytes / 1e9:7.3f} {timing.share_of_ceiling:6.2f}"
        print(f"{timing.name:24} {figures}  {others}")
    found = verdicts(timings)
    results["goals"] = [asdict(verdict) for verdict in found]
    for verdict in found:
        value = "not measured" if verdict.value is None else f"{verdict.value:.2f}"
        print(f"{'met' if verdict.is_met else 'missed':6} {value:>12}  {verdict.goal}")
    return len(timings) == len(entries)


def main() -> int:
    """Run what time allows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "gpu.json", help="where results go")
    parser.add_argument(
        "--timings", type=Path, help="only time, into this file; the run does so in a process of its own"
    )
    chosen = parser.parse_args()
    start = time.monotonic()
    if not torch.cuda.is_available():
        print("no CUDA device that this PyTorch can use: nothing was run")
        return 1
    if not cuda_native.load():
        print("the CUDA kernels could not be had; the warning above says why")
        return 1
    if chosen.timings is not None:
        time_cases(chosen.timings, "cuda", CASES, (COLD_BYTES, CEILING_BYTES), compiled_classic())
        return 0
    card = torch.cuda.get_device_properties(0)
    results: dict[str, object] = {
        "card": card.name,
        "processors": card.multi_processor_count,
        "torch": torch.__version__,
        "build_seconds": round(time.monotonic() - start, 1),
    }

    def left(most: float) -> float:
        return min(most, BUDGET_SECONDS - (time.monotonic() - start))

    print(f"{card.name}; the library was there after {results['build_seconds']} s", flush=True)
    is_right = steps(results, left)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if is_right else 1


def steps(results: dict[str, object], left: Callable[[float], float]) -> bool:
    """Tests, timings and sanitizer, each within its time; whether all were right."""
    pytest = [sys.executable, "-m", "pytest", "-q", *TESTS]
    results["tests"] = tests = run([*pytest, "-k", "not cpu"], left(TEST_SECONDS))
    print(f"tests: {json.dumps(tests, indent=1)}", flush=True)
    is_timed = False
    with tempfile.TemporaryDirectory(prefix="looseleaf-") as folder:
        path = Path(folder, "timings.json")
        timed = run([sys.executable, __file__, "--timings", str(path)], left(TIMING_SECONDS + 60))
        results["timing"] = timed
        if path.exists():
            results |= json.loads(path.read_text(encoding="utf-8"))
            is_timed = print_tables(results)
        else:
            print(f"timings: {timed}")
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is not None:
        for tool in ("memcheck", "racecheck"):
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *pytest, "-k", "moves or graph"]
            results[tool] = run(command, left(SANITIZER_SECONDS))
            print(f"{tool}: {results[tool]}", flush=True)
    return tests.get("exit") == 0 and is_timed


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", f"{ROOT / 'python'}{os.pathsep}{ROOT / 'benches'}")
    sys.exit(main())
