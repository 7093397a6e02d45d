"""Content keys: names of blocks that are the same in every process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from looseleaf.allocator.namespace import Namespace
from looseleaf.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Sequence as PySequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["content_keys", "low64"]

_KEY_BYTES = 32


def content_keys(
    tokens: PySequence[int] | NDArray[np.int64] | NDArray[np.int32],
    block_size: int,
    *,
    namespace: Namespace | None = None,
) -> list[bytes]:
    """Name each whole block of a prompt, with all that stands before it, for routers, other engines and stores.

    A key is a SHA-256 of its namespace, block size and tokens: believed without its tokens, it must not collide. The
    same in every process and on every machine. Needs no manager.

    Args:
        tokens: token ids: ints, or an int32 or int64 array [num_tokens].
        block_size: tokens per block.
        namespace: None: the namespace without parts.

    Returns:
        32 bytes for each of the `num_tokens // block_size` whole blocks, in order.

    Raises:
        InvalidArgument, InvalidType: an argument cannot be.

    Example:
        >>> keys = content_keys([1, 2, 3, 4, 5, 6, 7, 8, 9], 4)
        >>> len(keys), low64(keys[0])
        (2, 693080320297914267)
        >>> content_keys([9, 2, 3, 4, 5, 6, 7, 8], 4)[1] == keys[1]
        False
    """
    if not isinstance(namespace, Namespace | None):
        raise InvalidType(f"namespace has type {type(namespace).__name__}, must be a Namespace")
    root = Namespace() if namespace is None else namespace
    return root._core.content_keys(tokens, block_size)  # noqa: SLF001 - one class in two files


def low64(key: bytes) -> int:
    """Shorten a content key to a 64-bit number, for events, where a collision costs a wrong guess at most.

    Args:
        key: 32 bytes.

    Returns:
        Its last 8 bytes as a big-endian number.

    Raises:
        InvalidType, InvalidArgument: `key` is no bytes, or not 32 of them.
    """
    if not isinstance(key, bytes):
        raise InvalidType(f"key has type {type(key).__name__}, must be bytes")
    if len(key) != _KEY_BYTES:
        raise InvalidArgument(f"key has {len(key)} bytes, must have {_KEY_BYTES}")
    return int.from_bytes(key[-8:], "big")
