"""Continuous batching: many prompts through one transformers model at once, on a paged cache.

Only `Engine` needs torch and transformers; it is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looseleaf.engine.params import SamplingParams
from looseleaf.engine.report import Report
from looseleaf.engine.request import FinishReason
from looseleaf.engine.result import Result, Timings, TokenEvent

if TYPE_CHECKING:
    from looseleaf.engine.engine import Engine

__all__ = ["Engine", "FinishReason", "Report", "Result", "SamplingParams", "Timings", "TokenEvent"]


def __getattr__(name: str) -> object:
    """Import what needs torch and transformers when it is first asked for."""
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from looseleaf.engine import engine  # noqa: PLC0415 - that is the point

    return engine.Engine


def __dir__() -> list[str]:
    return __all__
