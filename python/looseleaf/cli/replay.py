"""`looseleaf replay`: traces of requests on pools of several sizes, without a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from looseleaf.cli.progress import progress

if TYPE_CHECKING:
    from looseleaf.engine.replay import Outcome

__all__ = ["replay"]


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(
            exists=True, dir_okay=False, help="Mooncake's lines of JSON (hash_ids), or Azure's tables of lengths."
        ),
    ],
    *,
    block_size: Annotated[list[str] | None, typer.Option(metavar="<int,...>", help="Tokens of a block.")] = None,
    num_blocks: Annotated[list[str] | None, typer.Option(metavar="<int,...>", help="Blocks of the pool.")] = None,
    max_sequences: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests that run at once. 1: one prompt after the other, without answers. More: they run with their "
            "answers in steps. A step has at most 2,048 tokens: one of every answer, then prompts.",
            show_default="1 with hash_ids, 64 for lengths or with --step-ms",
        ),
    ] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds that a step takes, so that requests come at their times in the trace.",
            show_default="all wait in a queue from the start",
        ),
    ] = None,
    max_requests: Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Replay traces on pools of several sizes: hit rates, peak usage, evictions, preemptions.

    Sizes may be several, with commas between them or by repeating the option.
    Without --block-size: 512, the blocks of Mooncake's traces, or 16 for lengths.
    Without --num-blocks: from 1,000 to 100,000.
    Hits are those of a request's first admission.
    """
    if step_ms is not None and not 0 < step_ms < float("inf"):
        raise typer.BadParameter(f"--step-ms must be above 0 and finite, not {step_ms:g}")
    if step_ms is not None and max_sequences == 1:
        raise typer.BadParameter("--step-ms needs --max-sequences above 1")
    block_sizes, capacities = _numbers("--block-size", block_size), _numbers("--num-blocks", num_blocks)
    step_seconds = None if step_ms is None else step_ms / 1000
    from looseleaf.engine.replay import Replay  # noqa: PLC0415 - for a faster start
    from looseleaf.engine.trace import read_trace  # noqa: PLC0415

    found: dict[str, list[Outcome]] = {}
    with progress() as bars:
        for path in traces:
            reading = bars.add_task(f"reading {path.name}", total=None)
            entries = read_trace(path)[:max_requests]
            bars.remove_task(reading)
            has_ids = any(entry.ids is not None for entry in entries)
            sizes = block_sizes or [512 if has_ids else 16]
            ready = Replay(entries, sizes)
            found[path.name] = []
            for size in sizes:
                for capacity in capacities or [1_000, 3_000, 10_000, 30_000, 100_000]:
                    task = bars.add_task(f"{path.name}, {size} x {capacity:,}", total=len(entries))
                    outcome = ready.run(
                        size,
                        num_blocks=capacity,
                        max_sequences=max_sequences or (1 if has_ids and step_ms is None else 64),
                        step_seconds=step_seconds,
                        on_request=lambda task=task: bars.advance(task),  # type: ignore[misc]
                    )
                    found[path.name].append(outcome)
    if as_json:
        document = {name: [asdict(outcome) for outcome in outcomes] for name, outcomes in found.items()}
        typer.echo(json.dumps(document, indent=2))
        return
    for name, outcomes in found.items():
        Console().print(_table(name, outcomes))


def _numbers(option: str, given: list[str] | None) -> list[int]:
    try:
        numbers = [int(number) for one in given or [] for number in one.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers, default=1) < 1:
        raise typer.BadParameter(f"{option} must be integers of at least 1, not {' '.join(given or [])}")
    return numbers


def _table(name: str, outcomes: list[Outcome]) -> Table:
    # Narrow enough for 80 columns: a figure that is cut off is worse than none.
    title = f"{name}: {outcomes[0].num_requests + outcomes[0].num_never_fit:,} requests"
    table = Table(title=title, padding=0)
    for column in (
        "block size",
        "blocks",
        "tokens hit",
        "blocks hit",
        "peak",
        "evicted",
        "preempted",
        "never fit",
        "steps",
    ):
        table.add_column(column, justify="right")
    for one in outcomes:
        table.add_row(
            f"{one.block_size}",
            f"{one.num_blocks:,}",
            f"{one.hit_percent:.1f} %",
            f"{one.block_hit_percent:.1f} %",
            f"{one.peak_blocks:,}",
            f"{one.num_evicted:,}",
            f"{one.num_preemptions:,}",
            f"{one.num_never_fit:,}",
            f"{one.num_steps:,}" if one.num_steps else "-",
        )
    return table
