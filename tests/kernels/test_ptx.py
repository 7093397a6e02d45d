"""What the CUDA compiler made of every kind of kernel, executed: for three architectures, with races watched."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.kernels import emulated, test_cuda_moves
from tests.kernels.ptx.compiled import ARCHITECTURES, Compiled
from tests.kernels.ptx.machine import Machine
from tests.kernels.ptx.memory import Fault, Global
from tests.kernels.ptx.parse import parse
from tests.kernels.test_cuda_attend import check, emulator
from tests.kernels.test_cuda_promises import attend, exact
from tests.kernels.test_grid import CASES, TOLERANCES, _build
from tests.kernels.test_promises import _batch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["emulator"]

NUM_SAMPLES = 40
NUM_PARTS = 4
MOST_ROWS = 2
ISSUE_SLOTS = 2000  # of warps, in the time that memory takes for 16 tokens of K and V (docs/design/010)


def _is_short(case: dict[str, Any]) -> bool:
    dims = max(case["head_dim"], case["v_head_dim"] or 0)
    heads = case["group"] * case["kv_heads"]
    return case["lengths"] in ("edges", "one") and dims <= 128 and heads <= 24 and case["block_size"] <= 64


SAMPLES = [(index, case) for index, case in enumerate(CASES) if _is_short(case)][:NUM_SAMPLES]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_samples_of_the_grid_agree_with_exact_attention(architecture: str, part: int) -> None:
    assert len(SAMPLES) == NUM_SAMPLES
    kernels: set[str] = set()
    for index, case in SAMPLES[part::NUM_PARTS]:
        emulated.schedule("round-robin", processors=1 + index % 2)
        with Compiled(architecture) as compiled:
            check(_build(case, index, MOST_ROWS))
        assert compiled.conflicts == 0
        kernels |= set(compiled.kernels)
    assert any("attend_mma" in name for name in kernels)
    assert any("attend_simt" in name for name in kernels)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fast_path_reads_each_sector_once_and_without_conflicts(architecture: str, dtype: torch.dtype) -> None:
    lengths = [70, 17, 0, 1, 150]
    batch = _batch(lengths, [1] * 5, dtype)
    emulated.schedule("round-robin", processors=2)
    with Compiled(architecture) as compiled:
        out, _ = attend(batch)
    assert not out.isnan().any()
    assert torch.allclose(out[[0, 4]].double(), torch.cat([exact(batch, 0), exact(batch, 4)]), atol=2e-2)
    assert sum(compiled.kernels.values()) == 3
    assert compiled.conflicts == 0
    assert compiled.copied_sectors == sum(lengths) * 2 * 2 * 64 * dtype.itemsize // 32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("group", [4, 8])
def test_loop_leaves_most_issue_slots_to_the_loads(architecture: str, group: int) -> None:
    """Instructions that 16 more tokens cost, of one KV head at dim 128: two lengths, their difference."""
    issued = []
    generator = torch.Generator().manual_seed(1)  # how often sums are rescaled depends on the scores
    for length in (512, 1024):
        pool = torch.randn(length // 16, 2, 1, 16, 128, generator=generator).to(torch.bfloat16)
        lens, rows = torch.tensor([length], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
        table = torch.arange(length // 16, dtype=torch.int32)[None]
        query = torch.randn(1, group, 128, generator=generator).to(torch.bfloat16)
        emulated.schedule("round-robin", processors=1)
        with Compiled(architecture) as compiled:
            torch.ops.looseleaf_emulated.attend(query, pool[:, 0], pool[:, 1], table, lens, rows, 1, 0.1)
        issued.append(sum(count for name, count in compiled.issued.items() if "attend_mma" in name))
    each = (issued[1] - issued[0]) / (512 / 16)
    print(f"{architecture}, group {group}: {each:.0f} of {ISSUE_SLOTS} slots")  # noqa: T201 - evidence
    assert 100 < each < 0.4 * ISSUE_SLOTS


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_moves_do_what_the_reference_does(architecture: str) -> None:
    ops = torch.ops.looseleaf_emulated
    emulated.load()
    with Compiled(architecture) as compiled:
        for layout, dtype, stored in (
            ("fused", torch.bfloat16, torch.bfloat16),
            ("odd", torch.float16, torch.float16),
            ("token major", torch.float32, torch.float8_e4m3fn),
            ("odd", torch.bfloat16, torch.float8_e5m2),
            ("fused", torch.float16, torch.int8),
        ):
            test_cuda_moves.test_write_and_gather_agree(ops, layout, dtype, stored)
            test_cuda_moves.test_blocks_are_copied_whole(ops, layout, stored)
        for dtype in test_cuda_moves.FLOATS:
            test_cuda_moves.test_states_are_merged(ops, dtype)
        test_cuda_moves.test_slot_that_stands_again_takes_the_last_row(ops, "round-robin")
    names = {name.rpartition("::")[2] for name in compiled.kernels}
    assert names == {"write_kernel", "gather_kernel", "copy_kernel", "merge_kernel"}


def _swap_registers(text: str) -> str:
    pattern = r"(mma\.sync\S+\s+\{[^}]*\}, \{)(%r\d+), (%r\d+), (%r\d+)"
    return re.sub(pattern, r"\1\2, \4, \3", text.replace(",%", ", %"))


def _without_block_barrier(text: str) -> str:
    return re.sub(r"bar\.sync[^;]*;", "", text, count=1)


FAULTS: dict[str, Callable[[str], str]] = {
    "fragment registers exchanged": _swap_registers,
    "values not transposed": lambda text: text.replace("x4.trans.shared", "x4.shared"),
    "shares not transposed": lambda text: re.sub(r"movmatrix\S+\s+(%r\d+), ?(%r\d+);", r"mov.b32 \1, \2;", text),
    "wait for one group too few": lambda text: re.sub(r"(cp\.async\.wait_group) 2", r"\1 3", text),
    "no barrier of the warp": lambda text: re.sub(r"bar\.warp\.sync[^;]*;", "", text),
    "no barrier of the block": _without_block_barrier,
    "zeros not filled in": lambda text: re.sub(r"(cp\.async\.cg[^;]*, 16),[^;,]*;", r"\1, 16;", text),
    "one warp's share forgotten": lambda text: text.replace("shfl.sync.bfly.b32", "shfl.sync.idx.b32"),
    "table read far past its end": lambda text: re.sub(
        r"(ld\.global\.nc\.[us]32\s+%\w+, \[%rd\d+)", r"\1+1048576", text
    ),
    "results stored past their end": lambda text: re.sub(r"(st\.global\.[bu]16\s+\[%rd\d+)\]", r"\1+1048576]", text),
}


def test_every_fault_planted_in_compiled_code_is_caught() -> None:
    batch = _batch([150, 17], [1, 1], torch.bfloat16)
    for tensor in (batch["k_cache"], batch["v_cache"]):  # what no sequence holds
        tensor[0] = torch.nan
        tensor[int(batch["block_table"][1, 1]), :, 1:] = torch.nan
    emulated.schedule("round-robin", processors=1)
    expected = torch.cat([exact(batch, index) for index in range(2)])

    names = ("q", "k_cache", "v_cache", "block_table", "seq_lens", "cu_query_lens", "max_query_len")

    def error(change: Callable[[str], str]) -> float:
        """With the attention kernel alone changed; NaN where the result has one."""
        out = torch.full_like(batch["q"], torch.nan)
        with Compiled("compute_80", lambda text: change(text) if "attend_mma" in text else text):
            torch.ops.looseleaf_emulated.attend_out(*[batch[name] for name in names], 0.125, out=out)
        return float((out.double() - expected).norm() / expected.norm())

    assert error(str) <= TOLERANCES[torch.bfloat16]
    missed = []
    for name, plant in FAULTS.items():
        changed: list[bool] = []

        def planted(text: str, plant: Callable[[str], str] = plant, changed: list[bool] = changed) -> str:
            wrong = plant(text)
            changed.append(wrong != text)
            return wrong

        try:
            if error(planted) <= TOLERANCES[torch.bfloat16]:
                missed.append(name)
        except Fault:
            pass
        assert any(changed), name
    print(f"caught {len(FAULTS) - len(missed)} of {len(FAULTS)}")  # noqa: T201 - what the test is for
    assert missed == []


STORE = """
.visible .entry store(.param .u64 store_param_0)
{
 .reg .b32 %r<2>;
 .reg .b64 %rd<3>;
 ld.param.u64 %rd1, [store_param_0];
 mov.u32 %r1, %tid.x;
 mul.wide.u32 %rd2, %r1, 4;
 add.s64 %rd2, %rd2, %rd1;
 st.global.u32 [%rd2], %r1;
 ret;
}
"""


def test_faults_of_memory_stop_with_their_instruction() -> None:
    target = np.zeros(40, np.uint32)
    memory = Global()
    start = target.ctypes.data
    memory.allow(start, 4 * 32)

    def store(address: int) -> None:
        parameters = address.to_bytes(8, "little")
        Machine(parse(STORE)["store"], memory, (1, 1), 32, 0, parameters).run()

    store(start)
    assert target[:32].tolist() == list(range(32))
    for address in (start - 4, start + 4, 0):
        with pytest.raises(Fault, match=r"global memory out of range.*st\.global"):
            store(address)
    memory.allow(start, 4 * 33)
    with pytest.raises(Fault, match="misaligned"):
        store(start + 2)
    assert target[32:].tolist() == [0] * 8
