"""A paged KV cache for LLM inference."""

from looseleaf import errors
from looseleaf.errors import LooseleafError, NeverFits, OutOfBlocks, StaleSequence

__all__ = ["LooseleafError", "NeverFits", "OutOfBlocks", "StaleSequence", "errors"]
