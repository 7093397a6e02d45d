"""Medians, ratios to a named baseline, goals, and what they were measured on."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from looseleaf.bench.measure import machine

if TYPE_CHECKING:
    from collections.abc import Callable


def median_seconds(call: Callable[[], object], *, repeats: int, calls: int = 1) -> float:
    """Median over `repeats` of the CPU time of one call in this thread, each the mean of `calls`."""
    return _median(call, repeats, calls, time.thread_time)


def median_wall_seconds(call: Callable[[], object], *, repeats: int, calls: int = 1) -> float:
    """Median over `repeats` of the wall time of one call, each the mean of `calls`: for work in several threads."""
    return _median(call, repeats, calls, time.perf_counter)


def _median(call: Callable[[], object], repeats: int, calls: int, clock: Callable[[], float]) -> float:
    call()
    samples = []
    for _ in range(repeats):
        start = clock()
        for _ in range(calls):
            call()
        samples.append((clock() - start) / calls)
    return float(np.median(samples))


@dataclass(frozen=True, slots=True)
class Goal:
    """What a row should take at most, in nanoseconds of each, and what it cannot go below: a formula and its value."""

    nanoseconds: float
    floor: str
    floor_nanoseconds: float


class Report:
    """Rows of one benchmark, printed with their ratio to the baseline of the same run."""

    def __init__(self, title: str, *, baseline: str) -> None:
        self.title = title
        self.baseline = baseline
        self.rows: list[dict[str, object]] = []
        self._baseline_seconds: float | None = None
        self._lines: list[str] = []

    def add(
        self,
        name: str,
        seconds: float,
        *,
        note: str = "",
        baseline: bool | None = None,
        each: int = 1,
        goal: Goal | None = None,
    ) -> None:
        """Add a row. A row named as the baseline, or marked as one, is what later rows are compared with.

        Args:
            name: what was measured.
            seconds: what it took.
            note: what else a reader has to know.
            baseline: whether later rows are compared with this one.
            each: things done in that time; with more than one, the time of each is shown.
            goal: what one of them should take.
        """
        if baseline or name == self.baseline:
            self._baseline_seconds = seconds
        ratio = self._baseline_seconds / seconds if self._baseline_seconds else None
        row = {"name": name, "seconds": seconds, "each": each, "times faster than baseline": ratio, "note": note}
        if goal:
            met = seconds * 1e9 <= goal.nanoseconds * each
            row |= {"goal": asdict(goal), "verdict": "met" if met else "MISSED"}
        self.rows.append(row)
        took = f"{seconds / each * 1e9:14.1f} ns" if each > 1 else f"{seconds * 1e6:14.1f} us"
        aim = ""
        if goal:
            scale, unit = (1.0, "ns") if each > 1 else (1e-3, "us")
            aim = (
                f"{row['verdict']}: <= {goal.nanoseconds * scale:g} {unit}, floor {goal.floor_nanoseconds * scale:.1f}"
            )
            aim = f"{aim} {unit} = {goal.floor}"
        ratio_text = "" if ratio is None else f"{ratio:9.2f}x"
        self._lines.append(f"  {name:64} {took} {ratio_text:>10}  {'; '.join(filter(None, (aim, note)))}".rstrip())

    def finish(self, json_path: str | None) -> None:
        """Print the table; write JSON if asked."""
        print(f"# {self.title} (baseline: {self.baseline})")
        for key, value in machine().items():
            print(f"  {key}: {value}")
        for line in self._lines:
            print(line)
        if json_path:
            document = {"title": self.title, "baseline": self.baseline, "machine": machine(), "rows": self.rows}
            Path(json_path).write_text(json.dumps(document, indent=2) + "\n")
