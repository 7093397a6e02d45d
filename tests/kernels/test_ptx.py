"""What the CUDA compiler made of the attention kernels, executed: for three architectures, with races watched."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.kernels import nvrtc
from tests.kernels.ptx.arithmetic import to_bfloat_bits, to_half_bits
from tests.kernels.ptx.machine import Machine
from tests.kernels.ptx.memory import Fault, Global
from tests.kernels.ptx.parse import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kernels.ptx.memory import Array
    from tests.kernels.ptx.parse import Kernel

ARCHITECTURES = ("compute_80", "compute_90", "compute_100")
TILE_ROWS = 8
WILD = 0x7FFFFFFF
POINTER, LONG, INT, FLOAT, BOOL = ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32, ctypes.c_float, ctypes.c_bool


class CacheView(ctypes.Structure):
    _fields_ = (
        ("data", POINTER),
        ("block_stride", LONG),
        ("head_stride", LONG),
        ("token_stride", LONG),
        ("dim", LONG),
        ("scale", POINTER),
        ("scale_step", LONG),
    )


class Arguments(ctypes.Structure):
    """AttendArguments of csrc/include/looseleaf/attend_arguments.h."""

    _fields_ = (
        ("q", POINTER),
        ("q_row_stride", LONG),
        ("q_head_stride", LONG),
        ("element", INT),
        ("k", CacheView),
        ("v", CacheView),
        ("cache_element", INT),
        ("block_table", POINTER),
        ("table_stride", LONG),
        ("seq_lens", POINTER),
        ("cu_query_lens", POINTER),
        ("num_seqs", LONG),
        ("num_rows", LONG),
        ("q_heads", LONG),
        ("kv_heads", LONG),
        ("block_size", LONG),
        ("scale", FLOAT),
        ("causal", BOOL),
        ("window", LONG),
        ("softcap", FLOAT),
        ("sinks", POINTER),
        ("alibi_slopes", POINTER),
        ("batch_invariant", BOOL),
        ("out", POINTER),
        ("out_row_stride", LONG),
        ("out_head_stride", LONG),
        ("lse", POINTER),
        ("lse_row_stride", LONG),
    )


class Plan(ctypes.Structure):
    """Plan of csrc/include/looseleaf/attend_plan.h."""

    _fields_ = (
        ("first_tile", POINTER),
        ("first_unit", POINTER),
        ("states", POINTER),
        ("num_blocks", LONG),
        ("tile_rows", LONG),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One decode row for each sequence."""

    lens: tuple[int, ...] = (70, 17, 0, 1, 150)
    kv_heads: int = 2
    group: int = 3
    head_dim: int = 64
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    num_blocks: int = 3
    is_bfloat: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    error: float
    conflicts: int
    copied_sectors: int


@cache
def text_of(architecture: str) -> str:
    code, _ = nvrtc.compile_kernels("ptx", architecture)
    return code.rstrip(b"\0").decode()


def _kernel(kernels: dict[str, Kernel], *words: str) -> Kernel:
    (name,) = [name for name in kernels if all(word in name for word in words)]
    return kernels[name]


def execute(text: str, case: Case) -> Outcome:
    """The three kernels of a call; dead slots, block 0 and cells past the end hold what must not be touched."""
    rng = np.random.default_rng(5)
    encode = to_bfloat_bits if case.is_bfloat else to_half_bits
    num_seqs, q_heads = len(case.lens), case.kv_heads * case.group
    used = [-(-length // case.block_size) for length in case.lens]
    shape = (sum(used) + 1, case.kv_heads, case.block_size, case.head_dim)
    stored = [np.full(shape, 0x7FFF, np.uint16) for _ in range(2)]
    table = np.full((num_seqs, max(used)), WILD, np.int32)
    ids = iter(rng.permutation(sum(used)) + 1)
    tokens = [rng.standard_normal((2, length, case.kv_heads, case.head_dim)).astype(np.float32) for length in case.lens]
    for seq, length in enumerate(case.lens):
        table[seq, : used[seq]] = [next(ids) for _ in range(used[seq])]
        for token in range(length):
            block = table[seq, token // case.block_size]
            for side in range(2):
                stored[side][block, :, token % case.block_size] = encode(tokens[seq][side, token])
    query = rng.standard_normal((num_seqs, q_heads, case.head_dim)).astype(np.float32)
    memory = Global()
    arguments = Arguments(
        q=memory.add("q", encode(query)),
        q_row_stride=2 * q_heads * case.head_dim,
        q_head_stride=2 * case.head_dim,
        element=2 if case.is_bfloat else 1,
        cache_element=2 if case.is_bfloat else 1,
        block_table=memory.add("table", table),
        table_stride=max(used),
        seq_lens=memory.add("lens", np.array(case.lens, np.int32)),
        cu_query_lens=memory.add("rows", np.arange(num_seqs + 1, dtype=np.int32)),
        num_seqs=num_seqs,
        num_rows=num_seqs,
        q_heads=q_heads,
        kv_heads=case.kv_heads,
        block_size=case.block_size,
        scale=0.125,
        causal=True,
        window=case.window,
        softcap=case.softcap,
        out=memory.add("out", np.full((num_seqs, q_heads, case.head_dim), 0x7FFF, np.uint16)),
        out_row_stride=2 * q_heads * case.head_dim,
        out_head_stride=2 * case.head_dim,
        lse=memory.add("lse", np.full((num_seqs, q_heads), np.nan, np.float32)),
        lse_row_stride=q_heads,
    )
    strides = [2 * int(np.prod(shape[d:])) for d in (1, 2, 3)]
    for side, view in enumerate((arguments.k, arguments.v)):
        view.data = memory.add("kv"[side], stored[side])
        view.block_stride, view.head_stride, view.token_stride = strides
        view.dim = case.head_dim
    tiles = num_seqs * case.group // TILE_ROWS + num_seqs
    states = np.full((2 * case.num_blocks * TILE_ROWS, case.head_dim + 2), np.nan, np.float32)
    plan = Plan(
        first_tile=memory.add("first_tile", np.full(num_seqs + 1, -1, np.int64)),
        first_unit=memory.add("first_unit", np.full(tiles + 1, -1, np.int64)),
        states=memory.add("states", states),
        num_blocks=case.num_blocks,
        tile_rows=TILE_ROWS,
    )
    memory.seal()
    kernels = parse(text)
    parameters = bytes(arguments) + bytes(plan)
    attention = _kernel(kernels, "attend_mma", "BFloat" if case.is_bfloat else "4Half", f"Li{case.head_dim}E")
    Machine(_kernel(kernels, "plan_kernel"), memory, 1, 512, 128, parameters).run()
    machine = Machine(attention, memory, case.num_blocks, 128, 4 * 3 * 2 * 2 * 16 * case.head_dim, parameters)
    machine.run()
    Machine(_kernel(kernels, "combine_kernel"), memory, case.num_blocks, 128, 0, parameters).run()
    return Outcome(_error(case, query, tokens, memory.read("out")), machine.conflicts, machine.copied_sectors)


def _error(case: Case, query: Array, tokens: list[Array], out: Array) -> float:
    """The largest difference from sums in fp64; NaN where there is one."""
    encode = to_bfloat_bits if case.is_bfloat else to_half_bits

    def exact(bits: Array) -> Array:
        if case.is_bfloat:
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        return bits.view(np.float16).astype(np.float64)

    worst = 0.0
    for seq, length in enumerate(case.lens):
        first = max(0, length - case.window) if case.window else 0
        for head in range(case.kv_heads * case.group):
            key, value = (exact(encode(tokens[seq][side, first:, head // case.group])) for side in range(2))
            scores = key @ exact(encode(query[seq, head])) * 0.125
            if case.softcap > 0:
                scores = case.softcap * np.tanh(scores / case.softcap)
            shares = np.exp(scores)
            expected = shares @ value / shares.sum() if length else np.zeros(case.head_dim)
            difference = float(np.abs(exact(out[seq, head]) - expected).max())
            worst = difference if not difference <= worst else worst
    return worst


CASES = [
    Case(),
    Case(is_bfloat=False),
    Case(lens=(200,), kv_heads=1, group=8, block_size=24, num_blocks=2, is_bfloat=False),
    Case(lens=(90, 33), kv_heads=1, block_size=8, window=20),
    Case(lens=(40, 5), kv_heads=1, group=4, softcap=2.0, head_dim=128, num_blocks=2),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("case", CASES)
def test_compiled_kernels_agree_with_exact_attention(architecture: str, case: Case) -> None:
    outcome = execute(text_of(architecture), case)
    assert outcome.error <= (2e-2 if case.is_bfloat else 3e-3)
    assert outcome.conflicts == 0
    if case.window == 0:
        assert outcome.copied_sectors == sum(case.lens) * case.kv_heads * 2 * case.head_dim * 2 // 32


def _swap_registers(text: str) -> str:
    pattern = r"(mma\.sync\S+\s+\{[^}]*\}, \{)(%r\d+), (%r\d+), (%r\d+)"
    return re.sub(pattern, r"\1\2, \4, \3", text.replace(",%", ", %"))


def _without_block_barrier(text: str) -> str:
    """Without the first barrier of the kernel that runs."""
    entry = re.search(r"\.entry \w*attend_mma\w*BFloatELi64E", text)
    assert entry is not None
    return text[: entry.end()] + re.sub(r"bar\.sync[^;]*;", "", text[entry.end() :], count=1)


FAULTS: dict[str, Callable[[str], str]] = {
    "fragment registers exchanged": _swap_registers,
    "values not transposed": lambda text: text.replace("x4.trans.shared", "x4.shared"),
    "shares not transposed": lambda text: re.sub(r"movmatrix\S+\s+(%r\d+), ?(%r\d+);", r"mov.b32 \1, \2;", text),
    "wait for one group too few": lambda text: re.sub(r"(cp\.async\.wait_group) 2", r"\1 3", text),
    "no barrier of the warp": lambda text: re.sub(r"bar\.warp\.sync[^;]*;", "", text),
    "no barrier of the block": _without_block_barrier,
    "zeros not filled in": lambda text: re.sub(r"(cp\.async\.cg[^;]*, 16),[^;,]*;", r"\1, 16;", text),
    "one warp's share forgotten": lambda text: text.replace("shfl.sync.bfly.b32", "shfl.sync.idx.b32"),
}


def test_every_fault_planted_in_compiled_code_is_caught() -> None:
    text, case = text_of("compute_80"), Case(lens=(150, 17), kv_heads=1)
    assert execute(text, case).error <= 2e-2
    missed = []
    for name, plant in FAULTS.items():
        changed = plant(text)
        assert changed != text, name
        try:
            error = execute(changed, case).error
        except Fault:
            continue
        if error <= 2e-2:
            missed.append(name)
    print(f"caught {len(FAULTS) - len(missed)} of {len(FAULTS)}")  # noqa: T201 - what the test is for
    assert missed == []


def test_faults_of_memory_stop_with_their_instruction() -> None:
    kernels = parse(text_of("compute_80"))
    memory = Global()
    tables = memory.add("tables", np.zeros(4, np.int64))
    memory.seal()
    plan = _kernel(kernels, "plan_kernel")
    nowhere = bytes(Arguments(num_seqs=1, kv_heads=1, q_heads=1)) + bytes(Plan(tile_rows=8))
    with pytest.raises(Fault, match=r"global memory out of range.*(ld|st)\.global"):
        Machine(plan, memory, 1, 512, 128, nowhere).run()
    empty = bytes(Arguments()) + bytes(Plan(first_tile=tables, first_unit=tables + 8, tile_rows=8))
    Machine(plan, memory, 1, 512, 128, empty).run()
    combine = _kernel(kernels, "combine_kernel")
    odd = bytes(Arguments()) + bytes(Plan(first_tile=tables + 4, first_unit=tables, num_blocks=1, tile_rows=8))
    with pytest.raises(Fault, match="misaligned"):
        Machine(combine, memory, 1, 128, 0, odd).run()
