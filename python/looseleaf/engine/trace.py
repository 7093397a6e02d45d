"""Traces of requests, read from files.

Two kinds are read. Lines of JSON with `hash_ids` and `output_length`, as in the public traces of Mooncake: an id stands
for 512 tokens and all before them, so prompts that share an id share a prefix. Tables with the columns ContextTokens
and GeneratedTokens, as in the public traces of Azure: lengths only, so that no two prompts are alike. Where a request
says when it came (`timestamp` in milliseconds, TIMESTAMP as a date), it comes then.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from looseleaf.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TOKENS_PER_ID", "Entry", "read_trace"]

TOKENS_PER_ID = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a trace.

    Attributes:
        ids: of its prompt, each for 512 tokens; None: it is like no other.
        prompt_len: tokens of the prompt.
        num_generated: tokens of the answer.
        seconds: when it came, from any point in time that all have in common.
    """

    ids: list[int] | None
    prompt_len: int
    num_generated: int
    seconds: float = 0.0


def read_trace(path: Path) -> list[Entry]:
    """Read a trace.

    Raises:
        InvalidArgument: the file is of neither kind.
    """
    text = path.read_text(encoding="utf-8")
    try:
        if text.lstrip().startswith("{"):
            return [_entry_of_json(line) for line in text.splitlines() if line.strip()]
        return [_entry_of_row(row) for row in csv.DictReader(text.splitlines())]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{path} is no trace: {type(error).__name__} {error}") from error


def _entry_of_json(line: str) -> Entry:
    record = json.loads(line)
    ids = [int(number) for number in record["hash_ids"]]
    prompt_len = int(record.get("input_length", len(ids) * TOKENS_PER_ID))
    if -(-prompt_len // TOKENS_PER_ID) != len(ids):
        raise ValueError(f"input_length {prompt_len} has not {len(ids)} blocks of {TOKENS_PER_ID} tokens")
    seconds = float(record.get("timestamp", 0)) / 1000
    return Entry(ids, _at_least_1(prompt_len), _at_least_1(record.get("output_length", 1)), seconds)


def _entry_of_row(row: dict[str, str]) -> Entry:
    prompt_len, num_generated = _at_least_1(row["ContextTokens"]), _at_least_1(row["GeneratedTokens"])
    date = row.get("TIMESTAMP")
    seconds = datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp() if date else 0.0
    return Entry(None, prompt_len, num_generated, seconds)


def _at_least_1(value: object) -> int:
    return max(int(str(value)), 1)
