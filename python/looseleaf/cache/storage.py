"""The tensors of a paged KV cache: one per layer."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from looseleaf.config import dtype_name
from looseleaf.errors import InvalidArgument, InvalidType, LooseleafError, OutOfMemory
from looseleaf.host_memory import available_host_memory

__all__ = ["KVStorage", "as_device", "available_memory"]

_ALIGNMENT = 4096
"""Bytes; a layer starts at a page of memory, so that no row of a head straddles a cache line more than it must."""


class KVStorage:
    """Keys and values of all blocks, per layer one tensor [num_blocks + 1, 2, kv_heads, block_size, head_dim].

    Index 0 of the second dimension holds keys, index 1 values. Block 0 is the null block, which no manager hands out.
    The memory is zeroed; on the CPU it is taken from the system only as blocks are written.
    """

    __slots__ = ("block_size", "device", "dtype", "layers", "num_blocks")

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype | str,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
    ) -> None:
        """Allocate.

        Args:
            num_blocks: usable blocks, the null block not counted.
            block_size: tokens of one block.
            num_layers: layers that keep keys and values.
            num_kv_heads: KV heads of a layer.
            head_dim: elements of one key, and of one value.
            dtype: float32, float16 or bfloat16, or its name.
            device: device or its name.
            pin_memory: page-locked memory of the host, for asynchronous copies to and from a GPU.

        Raises:
            OutOfMemory: the device does not have that much memory.
            InvalidArgument: a size is below 1, or another dtype or device.
            InvalidType: a size is not an int.
        """
        sizes = {"num_layers": num_layers, "num_blocks": num_blocks, "num_kv_heads": num_kv_heads}
        sizes |= {"block_size": block_size, "head_dim": head_dim}
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int):
                raise InvalidType(f"{name} must be an int, was {type(size).__name__}")
            if size < 1:
                raise InvalidArgument(f"{name} must be at least 1, was {size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype: torch.dtype = getattr(torch, dtype_name(dtype))
        self.device = as_device(device)
        shape = (num_blocks + 1, 2, num_kv_heads, block_size, head_dim)
        num_bytes = num_layers * math.prod(shape) * self.dtype.itemsize
        available = available_memory(self.device) if self.device.type == "cpu" else None
        if available is not None and num_bytes > available:
            # The system promises memory that it does not have, and ends a process that uses it: refuse here.
            raise OutOfMemory(num_bytes, available, str(self.device))
        try:
            # Tensors made in inference mode could not be written outside it.
            with torch.inference_mode(mode=False):
                self.layers: tuple[Tensor, ...] = tuple(self._zeros(shape, pin_memory) for _ in range(num_layers))
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise OutOfMemory(num_bytes, available_memory(self.device) or 0, str(self.device)) from error

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers, the null block included."""
        return sum(layer.numel() * layer.element_size() for layer in self.layers)

    def k(self, layer: int) -> Tensor:
        """Keys of a layer, a view [num_blocks + 1, kv_heads, block_size, head_dim]."""
        return self.layers[layer][:, 0]

    def v(self, layer: int) -> Tensor:
        """Values of a layer, a view [num_blocks + 1, kv_heads, block_size, head_dim]."""
        return self.layers[layer][:, 1]

    def _zeros(self, shape: tuple[int, ...], pin_memory: bool) -> Tensor:  # noqa: FBT001 - one caller
        if self.device.type != "cpu" or pin_memory:
            return torch.zeros(shape, dtype=self.dtype, device=self.device, pin_memory=pin_memory)
        # NumPy gets zeroed memory from the system, on huge pages where it can; torch.zeros would write all of it.
        num_bytes = math.prod(shape) * self.dtype.itemsize
        memory = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        return torch.from_numpy(memory[start : start + num_bytes]).view(self.dtype).view(shape)


def available_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on a device; None where it does not tell, as a host other than Linux."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return available_host_memory()
    except LooseleafError:
        return None


def as_device(device: torch.device | str) -> torch.device:
    """The device of a name, with its number; checks that it is there."""
    try:
        # An empty tensor knows the number of the current GPU, and whether there is one.
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise InvalidArgument(f"device cannot be {str(device)!r}: {str(error).splitlines()[0]}") from error
