"""How a figure is measured: medians of calls that were checked before, beside a named baseline."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from looseleaf import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Measurement", "Settings", "machine", "measure"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure.

    Attributes:
        repeats: calls whose median counts.
        is_quick: smaller cases.
    """

    repeats: int = 7
    is_quick: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure.

    Attributes:
        case: what was done; figures of one case are compared.
        who: whose figure it is.
        cpu_seconds: of the process, median of the calls.
        wall_seconds: median of the same calls.
        is_baseline: whether the others of the case are compared with it.
    """

    case: str
    who: str
    cpu_seconds: float
    wall_seconds: float
    is_baseline: bool = False


def measure(
    case: str, callables: Mapping[str, Callable[[], object]], settings: Settings, *, calls: int = 1
) -> list[Measurement]:
    """Time callables in turn, round by round, so that what else the machine does meets all of them.

    Args:
        case: as of the measurements.
        callables: by whose they are, the baseline first; the caller checked what they return.
        settings: how often.
        calls: calls between two looks at the clock, for short ones.
    """
    cpu: dict[str, list[float]] = {who: [] for who in callables}
    wall: dict[str, list[float]] = {who: [] for who in callables}
    for call in callables.values():
        call()
    for _ in range(settings.repeats):
        for who, call in callables.items():
            start_cpu, start_wall = time.process_time(), time.perf_counter()
            for _ in range(calls):
                call()
            cpu[who].append((time.process_time() - start_cpu) / calls)
            wall[who].append((time.perf_counter() - start_wall) / calls)
    baseline = next(iter(callables))
    return [
        Measurement(
            case=case,
            who=who,
            cpu_seconds=median(cpu[who]),
            wall_seconds=median(wall[who]),
            is_baseline=who == baseline,
        )
        for who in callables
    ]


def machine() -> dict[str, str]:
    """Processor, cores, load, versions, date and command: what a figure holds for."""
    names = []
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found = {
        "processor": names[0] if names else platform.processor(),
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "",
        "python": platform.python_version(),
        "looseleaf": __version__,
    }
    for package in ("torch", "transformers", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    torch = sys.modules.get("torch")  # imported where it had a part in the figures
    if torch is not None:
        found["torch threads"] = str(torch.get_num_threads())
    return found | {"date": datetime.now(tz=UTC).date().isoformat(), "command": shlex.join(sys.argv)}
