"""Figures with a goal and a gate: printed as they come, and the run fails where a gate does."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


class Gates:
    """Collects figures; `finish` ends the process with 1 where one stands below its gate."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.missed: list[str] = []

    def add(
        self, name: str, value: float, *, goal: float | None, gate: float | None, least: bool = True, note: str = ""
    ) -> None:
        """Add a figure. Goal and gate are the least that it should and must be, or the most with `least=False`."""

        def is_below(limit: float | None) -> bool:
            return limit is not None and (value < limit if least else value > limit)

        word = "FAILS" if is_below(gate) else "misses" if is_below(goal) else "meets" if goal is not None else ""
        if is_below(gate):
            self.failed.append(name)
        elif is_below(goal):
            self.missed.append(name)
        sign = ">=" if least else "<="
        wanted = " ".join(
            f"{kind} {sign} {limit:g}" for kind, limit in (("goal", goal), ("gate", gate)) if limit is not None
        )
        print(f"  {name:64} {value:8.2f}  {wanted:28} {word:6} {note}", flush=True)

    def finish(self) -> None:
        """Print the verdict; exit with 1 if a gate failed."""
        print(f"goals missed: {', '.join(self.missed) or 'none'}")
        print(f"gates failed: {', '.join(self.failed) or 'none'}")
        if self.failed:
            sys.exit(1)


def interleaved(*calls: Callable[[], object], repeats: int, num_threads: int) -> list[float]:
    """Seconds of each call, all of them once in each repeat: CPU time and median on one thread, wall and 20 % on more.

    On more threads a shared machine takes time slices away, which no clock of a thread sees: the fifth is robust.
    """
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    samples: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats):
        for call, kept in zip(calls, samples, strict=True):
            start = clock()
            call()
            kept.append(clock() - start)
    return [float(np.quantile(kept, 0.5 if num_threads == 1 else 0.2)) for kept in samples]


def load() -> str:
    """The machine's load now, which no figure is free of."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())
