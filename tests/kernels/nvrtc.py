"""The CUDA kernels through NVIDIA's runtime compiler, which PyTorch's CUDA wheels bring along: no nvcc and no GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tests.kernels import emulated

if TYPE_CHECKING:
    from pathlib import Path

HEADERS = {
    "cstdint": (
        "using int8_t = signed char; using uint8_t = unsigned char;"
        "using int16_t = short; using uint16_t = unsigned short;"
        "using int32_t = int; using uint32_t = unsigned; using int64_t = long; using uint64_t = unsigned long;"
    ),
    "cmath": (
        "#define NAN __int_as_float(0x7fc00000)\n#define INFINITY __int_as_float(0x7f800000)\n"
        "#define HUGE_VALF __int_as_float(0x7f800000)\n"
        "namespace std { __device__ inline float nearbyint(float x) { return ::nearbyintf(x); } }"
    ),
    "cstring": (
        "namespace std { __device__ inline void* memcpy(void* to, const void* from, unsigned long count)"
        " { return ::memcpy(to, from, count); } }"
    ),
}
"""What the kernels use of the standard library, which this compiler does not have."""

_SHAPES = [(64, 1), (64, 2), (128, 1), (128, 2), (256, 1)]
_SPACE = "looseleaf::cuda::"
MMA = [
    f"{_SPACE}attend_mma_kernel<{_SPACE}MmaShape<looseleaf::{element}, {dim}, {tiles}>>"
    for element in ("Half", "BFloat")
    for dim, tiles in _SHAPES
]
MMA_8BIT = [
    f"{_SPACE}attend_mma_kernel<{_SPACE}MmaShape<looseleaf::{element}, {dim}, {tiles}, {stored}>>"
    for element in ("Half", "BFloat")
    for dim, tiles in _SHAPES[2:]
    for stored in (f"{_SPACE}E4M3", f"{_SPACE}E5M2", "signed char")
]
SIMT = [
    f"{_SPACE}attend_simt_kernel<{element}>"
    for element in ("float", "looseleaf::Half", "looseleaf::BFloat", f"{_SPACE}E4M3", f"{_SPACE}E5M2", "signed char")
]
PLAIN = [f"{_SPACE}{name}_kernel" for name in ("plan", "combine", "write", "gather", "copy", "merge")]
HEADERS_OF = {
    "attend_mma": "attend_mma_kernel",
    "attend_simt": "attend_simt_kernel",
    "attend_plan_kernel": "plan_kernel",
    "attend_combine_kernel": "combine_kernel",
    "move_kernels": "cuda",
}
"""A part of the names of each header's kernels."""
FILES = {
    "mma": ["attend_mma"],
    "mma 8-bit": ["attend_mma"],
    "simt": ["attend_simt"],
    "plain": ["attend_plan_kernel", "attend_combine_kernel", "move_kernels"],
}
INSTANCES = {
    "mma": MMA,
    "mma 8-bit": MMA_8BIT,
    "simt": SIMT,
    "plain": PLAIN,
}


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler says about one kernel."""

    name: str
    registers: int
    spilled_bytes: int


def _library() -> Any:
    return pytest.importorskip(
        "cuda.bindings.nvrtc", reason="needs cuda-bindings, which PyTorch's CUDA wheels bring along"
    )


def header_of(kernel: str) -> str:
    """The header of looseleaf/ that defines a kernel."""
    return next(file for file, part in HEADERS_OF.items() if part in kernel)


@cache
def ptx_of(kernel: str, architecture: str) -> str:
    """The PTX of one kernel, `looseleaf::cuda::...` as C++ names it, for `compute_80` and the like."""
    return _compile([header_of(kernel)], [kernel], architecture)[0].rstrip(b"\0").decode()


def compile_kernels(group: str, architecture: str) -> tuple[bytes, list[Resources]]:
    """Compile a group of kernels.

    Args:
        group: a key of `INSTANCES`.
        architecture: `sm_80` and the like for machine code, `compute_80` for PTX.

    Returns:
        The code, and what each kernel takes (nothing for PTX).
    """
    return _compile(FILES[group], INSTANCES[group], architecture)


def _compile(files: list[str], kernels: list[str], architecture: str) -> tuple[bytes, list[Resources]]:
    return compile_text("\n".join(f'#include "looseleaf/{file}.h"' for file in files), kernels, architecture)


def compile_text(text: str, kernels: list[str], architecture: str) -> tuple[bytes, list[Resources]]:
    """As `compile_kernels`, of a source of its own."""
    nvrtc = _library()
    root: Path = emulated.sources()
    try:
        _, program = nvrtc.nvrtcCreateProgram(
            text.encode(),
            b"kernels.cu",
            len(HEADERS),
            [h.encode() for h in HEADERS.values()],
            [h.encode() for h in HEADERS],
        )
    except RuntimeError as error:  # the bindings are there, the compiler is not
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    for name in kernels:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    options = [f"--gpu-architecture={architecture}", "--std=c++20", f"-I{root / 'include'}", "-default-device"]
    options += ["--ptxas-options=-v"] if architecture.startswith("sm_") else []
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode().rstrip("\0")
    assert int(status) == 0, log
    kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
    code = _bytes(getattr(nvrtc, f"nvrtcGet{kind}Size"), getattr(nvrtc, f"nvrtcGet{kind}"), program)
    pattern = (
        r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    )
    found = [Resources(m[1], int(m[4]), int(m[2]) + int(m[3])) for m in re.finditer(pattern, log, re.DOTALL)]
    return code, found


def _bytes(size_of: Any, get: Any, program: Any) -> bytes:
    _, size = size_of(program)
    # Filled in place, as the bindings want it. Never one byte alone: the interpreter has one object for each value.
    content = b" " * max(int(size), 2)
    get(program, content)
    return content[: int(size)]
