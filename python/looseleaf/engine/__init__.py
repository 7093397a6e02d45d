"""Continuous batching: many prompts through one transformers model at once, on a paged cache."""

from looseleaf.engine.engine import Engine
from looseleaf.engine.params import SamplingParams
from looseleaf.engine.report import Report
from looseleaf.engine.request import FinishReason
from looseleaf.engine.result import Result, Timings, TokenEvent

__all__ = ["Engine", "FinishReason", "Report", "Result", "SamplingParams", "Timings", "TokenEvent"]
