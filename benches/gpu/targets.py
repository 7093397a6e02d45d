"""What the timings have to reach on an H200, and whether they do. A figure that was not measured meets nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu.decode import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu.decode import Timing

FULL, FULL_64, HALF = "64 x 4k", "64 x 4k, 64/8", "32 x 4k"
WIDE_BLOCKS, RAGGED, FLOAT8 = "64 x 4k, blocks of 64", "ragged, as 64 x 4k", "64 x 4k, float8"
ONE_LONG, ONE_SHORT = "1 x 8k, 64/8", "1 x 1k"
CASES = (
    Case(FULL, (4096,) * 64),
    Case(FULL_64, (4096,) * 64, q_heads=64),
    Case(HALF, (4096,) * 32),
    Case("32 x 4k, 64/8", (4096,) * 32, q_heads=64),
    Case(ONE_LONG, (8192,), q_heads=64),
    Case(ONE_SHORT, (1024,)),
    Case(FLOAT8, (4096,) * 64, is_8bit=True),
    Case(WIDE_BLOCKS, (4096,) * 64, block_size=64),
    Case(RAGGED, tuple(range(128, 8192, 126))[:64]),
    Case("64 x 4k, blocks of 256", (4096,) * 64, block_size=256),
)
"""The goals' own cases first: the last ones go where time runs out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal. `value` is None where it was not measured."""

    goal: str
    value: float | None
    is_met: bool


def verdicts(timings: dict[str, Timing]) -> list[Verdict]:
    """Each goal with its figure."""
    return [
        Verdict(goal, value, value is not None and (value >= limit if is_least else value <= limit))
        for goal, value, limit, is_least in _figures(timings)
    ]


def _figures(timings: dict[str, Timing]) -> Iterator[tuple[str, float | None, float, bool]]:
    def share(name: str) -> float | None:
        return timings[name].share_of_ceiling if name in timings else None

    def ratio(name: str, other: str) -> float | None:
        if name not in timings or other not in timings:
            return None
        return timings[name].seconds / timings[other].seconds

    for name in (HALF, "32 x 4k, 64/8"):
        yield f"{name}: >= 0.85 of the read ceiling (0.54 GB)", share(name), 0.85, True
    for name in (FULL, FULL_64):
        yield f"{name}: >= 0.90 of the read ceiling (1.07 GB)", share(name), 0.90, True
    yield "blocks of 64: time within 3 % of blocks of 16", ratio(WIDE_BLOCKS, FULL), 1.03, False
    micro = timings[ONE_LONG].seconds * 1e6 if ONE_LONG in timings else None
    yield f"{ONE_LONG}: <= 20 us", micro, 20.0, False
    micro = timings[ONE_SHORT].seconds * 1e6 if ONE_SHORT in timings else None
    yield f"{ONE_SHORT}: <= 8 us", micro, 8.0, False
    yield "float8: <= 0.6 of the time of bf16", ratio(FLOAT8, FULL), 0.6, False
    ragged, equal = share(RAGGED), share(FULL)
    yield "ragged: >= 0.9 of the bandwidth of equal lengths", ragged / equal if ragged and equal else None, 0.9, True
    for other in ("gather + SDPA", "varlen_attn", "classic"):
        found = [
            seconds / timing.seconds
            for timing in timings.values()
            if isinstance(seconds := timing.others.get(other), float)
        ]
        yield f"faster than {other} in each case it runs (least ratio)", min(found) if found else None, 1.0, True
