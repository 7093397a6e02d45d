"""That `make asan` sees what the bindings write; the other tests of this folder show what it finds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OVERRUN = """
import ctypes
import numpy as np
from looseleaf import BlockManager

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
# Two numbers, and an array that claims three.
memory = libc.malloc(ctypes.c_size_t(8))
last_page_len = np.ctypeslib.as_array((ctypes.c_int32 * 3).from_address(memory)).view(np.int32)
manager = BlockManager(8, 4)
sequences = [manager.admit([1]) for _ in range(3)]
manager.csr(sequences, np.zeros(4, np.int32), np.zeros(3, np.int32), last_page_len)
print("not reported")
"""


@pytest.mark.skipif("libasan" not in os.environ.get("LD_PRELOAD", ""), reason="only under `make asan`")
def test_a_write_past_the_end_of_an_array_is_reported() -> None:
    result = subprocess.run([sys.executable, "-c", OVERRUN], capture_output=True, text=True, check=False)
    assert result.returncode != 0, result.stdout
    assert "heap-buffer-overflow" in result.stderr
    # By the instrumented code itself: the runtime alone sees no more than copies and fills.
    assert "WRITE of size 4" in result.stderr
    assert "csr" in result.stderr
