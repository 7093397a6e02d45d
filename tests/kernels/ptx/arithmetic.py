"""Instructions that only compute: each a function of typed operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Function = Callable[..., Any]


def _divide(a: Array, b: Array) -> Any:
    """Integer division toward zero."""
    if np.dtype(a.dtype).kind == "u":
        return a // b
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _shift_left(a: Array, count: Array) -> Any:
    bits = a.dtype.itemsize * 8
    return np.where(count >= bits, a.dtype.type(0), a << np.minimum(count, bits - 1).astype(a.dtype))


def _shift_right(a: Array, count: Array) -> Any:
    bits = a.dtype.itemsize * 8
    shifted = a >> np.minimum(count, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(count >= bits, a.dtype.type(0), shifted)


def _fused(a: Array, b: Array, c: Array) -> Any:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)


def _multiply_high(a: Array, b: Array) -> Any:
    return ((a.astype(object) * b.astype(object)) >> (8 * a.dtype.itemsize)).astype(a.dtype)


def _fused_down(a: Array, b: Array, c: Array) -> Any:
    """`fma.rm`: rounded toward minus infinity."""
    exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    nearest = exact.astype(a.dtype)
    return np.where(nearest > exact, np.nextafter(nearest, a.dtype.type(-np.inf)), nearest)


def _permute(a: Array, b: Array, selector: Array) -> Any:
    """Four of the eight bytes of both; bit 3 of a nibble spreads its byte's sign instead."""
    both = b.astype(np.uint64) << np.uint64(32) | a
    result = np.zeros_like(a)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i) & np.uint32(15)
        byte = both >> (np.uint64(8) * (nibble & np.uint32(7)).astype(np.uint64)) & np.uint64(0xFF)
        signs = (byte >> np.uint64(7)) * np.uint64(0xFF)
        result |= np.where(nibble & 8, signs, byte).astype(np.uint32) << np.uint32(8 * i)
    return result


def _extract(a: Array, at: Array, length: Array) -> Any:
    """A field of bits inside of an integer; signed, its upper bit is spread."""
    bits = a.dtype.itemsize * 8
    end = at.astype(np.int64) + length.astype(np.int64)
    assert bool(((length > 0) & (end <= bits)).all())
    return (a << (bits - end).astype(a.dtype)) >> (bits - length.astype(np.int64)).astype(a.dtype)


COMPARISONS: dict[str, Function] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a <= b) | (a > b),
    "nan": lambda a, b: ~((a <= b) | (a > b)),
}

FUNCTIONS: dict[str, Function] = {
    "mov": lambda a: a,
    "cvta": lambda a: a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "fma": _fused,
    "neg": lambda a: -a,
    "abs": np.abs,
    "not": lambda a: ~a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "min": np.fmin,
    "max": np.fmax,
    "div": lambda a, b: a / b if a.dtype.kind == "f" else _divide(a, b),
    "rem": lambda a, b: a - _divide(a, b) * b,
    "rcp": lambda a: a.dtype.type(1) / a,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sqrt": np.sqrt,
    "copysign": lambda a, b: np.copysign(b, a),
    "prmt": _permute,
    "bfe": _extract,
    "selp": lambda a, b, is_first: np.where(is_first, a, b),
    "shl": _shift_left,
    "shr": _shift_right,
}


def function_of(words: tuple[str, ...]) -> Function:
    """The function of an opcode's words.

    Raises:
        KeyError: an instruction that is not known.
    """
    if words[0] == "mul" and "hi" in words:
        return _multiply_high
    if words[0] == "fma" and words[1] != "rn":
        return {"rm": _fused_down}[words[1]]
    return FUNCTIONS[words[0]]


def to_bfloat_bits(value: Array) -> Array:
    """fp32 to the bits of bf16, rounded to nearest even."""
    bits = value.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FFF), rounded).astype(np.uint16)


def pair_function(name: str, word: str) -> Function:
    """`mul` and `fma` of pairs of fp16 or bf16 in 32 bits, each rounded once."""

    def halves(pairs: Array) -> Array:
        bits = np.ascontiguousarray(pairs).view(np.uint16).reshape(-1, 2)
        if word == "f16x2":
            return bits.view(np.float16).astype(np.float64)
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)

    def run(a: Array, b: Array, *c: Array) -> Array:
        result = halves(a) * halves(b) + (halves(c[0]) if c else 0.0)
        # Products of two such numbers fit fp32, so that rounding them twice is rounding them once.
        bits = (to_half_bits if word == "f16x2" else to_bfloat_bits)(result.astype(np.float32))
        return np.ascontiguousarray(bits).view(np.uint32).reshape(-1)

    assert name in ("mul", "fma")
    return run


def to_half_bits(value: Array) -> Array:
    """fp32 to the bits of fp16, rounded to nearest even."""
    return value.astype(np.float16).view(np.uint16)


def convert(value: Array, target: np.dtype[Any], rounding: tuple[str, ...]) -> Array:
    """`cvt` between integers and floats."""
    if value.dtype.kind == "f" and target.kind != "f":
        limits = np.iinfo(target)
        rounded = np.rint(value) if "rni" in rounding else np.trunc(value)
        return np.clip(np.nan_to_num(rounded.astype(np.float64)), limits.min, float(limits.max)).astype(target)
    if value.dtype.kind == "f" and "rni" in rounding:
        return np.rint(value).astype(target)
    if "sat" in rounding:
        return np.fmin(np.fmax(value, 0), 1).astype(target)
    return value.astype(target)
