from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from looseleaf.config import DTYPE_BYTES, ModelShape
from looseleaf.errors import InvalidArgument, InvalidType

FIELDS: dict[str, Any] = {"num_layers": 30, "num_kv_heads": 3, "head_dim": 64, "dtype": "float32"}


def test_a_shape_is_a_value() -> None:
    shape = ModelShape(**FIELDS, max_sequence_len=8192)
    assert shape == ModelShape(**FIELDS, max_sequence_len=8192)
    assert hash(shape) == hash(pickle.loads(pickle.dumps(shape)))  # noqa: S301
    with pytest.raises(dataclasses.FrozenInstanceError):
        shape.num_layers = 1  # type: ignore[misc]
    assert not hasattr(shape, "__dict__")


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "head_dim", "max_sequence_len"])
@pytest.mark.parametrize("value", [0, -1])
def test_every_number_is_at_least_one(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} must be at least 1, not {value}"):
        ModelShape(**(FIELDS | {name: value}))


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "head_dim", "max_sequence_len"])
@pytest.mark.parametrize("value", [1.0, "8", True, [8, 8]])
def test_every_number_is_an_integer(name: str, value: object) -> None:
    with pytest.raises(InvalidType, match=f"{name} must be an integer"):
        ModelShape(**(FIELDS | {name: value}))


def test_numpy_integers_become_python_integers() -> None:
    shape = ModelShape(**(FIELDS | {"head_dim": np.int32(64)}))
    assert type(shape.head_dim) is int


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("fp32", "float32"),
        ("float", "float32"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("torch.float", "float32"),
    ],
)
def test_dtype_aliases_become_one_name(dtype: str, name: str) -> None:
    assert ModelShape(**(FIELDS | {"dtype": dtype})).dtype == name


def test_every_dtype_has_a_size() -> None:
    sizes = {dtype: ModelShape(**(FIELDS | {"dtype": dtype})).element_bytes for dtype in DTYPE_BYTES}
    assert sizes == {"float32": 4, "float16": 2, "bfloat16": 2}


@pytest.mark.parametrize("dtype", ["int8", "float64", "", "auto"])
def test_an_unknown_dtype_is_refused_with_the_known_ones(dtype: str) -> None:
    with pytest.raises(InvalidArgument, match="float32, float16, bfloat16"):
        ModelShape(**(FIELDS | {"dtype": dtype}))


@pytest.mark.parametrize("dtype", [None, np.float32])
def test_a_dtype_of_another_library_is_refused(dtype: object) -> None:
    with pytest.raises(InvalidType, match="dtype must be a string"):
        ModelShape(**(FIELDS | {"dtype": dtype}))
