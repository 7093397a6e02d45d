"""Attend through block tables, and merge attention over disjoint sets of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from looseleaf.errors import InvalidArgument
from looseleaf.ops.checks import (
    FLOAT_DTYPES,
    check_apart,
    check_cache_dtypes,
    check_caches,
    check_flag,
    check_no_grad,
    check_number,
    check_tensor,
    check_whole,
    check_written,
)
from looseleaf.ops.contents import are_checked, check_block_ids, check_lengths, check_prefix_sums
from looseleaf.ops.native import REFUSALS, accepts, raise_refusal

__all__ = ["attend", "merge_states"]


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor,
    *,
    max_query_len: int,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    batch_invariant: bool = False,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from the packed query rows of a ragged batch to each sequence's cached tokens.

    The rows of a sequence are its last tokens: with `causal`, the last row sees every key and each row before it one
    fewer. A row that sees no key, and a row past `cu_query_lens[-1]`, gets 0 and a log-sum-exp of -inf.

    Args:
        q: [tokens, q_heads, head_dim], float32, float16 or bfloat16; q_heads is a multiple of kv_heads.
        k_cache: [blocks, kv_heads, block_size, head_dim], any strides, last dimension contiguous; the dtype of `q`, or
            float8_e4m3fn, float8_e5m2 or int8 with scales.
        v_cache: [blocks, kv_heads, block_size, v_head_dim], dtype of `k_cache`.
        block_table: int32 [seqs, columns], any row stride. Cells past the length or before the window may hold
            anything.
        seq_lens: int32 [seqs], tokens in the cache, those of this step included.
        cu_query_lens: int32 [seqs + 1], prefix sums of the rows of each sequence.
        max_query_len: at least the rows of every sequence; on the host, so that nothing is read back from a device.
        scale: factor of q x k; None for head_dim ** -0.5.
        causal: whether a row sees only keys up to its own position.
        window: keys that a row sees, its own position included; None for all.
        softcap: scores become softcap x tanh(score / softcap); 0 for as they are.
        sinks: float32 [q_heads], scores of a key without a value that every row sees.
        alibi_slopes: float32 [q_heads]; a score loses slope x distance to its key.
        k_scale: float32, 1 or kv_heads values, for 8-bit caches: key = stored x k_scale.
        v_scale: the same for values.
        batch_invariant: a sequence's result must not depend on its batch.
        out: [tokens, q_heads, v_head_dim], dtype of `q`, to be filled; None for a new one. Must not overlap `q` nor
            `lse`.
        lse: float32 [tokens, q_heads], to be filled; None for a new one.

    Returns:
        `out` and `lse`, the natural log-sum-exp of each row's scores.

    Raises:
        InvalidArgument: a shape, device, stride, length or block id that is not allowed, or a tensor that requires
            grad.
        InvalidType: a type or dtype that is not allowed. `out` and `lse` are untouched in either case.

    >>> import torch
    >>> k_cache, v_cache = torch.zeros(3, 1, 2, 1), torch.arange(6.0).view(3, 1, 2, 1)
    >>> out, lse = attend(
    ...     torch.zeros(1, 1, 1), k_cache, v_cache, torch.tensor([[2, 1]], dtype=torch.int32),
    ...     torch.tensor([3], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32), max_query_len=1)
    >>> out.item(), round(lse.item(), 4)  # mean of 4, 5, 2; ln 3
    (3.6666667461395264, 1.0986)
    """
    tables = (q, k_cache, v_cache, block_table, seq_lens, cu_query_lens)
    options = (causal, window, softcap, sinks, alibi_slopes, k_scale, v_scale, batch_invariant)
    refusal: Exception | None = None
    if accepts(*tables, sinks, alibi_slopes, k_scale, v_scale, out, lse):
        try:
            _check_numbers(max_query_len, causal, window, batch_invariant, scale, softcap)
            return _call(*tables, max_query_len=max_query_len, scale=scale, options=options, out=out, lse=lse)
        except REFUSALS as error:
            refusal = error  # the checks below find the argument

    _check_tables(q, k_cache, v_cache, block_table, seq_lens, cu_query_lens)
    check_cache_dtypes(k_cache, q.dtype, k_scale=k_scale, v_scale=v_scale, owner="q")
    _check_numbers(max_query_len, causal, window, batch_invariant, scale, softcap)
    for name, tensor in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        if tensor is not None:
            check_tensor(name, tensor, shape={"q_heads": q.size(1)}, dtypes=(torch.float32,), device=q.device)
    shape: dict[str, int | None] = {"tokens": q.size(0), "q_heads": q.size(1)}
    if lse is not None:
        check_tensor("lse", lse, shape=shape, dtypes=(torch.float32,), device=q.device)
    if out is not None:
        check_tensor("out", out, shape=shape | {"v_head_dim": v_cache.size(3)}, dtypes=(q.dtype,), device=q.device)
        check_written("out", out)
        check_apart("out", out, "q", q)
    if lse is not None:
        check_written("lse", lse)
        if out is not None:
            check_apart("out", out, "lse", lse)
    check_no_grad(q=q, k_cache=k_cache, v_cache=v_cache, sinks=sinks, alibi_slopes=alibi_slopes, out=out, lse=lse)
    check_no_grad(k_scale=k_scale, v_scale=v_scale)
    if are_checked(q.device):
        check_prefix_sums("cu_query_lens", cu_query_lens, num_rows=q.size(0), rows_name="q", max_len=max_query_len)
        _check_cells(k_cache, block_table, seq_lens, cu_query_lens, window=window)
    raise_refusal(refusal)

    return _call(*tables, max_query_len=max_query_len, scale=scale, options=options, out=out, lse=lse)


def _call(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *tables: Tensor,
    max_query_len: int,
    scale: float | None,
    options: tuple[object, ...],
    out: Tensor | None,
    lse: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The operator that fits what is to be filled."""
    factor = q.size(2) ** -0.5 if scale is None else scale
    arguments = (q, k_cache, v_cache, *tables, max_query_len, factor, *options)
    if out is None and lse is None:
        made: tuple[Tensor, Tensor] = torch.ops.looseleaf.attend(*arguments)
        return made
    if out is None:
        out = q.new_empty((q.size(0), q.size(1), v_cache.size(3)))
    if lse is None:
        lse = q.new_empty((q.size(0), q.size(1)), dtype=torch.float32)
    torch.ops.looseleaf.attend_out(*arguments, out=out, lse=lse)
    return out, lse


def _check_numbers(
    max_query_len: int,
    causal: object,
    window: int | None,
    batch_invariant: object,
    scale: float | None,
    softcap: float,
) -> None:
    """Check what an operator's schema would silently convert."""
    check_whole("max_query_len", max_query_len, least=0)
    if window is not None:
        check_whole("window", window, least=1)
    check_flag("causal", causal)
    check_flag("batch_invariant", batch_invariant)
    if scale is not None:
        check_number("scale", scale)
    check_number("softcap", softcap, least=0.0)


def _check_tables(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, cu_query_lens: Tensor
) -> None:
    """Check queries against caches, and the tables against each other."""
    check_caches(k_cache, v_cache)
    device = k_cache.device
    shape: dict[str, int | None] = {"tokens": None, "q_heads": None, "head_dim": k_cache.size(3)}
    check_tensor("q", q, shape=shape, dtypes=FLOAT_DTYPES, device=device)
    if q.size(1) == 0 or q.size(1) % k_cache.size(1):
        raise InvalidArgument(
            f"q must have a multiple of the caches' {k_cache.size(1)} kv_heads as q_heads, had {q.size(1)}"
        )
    check_tensor(
        "block_table", block_table, shape={"seqs": None, "columns": None}, dtypes=(torch.int32,), device=device
    )
    num_seqs = block_table.size(0)
    check_tensor("seq_lens", seq_lens, shape={"seqs": num_seqs}, dtypes=(torch.int32,), device=device)
    check_tensor("cu_query_lens", cu_query_lens, shape={"seqs + 1": num_seqs + 1}, dtypes=(torch.int32,), device=device)


def _check_cells(
    k_cache: Tensor, block_table: Tensor, seq_lens: Tensor, cu_query_lens: Tensor, *, window: int | None
) -> None:
    """Check lengths, and the ids in the cells that rows of this step will read."""
    block_size = k_cache.size(2)
    check_lengths("seq_lens", seq_lens, columns=block_table.size(1), block_size=block_size)
    query_lens = cu_query_lens.diff()
    num_used = (seq_lens + (block_size - 1)).div(block_size, rounding_mode="floor").where(query_lens > 0, 0)
    first_block = None
    if window is not None:
        first_key = (seq_lens - query_lens - (window - 1)).clamp_(min=0)
        first_block = first_key.div(block_size, rounding_mode="floor")
    check_block_ids(block_table, first_block, num_used, k_cache.size(0))


def merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention over two disjoint sets of keys into attention over both.

    Args:
        out_a: [tokens, q_heads, head_dim], float32, float16 or bfloat16.
        lse_a: float32 [tokens, q_heads], natural log-sum-exp; -inf where a row saw no key.
        out_b: shape and dtype of `out_a`.
        lse_b: as `lse_a`.

    Returns:
        out and lse of the union, new tensors.

    Raises:
        InvalidArgument: a shape, device or stride that is not allowed, or a tensor that requires grad.
        InvalidType: a dtype that is not allowed.

    >>> import math, torch
    >>> out, lse = merge_states(
    ...     torch.tensor([[[1.0]]]), torch.tensor([[math.log(3)]]), torch.tensor([[[5.0]]]), torch.tensor([[0.0]]))
    >>> round(out.item(), 4), round(lse.exp().item(), 4)
    (2.0, 4.0)
    """
    refusal: Exception | None = None
    if accepts(out_a, lse_a, out_b, lse_b):
        try:
            merged: tuple[Tensor, Tensor] = torch.ops.looseleaf.merge_states(out_a, lse_a, out_b, lse_b)
        except REFUSALS as error:
            refusal = error
        else:
            return merged
    shape: dict[str, int | None] = {"tokens": None, "q_heads": None, "head_dim": None}
    check_tensor("out_a", out_a, shape=shape, dtypes=FLOAT_DTYPES)
    shape = dict(zip(shape, out_a.shape, strict=True))
    check_tensor("out_b", out_b, shape=shape, dtypes=(out_a.dtype,), device=out_a.device)
    del shape["head_dim"]
    check_tensor("lse_a", lse_a, shape=shape, dtypes=(torch.float32,), device=out_a.device)
    check_tensor("lse_b", lse_b, shape=shape, dtypes=(torch.float32,), device=out_a.device)
    check_no_grad(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    raise_refusal(refusal)
    out, lse = torch.ops.looseleaf.merge_states(out_a, lse_a, out_b, lse_b)
    return out, lse
