"""The library's checks and the wrappers' own refuse the same calls, and leave alone what is no refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.ops.test_refusals import ARGUMENTS, FILLED
from torch import Tensor

from looseleaf import ops
from looseleaf.errors import InvalidArgument, InvalidType
from looseleaf.ops import native, reference


@pytest.fixture(params=["library first", "wrapper first"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who checks first: without a library, the wrapper alone does."""
    assert native.load()
    if request.param == "wrapper first":
        for module in (ops.attend, ops.write, ops.gather, ops.copy_blocks):
            monkeypatch.setitem(module.__globals__, "accepts", lambda *_: False)
    return str(request.param)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"scale": np.float32(0.1)}, InvalidType),
        ({"scale": True}, InvalidType),
        ({"scale": 1e300}, InvalidArgument),
        ({"softcap": 1e300}, InvalidArgument),
        ({"window": 2**63}, InvalidArgument),
        ({"max_query_len": 2**63}, InvalidArgument),
    ],
)
def test_number_is_named(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{next(iter(wrong))} must"):
        ops.attend(**ARGUMENTS["attend"]() | wrong)


def test_pool_without_blocks_serves_sequences_without_tokens() -> None:
    empty = torch.zeros(0, 2, 4, 8)
    zero, sums = torch.zeros(1, dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    arguments = (torch.ones(1, 2, 8), empty, empty, torch.zeros(1, 2, dtype=torch.int32), zero, sums)
    for out, lse in (
        ops.attend(*arguments, max_query_len=1),
        reference.attend(*arguments, 1, 0.125),
    ):
        assert bool((out == 0).all())
        assert bool((lse == -torch.inf).all())


def test_memory_that_overlaps_is_refused() -> None:
    memory = torch.full((200,), 5.0)
    arguments = ARGUMENTS["attend"]()
    q, out = memory[:48].view(3, 2, 8), memory[40:76].view(3, 2, 6)
    for wrong, text in (
        ({"q": q, "out": out}, "out must not overlap the memory of q"),
        ({"out": out, "lse": memory[75:81].view(3, 2)}, "out must not overlap the memory of lse"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            ops.attend(**arguments | wrong)
    assert bool((memory == 5).all())
    ops.attend(**arguments | {"q": q, "out": memory[48:84].view(3, 2, 6), "lse": memory[84:90].view(3, 2)})


@pytest.mark.parametrize("operator", [name for name, filled in FILLED.items() if filled])
def test_expanded_tensor_is_not_written(operator: str) -> None:
    for name in FILLED[operator]:
        arguments = ARGUMENTS[operator]()
        value = arguments[name]
        tensors = value if isinstance(value, list) else [value]
        expanded = [tensor[:1].expand_as(tensor) for tensor in tensors]
        arguments[name] = expanded if isinstance(value, list) else expanded[0]
        with pytest.raises(InvalidArgument, match=rf"^{name}(\[0\])? is written and must not be expanded"):
            getattr(ops, operator)(**arguments)
        assert all(bool((tensor == 9).all()) for tensor in tensors)


@pytest.mark.parametrize("operator", list(ARGUMENTS))
def test_sparse_tensor_is_named(operator: str) -> None:
    arguments = ARGUMENTS[operator]()
    for name, value in arguments.items():
        tensors = value if isinstance(value, list) else [value]
        if not isinstance(tensors[0], Tensor):
            continue
        sparse = [tensor.to_sparse() for tensor in tensors]
        call = arguments | {name: sparse if isinstance(value, list) else sparse[0]}
        with pytest.raises(InvalidArgument, match=rf"^{name}(\[0\])? must be dense"):
            getattr(ops, operator)(**call)
        if operator != "attend":  # its scale is no default of the operator
            with pytest.raises(InvalidArgument, match=rf"^{name}(\[0\])? must be dense"):
                getattr(torch.ops.looseleaf, operator)(**call)


def test_chain_of_copies_within_a_tensor_is_refused() -> None:
    a, b = torch.arange(4.0)[:, None], torch.arange(4.0, 8.0)[:, None]
    before = torch.cat([a, b])
    chain = torch.tensor([[0, 1], [1, 2]])
    for src, dst in (([a], [a]), ([a, b], [b, a])):
        with pytest.raises(InvalidArgument, match="as source and as destination, 1 is both"):
            ops.swap_blocks(src, dst, chain)
    assert torch.equal(torch.cat([a, b]), before)
    ops.swap_blocks([a], [a], torch.tensor([[0, 1], [2, 3]]))
    ops.swap_blocks([a], [b], chain)
    assert a.flatten().tolist() == [0, 0, 2, 2]
    assert b.flatten().tolist() == [4, 0, 0, 7]


def test_short_memory_is_no_wrong_argument() -> None:
    arguments = ARGUMENTS["attend"]() | {"q": torch.zeros(1, 2, 8).expand(2**40, 2, 8), "out": None, "lse": None}
    with pytest.raises(RuntimeError, match="allocate memory"):
        ops.attend(**arguments)
