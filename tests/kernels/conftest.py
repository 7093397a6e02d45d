"""The instruction sets that the loaded library can be forced to on this processor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterator

# All sets stand in the library that this session loads: the processor chooses one, these tests force the others.
os.environ.setdefault("LOOSELEAF_SETS", "all")

SETS = ("portable", "avx2", "avx512", "avx512_bf16", "avx512_amx")


def force(library: ctypes.CDLL, name: str | None) -> bool:
    """Force a set; whether library and processor have it."""
    library.looseleaf_force_kernels(None if name is None else name.encode())
    return name is None or library.looseleaf_kernel_name(0) is not None


@pytest.fixture
def forced_set(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Iterator[str]:
    """Runs a test on the set that `indirect` parametrization names; skips where it is missing."""
    is_there = force(library, request.param)
    try:
        if not is_there:
            pytest.skip(f"this processor has no {request.param}")
        yield request.param
    finally:
        force(library, None)


@pytest.fixture
def each_set(library: ctypes.CDLL) -> Iterator[Callable[[], Iterator[str]]]:
    """Iterates over the sets that are there, each forced while it is current."""

    def sets() -> Iterator[str]:
        found = 0
        for name in SETS:
            if force(library, name):
                found += 1
                yield name
        assert found > 0

    yield sets
    force(library, None)


@pytest.fixture
def with_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
