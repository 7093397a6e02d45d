"""The instruction sets that CPU kernels are compiled for, and which of them this processor runs.

Environment variables:
    LOOSELEAF_ISA: the instruction set that the kernels use, `portable`, `avx2`, `avx512`, `avx512_bf16` or
        `avx512_amx`. A call fails where the library or the processor lacks it. Without it the library chooses.
    LOOSELEAF_SETS: the instruction sets that are compiled, separated by commas, or `all`. Without it, those that this
        processor chooses from.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from looseleaf.errors import InvalidArgument

__all__ = ["SETS", "all_sets", "check_isa", "chosen_sets", "expected_set", "processor_sets"]

_AVX512 = ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
SETS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": _AVX512,
    "avx512_vbmi": (*_AVX512, "-mavx512vbmi"),
    "avx512_bf16": (*_AVX512, "-mavx512bf16"),
    "avx512_amx": (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
"""Each set is one file of csrc/cpu, compiled with these flags; `avx512_vbmi` only helps the AVX-512 ones."""

_FORCED_SETS = tuple(name for name in SETS if name != "avx512_vbmi")
_AVX2_FEATURES = frozenset({"avx2", "fma", "f16c"})
_AVX512_FEATURES = _AVX2_FEATURES | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_FEATURES: dict[str, frozenset[str]] = {
    "portable": frozenset(),
    "avx2": _AVX2_FEATURES,
    "avx512": _AVX512_FEATURES,
    "avx512_vbmi": _AVX512_FEATURES | {"avx512vbmi"},
    "avx512_bf16": _AVX512_FEATURES | {"avx512_bf16"},
    "avx512_amx": _AVX512_FEATURES | {"avx512_bf16", "amx_tile", "amx_bf16"},
}
"""What /proc/cpuinfo calls the features that a set needs."""


def check_isa() -> None:
    """Check the value of LOOSELEAF_ISA.

    Raises:
        InvalidArgument: no name of a set that may be forced.

    >>> check_isa()
    """
    forced = os.environ.get("LOOSELEAF_ISA")
    if forced and forced not in _FORCED_SETS:
        raise InvalidArgument(f"LOOSELEAF_ISA must be {', '.join(_FORCED_SETS)} or empty, was {forced!r}")


def all_sets() -> tuple[str, ...]:
    """Every instruction set of this kind of processor, as wheels carry them.

    >>> "portable" in all_sets()
    True
    """
    return tuple(SETS) if _is_x86() else ("portable",)


def processor_sets() -> tuple[str, ...]:
    """The sets that this processor runs; every one of its kind where it does not say what it has.

    >>> "portable" in processor_sets()
    True
    """
    features, _ = _processor()
    return tuple(name for name in all_sets() if features is None or _FEATURES[name] <= features)


def chosen_sets() -> tuple[str, ...]:
    """The instruction sets to compile: those of LOOSELEAF_SETS, or those that this processor chooses from.

    Raises:
        InvalidArgument: LOOSELEAF_SETS names an unknown one.

    >>> set(chosen_sets()) <= set(SETS)
    True
    """
    text = os.environ.get("LOOSELEAF_SETS")
    if not text:
        return _host_sets()
    names = tuple(all_sets() if text == "all" else text.split(","))
    unknown = set(names) - set(SETS)
    if unknown:
        raise InvalidArgument(f"LOOSELEAF_SETS must name {', '.join(SETS)} or all, was {text!r}")
    return tuple(name for name in SETS if name in names)


def expected_set(compiled: tuple[str, ...], *, is_bfloat16: bool) -> str | None:
    """The set that a library takes on this processor, as csrc/cpu/dispatch.cpp chooses it.

    Args:
        compiled: the sets of the library.
        is_bfloat16: whether the cache holds bf16, which AMD's processors multiply in pairs.

    Returns:
        Its name; None where LOOSELEAF_ISA names one that the library or the processor lacks, or none is left.

    >>> expected_set(("portable",), is_bfloat16=False) in ("portable", None)
    True
    """
    runs = processor_sets()
    usable = [name for name in _FORCED_SETS if name in compiled and name in runs]
    if "avx512" not in compiled:  # the ones above it are made from it
        usable = [name for name in usable if not name.startswith("avx512")]
    forced = os.environ.get("LOOSELEAF_ISA")
    if forced:
        return forced if forced in usable else None
    _, is_amd = _processor()
    if not (is_amd and is_bfloat16 and "avx512_amx" not in runs):
        usable = [name for name in usable if name != "avx512_bf16"] or usable
    return usable[-1] if usable else None


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _processor() -> tuple[frozenset[str] | None, bool]:
    """The features of this processor, if it tells them, and whether AMD made it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None, False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return frozenset(flags), "AuthenticAMD" in text


def _host_sets() -> tuple[str, ...]:
    """The sets that this processor chooses from; every one of its kind where it does not say what it has."""
    features, is_amd = _processor()
    runs = processor_sets()
    if features is None or not _is_x86():
        return runs
    forced = os.environ.get("LOOSELEAF_ISA")
    sets = {forced} if forced in _FORCED_SETS else set()
    if "avx512" in runs:
        sets |= {"avx512", "avx512_vbmi", "avx512_amx"} & set(runs)
        sets |= {"avx512_bf16"} & set(runs) if is_amd else set()
    else:
        sets.add("avx2" if "avx2" in runs else "portable")
    return tuple(name for name in SETS if name in sets)
