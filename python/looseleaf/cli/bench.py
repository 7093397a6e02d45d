"""`looseleaf bench`: figures of this machine, each beside its baseline in the same run."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from looseleaf.errors import MissingPackage

if TYPE_CHECKING:
    from looseleaf.bench import Measurement, Settings

__all__ = ["bench"]


class _Subject(StrEnum):
    allocator = "allocator"
    attention = "attention"
    engine = "engine"


def bench(
    subject: Annotated[_Subject, typer.Argument(help="What to measure.")],
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller cases, fewer repeats.")] = False,
    real: Annotated[bool, typer.Option("--real", help="With engine: SmolLM2-135M instead of random weights.")] = False,
    plot: Annotated[Path | None, typer.Option(dir_okay=False, help="Also draw the figures into this PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Measure the allocator, attention or the engine, each beside its baseline; medians, tokens and values checked."""
    if real and subject is not _Subject.engine:
        raise typer.BadParameter("--real is for engine")
    if plot is not None:
        _check_matplotlib()
    from looseleaf.bench.measure import Settings, machine  # noqa: PLC0415 - for a faster start

    settings = Settings(repeats=3, is_quick=True) if quick else Settings()
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(f"measuring {subject.value} ...", style="dim")
    rows = _run(subject, settings, real=real)
    if plot is not None:
        _draw(rows, plot)
    if as_json:
        document = {"subject": subject.value, "machine": machine(), "rows": [_row(rows, one) for one in rows]}
        typer.echo(json.dumps(document, indent=2))
    else:
        Console().print(_table(rows))


def _run(subject: _Subject, settings: Settings, *, real: bool) -> list[Measurement]:
    if subject is _Subject.allocator:
        from looseleaf.bench import allocator  # noqa: PLC0415

        return allocator.run(settings)
    if subject is _Subject.attention:
        from looseleaf.bench import attention  # noqa: PLC0415 - takes seconds

        return attention.run(settings)
    from looseleaf.bench import engine  # noqa: PLC0415 - takes seconds
    from looseleaf.integrations.transformers.smollm2 import load_smollm2  # noqa: PLC0415

    return engine.run(settings, model=load_smollm2("float32")[0] if real else None)


def _ratio(rows: list[Measurement], one: Measurement) -> float:
    """How many times faster than its baseline, in CPU time."""
    baseline = next(row for row in rows if row.case == one.case and row.is_baseline)
    return baseline.cpu_seconds / one.cpu_seconds


def _row(rows: list[Measurement], one: Measurement) -> dict[str, object]:
    return asdict(one) | {"ratio": _ratio(rows, one)}


def _table(rows: list[Measurement]) -> Table:
    table = Table()
    for column in ("case", "who"):
        table.add_column(column)
    for column in ("CPU", "wall", "times the baseline"):
        table.add_column(column, justify="right")
    for one in rows:
        ratio = "baseline" if one.is_baseline else f"{_ratio(rows, one):.2f} x"
        table.add_row(one.case, one.who, _time(one.cpu_seconds), _time(one.wall_seconds), ratio)
    return table


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def _check_matplotlib() -> None:
    try:
        is_missing = find_spec("matplotlib") is None
    except ValueError:  # hidden on purpose
        is_missing = True
    if is_missing:
        raise MissingPackage("matplotlib", "pip install matplotlib")


def _draw(rows: list[Measurement], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - only with --plot
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 1.5 + 0.4 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.barh([f"{one.who}\n{one.case}" for one in rows][::-1], [_ratio(rows, one) for one in rows][::-1])
    axes.axvline(1.0, color="gray", linewidth=1)
    axes.set_xlabel("times as fast as the baseline, CPU time")
    axes.tick_params(axis="y", labelsize=7)
    figure.savefig(path, format="png", dpi=120)
