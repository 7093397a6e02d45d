"""Continuous batching: many prompts through one transformers model at once, on a paged cache."""

from looseleaf.engine.params import SamplingParams
from looseleaf.engine.request import FinishReason

__all__ = ["FinishReason", "SamplingParams"]
