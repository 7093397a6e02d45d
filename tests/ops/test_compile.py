"""The wrappers can be traced into one graph, whatever is loaded, and refuse there what they refuse outside."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from looseleaf import ops
from looseleaf.errors import InvalidArgument
from looseleaf.ops import native

INT32 = torch.int32

ALL_OPERATORS = """
import torch
from looseleaf import ops
from looseleaf.ops import native

int32 = torch.int32
pool = torch.randn(30, 2, 2, 16, 64)
table, lengths = torch.arange(1, 9, dtype=int32).view(2, 4), torch.tensor([20, 33], dtype=int32)
sums, ones = torch.tensor([0, 20, 53], dtype=int32), torch.tensor([0, 1, 2], dtype=int32)
q, k = torch.randn(2, 4, 64), torch.randn(2, 2, 64)
rows = [torch.zeros(53, 2, 64), torch.zeros(53, 2, 64)]
pair = torch.tensor([[3, 11]])

def step(pool, q, other, out):
    caches = pool[:, 0], pool[:, 1]
    ops.write(k, k, *caches, torch.tensor([35, 100]))
    ops.copy_blocks(list(caches), pair.to(int32))
    ops.swap_blocks([pool], [other], pair)
    new = ops.attend(q * 1.0, *caches, table, lengths, ones, max_query_len=1)
    ops.attend(q, *caches, table, lengths, ones, max_query_len=1, window=9, out=out)
    ops.gather(*caches, table, sums, k_out=rows[0], v_out=rows[1])
    gathered = ops.gather(*caches, table, sums)
    return *ops.merge_states(*new, *new), *(tensor * 2 for tensor in gathered)

def run(function):
    tensors = pool.clone(), q.clone(), torch.zeros_like(pool), torch.zeros_like(q)
    return *function(*tensors), *tensors, *(row.clone() for row in rows)

assert not native.is_loaded()
compiled = run(torch.compile(step, fullgraph=True, backend="aot_eager"))
for result, expected in zip(compiled, run(step), strict=True):
    torch.testing.assert_close(result, expected, atol=0, rtol=0)
print(native.is_loaded())
"""


@pytest.mark.parametrize(("kernels", "is_loaded"), [("compile", "True"), ("none", "False")])
def test_all_wrappers_make_one_graph_in_a_new_process(kernels: str, is_loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALL_OPERATORS],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LOOSELEAF_KERNELS": kernels},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == is_loaded


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch looks, after a break of the graph
@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("is_direct", [True, False])
def test_gradient_is_refused_in_a_graph(
    monkeypatch: pytest.MonkeyPatch,
    is_loaded: bool,
    is_direct: bool,
) -> None:
    if is_loaded:
        assert native.load()
    else:
        monkeypatch.setattr(native, "load", lambda: False)
        monkeypatch.setattr(native._STATE, "library", None)
    cache = torch.randn(3, 2, 16, 64)
    table, lengths = torch.tensor([[1, 2]], dtype=INT32), torch.tensor([20], dtype=INT32)
    sums = torch.tensor([0, 1], dtype=INT32)

    def attend(q: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor
        if is_direct:
            out, _ = torch.ops.looseleaf.attend(q * 1.0, cache, cache, table, lengths, sums, 1, 0.125)
        else:
            out, _ = ops.attend(q * 1.0, cache, cache, table, lengths, sums, max_query_len=1)
        return out * 2

    q = torch.randn(1, 4, 64)
    torch.compiler.reset()
    compiled = torch.compile(attend, backend="aot_eager")
    expected = compiled(q)
    with torch.no_grad():
        assert torch.equal(compiled(q.clone().requires_grad_()), expected)
    whole = torch.compile(attend, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="q requires grad"):
        whole(q.clone().requires_grad_())
    with pytest.raises(Exception if is_direct else InvalidArgument, match="q requires grad"):
        compiled(q.clone().requires_grad_())
