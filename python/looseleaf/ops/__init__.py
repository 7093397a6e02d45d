"""The operators on paged KV caches: tensors in, tensors out, no allocator.

Each is a thin checked wrapper over `torch.ops.looseleaf`, which may be called directly. PyTorch implementations stand
behind all of them; a compiled library for the CPU or for CUDA takes over where one is loaded.
`kernel_name` says which kernels a call on CPU tensors would run.

Shapes, dtypes, devices and strides are checked always; what stands in tables, lengths and mappings on the CPU always,
on another device with the environment variable LOOSELEAF_CHECK=1, since such a check waits for the device.
"""

from looseleaf.ops import reference as _reference  # noqa: F401 - registers the implementations
from looseleaf.ops.attend import attend, merge_states
from looseleaf.ops.copy import copy_blocks, swap_blocks
from looseleaf.ops.gather import gather
from looseleaf.ops.native import kernel_name
from looseleaf.ops.write import write

__all__ = ["attend", "copy_blocks", "gather", "kernel_name", "merge_states", "swap_blocks", "write"]
