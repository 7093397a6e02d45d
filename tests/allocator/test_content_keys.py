from __future__ import annotations

import hashlib

import numpy as np
import pytest

from looseleaf import Namespace, content_keys, low64
from looseleaf.errors import InvalidArgument, InvalidType


def test_keys_are_the_documented_chain_of_hashes() -> None:
    namespace = Namespace(salt="tenant")
    root = hashlib.sha256(b"looseleaf content key 1\0" + (4).to_bytes(4, "little") + namespace.key).digest()
    tokens = np.array([5, 6, 7, 8, 9, 10, 11, 2**31 - 1, 3], np.int32)
    first = hashlib.sha256(root + tokens[:4].tobytes()).digest()
    second = hashlib.sha256(first + tokens[4:8].tobytes()).digest()
    assert content_keys(tokens, 4, namespace=namespace) == [first, second]
    assert content_keys(tokens.tolist(), 4, namespace=namespace) == [first, second]
    assert low64(second) == int(second.hex()[-16:], 16)


def test_keys_of_another_namespace_or_block_size_differ() -> None:
    tokens = list(range(8))
    groups = [
        content_keys(tokens, 4),
        content_keys(tokens, 2),
        content_keys(tokens, 4, namespace=Namespace(salt="a")),
        content_keys(tokens, 4, namespace=Namespace(adapter=("a", ""))),
        content_keys(tokens, 4, namespace=Namespace(weight_epoch=1)),
    ]
    keys = [key for group in groups for key in group]
    assert len(set(keys)) == len(keys) == 12
    assert content_keys([1, 2, 3], 4) == content_keys([], 4) == []


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="block_size is 0"):
        content_keys([1], 0)
    for negative in ([-1], np.array([-1], np.int32)):
        with pytest.raises(InvalidArgument, match="tokens has -1"):
            content_keys(negative, 4)
    with pytest.raises(InvalidType, match="namespace has type str"):
        content_keys([1], 4, namespace="a")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="key has 31 bytes"):
        low64(bytes(31))
