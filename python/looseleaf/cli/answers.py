"""How `looseleaf generate` prints answers: as they come, as text, as JSON, and a report of what they cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from looseleaf.sizing import format_bytes

if TYPE_CHECKING:
    from looseleaf.engine import Report, Result, TokenEvent

__all__ = ["Lines", "Text", "show_answers", "show_json", "show_report"]


class Text:
    """One answer alone: its text as it comes, or why there is none."""

    def __init__(self) -> None:
        self._has_begun = False

    def add(self, event: TokenEvent) -> None:
        """Print what came."""
        self._has_begun |= bool(event.text)
        typer.echo(event.text, nl=False)
        if event.result is None:
            return
        error = event.result.error
        if self._has_begun or error is None:
            typer.echo()
        if error is not None:
            typer.echo(f"refused: {error}")


class Lines:
    """Several answers at once: each of their lines as soon as it is whole, with the answer's number."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, int], str] = {}

    def add(self, event: TokenEvent) -> None:
        """Print what became whole."""
        key = event.index, event.sample
        *whole, rest = (self._begun.get(key, "") + event.text).split("\n")
        self._begun[key] = rest
        if event.result is not None and rest:
            whole.append(rest)
        if event.result is not None and event.result.error is not None:
            whole.append(f"refused: {event.result.error}")
        for line in whole:
            typer.echo(f"[{_number(event)}] {line}")


def _number(answer: Result | TokenEvent) -> str:
    return f"{answer.index + 1}" + (f".{answer.sample + 1}" if answer.sample else "")


def show_json(prompts: list[str], results: list[Result], report: Report, num_blocks: int) -> None:
    """Print one JSON document of everything."""
    answers = [
        {
            "index": result.index,
            "prompt": prompts[result.index],
            "text": result.text,
            "finish_reason": result.finish_reason,
            "error": str(result.error) if result.error else None,
            "num_prompt_tokens": len(result.prompt_token_ids),
            "token_ids": result.token_ids,
            "sample": result.sample,
            "score": result.score,
            "num_cached_tokens": result.num_cached_tokens,
            "num_preemptions": result.num_preemptions,
            "timings": asdict(result.timings),
            "logprobs": [asdict(one) for one in result.logprobs] or None,
            "prompt_logprobs": [asdict(one) for one in result.prompt_logprobs] or None,
        }
        for result in results
    ]
    document = {"results": answers, "report": asdict(report) | {"num_blocks": num_blocks}}
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2))


def show_answers(prompts: list[str], results: list[Result]) -> None:
    """Print each prompt and its answer, or why it was refused."""
    for result in results:
        typer.secho(f"[{_number(result)}] {prompts[result.index]}", bold=True)
        typer.echo(f"{result.text}\n" if result.error is None else f"refused: {result.error}\n")


def show_report(report: Report, num_blocks: int) -> None:
    """Print a table of what the run cost."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in _rows(report, num_blocks):
        table.add_row(name, value)
    Console().print(table)


def _rows(report: Report, num_blocks: int) -> list[tuple[str, str]]:
    swaps = [("of them by swap", f"{report.num_swaps:,}")]
    drafts = [("drafted tokens", f"{report.num_drafted:,}"), ("of them right", f"{report.num_accepted:,}")]
    return [
        ("requests finished", f"{report.num_finished} of {report.num_requests}"),
        ("prompt tokens", f"{report.num_prompt_tokens:,}"),
        ("of them in the cache", f"{report.num_cached_tokens:,}"),
        ("generated tokens", f"{report.num_generated_tokens:,}"),
        ("time", f"{report.seconds:.2f} s"),
        ("generated tokens per second", f"{report.tokens_per_second:.1f}"),
        ("steps", f"{report.num_steps:,}"),
        *(drafts if report.num_drafted else []),
        ("preemptions", f"{report.num_preemptions:,}"),
        *(swaps if report.num_swaps else []),
        ("most sequences at once", f"{report.peak_running}"),
        ("most blocks in use", f"{report.peak_blocks:,} of {num_blocks:,}"),
        ("KV cache, paged", format_bytes(report.paged_bytes)),
        ("KV cache, contiguous for the longest request", format_bytes(report.padded_bytes)),
        ("KV cache, contiguous for the longest sequence", format_bytes(report.contiguous_bytes)),
        ("slots in use without a token", f"{report.wasted_slots_percent:.1f} %"),
    ]
