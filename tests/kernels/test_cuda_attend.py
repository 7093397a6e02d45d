"""The CUDA attention kernels in the emulator, against attention in fp64, over the grid of the CPU kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.kernels import emulated
from tests.kernels.oracle import attend_exactly, error_of
from tests.kernels.test_grid import CASES, TOLERANCES, _build
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kernels.test_grid import Batch

NUM_PARTS = 8
PROCESSORS = (1, 2, 3, 4)
MOST_ROWS = 12
MOST_ROWS_OF_LONG = 4  # with their group several tiles still, each over all of the keys


@pytest.fixture(autouse=True)
def emulator() -> Iterator[None]:
    emulated.schedule("round-robin")
    yield
    emulated.schedule("round-robin")


def check(batch: Batch, namespace: str = emulated.NAMESPACE, device: str = "cpu") -> None:
    """Run a batch and compare; a NaN in a result fails."""
    arguments = {
        name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.arguments.items()
    }
    num_rows, q_heads, _ = arguments["q"].shape
    shape = (num_rows, q_heads, arguments["v_cache"].size(3))
    out = torch.full(shape, torch.nan, dtype=batch.dtype, device=device)
    lse = torch.full((num_rows, q_heads), torch.nan, device=device)
    order = ("q", "k_cache", "v_cache", "block_table", "seq_lens", "cu_query_lens", "max_query_len", "scale")
    operators = getattr(torch.ops, namespace)
    operators.attend_out(*[arguments.pop(name) for name in order], **arguments, out=out, lse=lse)
    out, lse = out.cpu(), lse.cpu()
    exact = [attend_exactly(*sequence, batch.options) for sequence in batch.sequences]
    row = sum(len(part) for part, _ in exact)
    assert bool((out[row:] == 0).all())
    assert bool((lse[row:] == -torch.inf).all())
    expected, expected_lse = torch.cat([part for part, _ in exact]), torch.cat([part for _, part in exact])
    is_empty = expected_lse == -torch.inf
    assert torch.equal(lse[:row] == -torch.inf, is_empty)
    assert bool((out[:row][is_empty] == 0).all())
    error = error_of(out[:row], expected)
    assert error <= TOLERANCES[batch.dtype], error
    seen = (lse[:row].double() - expected_lse)[~is_empty]
    worst = float(seen.abs().max()) if seen.numel() else 0.0
    assert worst <= 1e-5, worst


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_result_agrees_with_exact_attention(part: int) -> None:
    cases = CASES[part::NUM_PARTS]
    assert cases
    failed = []
    for index, case in enumerate(cases):
        emulated.schedule("round-robin", processors=PROCESSORS[index % len(PROCESSORS)])
        try:
            check(_build(case, index, MOST_ROWS_OF_LONG if case["lengths"] == "long" else MOST_ROWS))
        except (AssertionError, RuntimeError) as error:
            failed.append((index, case, str(error).splitlines()[0]))
    assert not failed, failed[:3]
