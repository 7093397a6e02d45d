"""Everything that needs a CUDA card, in one run of at most 10 minutes: tests, sanitizer, benchmark; JSON and one table.

Needs torch >= 2.10 and nvcc, no network; pytest for the tests, transformers for one of them. Decode is memory: what
counts is the share of the read bandwidth that the same run measures. Every call of a benchmark reads other blocks than
the one before, so that nothing comes from the L2 cache, and calls are replayed from a CUDA graph.

Floor: all keys and values once, over the read ceiling. Run: make gpu
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import looseleaf.ops  # noqa: F401 - defines the operators
from looseleaf.ops import cuda_native

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET_SECONDS = 570.0
TEST_SECONDS = 300.0
SANITIZER_SECONDS = 90.0
COLD_BYTES = 1 << 30  # far more than any L2 cache
INT32 = torch.int32
ROOT = Path(__file__).parents[2]
TESTS = "tests/kernels/test_gpu.py"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    seq_lens: tuple[int, ...]
    q_heads: int = 32
    kv_heads: int = 8
    block_size: int = 16
    is_8bit: bool = False
    goal: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    name: str
    microseconds: float
    gigabytes: float
    share_of_ceiling: float
    gather_and_sdpa: float | None  # its time over ours
    goal: str


CASES = (
    Case("64 x 4k", (4096,) * 64, goal="share >= 0.90"),
    Case("64 x 4k, 64/8", (4096,) * 64, q_heads=64, goal="share >= 0.90"),
    Case("32 x 4k", (4096,) * 32, goal="share >= 0.85"),
    Case("64 x 4k, blocks of 64", (4096,) * 64, block_size=64, goal="within 3 % of blocks of 16"),
    Case("ragged, as 64 x 4k", tuple(range(128, 8192, 126))[:64], goal=">= 0.9 of equal lengths"),
    Case("64 x 4k, float8", (4096,) * 64, is_8bit=True, goal="<= 0.6 of the time of bf16"),
    Case("1 x 8k, 64/8", (8192,), q_heads=64, goal="<= 20 us"),
    Case("1 x 1k", (1024,), goal="<= 8 us"),
)


def seconds_of(call: Callable[[], object], repeats: int = 5) -> float:
    """Median time of a replayed call on the device."""
    call()
    torch.cuda.synchronize()
    samples = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        samples.append(float(begin.elapsed_time(end)) / 1e3)
    return sorted(samples)[repeats // 2]


def captured(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """All calls as one CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def read_ceiling() -> float:
    """Bytes a second of a sum over memory that no cache holds."""
    values = torch.ones(COLD_BYTES, dtype=torch.float32, device="cuda")
    return values.numel() * 4 / seconds_of(captured([values.sum]))


def measure(case: Case, ceiling: float) -> Timing:
    """Check one call against gathered attention, then time many on different blocks."""
    dtype, head_dim = torch.bfloat16, 128
    stored = torch.float8_e4m3fn if case.is_8bit else dtype
    num_seqs, size = len(case.seq_lens), case.block_size
    num_bytes = sum(case.seq_lens) * case.kv_heads * head_dim * 2 * stored.itemsize
    rounds = max(2, -(-COLD_BYTES // num_bytes))
    used = [-(-length // size) for length in case.seq_lens]
    num_blocks = sum(used) * rounds
    pool = torch.empty(num_blocks, 2, case.kv_heads, size, head_dim, dtype=dtype, device="cuda").normal_().to(stored)
    k_cache, v_cache = pool[:, 0], pool[:, 1]
    order = torch.randperm(num_blocks, device="cuda").to(INT32)
    lens = torch.tensor(case.seq_lens, dtype=INT32, device="cuda")
    rows = torch.arange(num_seqs + 1, dtype=INT32, device="cuda")
    query = torch.randn(num_seqs, case.q_heads, head_dim, dtype=dtype, device="cuda")
    scale = torch.ones(1, device="cuda") if case.is_8bit else None
    out = torch.empty_like(query)
    tables = []
    for part in torch.split(order, sum(used)):
        table = torch.zeros(num_seqs, max(used), dtype=INT32, device="cuda")
        for seq, blocks in enumerate(torch.split(part, used)):
            table[seq, : len(blocks)] = blocks
        tables.append(table)

    def attend(table: Tensor) -> None:
        arguments = (query, k_cache, v_cache, table, lens, rows, 1, head_dim**-0.5)
        torch.ops.looseleaf.attend_out(*arguments, k_scale=scale, v_scale=scale, out=out)

    sums = torch.tensor([0, *case.seq_lens], dtype=INT32, device="cuda").cumsum(0, dtype=INT32)
    is_equal = len(set(case.seq_lens)) == 1
    key, value = (
        torch.empty(sum(case.seq_lens), case.kv_heads, head_dim, dtype=dtype, device="cuda") for _ in range(2)
    )

    def gathered(table: Tensor) -> Tensor:
        torch.ops.looseleaf.gather(k_cache, v_cache, table, sums, key, value, scale, scale)
        shape = (num_seqs, -1, case.kv_heads, head_dim)
        sides = [side.view(shape).transpose(1, 2) for side in (key, value)]
        return sdpa(query[:, :, None], sides[0], sides[1], enable_gqa=True)[:, :, 0]

    if is_equal:
        expected = gathered(tables[0]).float()
        attend(tables[0])
        error = float((out.float() - expected).norm() / expected.norm())
        assert error <= 1e-2, f"{case.name}: differs from gathered attention by {error:.1e}"
    seconds = seconds_of(captured([partial(attend, table) for table in tables])) / rounds
    other = None
    if is_equal:
        other = seconds_of(captured([partial(gathered, table) for table in tables])) / rounds / seconds
    share = num_bytes / seconds / ceiling
    return Timing(case.name, seconds * 1e6, num_bytes / 1e9, share, other, case.goal)


def run(command: list[str], seconds: float) -> dict[str, object]:
    """A command's end, and its last lines."""
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"result": f"not done after {seconds:.0f} s"}
    lines = (done.stdout + done.stderr).strip().splitlines()[-12:]
    return {"exit": done.returncode, "seconds": round(time.monotonic() - start, 1), "last_lines": lines}


def main() -> int:
    """Run what time allows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "gpu.json", help="where results go")
    path = parser.parse_args().json
    start = time.monotonic()
    if not torch.cuda.is_available():
        print("no CUDA device that this PyTorch can use: nothing was run")
        return 1
    if not cuda_native.load():
        print("the CUDA kernels could not be had; the warning above says why")
        return 1
    card = torch.cuda.get_device_properties(0)
    results: dict[str, object] = {
        "card": card.name,
        "processors": card.multi_processor_count,
        "torch": torch.__version__,
        "build_seconds": round(time.monotonic() - start, 1),
    }
    pytest = [sys.executable, "-m", "pytest", "-q", TESTS]
    results["tests"] = tests = run(pytest, TEST_SECONDS)
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is not None:
        results["sanitizer"] = run([sanitizer, "--error-exitcode", "9", *pytest, "-k", "moves"], SANITIZER_SECONDS)
    results["read_ceiling_gigabytes"] = ceiling = read_ceiling() / 1e9
    timings: list[dict[str, object]] = []
    for case in CASES:
        if time.monotonic() - start > BUDGET_SECONDS - 20:
            print(f"no time left for {case.name}")
            continue
        timing = measure(case, ceiling * 1e9)
        torch.cuda.empty_cache()
        timings.append(asdict(timing))
    results["timings"] = timings
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"{card.name}: read ceiling {ceiling:.0f} GB/s; tests: {tests.get('last_lines') or tests}")
    print(f"{'case':24} {'us':>9} {'GB':>7} {'share':>6} {'gather+SDPA':>12}  goal")
    for each in timings:
        other = "-" if each["gather_and_sdpa"] is None else f"{each['gather_and_sdpa']:.1f}x"
        print(
            f"{each['name']:24} {each['microseconds']:9.1f} {each['gigabytes']:7.3f} {each['share_of_ceiling']:6.2f} "
            f"{other:>12}  {each['goal']}"
        )
    return 0 if tests.get("exit") == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
