"""Arrays that are bound to a manager by hand: Rust writes into them, so every wrong one is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from looseleaf import BlockManager, _core
from looseleaf.errors import InvalidArgument, InvalidType

SHAPES = {
    "block_table": (3, 5),
    "seq_lens": (3,),
    "query_lens": (3,),
    "cu_query_lens": (4,),
    "slot_mapping": (10,),
    "positions": (10,),
    "token_ids": (10,),
    "copies": (3, 2),
}
DTYPES = dict.fromkeys(SHAPES, np.int32) | dict.fromkeys(("slot_mapping", "positions", "token_ids"), np.int64)


def arrays() -> dict[str, Any]:
    return {name: np.full(shape, 77, dtype=DTYPES[name]) for name, shape in SHAPES.items()}


def bind(**buffers: Any) -> _core.Batch:
    return _core.Batch(_core.BlockManager(32, 4, 3, 18), 10, **buffers)


def test_arrays_of_the_documented_shapes_are_bound() -> None:
    buffers = arrays()
    batch = bind(**buffers)
    assert batch.sizes() == (0, 0, 0, 0, 0)
    assert not buffers["block_table"].any()
    assert (buffers["slot_mapping"] == -1).all()


@pytest.mark.parametrize("name", SHAPES)
def test_an_array_of_another_size_is_refused(name: str) -> None:
    for change in (-1, 1):
        buffers = arrays()
        buffers[name] = np.full(np.prod(SHAPES[name]) + change, 77, dtype=DTYPES[name])
        with pytest.raises(InvalidArgument, match=rf"^{name} has \d+ elements, must have \d+"):
            bind(**buffers)
        assert all((buffer == 77).all() for buffer in buffers.values()), "written before all were checked"


@pytest.mark.parametrize("name", SHAPES)
def test_an_array_of_another_dtype_is_refused(name: str) -> None:
    own = np.dtype(DTYPES[name])
    others = [np.dtype(other) for other in (np.int16, np.uint32, np.uint64, np.float32, np.float64, np.bool_, object)]
    others += [np.dtype(np.int64 if own == np.int32 else np.int32), own.newbyteorder()]
    for dtype in others:
        buffers = arrays()
        buffers[name] = np.zeros(SHAPES[name], dtype=dtype)
        with pytest.raises(InvalidType, match=f"^{name} "):
            bind(**buffers)


@pytest.mark.parametrize("name", SHAPES)
def test_a_read_only_array_is_refused(name: str) -> None:
    buffers = arrays()
    buffers[name].flags.writeable = False
    with pytest.raises(InvalidArgument, match=f"^{name} is read-only"):
        bind(**buffers)


@pytest.mark.parametrize("name", SHAPES)
def test_an_array_with_gaps_is_refused(name: str) -> None:
    buffers = arrays()
    buffers[name] = np.zeros((*SHAPES[name], 2), dtype=DTYPES[name])[..., 0]
    with pytest.raises(InvalidArgument, match=f"^{name} is not C-contiguous"):
        bind(**buffers)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("wrong", [None, 1, [0] * 10, "array", b"0123456789"], ids=repr)
def test_what_is_no_array_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(InvalidType, match=f"^{name} "):
        bind(**(arrays() | {name: wrong}))


def test_arrays_that_overlap_are_refused() -> None:
    shared = np.zeros(19, dtype=np.int64)
    buffers = arrays() | {"slot_mapping": shared[:10], "positions": shared[9:]}
    with pytest.raises(InvalidArgument, match="slot_mapping and positions overlap in memory"):
        bind(**buffers)
    narrow = shared.view(np.int32)
    buffers = arrays() | {"token_ids": shared[:10], "seq_lens": narrow[17:20]}
    with pytest.raises(InvalidArgument, match="token_ids and seq_lens overlap in memory"):
        bind(**buffers)
    twice = np.zeros(3, dtype=np.int32)
    with pytest.raises(InvalidArgument, match="overlap"):
        bind(**(arrays() | {"seq_lens": twice, "query_lens": twice}))


def test_arrays_that_touch_are_bound() -> None:
    shared = np.zeros(20, dtype=np.int64)
    bind(**(arrays() | {"slot_mapping": shared[:10], "positions": shared[10:]}))


def test_bound_arrays_cannot_be_moved() -> None:
    batch = BlockManager(32, 4).bind_batch(max_batch_tokens=10)
    for refcheck in (True, False):
        with pytest.raises(ValueError, match="resize"):
            batch.buffers.slot_mapping.resize(1 << 20, refcheck=refcheck)


@pytest.mark.parametrize("max_batch_tokens", [0, -1, 2**31, 2**32, 2**63])
def test_a_number_of_tokens_that_does_not_fit_is_refused(max_batch_tokens: int) -> None:
    with pytest.raises(InvalidArgument, match=f"max_batch_tokens is {max_batch_tokens}"):
        _core.Batch(_core.BlockManager(32, 4, 3, 18), max_batch_tokens, **arrays())
