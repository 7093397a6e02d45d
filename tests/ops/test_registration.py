"""The operators are registered as PyTorch wants them, once, and a compiled library takes over."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from looseleaf.errors import InvalidArgument
from looseleaf.ops import native, reference
from looseleaf.ops.schemas import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ops.conftest import PagedBatch


def _samples(make_batch: Callable[..., PagedBatch]) -> dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    batch = make_batch([17, 3], [2, 1], block_size=8, head_dim=16, v_head_dim=8, dtype=torch.bfloat16)
    caches = (batch.k_cache, batch.v_cache)
    attend = (*batch.arguments().values(), 0.25)
    options = {"window": 9, "softcap": 2.0, "sinks": torch.zeros(4), "alibi_slopes": torch.ones(4)}
    out, lse = torch.zeros(3, 4, 8, dtype=torch.bfloat16), torch.zeros(3, 4)
    k, v, slots = batch.keys[0], batch.values[0], torch.arange(17)
    bytes_ = tuple(torch.zeros(cache.shape, dtype=torch.int8) for cache in caches)
    scales = {"k_scale": torch.ones(2), "v_scale": torch.ones(1)}
    sums = torch.tensor([0, 17, 20], dtype=torch.int32)
    rows = (torch.zeros(20, 2, 16, dtype=torch.bfloat16), torch.zeros(20, 2, 8, dtype=torch.bfloat16))
    pools = [cache.contiguous() for cache in caches]
    return {
        "write": [((k, v, *caches, slots), {}), ((k, v, *bytes_, slots), scales)],
        "attend": [(attend, {}), (attend, options)],
        "attend_out": [(attend, {"out": out, "lse": lse}), (attend, options | {"out": out})],
        "copy_blocks": [((list(caches), torch.tensor([[1, 0], [-1, -1]], dtype=torch.int32)), {})],
        "gather": [
            ((*caches, batch.block_table, sums, *rows), {}),
            ((*bytes_, batch.block_table, sums, *rows), scales),
        ],
        "swap_blocks": [((list(caches), pools, torch.tensor([[1, 0]])), {})],
        "merge_states": [((out, lse, out.clone(), lse.clone()), {})],
    }


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_operator_passes_opcheck(make_batch: Callable[..., PagedBatch], name: str) -> None:
    samples = _samples(make_batch)[name]
    assert samples
    for arguments, options in samples:
        opcheck(getattr(torch.ops.looseleaf, name).default, arguments, options)


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_schema_is_the_one_that_was_agreed(name: str) -> None:
    operator = getattr(torch.ops.looseleaf, name).default
    assert torch._C.parse_schema(f"looseleaf::{SCHEMAS[name]}") == operator._schema
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"looseleaf::{name}", "CompositeExplicitAutograd")
    for key in ("CUDA", "Autograd"):
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"looseleaf::{name}", key)


def test_every_implementation_is_of_a_schema() -> None:
    assert set(reference.__all__) == set(SCHEMAS)


def test_implementation_for_the_cpu_takes_over_when_it_is_loaded_later() -> None:
    script = """
import torch
from looseleaf import ops

def copy_blocks(caches, block_mapping):
    caches[0].fill_(7)

cache, pair = torch.zeros(2, 1), torch.tensor([[0, 1]], dtype=torch.int32)
ops.copy_blocks([cache], pair)
before = cache.flatten().tolist()
library = torch.library.Library("looseleaf", "IMPL")
library.impl("copy_blocks", copy_blocks, "CPU")
ops.copy_blocks([cache], pair)
print(before, cache.flatten().tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0.0, 0.0] [7.0, 7.0]"


def test_wrappers_work_where_nothing_else_was_imported() -> None:
    script = "from looseleaf import ops; import torch; ops.copy_blocks([], torch.empty(0, 2, dtype=torch.int32))"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_out_variant_fills_without_a_log_sum_exp(make_batch: Callable[..., PagedBatch]) -> None:
    batch = make_batch([17, 3], [2, 1])
    arguments = (*batch.arguments().values(), 0.125)
    expected, _ = torch.ops.looseleaf.attend(*arguments)
    out = torch.full_like(expected, torch.nan)
    assert torch.ops.looseleaf.attend_out(*arguments, out=out) is None
    assert torch.equal(out, expected)


def test_shapes_are_known_without_data(make_batch: Callable[..., PagedBatch]) -> None:
    batch = make_batch([17, 3], [2, 1], v_head_dim=32, dtype=torch.float16)
    arguments = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in batch.arguments().values()]
    out, lse = torch.ops.looseleaf.attend(*arguments, 0.125)
    assert (out.shape, out.dtype, out.device.type) == ((3, 4, 32), torch.float16, "meta")
    assert (lse.shape, lse.dtype) == ((3, 4), torch.float32)
    merged = torch.ops.looseleaf.merge_states(out, lse, out, lse)
    assert [tensor.shape for tensor in merged] == [out.shape, lse.shape]


@pytest.mark.parametrize("way", ["library", "pytorch"])
@pytest.mark.parametrize("name", list(SCHEMAS))
def test_direct_call_refuses_what_requires_grad(
    make_batch: Callable[..., PagedBatch],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    name: str,
    way: str,
) -> None:
    operator = getattr(torch.ops.looseleaf, name)
    if way == "library":
        request.getfixturevalue("library")
    else:
        monkeypatch.setattr(native, "load", lambda: False)
        operator = native.native_first(name, getattr(reference, name))
    arguments, options = _samples(make_batch)[name][0]
    parameters = [parameter.name for parameter in getattr(torch.ops.looseleaf, name).default._schema.arguments]
    named = dict(zip(parameters, arguments, strict=False)) | options
    num_tried = 0
    for parameter, value in named.items():
        tensors = value if isinstance(value, list) else [value]
        if not (isinstance(tensors[0], Tensor) and tensors[0].is_floating_point()):
            continue
        wrong = [tensor.clone().requires_grad_() for tensor in tensors]
        before = [tensor.detach().clone() for tensor in wrong]
        call = named | {parameter: wrong if isinstance(value, list) else wrong[0]}
        with pytest.raises((RuntimeError, InvalidArgument), match=rf"^{parameter}(\[0\])? requires grad"):
            operator(**call)
        for tensor, copy in zip(wrong, before, strict=True):
            assert torch.equal(tensor.detach().view(torch.uint8), copy.view(torch.uint8))
        with torch.no_grad():
            operator(**call)
        num_tried += 1
    assert num_tried >= 1
