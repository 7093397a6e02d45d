"""Instructions of whole warps and blocks: barriers, shuffles, votes, asynchronous copies, matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kernels.ptx.machine import Execute, Machine
    from tests.kernels.ptx.memory import Array
    from tests.kernels.ptx.parse import Instruction

_G, _T = np.arange(32) // 4, np.arange(32) % 4
_B32 = np.dtype(np.uint32)


def _names(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{}").split(",")]


def barrier(machine: Machine, instruction: Instruction) -> Execute:
    """`bar.sync` and `bar.warp.sync`."""
    text = instruction.text
    if "warp" in instruction.words:

        def warp(lanes: Array) -> None:
            machine.whole_warps(lanes, text)
            machine.shared.warp_epoch[np.unique(machine.warp[lanes])] += 1

        return warp
    return machine.wait_at_barrier


def shuffle(machine: Machine, instruction: Instruction) -> Execute:
    """`shfl.sync` of whole warps."""
    mode, operands, text = instruction.words[2], instruction.operands, instruction.text
    target, _, is_from_there = operands[0].partition("|")
    value, by = machine.source(operands[1], _B32), machine.source(operands[2], np.dtype(np.int32))

    def run(lanes: Array) -> None:
        machine.whole_warps(lanes, text)
        lane = machine.lane[lanes]
        step = by(lanes)
        sources = {"bfly": lane ^ step, "idx": step & 31, "up": lane - step, "down": lane + step}[mode]
        is_inside = (sources >= 0) & (sources < 32)
        sources = np.where(is_inside, sources, lane)
        content = value(lanes)
        machine.write(target, lanes, content[np.arange(len(lanes)) - lane + sources])
        if is_from_there:
            machine.write(is_from_there, lanes, is_inside)

    return run


def vote(machine: Machine, instruction: Instruction) -> Execute:
    """`vote.sync.any.pred` of whole warps."""
    assert instruction.words[2] == "any", instruction.text
    read = machine.source(instruction.operands[1], np.dtype(bool))

    def run(lanes: Array) -> None:
        machine.whole_warps(lanes, instruction.text)
        votes = read(lanes).reshape(-1, 32).any(1)
        machine.write(instruction.operands[0], lanes, np.repeat(votes, 32))

    return run


def copy(machine: Machine, instruction: Instruction) -> Execute:
    """`cp.async`: a copy lands when its group is waited for; until then its target is NaN."""
    words, operands, text = instruction.words, instruction.operands, instruction.text
    if words[2] == "commit_group":
        return lambda lanes: machine.open_group.__setitem__(lanes, machine.open_group[lanes] + 1)
    if words[2] in ("wait_group", "wait_all"):
        allowed = int(operands[0]) if words[2] == "wait_group" else 0
        return lambda lanes: _land(machine, lanes, allowed, text)
    width = int(operands[2], 0)
    to, start, size = machine.address(operands[0]), machine.address(operands[1]), machine.source(operands[3], _B32)

    def issue(lanes: Array) -> None:
        target = machine.shared.index(lanes, to(lanes), width, text)
        is_read = size(lanes) > 0
        source = np.zeros(len(lanes), np.int64)
        source[is_read] = machine.memory.index(start(lanes)[is_read], width, text)
        machine.count_sectors(lanes[is_read], source[is_read], width)
        machine.shared.watch(lanes, target, width, is_write=True, text=text)
        machine.shared.bytes[target[:, None] + np.arange(width)] = 0xFF
        machine.copies.append((lanes, target, source, is_read, machine.open_group[lanes].copy()))

    return issue


def _land(machine: Machine, lanes: Array, allowed: int, text: str) -> None:
    waits = np.zeros(machine.count, bool)
    waits[lanes] = True
    left = []
    chunk = np.arange(16)
    for own, target, source, is_read, group in machine.copies:
        is_done = waits[own] & (group < machine.open_group[own] - allowed)
        content = np.where(is_read[:, None], machine.memory.bytes[source[:, None] + chunk], 0)
        machine.shared.bytes[target[is_done][:, None] + chunk] = content[is_done]
        machine.shared.watch(own[is_done], target[is_done], 16, is_write=True, text=text)
        if not is_done.all():
            left.append(tuple(part[~is_done] for part in (own, target, source, is_read, group)))
    machine.copies = left  # type: ignore[assignment]


def load_matrices(machine: Machine, instruction: Instruction) -> Execute:
    """`ldmatrix.x4`, plain and transposed."""
    text = instruction.text
    assert "x4" in instruction.words, text
    targets, address = _names(instruction.operands[0]), machine.address(instruction.operands[1])
    is_transposed = "trans" in instruction.words

    def run(lanes: Array) -> None:
        machine.whole_warps(lanes, text)
        index = machine.shared.index(lanes, address(lanes), 16, text)
        machine.shared.watch(lanes, index, 16, is_write=False, text=text)
        banks = np.sort((index // 16 % 8).reshape(-1, 8), 1)
        machine.conflicts += int((banks[:, 1:] == banks[:, :-1]).sum())
        rows = np.ascontiguousarray(machine.shared.bytes[index[:, None] + np.arange(16)]).view(np.uint16)
        matrices = rows.reshape(-1, 4, 8, 8)
        matrices = matrices.transpose(0, 1, 3, 2) if is_transposed else matrices
        pairs = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, 4, 32)
        for number, target in enumerate(targets):
            machine.write(target, lanes, np.ascontiguousarray(pairs[:, number]).reshape(-1))

    return run


def transpose(machine: Machine, instruction: Instruction) -> Execute:
    """`movmatrix.trans`."""
    read = machine.source(instruction.operands[1], _B32)

    def run(lanes: Array) -> None:
        machine.whole_warps(lanes, instruction.text)
        matrices = np.ascontiguousarray(read(lanes)).view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
        machine.write(instruction.operands[0], lanes, np.ascontiguousarray(matrices).view(np.uint32).reshape(-1))

    return run


def multiply(machine: Machine, instruction: Instruction) -> Execute:
    """`mma.m16n8k16` with fp32 sums."""
    text = instruction.text
    assert "m16n8k16" in instruction.words, text
    is_bfloat = "bf16" in instruction.words
    targets = _names(instruction.operands[0])
    kinds: list[np.dtype[Any]] = [_B32, _B32, np.dtype(np.float32)]
    a, b, c = (
        [machine.source(name, kind) for name in _names(operand)]
        for operand, kind in zip(instruction.operands[1:4], kinds, strict=True)
    )

    def halves(pairs: Array) -> Array:
        bits = np.ascontiguousarray(pairs).view(np.uint16).reshape(-1, 32, 2)
        if is_bfloat:
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return bits.view(np.float16).astype(np.float32)

    def run(lanes: Array) -> None:
        machine.whole_warps(lanes, text)
        count = len(lanes) // 32
        left, right = np.empty((count, 16, 16), np.float32), np.empty((count, 16, 8), np.float32)
        sums = np.empty((count, 16, 8), np.float32)
        for r in range(4):
            values = halves(a[r](lanes))
            for half in range(2):
                left[:, _G + 8 * (r % 2), 2 * _T + half + 8 * (r // 2)] = values[:, :, half]
            sums[:, _G + 8 * (r // 2), 2 * _T + r % 2] = c[r](lanes).reshape(count, 32)
        for r in range(2):
            values = halves(b[r](lanes))
            for half in range(2):
                right[:, 2 * _T + half + 8 * r, _G] = values[:, :, half]
        sums += left @ right
        for r, target in enumerate(targets):
            part = sums[:, _G + 8 * (r // 2), 2 * _T + r % 2]
            machine.write(target, lanes, np.ascontiguousarray(part).reshape(-1))

    return run


COMPILERS: dict[str, Callable[[Machine, Instruction], Execute]] = {
    "bar": barrier,
    "barrier": barrier,
    "shfl": shuffle,
    "vote": vote,
    "cp": copy,
    "ldmatrix": load_matrices,
    "movmatrix": transpose,
    "mma": multiply,
}
