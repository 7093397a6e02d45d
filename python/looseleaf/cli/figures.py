"""How `looseleaf bench` shows its figures: as tables, as JSON, as a plot."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from looseleaf.bench import Measurement

__all__ = ["draw", "show_json", "show_tables"]


def show_tables(rows: list[Measurement], machine: Mapping[str, str]) -> None:
    """Print a table for each case, then what the figures hold for."""
    console = Console()
    for case, of_case in groupby(rows, attrgetter("case")):
        console.print(_table(case, list(of_case)))
    told = [f"{name} {value}" for name, value in machine.items() if value and name not in {"processor", "command"}]
    typer.echo("; ".join([machine["processor"], *told]))


def _table(case: str, rows: list[Measurement]) -> Table:
    # Narrow enough for 80 columns: a name that is cut off names nothing. A title is broken into lines instead.
    table = Table(title=case, title_justify="left")
    table.add_column("who")
    for column in ("CPU", "wall", "times as fast,\nCPU time"):
        table.add_column(column, justify="right")
    for one in rows:
        ratio = "baseline" if one.is_baseline else f"{_ratio(rows, one):.2f}"
        table.add_row(one.who, _time(one.cpu_seconds), _time(one.wall_seconds), ratio)
    return table


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def show_json(rows: list[Measurement], machine: Mapping[str, str], *, subject: str) -> None:
    """Print one JSON document."""
    document = {
        "subject": subject,
        "machine": machine,
        "rows": [asdict(one) | {"ratio": _ratio(rows, one)} for one in rows],
    }
    typer.echo(json.dumps(document, indent=2))


def draw(rows: list[Measurement], path: Path) -> None:
    """Draw the ratios into a PNG file.

    Raises:
        OSError: it cannot be written.
    """
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


def _ratio(rows: list[Measurement], one: Measurement) -> float:
    """How many times as fast as its baseline, in CPU time."""
    baseline = next(row for row in rows if row.case == one.case and row.is_baseline)
    return baseline.cpu_seconds / one.cpu_seconds
