"""Executes a kernel's PTX on a whole grid at once: a register is an array with an element for each thread.

The threads with the lowest program counter run first, so what diverged meets again. Loads, stores, barriers, copies and
matrix instructions check what they are given; what they raise names the instruction.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.kernels.ptx.arithmetic import (
    COMPARISONS,
    convert,
    function_of,
    pair_function,
    to_bfloat_bits,
    to_half_bits,
)
from tests.kernels.ptx.memory import FIRST_ADDRESS, Array, Fault, Global, Shared

if TYPE_CHECKING:
    from tests.kernels.ptx.parse import Instruction, Kernel

Execute = Callable[[Array], None]
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_END = 1 << 40
OF_WARP = ("shfl", "vote", "ldmatrix", "movmatrix", "mma")


def type_of(word: str) -> np.dtype[Any]:
    """`s32`, `b64`, `f32` and the like."""
    return np.dtype({"u": "u", "b": "u", "s": "i", "f": "f"}[word[0]] + str(int(word[1:]) // 8))


class Machine:
    """One launch."""

    def __init__(
        self,
        kernel: Kernel,
        memory: Global,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        parameters: bytes,
    ) -> None:
        assert len(parameters) >= kernel.parameter_bytes
        assert threads % 32 == 0
        self.kernel, self.memory, self.threads = kernel, memory, threads
        self.grid, num_blocks = grid, grid[0] * grid[1]
        self.count = num_blocks * threads
        lanes = np.arange(self.count)
        self.block, self.thread = lanes // threads, lanes % threads
        self.lane, self.warp = lanes % 32, lanes // 32
        self.shared = Shared(num_blocks, shared_bytes, self.block, self.warp)
        self.parameters = np.frombuffer(parameters, np.uint8)
        bits = kernel.registers.items()
        self.registers = {n: np.zeros(self.count, bool if b == 1 else _UNSIGNED[b]) for n, b in bits}
        self.pc = np.zeros(self.count, np.int64)
        self.copies: list[tuple[Array, Array, Array, Array, Array]] = []
        self.barrier = np.full(self.count, -1)  # where a lane waits
        self.open_group = np.zeros(self.count, np.int64)
        self.num_executed = 0
        self.conflicts = 0
        self.copied_sectors = 0  # of 32 bytes, by asynchronous copies
        self.issued = 0  # instructions, once for each warp that took part
        self._code: list[Execute | None] = [None] * len(kernel.code)  # made where first needed: much never runs
        # Where threads that were apart may meet, or part: all between is done in one go.
        self._is_target = np.zeros(len(kernel.code) + 1, bool)
        self._is_target[list(kernel.labels.values())] = True
        names = [code.words[:2] for code in kernel.code]
        self._is_of_warp = [words[0] in OF_WARP or words == ("bar", "warp") for words in names]
        self._is_control = [words[0] in ("bra", "ret", "exit") or words == ("bar", "sync") for words in names]
        self._held = np.zeros(self.count, bool)  # before an operation of their warp, until the other lanes come

    def run(self, most: int = 2_000_000) -> None:
        """Until every thread has ended.

        Raises:
            Fault: an instruction that was given what it must not be given.
        """
        with np.errstate(all="ignore"):
            while True:
                runnable = np.where((self.barrier < 0) & ~self._held, self.pc, _END)
                at = int(runnable.min())
                if at == _END:
                    break
                lanes = np.flatnonzero(runnable == at)
                if self._is_of_warp[at]:
                    lanes = self._gather_warps(at)
                    if len(lanes) == 0:
                        continue
                end = self._run_straight(at, lanes)
                self.num_executed += end - at
                self.issued += (end - at) * len(np.unique(self.warp[lanes]))
                assert self.num_executed < most, "does not end"
            if self._held.any():
                text = self.kernel.code[self.pc[self._held][0]].text
                raise Fault(f"executed by part of a warp; {text}")
            waiting = np.flatnonzero(self.barrier >= 0)
            if len(waiting):
                raise Fault(f"barrier reached by part of a block; {self.kernel.code[self.barrier[waiting[0]]].text}")

    def _gather_warps(self, at: int) -> Array:
        """Lanes before an operation of a warp whose other lanes are there too; the rest is held until they are."""
        there = np.flatnonzero((self.pc == at) & (self.barrier < 0))
        counts = np.bincount(self.warp[there], minlength=self.count // 32)
        is_whole = counts[self.warp[there]] == 32
        self._held[there] = ~is_whole
        whole: Array = there[is_whole]
        return whole

    def _run_straight(self, at: int, lanes: Array) -> int:
        """From one instruction to the first after it that may part or join threads; returns where that was."""
        is_whole = len(lanes) % 32 == 0 and bool((self.lane[lanes].reshape(-1, 32) == np.arange(32)).all())
        while True:
            instruction, active = self.kernel.code[at], lanes
            if self._is_of_warp[at] and not is_whole:
                self.pc[lanes] = at
                return at
            if self._is_control[at]:
                self.pc[lanes] = at + 1
            if instruction.guard is not None:
                guard = self.registers[instruction.guard][lanes]
                active = lanes[~guard if instruction.is_negated else guard]
            if len(active):
                execute = self._code[at]
                if execute is None:
                    execute = self._code[at] = self._compile(instruction)
                execute(active)
            at += 1
            if self._is_control[at - 1]:
                return at
            if self._is_target[at]:
                self.pc[lanes] = at
                return at

    def wait_at_barrier(self, lanes: Array) -> None:
        """Let lanes wait until all of their block that live are at the same barrier."""
        self.barrier[lanes] = self.pc[lanes] - 1
        self._open_barriers(lanes)

    def _end(self, lanes: Array) -> None:
        self.pc[lanes] = _END
        self._open_barriers(lanes)  # which wait for those that live

    def _open_barriers(self, lanes: Array) -> None:
        for block in np.unique(self.block[lanes]):
            own = (self.block == block) & (self.pc < _END)
            places = np.unique(self.barrier[own])
            if len(places) == 1 and places[0] >= 0:
                self.barrier[own] = -1
                self.shared.block_epoch[block] += 1

    def source(self, operand: str, kind: np.dtype[Any]) -> Callable[[Array], Array]:
        """Reads an operand as a type, for some lanes."""
        if operand in self.registers:
            register = self.registers[operand]
            if register.dtype.itemsize == kind.itemsize and register.dtype != bool:
                typed = register.view(kind)
                return lambda lanes: typed if len(lanes) == len(typed) else typed[lanes]
            return lambda lanes: (register if len(lanes) == len(register) else register[lanes]).astype(kind)
        width, _ = self.grid
        special = {"%tid.x": self.thread, "%ctaid.x": self.block % width, "%ctaid.y": self.block // width}
        special["%laneid"] = self.lane
        if operand in special:
            values = special[operand].astype(kind)
            return lambda lanes: values[lanes]
        constant = self._constant(operand, kind)
        return lambda lanes: np.full(len(lanes), constant, kind)

    def _constant(self, operand: str, kind: np.dtype[Any]) -> Any:
        named = {
            "%ntid.x": self.threads,
            "%nctaid.x": self.grid[0],
            "%nctaid.y": self.grid[1],
            "%ntid.y": 1,
            "%ntid.z": 1,
        }
        if operand in named:
            return kind.type(named[operand])
        if operand in self.kernel.shared:
            return kind.type(0)
        if operand in self.kernel.parameters:
            return kind.type(self.kernel.parameters[operand])
        if operand.startswith("0f"):
            value = np.array(int("0x" + operand[2:], 0), np.uint32)
            return value.view(np.float32)[()] if kind.kind == "f" else value.view(kind)[()]
        number = int(operand.rstrip("U"), 0) & ((1 << (8 * kind.itemsize)) - 1)
        return np.array(number, _UNSIGNED[8 * kind.itemsize]).view(kind)[()]

    def write(self, operand: str, lanes: Array, value: Array) -> None:
        """Writes a register of some lanes."""
        register = self.registers[operand]
        is_same = value.dtype.itemsize == register.dtype.itemsize
        content = value.view(register.dtype) if is_same else value.astype(register.dtype)
        if len(lanes) == self.count:
            register[:] = content
        else:
            register[lanes] = content

    def address(self, operand: str) -> Callable[[Array], Array]:
        """`[register+offset]` or `[symbol+offset]`, as an integer."""
        found = re.fullmatch(r"\[(.+?)(?:\+(-?\d+))?\]", operand)
        assert found is not None, operand
        offset = int(found[2] or 0)
        if found[1] in self.registers:
            width = self.registers[found[1]].dtype
            read = self.source(found[1], width)
            return lambda lanes: read(lanes).astype(np.int64) + offset
        start = int(self._constant(found[1], np.dtype(np.int64))) + offset
        return lambda lanes: np.full(len(lanes), start, np.int64)

    def whole_warps(self, lanes: Array, text: str) -> None:
        """Refuses an operation of a warp that some of its lanes do not take part in."""
        if len(lanes) % 32 or not (self.lane[lanes].reshape(-1, 32) == np.arange(32)).all():
            raise Fault(f"executed by part of a warp; {text}")

    def _compile(self, instruction: Instruction) -> Execute:
        from tests.kernels.ptx import warps  # noqa: PLC0415 - both name each other

        words, operands = instruction.words, instruction.operands
        name = words[0]
        if name == "bra":
            target = self.kernel.labels[operands[0]]
            return lambda lanes: self.pc.__setitem__(lanes, target)
        if name in ("ret", "exit"):
            return self._end
        if name in warps.COMPILERS:
            return warps.COMPILERS[name](self, instruction)
        if name in ("ld", "st"):
            return self._access(words, operands, instruction.text)
        if name == "mov" and "{" in operands[0] + operands[1]:
            return self._pack(operands, int(words[1][1:]))
        return self._compile_arithmetic(words, operands)

    def _compile_arithmetic(self, words: tuple[str, ...], operands: tuple[str, ...]) -> Execute:
        name, count = words[0], len(operands) - 1
        if name == "cvt":
            return self._convert(words, operands)
        if words[-1] in ("f16x2", "bf16x2"):
            return self._simple(operands, pair_function(name, words[-1]), [np.dtype(np.uint32)] * count)
        kind = np.dtype(bool) if words[-1] == "pred" else type_of(words[-1])
        if name == "bfi":
            return self._insert(operands, kind)
        if "wide" in words:
            wide = np.dtype(kind.kind + str(2 * kind.itemsize))
            function = function_of(words)
            widened = lambda a, b, *c: function(a.astype(wide), b.astype(wide), *c)  # noqa: E731 - one of the functions
            return self._simple(operands, widened, [kind, kind, wide][:count])
        function = COMPARISONS[words[1]] if name == "setp" else function_of(words)
        word = np.dtype(np.uint32)
        if name == "bfe":
            return self._simple(operands, function, [kind, word, word])
        last = {"selp": np.dtype(bool), "shl": word, "shr": word}.get(name, kind)
        return self._simple(operands, function, [*[kind] * (count - 1), last])

    def _simple(self, operands: tuple[str, ...], function: Callable[..., Any], kinds: list[np.dtype[Any]]) -> Execute:
        sources = [self.source(operand, kind) for operand, kind in zip(operands[1:], kinds, strict=True)]
        target = operands[0]
        return lambda lanes: self.write(target, lanes, np.asarray(function(*[read(lanes) for read in sources])))

    def _insert(self, operands: tuple[str, ...], kind: np.dtype[Any]) -> Execute:
        def insert(a: Array, b: Array, at: Array, length: Array) -> Any:
            one = kind.type(1)
            mask = ((one << length.astype(kind)) - one) << at.astype(kind)
            return (b & ~mask) | ((a << at.astype(kind)) & mask)

        return self._simple(operands, insert, [kind, kind, np.dtype(np.uint32), np.dtype(np.uint32)])

    def _convert(self, words: tuple[str, ...], operands: tuple[str, ...]) -> Execute:
        if words[-2] in ("bf16x2", "f16x2"):
            bits = to_bfloat_bits if words[-2] == "bf16x2" else to_half_bits
            pair = lambda high, low: bits(high).astype(np.uint32) << np.uint32(16) | bits(low)  # noqa: E731
            return self._simple(operands, pair, [np.dtype(np.float32)] * 2)
        target, kind = type_of(words[-2]), type_of(words[-1])
        return self._simple(operands, lambda value: convert(value, target, words), [kind])

    def _pack(self, operands: tuple[str, ...], bits: int) -> Execute:
        whole, half = np.dtype(_UNSIGNED[bits]), np.dtype(_UNSIGNED[bits // 2])
        shift = whole.type(bits // 2)
        if operands[0].startswith("{"):
            names = [part.strip() for part in operands[0].strip("{}").split(",")]
            read = self.source(operands[1], whole)

            def unpack(lanes: Array) -> None:
                value = read(lanes)
                for name, part in zip(names, (value, value >> shift), strict=True):
                    if name != "_":
                        self.write(name, lanes, part.astype(half))

            return unpack
        names = [part.strip() for part in operands[1].strip("{}").split(",")]
        low, high = (self.source(name, half) for name in names)
        return lambda lanes: self.write(
            operands[0], lanes, low(lanes).astype(whole) | high(lanes).astype(whole) << shift
        )

    def _access(self, words: tuple[str, ...], operands: tuple[str, ...], text: str) -> Execute:
        is_load = words[0] == "ld"
        kind = type_of(words[-1])
        names = [part.strip() for part in operands[0 if is_load else 1].strip("{}").split(",")]
        width = kind.itemsize * len(names)
        place = operands[1 if is_load else 0]
        address = self.address(place)
        if "param" in words:
            return self._load_parameter(names, address, kind)
        values = [] if is_load else [self.source(name, kind) for name in names]
        is_shared = "shared" in words or "shared_cta" in words

        def access(lanes: Array) -> None:
            addresses = address(lanes)
            if is_shared:
                index = self.shared.index(lanes, addresses, width, text)
                self.shared.watch(lanes, index, width, is_write=not is_load, text=text)
                content = self.shared.bytes
            elif is_load and int(addresses.max()) < FIRST_ADDRESS:  # generic, to the parameters
                index, content = addresses, self.parameters
            else:
                index = self.memory.index(addresses, width, text)
                content = self.memory.bytes
            for part, name in enumerate(names):
                at = index[:, None] + part * kind.itemsize + np.arange(kind.itemsize)
                if is_load:
                    self.write(name, lanes, np.ascontiguousarray(content[at]).view(kind)[:, 0])
                else:
                    content[at] = np.ascontiguousarray(values[part](lanes))[:, None].view(np.uint8)

        return access

    def _load_parameter(self, names: list[str], address: Callable[[Array], Array], kind: np.dtype[Any]) -> Execute:
        width = kind.itemsize

        def load(lanes: Array) -> None:
            start = address(lanes)
            for part, name in enumerate(names):
                at = start[:, None] + part * width + np.arange(width)
                self.write(name, lanes, np.ascontiguousarray(self.parameters[at]).view(kind)[:, 0])

        return load

    def count_sectors(self, lanes: Array, index: Array, width: int) -> None:
        """Sectors that the lanes of each warp touch together."""
        sectors = np.stack([self.warp[lanes], index // 32], 1)
        last = np.stack([self.warp[lanes], (index + width - 1) // 32], 1)
        self.copied_sectors += len(np.unique(np.concatenate([sectors, last]), axis=0))
