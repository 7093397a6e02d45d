"""The classic kernel of classic.cu for tensors: compiled by nvcc when the benchmark begins, called through ctypes."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from looseleaf.ops import build
from looseleaf.ops.cuda_build import CudaTools

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = Path(__file__).with_name("classic.cu")


class _Arguments(ctypes.Structure):
    """ClassicArguments of classic.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "block_table", "seq_lens")),
        *((name, ctypes.c_int64) for name in ("block_stride", "head_stride", "token_stride", "table_stride")),
        ("group", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


class Classic:
    """Decode of bf16, head dim 128."""

    def __init__(self, library: Path) -> None:
        self._call = ctypes.CDLL(str(library)).looseleaf_classic
        self._call.restype = ctypes.c_char_p
        self._call.argtypes = [ctypes.POINTER(_Arguments), *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def attend(self, query: Tensor, caches: tuple[Tensor, Tensor], table: Tensor, lens: Tensor, longest: int) -> Tensor:
        """One token for each sequence; on a card, on torch's current stream."""
        k_cache, v_cache = caches
        assert query.dtype == k_cache.dtype == torch.bfloat16
        assert query.size(2) == 128
        assert query.is_contiguous()
        assert k_cache.stride() == v_cache.stride()
        out = torch.empty_like(query)
        arguments = _Arguments(
            *(tensor.data_ptr() for tensor in (query, k_cache, v_cache, out, table, lens)),
            *(2 * stride for stride in k_cache.stride()[:3]),
            table.stride(0),
            query.size(1) // k_cache.size(1),
            k_cache.size(2),
            128**-0.5,
        )
        stream = torch.cuda.current_stream().cuda_stream if query.is_cuda else 0
        error = self._call(ctypes.byref(arguments), query.size(1), query.size(0), longest, stream)
        if error is not None:
            raise RuntimeError(error.decode())
        return out


def compile_classic(folder: Path) -> Classic:
    """The kernel for this machine's card.

    Raises:
        CompilerUnavailable: no toolkit that fits.
        subprocess.CalledProcessError: the compiler failed.
    """
    toolkit, sources = CudaTools.find().toolkit, build.find_sources()
    assert sources is not None
    major, minor = torch.cuda.get_device_capability()
    target = folder / "classic.so"
    command = [
        str(toolkit.nvcc),
        "-std=c++20",
        "-O3",
        "-w",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        f"-arch=sm_{major}{minor}",
    ]
    command += [f"-I{sources / 'include'}", f"-I{sources}", f"-L{toolkit.libraries}", "-cudart", "static"]
    subprocess.run([*command, "-o", str(target), str(SOURCE)], check=True, capture_output=True, text=True, timeout=120)
    return Classic(target)
