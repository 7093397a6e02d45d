"""Lay the cached tokens of each sequence side by side, for attention functions that know no block table."""

from __future__ import annotations

import torch
from torch import Tensor

from looseleaf.errors import InvalidArgument
from looseleaf.ops.checks import (
    CACHE_8BIT_DTYPES,
    FLOAT_DTYPES,
    check_cache_dtypes,
    check_caches,
    check_no_grad,
    check_tensor,
    check_written,
)
from looseleaf.ops.contents import are_checked, check_block_ids, check_lengths, check_prefix_sums
from looseleaf.ops.native import REFUSALS, accepts, raise_refusal

__all__ = ["gather"]


def gather(
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    *,
    k_out: Tensor | None = None,
    v_out: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Copy the first tokens of each sequence into packed rows.

    Args:
        k_cache: [blocks, kv_heads, block_size, head_dim], any strides, last dimension contiguous; float32, float16,
            bfloat16, or float8_e4m3fn, float8_e5m2 or int8 with scales.
        v_cache: [blocks, kv_heads, block_size, v_head_dim], dtype of `k_cache`.
        block_table: int32 [seqs, columns], any row stride. Cells past the length may hold anything.
        cu_seq_lens: int32 [seqs + 1], prefix sums of the tokens of each sequence.
        k_out: [tokens, kv_heads, head_dim], to be filled; rows past `cu_seq_lens[-1]` stay as they are. None, together
            with `v_out`, for new tensors of `cu_seq_lens[-1]` rows, which reads that number from the device.
        v_out: [tokens, kv_heads, v_head_dim], dtype of `k_out`.
        k_scale: float32, 1 or kv_heads values, for 8-bit caches: key = stored x k_scale.
        v_scale: the same for values.

    Returns:
        `k_out` and `v_out`; new ones have the dtype of the caches, float32 for 8-bit caches.

    Raises:
        InvalidArgument: a shape, device, stride, length or block id that is not allowed, or a tensor that requires
            grad.
        InvalidType: a dtype that is not allowed. `k_out` and `v_out` are untouched in either case.

    >>> import torch
    >>> cache = torch.arange(6.0).view(3, 1, 2, 1)
    >>> table, sums = torch.tensor([[2, 1]], dtype=torch.int32), torch.tensor([0, 3], dtype=torch.int32)
    >>> keys, values = gather(cache, cache, table, sums)
    >>> keys.flatten().tolist()
    [4.0, 5.0, 2.0]
    """
    refusal: Exception | None = None
    if (
        k_out is not None
        and v_out is not None
        and accepts(k_cache, v_cache, block_table, cu_seq_lens, k_out, v_out, k_scale, v_scale)
    ):
        try:
            torch.ops.looseleaf.gather(k_cache, v_cache, block_table, cu_seq_lens, k_out, v_out, k_scale, v_scale)
        except REFUSALS as error:
            refusal = error  # the checks below find the argument
        else:
            return k_out, v_out
    check_caches(k_cache, v_cache)
    device = k_cache.device
    check_tensor(
        "block_table", block_table, shape={"seqs": None, "columns": None}, dtypes=(torch.int32,), device=device
    )
    num_seqs = block_table.size(0)
    check_tensor("cu_seq_lens", cu_seq_lens, shape={"seqs + 1": num_seqs + 1}, dtypes=(torch.int32,), device=device)
    if (k_out is None) != (v_out is None):
        raise InvalidArgument("k_out and v_out must both be tensors or both be None, one of them was None")
    if k_out is not None and v_out is not None:
        _check_outputs(k_out, v_out, k_cache, v_cache)
    dtype = k_out.dtype if k_out is not None else torch.float32 if k_cache.dtype in CACHE_8BIT_DTYPES else k_cache.dtype
    check_cache_dtypes(k_cache, dtype, k_scale=k_scale, v_scale=v_scale, owner="k_out")
    check_no_grad(k_cache=k_cache, v_cache=v_cache, k_out=k_out, v_out=v_out, k_scale=k_scale, v_scale=v_scale)
    if are_checked(device):
        num_rows = torch.iinfo(torch.int32).max if k_out is None else k_out.size(0)
        check_prefix_sums("cu_seq_lens", cu_seq_lens, num_rows=num_rows, rows_name="k_out")
        block_size = k_cache.size(2)
        lengths = cu_seq_lens.diff()
        check_lengths("the lengths in cu_seq_lens", lengths, columns=block_table.size(1), block_size=block_size)
        num_used = (lengths + (block_size - 1)).div(block_size, rounding_mode="floor")
        check_block_ids(block_table, None, num_used, k_cache.size(0))
    raise_refusal(refusal)

    if k_out is None or v_out is None:
        num_tokens = int(cu_seq_lens[-1])
        k_out = k_cache.new_empty((num_tokens, k_cache.size(1), k_cache.size(3)), dtype=dtype)
        v_out = v_cache.new_empty((num_tokens, v_cache.size(1), v_cache.size(3)), dtype=dtype)
    torch.ops.looseleaf.gather(k_cache, v_cache, block_table, cu_seq_lens, k_out, v_out, k_scale, v_scale)
    return k_out, v_out


def _check_outputs(k_out: Tensor, v_out: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    shape: dict[str, int | None] = {"tokens": None, "kv_heads": k_cache.size(1), "head_dim": k_cache.size(3)}
    check_tensor("k_out", k_out, shape=shape, dtypes=FLOAT_DTYPES, device=k_cache.device)
    shape = {"tokens": k_out.size(0), "kv_heads": k_cache.size(1), "v_head_dim": v_cache.size(3)}
    check_tensor("v_out", v_out, shape=shape, dtypes=(k_out.dtype,), device=k_cache.device)
    check_written("k_out", k_out)
    check_written("v_out", v_out)
