"""Namespaces: what must never share cached blocks."""

from __future__ import annotations

from looseleaf import _core

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
        InvalidType: a part is neither str nor bytes.

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
        self._core = _core.Namespace(salt, adapter, weight_epoch, parts or {})

    @property
    def key(self) -> bytes:
        """Canonical bytes, the same in every process; equal only for equal namespaces. They contain the salt."""
        return self._core.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and self._core == other._core

    def __hash__(self) -> int:
        return hash(self._core)

    def __repr__(self) -> str:
        return f"Namespace(<{len(self.key)} bytes>)"
