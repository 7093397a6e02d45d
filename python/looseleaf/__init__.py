"""A paged KV cache for LLM inference.

Importing this package needs no torch. The tensors and kernels (`PagedKVCache`, `looseleaf.ops`) and the engine are
imported when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from looseleaf import errors
from looseleaf._core import __version__
from looseleaf.allocator import (
    Batch,
    BlockManager,
    Invalidated,
    Lookup,
    Namespace,
    Sequence,
    Stats,
    content_keys,
    low64,
)
from looseleaf.errors import LooseleafError, NeverFits, OutOfBlocks, StaleSequence

if TYPE_CHECKING:
    from looseleaf import ops
    from looseleaf.cache import PagedKVCache
    from looseleaf.engine import Engine, SamplingParams

__all__ = [
    "Batch",
    "BlockManager",
    "Engine",
    "Invalidated",
    "Lookup",
    "LooseleafError",
    "Namespace",
    "NeverFits",
    "OutOfBlocks",
    "PagedKVCache",
    "SamplingParams",
    "Sequence",
    "StaleSequence",
    "Stats",
    "__version__",
    "content_keys",
    "errors",
    "low64",
    "ops",
]

# Names that are imported on first use (PEP 562); all but SamplingParams need torch.
_LAZY = {
    "Engine": "looseleaf.engine",
    "PagedKVCache": "looseleaf.cache",
    "SamplingParams": "looseleaf.engine",
    "ops": "looseleaf.ops",
}


def __getattr__(name: str) -> object:
    """Import what needs torch when it is first asked for."""
    module_name = _LAZY.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(module_name)
        return module if module_name.endswith(f".{name}") else getattr(module, name)
    except ModuleNotFoundError as error:
        if error.name in {"torch", "transformers"}:
            extra = error.name
            raise ImportError(f'looseleaf.{name} needs {extra}: pip install "looseleaf[{extra}]"') from error
        raise


def __dir__() -> list[str]:
    return __all__
