"""Namespaces: what must never share cached blocks."""

from __future__ import annotations

from typing import NoReturn

from looseleaf import _core
from looseleaf.errors import InvalidArgument, InvalidType

__all__ = ["Namespace"]


class Namespace:
    """What a prompt's cached blocks may be shared with: prompts of an equal namespace.

    Equal tokens do not make equal keys and values: another adapter or newer weights change them, and two tenants must
    not learn from each other's timing. Parts are tagged, so that a salt never equals an adapter of the same text. An
    empty part is not a missing one.

    Args:
        salt: separates tenants; take it from the trusted side.
        adapter: (id, version) of the adapter that computes the blocks.
        weight_epoch: number of the weights' update, from 0 on.
        parts: anything else that changes what a block holds, by name, such as the digest of an image.

    Raises:
        InvalidType: a part is neither str nor bytes, or an argument is of another type.
        InvalidArgument: `weight_epoch` is out of range, or a text has no UTF-8 form.

    Example:
        >>> Namespace(salt="S") == Namespace(adapter=("S", ""))
        False
        >>> Namespace(salt="a", weight_epoch=1) == Namespace(weight_epoch=1, salt=b"a")
        True
    """

    __slots__ = ("_core",)

    def __init__(
        self,
        *,
        salt: str | bytes | None = None,
        adapter: tuple[str | bytes, str | bytes] | None = None,
        weight_epoch: int | None = None,
        parts: dict[str, str | bytes] | None = None,
    ) -> None:
        _check_types(adapter, weight_epoch, parts)
        if weight_epoch is not None and not 0 <= weight_epoch < 2**64:
            raise InvalidArgument(f"weight_epoch is {weight_epoch}, must be 0 to {2**64 - 1}")
        self._core = _core.Namespace(salt, adapter, weight_epoch, parts or {})

    @property
    def key(self) -> bytes:
        """Canonical bytes, the same in every process; equal only for equal namespaces. They contain the salt."""
        return self._core.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and self._core == other._core

    def __hash__(self) -> int:
        return hash(self._core)

    def __reduce__(self) -> NoReturn:
        raise InvalidType("a Namespace may hold a salt, it cannot be copied or pickled; pass its parts on")

    def __repr__(self) -> str:
        return f"Namespace(<{len(self.key)} bytes>)"


def _check_types(adapter: object, weight_epoch: object, parts: object) -> None:
    if not isinstance(weight_epoch, int | None):
        raise InvalidType(f"weight_epoch has type {type(weight_epoch).__name__}, must be an int")
    if adapter is not None and not (isinstance(adapter, tuple) and len(adapter) == 2):  # noqa: PLR2004 - a pair
        raise InvalidType("adapter must be a tuple of its id and its version")
    if not isinstance(parts, dict | None):
        raise InvalidType(f"parts has type {type(parts).__name__}, must be a dict")
