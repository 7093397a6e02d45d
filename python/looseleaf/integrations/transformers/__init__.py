"""Looseleaf under `transformers`: real models on a paged cache. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looseleaf.integrations.transformers.paged_cache import PagedCache

__all__ = ["PagedCache"]


def __getattr__(name: str) -> object:
    """Import what needs torch and transformers when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from looseleaf.integrations.transformers import paged_cache  # noqa: PLC0415 - that is the point

    return getattr(paged_cache, name)


def __dir__() -> list[str]:
    return __all__
