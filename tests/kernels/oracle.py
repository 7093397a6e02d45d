"""Attention in fp64 over the tokens themselves: no blocks, no tables, no tiles. What kernels are measured against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `attend`, as the operator names them."""

    scale: float
    causal: bool = True
    window: int | None = None
    softcap: float = 0.0
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None


def attend_exactly(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Attention of the last rows of one sequence.

    Args:
        query: [rows, q_heads, head_dim]; the last row stands at the last token.
        key: [tokens, kv_heads, head_dim], what the cache holds, dequantized.
        value: [tokens, kv_heads, v_head_dim].
        options: of the call.

    Returns:
        fp64 [rows, q_heads, v_head_dim] and [rows, q_heads].
    """
    num_rows, q_heads, _ = query.shape
    num_tokens, kv_heads, v_head_dim = value.shape
    out = torch.zeros(num_rows, q_heads, v_head_dim, dtype=torch.float64)
    lse = torch.full((num_rows, q_heads), -torch.inf, dtype=torch.float64)
    positions = torch.arange(num_tokens - num_rows, num_tokens)
    tokens = torch.arange(num_tokens)
    distance = positions[:, None] - tokens[None, :]
    is_seen = torch.ones(num_rows, num_tokens, dtype=torch.bool)
    if options.causal:
        is_seen &= distance >= 0
    if options.window is not None:
        is_seen &= distance < options.window
    has_key = is_seen.any(1)
    if not bool(has_key.any()):
        return out, lse
    for head in range(q_heads):
        kv_head = head // (q_heads // kv_heads)
        scores = query[:, head].double() @ key[:, kv_head].double().T * options.scale
        if options.softcap > 0:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        if options.alibi_slopes is not None:
            scores = scores - options.alibi_slopes[head].double() * distance.abs()
        scores = scores.masked_fill(~is_seen, -torch.inf)[has_key]
        if options.sinks is not None:
            sink = options.sinks[head].double().expand(len(scores), 1)
            total = torch.cat([scores, sink], 1).logsumexp(1)
        else:
            total = scores.logsumexp(1)
        out[has_key, head] = (scores - total[:, None]).exp() @ value[:, kv_head].double()
        lse[has_key, head] = total
    return out, lse


def error_of(result: Tensor, exact: Tensor) -> float:
    """||result - exact|| / ||exact||, in fp64."""
    norm = float(exact.double().norm())
    return float((result.double() - exact.double()).norm()) / (norm if norm > 0 else 1.0)
