"""PTX text to instructions: what NVRTC and nvcc print, no more of the language than that."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `guard` is a predicate register, or None."""

    words: tuple[str, ...]  # of the opcode: ("ld", "global", "b32")
    operands: tuple[str, ...]
    guard: str | None
    is_negated: bool
    text: str


@dataclass(slots=True)
class Kernel:
    """An entry function."""

    name: str
    parameters: dict[str, int] = field(default_factory=dict)  # offsets
    parameter_bytes: int = 0
    registers: dict[str, int] = field(default_factory=dict)  # bits
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)  # names of the one dynamic array, at address 0


def parse(text: str) -> dict[str, Kernel]:
    """The kernels of a module."""
    text = re.sub(r"//[^\n]*", "", text).replace("::", "_")
    text = re.sub(r"^\s*\.(?:loc|file|pragma)\b[^\n]*$", "", text, flags=re.MULTILINE)
    shared = set(re.findall(r"\.extern \.shared \.align \d+ \.b8 (\w+)\[\]", text))
    kernels = {}
    for entry in re.finditer(r"\.entry (\w+)\((.*?)\)([^{]*)\{", text, re.DOTALL):
        end = _closing_brace(text, entry.end())
        kernel = Kernel(entry[1], shared=shared)
        _read_parameters(kernel, entry[2])
        for statement in re.findall(r"[^;:]+[;:]", text[entry.end() : end]):
            _read_statement(kernel, statement)
        kernels[kernel.name] = kernel
    return kernels


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.start()
    raise ValueError("a kernel without an end")


def _read_parameters(kernel: Kernel, text: str) -> None:
    offset = 0
    for item in re.finditer(r"\.param (?:\.align (\d+) )?\.\w?(\d+)[^,]*?(\w+)(?:\[(\d+)\])?\s*(?:,|$)", text):
        width = int(item[2]) // 8
        alignment = int(item[1] or width)
        offset = -(-offset // alignment) * alignment
        kernel.parameters[item[3]] = offset
        offset += width * int(item[4] or 1)
    kernel.parameter_bytes = offset


def _read_statement(kernel: Kernel, text: str) -> None:
    statement = " ".join(text[:-1].split()).lstrip("{} ")
    if text.endswith(":"):
        kernel.labels[statement] = len(kernel.code)
        return
    if statement.startswith(".reg"):
        _, kind, names = statement.split(None, 2)
        bits = 1 if kind == ".pred" else int(re.sub(r"\D", "", kind))
        for name in re.findall(r"(%?\w+)(?:<(\d+)>)?", names):
            kernel.registers |= {f"{name[0]}{i}": bits for i in range(int(name[1]))} if name[1] else {name[0]: bits}
        return
    found = re.match(r"(?:@(!?)(%\w+) )?(\S+) ?(.*)$", statement)
    assert found is not None, statement
    assert found[3] not in ("call", "call.uni"), "a call: the compiler did not inline everything"
    words = tuple(found[3].split("."))
    kernel.code.append(Instruction(words, _split(found[4]), found[2], bool(found[1]), statement))


def _split(text: str) -> tuple[str, ...]:
    """Operands at commas outside of braces and brackets."""
    return tuple(part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text) if part.strip())
