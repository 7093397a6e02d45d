"""Checks of what an argument is: tensor, shape, dtype, device, strides. Always done, before any write.

Each error names the argument, what it was and what is allowed. What stands inside a tensor is checked by `contents`.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from looseleaf.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CACHE_8BIT_DTYPES",
    "FLOAT_DTYPES",
    "Shape",
    "check_apart",
    "check_cache_dtypes",
    "check_caches",
    "check_dense",
    "check_flag",
    "check_no_grad",
    "check_number",
    "check_scale",
    "check_tensor",
    "check_tensor_list",
    "check_whole",
    "check_written",
]

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CACHE_8BIT_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
_MAX_FLOAT = torch.finfo(torch.float32).max
_MAX_WHOLE = torch.iinfo(torch.int64).max
_CACHE_DTYPES = FLOAT_DTYPES + CACHE_8BIT_DTYPES

Shape: TypeAlias = "Mapping[str, int | None]"
"""Names of the dimensions in order, each with the size that it must have, or None for any."""


def check_tensor(
    name: str,
    value: object,
    *,
    shape: Shape,
    dtypes: tuple[torch.dtype, ...],
    device: torch.device | None = None,
) -> None:
    """Check one tensor; its last dimension must be contiguous.

    Raises:
        InvalidType: not a tensor, or of another dtype.
        InvalidArgument: another shape or device, or a strided last dimension.
    """
    if not isinstance(value, Tensor):
        raise InvalidType(f"{name} must be a tensor, was {type(value).__name__}")
    if value.dtype not in dtypes:
        raise InvalidType(f"{name} must be {_listed(dtypes)}, was {value.dtype}")
    check_dense(name, value)
    sizes = value.shape
    if len(sizes) != len(shape) or any(
        wanted is not None and size != wanted for size, wanted in zip(sizes, shape.values(), strict=True)
    ):
        raise InvalidArgument(f"{name} must have the shape {_described(shape)}, was {list(sizes)}")
    if device is not None and value.device != device:
        raise InvalidArgument(f"{name} must be on {device} as the other tensors are, was on {value.device}")
    if sizes[-1] > 1 and value.stride(-1) != 1:
        raise InvalidArgument(f"{name} must have a contiguous last dimension, its strides were {value.stride()}")


def check_dense(name: str, tensor: Tensor) -> None:
    """Check that a tensor has strides: a sparse one does not."""
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{name} must be dense (torch.strided), was {tensor.layout}")


def check_written(name: str, tensor: Tensor) -> None:
    """Check that each element of a tensor that is to be written has memory of its own."""
    if tensor.numel() and any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise InvalidArgument(f"{name} is written and must not be expanded, its strides were {tensor.stride()}")


def check_apart(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Check that the memory between the first and the last element of two tensors does not overlap."""
    if torch.compiler.is_compiling() or not tensor.numel() or not other.numel():
        return
    start, stop = _memory(tensor)
    other_start, other_stop = _memory(other)
    if start < other_stop and other_start < stop and tensor.device.type != "meta":
        raise InvalidArgument(f"{name} must not overlap the memory of {other_name}")


def _memory(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def check_caches(k_cache: Tensor, v_cache: Tensor, *, device: torch.device | None = None) -> None:
    """Check that two tensors are a layer's caches [blocks, kv_heads, block_size, dim]; their dims may differ."""
    any_cache: dict[str, int | None] = {"blocks": None, "kv_heads": None, "block_size": None, "head_dim": None}
    check_tensor("k_cache", k_cache, shape=any_cache, dtypes=_CACHE_DTYPES, device=device)
    blocks, kv_heads, block_size, head_dim = k_cache.shape
    if 0 in (kv_heads, block_size, head_dim):
        raise InvalidArgument(f"k_cache must have heads, tokens and elements, was {list(k_cache.shape)}")
    shape = {"blocks": blocks, "kv_heads": kv_heads, "block_size": block_size, "v_head_dim": None}
    check_tensor("v_cache", v_cache, shape=shape, dtypes=(k_cache.dtype,), device=k_cache.device)


def check_cache_dtypes(
    k_cache: Tensor, dtype: torch.dtype, *, k_scale: Tensor | None, v_scale: Tensor | None, owner: str
) -> None:
    """Check that caches keep this dtype, or an 8-bit one with both scales.

    Args:
        k_cache: stands for both caches.
        dtype: of the tensors outside the cache.
        k_scale: float32, 1 or kv_heads values; None for none.
        v_scale: as `k_scale`.
        owner: name of the argument that has `dtype`.
    """
    is_8bit = k_cache.dtype in CACHE_8BIT_DTYPES
    if not is_8bit and k_cache.dtype != dtype:
        raise InvalidType(
            f"k_cache and v_cache must be {dtype} as {owner} is, or {_listed(CACHE_8BIT_DTYPES)} with scales; "
            f"they were {k_cache.dtype}"
        )
    kv_heads = k_cache.size(1)
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is None:
            if is_8bit:
                raise InvalidArgument(f"{name} is needed with {k_cache.dtype} caches, was None")
            continue
        if not is_8bit:
            raise InvalidArgument(f"{name} is for 8-bit caches, must be None with {k_cache.dtype} ones")
        check_scale(name, scale, kv_heads=kv_heads, device=k_cache.device)


def check_scale(name: str, scale: object, *, kv_heads: int, device: torch.device) -> None:
    """Check a scale: float32, one value for all KV heads or one for each."""
    if not isinstance(scale, Tensor):
        raise InvalidType(f"{name} must be a tensor, was {type(scale).__name__}")
    if scale.dtype != torch.float32:
        raise InvalidType(f"{name} must be torch.float32, was {scale.dtype}")
    if scale.dim() > 1 or scale.numel() not in (1, kv_heads) or not scale.is_contiguous():
        raise InvalidArgument(
            f"{name} must have 1 or {kv_heads} (kv_heads) values side by side, was {list(scale.shape)}"
        )
    if scale.device != device:
        raise InvalidArgument(f"{name} must be on {device} as the other tensors are, was on {scale.device}")


def check_no_grad(**tensors: Tensor | None) -> None:
    """Refuse tensors whose gradient autograd would expect: no operator has one."""
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor is not None and tensor.requires_grad:
                raise InvalidArgument(
                    f"{name} requires grad, and no operator of looseleaf has a gradient; "
                    "call it under torch.no_grad() or pass a detached tensor"
                )


def check_whole(name: str, value: object, *, least: int) -> int:
    """Check a whole number."""
    if isinstance(value, bool | Tensor) or not hasattr(value, "__index__"):
        raise InvalidType(f"{name} must be an int, was {type(value).__name__}")
    number = index(value)
    if number < least:
        raise InvalidArgument(f"{name} must be at least {least}, was {number}")
    if number > _MAX_WHOLE:
        raise InvalidArgument(f"{name} must be at most {_MAX_WHOLE}, was {number}")
    return number


def check_number(name: str, value: object, *, least: float | None = None) -> float:
    """Check a number that is finite in float32, which is what kernels compute in."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{name} must be a float, was {type(value).__name__}")
    if not -_MAX_FLOAT <= value <= _MAX_FLOAT or (least is not None and value < least):
        allowed = "as a float32 finite" if least is None else f"as a float32 finite and at least {least:g}"
        raise InvalidArgument(f"{name} must be {allowed}, was {value}")
    return float(value)


def check_flag(name: str, value: object) -> None:
    """Check a bool: a tensor or a count in its place is a mistake."""
    if not isinstance(value, bool):
        raise InvalidType(f"{name} must be True or False, was {type(value).__name__}")


def check_tensor_list(name: str, value: object) -> list[Tensor]:
    """Check a list or tuple of tensors that count blocks in their first dimension, all of one device."""
    if not isinstance(value, list | tuple):
        raise InvalidType(f"{name} must be a list of tensors, was {type(value).__name__}")
    for position, tensor in enumerate(value):
        if not isinstance(tensor, Tensor):
            raise InvalidType(f"{name}[{position}] must be a tensor, was {type(tensor).__name__}")
        check_dense(f"{name}[{position}]", tensor)
        if tensor.dim() < 2:  # noqa: PLR2004 - blocks and something in them
            raise InvalidArgument(f"{name}[{position}] must have the shape [blocks, ...], was {list(tensor.shape)}")
        if tensor.device != value[0].device:
            raise InvalidArgument(f"{name}[{position}] must be on {value[0].device}, was on {tensor.device}")
        if tensor.size(-1) > 1 and tensor.stride(-1) != 1:
            raise InvalidArgument(
                f"{name}[{position}] must have a contiguous last dimension, its strides were {tensor.stride()}"
            )
    return list(value)


def _listed(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype) for dtype in dtypes)


def _described(shape: Shape) -> str:
    return "[" + ", ".join(name if size is None else f"{name}={size}" for name, size in shape.items()) + "]"
