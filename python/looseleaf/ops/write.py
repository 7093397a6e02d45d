"""Write the keys and values of new tokens into their slots."""

from __future__ import annotations

import torch
from torch import Tensor

from looseleaf.ops.checks import (
    FLOAT_DTYPES,
    check_cache_dtypes,
    check_caches,
    check_no_grad,
    check_tensor,
    check_written,
)
from looseleaf.ops.contents import are_checked, check_slots
from looseleaf.ops.native import REFUSALS, accepts, raise_refusal

__all__ = ["write"]


def write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Write one key and one value per token into the caches.

    Where a slot stands twice in a call, it ends up with one of the two rows, never with a mixture.

    Args:
        k: [tokens, kv_heads, head_dim], float32, float16 or bfloat16.
        v: [tokens, kv_heads, v_head_dim], same dtype.
        k_cache: [blocks, kv_heads, block_size, head_dim], any strides, last dimension contiguous; the dtype of `k`, or
            float8_e4m3fn, float8_e5m2 or int8 with scales.
        v_cache: [blocks, kv_heads, block_size, v_head_dim], dtype of `k_cache`.
        slot_mapping: int64 [tokens], block x block_size + offset; -1 skips the token.
        k_scale: float32, 1 or kv_heads values, for 8-bit caches: what is stored is k / k_scale, saturated.
        v_scale: the same for `v`.

    Raises:
        InvalidArgument: a shape, device, stride or slot that is not allowed, or a tensor that requires grad.
        InvalidType: a dtype that is not allowed. Nothing was written in either case.

    >>> import torch
    >>> k_cache, v_cache = torch.zeros(2, 1, 4, 1), torch.zeros(2, 1, 4, 1)
    >>> rows = torch.tensor([[[7.0]], [[8.0]]])
    >>> write(rows, rows, k_cache, v_cache, torch.tensor([5, -1]))
    >>> k_cache.flatten().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 0.0, 0.0]
    """
    refusal: Exception | None = None
    if accepts(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale):
        try:
            torch.ops.looseleaf.write(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
        except REFUSALS as error:
            refusal = error  # the checks below find the argument
        else:
            return
    check_caches(k_cache, v_cache)
    _, kv_heads, _, head_dim = k_cache.shape
    shape: dict[str, int | None] = {"tokens": None, "kv_heads": kv_heads, "head_dim": head_dim}
    check_tensor("k", k, shape=shape, dtypes=FLOAT_DTYPES, device=k_cache.device)
    shape = {"tokens": k.size(0), "kv_heads": kv_heads, "v_head_dim": v_cache.size(3)}
    check_tensor("v", v, shape=shape, dtypes=(k.dtype,), device=k_cache.device)
    check_tensor(
        "slot_mapping", slot_mapping, shape={"tokens": k.size(0)}, dtypes=(torch.int64,), device=k_cache.device
    )
    check_cache_dtypes(k_cache, k.dtype, k_scale=k_scale, v_scale=v_scale, owner="k")
    check_written("k_cache", k_cache)
    check_written("v_cache", v_cache)
    check_no_grad(k=k, v=v, k_cache=k_cache, v_cache=v_cache, k_scale=k_scale, v_scale=v_scale)
    if are_checked(k.device):
        check_slots(slot_mapping, k_cache.size(0) * k_cache.size(2))
    raise_refusal(refusal)
    torch.ops.looseleaf.write(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
