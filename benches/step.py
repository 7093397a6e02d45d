"""What a step of the engine costs beside the model: scheduling, tables, sampling, on a model that answers at once.

    python benches/step.py [--json FILE]

Baseline: what transformers' continuous batching takes for its bookkeeping of a step, as measured elsewhere on its
variable-length path (5.6 ms at 64 x 1024 tokens, 21 ms at 128 x 2048); the rows here are medians of thread CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from looseleaf import PagedKVCache, SamplingParams
from looseleaf.engine.loop import Loop
from looseleaf.engine.report import Meter
from looseleaf.engine.request import Request

SIZES = {(64, 1024): (5.6, 0.1), (128, 2048): (21.0, 0.2)}
TABLES_GOAL = 0.05
NUM_STEPS = 200


def measure(num_requests: int, length: int) -> dict[str, float]:
    """Milliseconds of a step of decode rows."""
    cache = PagedKVCache(
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        dtype=torch.float32,
        num_blocks=num_requests * (length // 16 + 20),
        max_sequences=num_requests,
        max_sequence_len=length + 512,
        max_batch_tokens=8192,
        prefix_caching=True,
    )
    logits = torch.zeros(num_requests, 8)
    tables: list[float] = []
    make_step = cache.step

    def forward(step: object, rows: torch.Tensor | None) -> torch.Tensor:
        del step
        return logits[: num_requests if rows is None else len(rows)]

    class Timed:
        """The cache, with a clock around what fills the tables."""

        manager, storage = cache.manager, cache.storage

        def step(self, *arguments: object, **keywords: object) -> object:
            start = time.thread_time()
            step = make_step(*arguments, **keywords)  # type: ignore[arg-type]
            tables.append(time.thread_time() - start)
            return step

    loop = Loop(
        Timed(),  # type: ignore[arg-type]
        forward,
        max_batch_tokens=8192,
        meter=Meter(block_size=16, bytes_per_token=8, max_sequence_len=length),
    )
    rng = np.random.default_rng(0)
    params = SamplingParams(max_tokens=512)
    requests = [Request(index, rng.integers(0, 1000, length), params) for index in range(num_requests)]
    for request in requests:
        loop.scheduler.submit(request)
    while any(request.num_generated == 0 for request in requests):
        loop.step()
    tables.clear()
    steps = []
    for _ in range(NUM_STEPS):
        start = time.thread_time()
        loop.step()
        steps.append(time.thread_time() - start)
    return {"step_ms": median(steps) * 1e3, "tables_ms": median(tables) * 1e3}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    print(f"{'requests x tokens':<20}{'step':>10}{'goal':>8}{'tables':>10}{'goal':>8}{'transformers':>14}{'ratio':>8}")
    for (num_requests, length), (baseline, goal) in SIZES.items():
        found = measure(num_requests, length)
        rows[f"{num_requests}x{length}"] = found | {"baseline_ms": baseline, "goal_ms": goal}
        print(
            f"{f'{num_requests} x {length}':<20}{found['step_ms']:>7.3f} ms{goal:>8}{found['tables_ms']:>7.3f} ms"
            f"{TABLES_GOAL:>8}{baseline:>11} ms{baseline / found['step_ms']:>7.0f}x"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
