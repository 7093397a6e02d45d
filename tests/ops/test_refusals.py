"""A wrong argument is named, with what it was, before anything is written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from looseleaf import ops
from looseleaf.errors import InvalidArgument, InvalidType
from looseleaf.ops.contents import are_checked

if TYPE_CHECKING:
    from collections.abc import Callable

INT32, INT64 = torch.int32, torch.int64


def _attend_arguments() -> dict[str, Any]:
    """Two sequences, 5 and 3 tokens, 2 and 1 rows; 2 query heads, 2 KV heads, head_dim 8, 4 blocks of 4."""
    return {
        "q": torch.zeros(3, 2, 8),
        "k_cache": torch.zeros(4, 2, 4, 8),
        "v_cache": torch.zeros(4, 2, 4, 6),
        "block_table": torch.tensor([[3, 0, -1], [2, -1, 77]], dtype=INT32),
        "seq_lens": torch.tensor([5, 3], dtype=INT32),
        "cu_query_lens": torch.tensor([0, 2, 3], dtype=INT32),
        "max_query_len": 2,
        "out": torch.full((3, 2, 6), 9.0),
        "lse": torch.full((3, 2), 9.0),
    }


def _write_arguments() -> dict[str, Any]:
    return {
        "k": torch.zeros(3, 2, 8),
        "v": torch.zeros(3, 2, 6),
        "k_cache": torch.full((4, 2, 4, 8), 9.0),
        "v_cache": torch.full((4, 2, 4, 6), 9.0),
        "slot_mapping": torch.tensor([0, -1, 15]),
    }


def _gather_arguments() -> dict[str, Any]:
    return {
        "k_cache": torch.zeros(4, 2, 4, 8),
        "v_cache": torch.zeros(4, 2, 4, 6),
        "block_table": torch.tensor([[3, 0, -1], [2, -1, 77]], dtype=INT32),
        "cu_seq_lens": torch.tensor([0, 5, 8], dtype=INT32),
        "k_out": torch.full((8, 2, 8), 9.0),
        "v_out": torch.full((8, 2, 6), 9.0),
    }


def _merge_arguments() -> dict[str, Any]:
    state = {"out_a": torch.zeros(3, 2, 8), "lse_a": torch.zeros(3, 2)}
    return state | {"out_b": torch.zeros(3, 2, 8), "lse_b": torch.zeros(3, 2)}


def _copy_arguments() -> dict[str, Any]:
    return {
        "caches": [torch.full((4, 2, 4, 8), 9.0), torch.full((4, 2, 4, 8), 9.0)],
        "block_mapping": torch.tensor([[0, 1]], dtype=INT32),
    }


def _swap_arguments() -> dict[str, Any]:
    return {
        "src": [torch.zeros(4, 2, 4, 8)],
        "dst": [torch.full((6, 2, 4, 8), 9.0)],
        "block_mapping": torch.tensor([[0, 5]]),
    }


ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "attend": _attend_arguments,
    "write": _write_arguments,
    "gather": _gather_arguments,
    "merge_states": _merge_arguments,
    "copy_blocks": _copy_arguments,
    "swap_blocks": _swap_arguments,
}
FILLED = {
    "attend": ("out", "lse"),
    "write": ("k_cache", "v_cache"),
    "gather": ("k_out", "v_out"),
    "merge_states": (),
    "copy_blocks": ("caches",),
    "swap_blocks": ("dst",),
}


def _refused(operator: str, wrong: dict[str, Any], error: type[Exception], *texts: str) -> None:
    """Call with one or more wrong arguments; the first is the one to be named, unless texts name another."""
    arguments = ARGUMENTS[operator]() | wrong
    with pytest.raises(error) as caught:
        getattr(ops, operator)(**arguments)
    message = str(caught.value)
    for text in texts or (next(iter(wrong)),):
        assert text in message
    for name in FILLED[operator]:
        value = arguments[name]
        for tensor in value if isinstance(value, list) else [value]:
            assert not isinstance(tensor, Tensor) or name in wrong or bool((tensor == 9).all())


@pytest.mark.parametrize("operator", list(ARGUMENTS))
def test_right_arguments_pass(operator: str) -> None:
    getattr(ops, operator)(**ARGUMENTS[operator]())


@pytest.mark.parametrize("operator", list(ARGUMENTS))
def test_what_is_no_tensor_is_named(operator: str) -> None:
    names = [name for name, value in ARGUMENTS[operator]().items() if isinstance(value, Tensor)]
    assert names
    for name in names:
        _refused(operator, {name: [1, 2]}, InvalidType, f"{name} must be a tensor, was list")


@pytest.mark.parametrize("operator", list(ARGUMENTS))
def test_wrong_dtype_is_named(operator: str) -> None:
    names = [name for name, value in ARGUMENTS[operator]().items() if isinstance(value, Tensor)]
    for name in names:
        value = ARGUMENTS[operator]()[name]
        wrong = value.double() if value.is_floating_point() else value.to(torch.int16)
        _refused(operator, {name: wrong}, InvalidType, name, str(wrong.dtype))


@pytest.mark.parametrize("operator", list(ARGUMENTS))
def test_wrong_rank_is_named(operator: str) -> None:
    names = [name for name, value in ARGUMENTS[operator]().items() if isinstance(value, Tensor)]
    for name in names:
        wrong = ARGUMENTS[operator]()[name][None]
        _refused(operator, {name: wrong}, InvalidArgument, f"{name} must have the shape", str(list(wrong.shape)))


@pytest.mark.parametrize("operator", list(ARGUMENTS))
def test_other_device_is_named(operator: str) -> None:
    names = [name for name, value in ARGUMENTS[operator]().items() if isinstance(value, Tensor)][1:]
    for name in names:
        if name != "k_cache":  # the others are measured by it
            _refused(operator, {name: ARGUMENTS[operator]()[name].to("meta")}, InvalidArgument, f"{name} must be on")


@pytest.mark.parametrize("operator", list(ARGUMENTS))
def test_strided_last_dimension_is_named(operator: str) -> None:
    names = [name for name, value in ARGUMENTS[operator]().items() if isinstance(value, Tensor)]
    for name in names:
        value = ARGUMENTS[operator]()[name]
        strided = torch.stack([value, value], -1)[..., 0]
        _refused(operator, {name: strided}, InvalidArgument, f"{name} must have a contiguous last dimension")


@pytest.mark.parametrize("operator", list(ARGUMENTS))
def test_tensor_that_requires_grad_is_refused(operator: str) -> None:
    tried = 0
    for name, value in ARGUMENTS[operator]().items():
        tensors = value if isinstance(value, list) else [value]
        if isinstance(tensors[0], Tensor) and tensors[0].is_floating_point():
            wrong = [tensor.clone().requires_grad_() for tensor in tensors]
            _refused(operator, {name: wrong if isinstance(value, list) else wrong[0]}, InvalidArgument, name, "grad")
            tried += 1
    assert tried


def test_parameters_may_be_used_where_no_gradient_is_wanted() -> None:
    sinks = torch.nn.Parameter(torch.zeros(2))
    with torch.no_grad():
        ops.attend(**_attend_arguments(), sinks=sinks)
    _refused("attend", {"sinks": sinks}, InvalidArgument, "sinks requires grad")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"q": torch.zeros(3, 2, 6)}, "head_dim=8"),
        ({"q": torch.zeros(3, 7, 8)}, "had 7"),
        ({"q": torch.zeros(3, 1, 8)}, "multiple of the caches' 2 kv_heads"),
        ({"q": torch.zeros(3, 0, 8)}, "had 0"),
        ({"v_cache": torch.zeros(3, 2, 4, 6)}, "blocks=4"),
        ({"v_cache": torch.zeros(4, 1, 4, 6)}, "kv_heads=2"),
        ({"v_cache": torch.zeros(4, 2, 8, 6)}, "block_size=4"),
        ({"block_table": torch.tensor([3, 0], dtype=INT32)}, "[seqs, columns], was [2]"),
        ({"block_table": torch.zeros(2, 6, dtype=INT32)[:, ::2]}, "contiguous"),
        ({"block_table": torch.tensor([[3, 4, -1], [2, -1, 77]], dtype=INT32)}, "[0, 1] is in use"),
        ({"block_table": torch.tensor([[3, 0, -1], [-1, -1, 77]], dtype=INT32)}, "[1, 0] is in use"),
        ({"seq_lens": torch.tensor([5], dtype=INT32)}, "seqs=2"),
        ({"seq_lens": torch.tensor([5, -1], dtype=INT32)}, "seq_lens[1] must be in 0 to 12"),
        ({"seq_lens": torch.tensor([13, 3], dtype=INT32)}, "3 columns of block_table x 4 tokens), was 13"),
        ({"cu_query_lens": torch.tensor([0, 2], dtype=INT32)}, "seqs + 1=3"),
        ({"cu_query_lens": torch.tensor([1, 2, 3], dtype=INT32)}, "cu_query_lens[0] must be 0, was 1"),
        ({"cu_query_lens": torch.tensor([0, 2, 1], dtype=INT32)}, "from 2 to 1"),
        ({"cu_query_lens": torch.tensor([0, 2, 4], dtype=INT32)}, "at most 3, the rows of q, was 4"),
        ({"cu_query_lens": torch.tensor([0, -(2**31), 2**31 - 1], dtype=INT32)}, "must never fall"),
        ({"max_query_len": 1}, "at least the longest step of cu_query_lens, 2, was 1"),
        ({"max_query_len": -1}, "at least 0, was -1"),
        ({"window": 0}, "at least 1, was 0"),
        ({"softcap": -1.0}, "at least 0, was -1.0"),
        ({"scale": math.nan}, "finite, was nan"),
        ({"sinks": torch.zeros(3)}, "q_heads=2"),
        ({"alibi_slopes": torch.zeros(1)}, "q_heads=2"),
        ({"out": torch.zeros(3, 2, 8)}, "v_head_dim=6"),
        ({"lse": torch.zeros(2, 2)}, "tokens=3"),
        ({"k_scale": torch.ones(1)}, "8-bit"),
    ],
)
def test_wrong_attention_is_refused(wrong: dict[str, Any], text: str) -> None:
    _refused("attend", wrong, InvalidArgument, next(iter(wrong)), text)


def test_attention_in_place_of_its_queries_is_refused() -> None:
    q = torch.full((3, 2, 8), 5.0)
    v_cache = torch.zeros(4, 2, 4, 8)
    _refused("attend", {"out": q, "q": q, "v_cache": v_cache}, InvalidArgument, "out must not overlap the memory of q")
    assert bool((q == 5).all())


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"block_table": torch.zeros(2, 3, dtype=INT64)}, "torch.int32, was torch.int64"),
        ({"seq_lens": torch.zeros(2, dtype=INT64)}, "torch.int32, was torch.int64"),
        ({"q": torch.zeros(3, 2, 8, dtype=torch.float16)}, "k_cache and v_cache must be torch.float16 as q is"),
        ({"max_query_len": torch.tensor(2)}, "int, was Tensor"),
        ({"max_query_len": 2.0}, "int, was float"),
        ({"window": True}, "int, was bool"),
        ({"causal": 1}, "True or False, was int"),
        ({"scale": "1"}, "float, was str"),
        ({"sinks": torch.zeros(2, dtype=torch.bfloat16)}, "torch.float32, was torch.bfloat16"),
    ],
)
def test_wrong_types_are_refused(wrong: dict[str, Any], text: str) -> None:
    _refused("attend", wrong, InvalidType, next(iter(wrong)), text)


def test_cell_is_in_use_as_long_as_one_row_sees_it() -> None:
    table = torch.tensor([[99, 0, -5], [2, -1, 77]], dtype=INT32)
    _refused("attend", {"block_table": table, "window": 1}, InvalidArgument, "block_table[0, 0] is in use")  # row at 3
    one_row = {"block_table": table, "cu_query_lens": torch.tensor([0, 1, 2], dtype=INT32)}
    ops.attend(**_attend_arguments() | one_row, window=1)  # row at 4
    _refused("attend", one_row | {"window": 2}, InvalidArgument, "block_table[0, 0] is in use")


def test_contents_on_another_device_are_checked_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.delenv("LOOSELEAF_CHECK", raising=False)
    assert are_checked(torch.device("cpu"))
    assert not are_checked(gpu)
    monkeypatch.setenv("LOOSELEAF_CHECK", "0")
    assert not are_checked(gpu)
    monkeypatch.setenv("LOOSELEAF_CHECK", "1")
    assert are_checked(gpu)


def test_8bit_caches_need_both_scales_in_the_right_shape() -> None:
    eight_bit: dict[str, Any] = {"k_cache": torch.zeros(4, 2, 4, 8, dtype=torch.int8)}
    eight_bit["v_cache"] = torch.zeros(4, 2, 4, 6, dtype=torch.int8)
    scale = torch.ones(2)
    for operator in ("attend", "write", "gather"):
        _refused(operator, eight_bit | {"v_scale": scale}, InvalidArgument, "k_scale is needed")
        _refused(operator, eight_bit | {"k_scale": scale}, InvalidArgument, "v_scale is needed")
        for wrong in (torch.ones(3), torch.ones(2, 1), torch.ones(4)[::2], torch.ones(2, device="meta")):
            _refused(operator, eight_bit | {"k_scale": wrong, "v_scale": scale}, InvalidArgument, "k_scale must")
        for wrong_type in (torch.ones(2, dtype=torch.float64), 1.0):
            _refused(operator, eight_bit | {"k_scale": scale, "v_scale": wrong_type}, InvalidType, "v_scale must")
        getattr(ops, operator)(**ARGUMENTS[operator]() | eight_bit, k_scale=scale, v_scale=torch.tensor(2.0))


@pytest.mark.parametrize(
    ("operator", "wrong", "text"),
    [
        ("write", {"k": torch.zeros(3, 3, 8)}, "kv_heads=2"),
        ("write", {"v": torch.zeros(2, 2, 6)}, "tokens=3"),
        ("write", {"slot_mapping": torch.tensor([0, 1])}, "tokens=3"),
        ("write", {"slot_mapping": torch.tensor([0, 1, 2, 3])}, "tokens=3"),
        ("write", {"slot_mapping": torch.tensor([0, 1, 16])}, "slot_mapping[2] must be in -1 to 15"),
        ("write", {"k_cache": torch.zeros(4, 0, 4, 8)}, "must have heads"),
        ("gather", {"cu_seq_lens": torch.tensor([0, 5, 9], dtype=INT32)}, "at most 8, the rows of k_out, was 9"),
        ("gather", {"cu_seq_lens": torch.tensor([0, 5, 4], dtype=INT32)}, "from 5 to 4"),
        ("gather", {"cu_seq_lens": torch.tensor([0, 0, 13], dtype=INT32), "k_out": None, "v_out": None}, "was 13"),
        ("gather", {"block_table": torch.tensor([[3, 4, -1], [2, 0, 0]], dtype=INT32)}, "[0, 1] is in use"),
        ("gather", {"v_out": None}, "both be None"),
        ("gather", {"v_out": torch.zeros(8, 2, 8)}, "v_head_dim=6"),
        ("merge_states", {"out_b": torch.zeros(3, 2, 7)}, "head_dim=8"),
        ("merge_states", {"lse_b": torch.zeros(2, 2)}, "tokens=3"),
        ("copy_blocks", {"caches": [torch.zeros(4, 2), torch.zeros(4)]}, "caches[1]"),
        ("copy_blocks", {"caches": [torch.zeros(4, 4)[:, ::2]]}, "caches[0] must have a contiguous"),
        ("copy_blocks", {"caches": [torch.zeros(4, 2), torch.zeros(4, 2, device="meta")]}, "caches[1] must be on cpu"),
        ("swap_blocks", {"dst": []}, "as many tensors as src, 1, had 0"),
        ("swap_blocks", {"dst": [torch.zeros(4, 2, 4, 7)]}, "dst[0] must have blocks of the shape [2, 4, 8]"),
    ],
)
def test_wrong_arguments_are_refused(operator: str, wrong: dict[str, Any], text: str) -> None:
    _refused(operator, wrong, InvalidArgument, next(iter(wrong)), text)


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [
        ("write", {"v": torch.zeros(3, 2, 6, dtype=torch.float16)}),
        ("write", {"k_cache": torch.zeros(4, 2, 4, 8).half(), "v_cache": torch.zeros(4, 2, 4, 6).half()}),
        ("write", {"slot_mapping": torch.zeros(3, dtype=INT32)}),
        ("gather", {"v_out": torch.zeros(8, 2, 6, dtype=torch.float16)}),
        ("merge_states", {"out_b": torch.zeros(3, 2, 8).half()}),
        ("copy_blocks", {"caches": torch.zeros(4, 2, 4, 8)}),
        ("copy_blocks", {"caches": [None]}),
        ("copy_blocks", {"block_mapping": torch.zeros(1, 2, dtype=INT64)}),
        ("swap_blocks", {"block_mapping": torch.zeros(1, 2, dtype=INT32)}),
        ("swap_blocks", {"dst": [torch.zeros(6, 2, 4, 8).half()]}),
    ],
)
def test_wrong_types_of_arguments_are_refused(operator: str, wrong: dict[str, Any]) -> None:
    _refused(operator, wrong, InvalidType)
