"""Traces of requests, read from files.

Two kinds are read. Lines of JSON with `hash_ids` and `output_length`, as in the public traces of Mooncake: an id stands
for 512 tokens and all before them, so prompts that share an id share a prefix. Any integers will do, hashes too: they
are numbered as they come. Tables with the columns ContextTokens and GeneratedTokens, as in the public traces of Azure:
lengths only, so that no two prompts are alike. Where a request says when it came (`timestamp` in milliseconds,
TIMESTAMP as a date), it comes then. A prompt or an answer of 0 tokens counts as one token, since a model computes no
less.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from looseleaf.errors import InvalidArgument
from looseleaf.sizing import blocks_for_tokens

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TOKENS_PER_ID", "Entry", "read_trace"]

TOKENS_PER_ID = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a trace.

    Attributes:
        ids: of its prompt, each for 512 tokens; None: it is like no other.
        prompt_len: tokens of the prompt, at least 1.
        num_generated: tokens of the answer, at least 1.
        seconds: when it came, from any point in time that all have in common.

    Raises:
        InvalidArgument: a number is out of its range, or `ids` are not as many as `prompt_len` needs.
    """

    ids: list[int] | None
    prompt_len: int
    num_generated: int
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prompt_len", "num_generated"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be at least 1, not {getattr(self, name)}")
        if not math.isfinite(self.seconds):
            raise InvalidArgument(f"seconds must be finite, not {self.seconds}")
        if self.ids is not None and len(self.ids) != blocks_for_tokens(self.prompt_len, TOKENS_PER_ID):
            raise InvalidArgument(f"{self.prompt_len} tokens do not have {len(self.ids)} ids of {TOKENS_PER_ID} tokens")


def read_trace(path: Path) -> list[Entry]:
    """Read a trace.

    Raises:
        InvalidArgument: the file is of neither kind; the text names the line.
    """
    where = str(path)
    entries = []
    known_ids: dict[int, int] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith(("{", "[")):
            for number, line in enumerate(text.splitlines(), start=1):
                where = f"{path}, line {number},"
                if line.strip():
                    entries.append(_entry_of_json(line, known_ids))
        else:
            rows = csv.DictReader(text.splitlines())
            for row in rows:
                where = f"{path}, line {rows.line_num},"
                entries.append(_entry_of_row(row))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, csv.Error) as error:
        what = error if isinstance(error, InvalidArgument) else f"{type(error).__name__} {error}"
        raise InvalidArgument(f"{where} is no trace: {what}") from error
    return entries


def _entry_of_json(line: str, known_ids: dict[int, int]) -> Entry:
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record["hash_ids"], list):
        raise InvalidArgument("a line must be an object whose hash_ids are a list")
    ids = [known_ids.setdefault(int(number), len(known_ids)) for number in record["hash_ids"]]
    prompt_len = int(record.get("input_length", len(ids) * TOKENS_PER_ID))
    seconds = float(record.get("timestamp", 0)) / 1000
    return Entry(ids if ids or prompt_len else None, prompt_len or 1, int(record.get("output_length", 1)) or 1, seconds)


def _entry_of_row(row: dict[str, str]) -> Entry:
    prompt_len, num_generated = int(row["ContextTokens"]) or 1, int(row["GeneratedTokens"]) or 1
    date = row.get("TIMESTAMP")
    seconds = datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp() if date else 0.0
    return Entry(None, prompt_len, num_generated, seconds)
