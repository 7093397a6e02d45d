"""Attention over shuffled blocks: `ops.attend`, and PyTorch on keys and values that are gathered or contiguous."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from looseleaf import ops
from looseleaf.bench.measure import Measurement, Settings, measure
from looseleaf.cache import KVStorage

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["run"]

_Q_HEADS, _KV_HEADS, _HEAD_DIM, _BLOCK_SIZE = 32, 8, 128, 16
_TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.float16: (1e-3, 5e-4), torch.bfloat16: (8e-3, 4e-3)}
"""Relative, absolute. Outputs over 1,024 tokens are about 0.05. In float32 only the order of sums differs. In half
types both outputs are rounded, by half a unit in the last place each, and PyTorch rounds the weights: half a unit of
values that are about 1, however far they cancel."""


def run(settings: Settings, *, dtype: torch.dtype = torch.float32) -> list[Measurement]:
    """Decode of a batch, and a prompt, in float32, float16 or bfloat16."""
    size = 256 if settings.is_quick else 1024
    decode = _case("decode, 16 sequences", [size] * 16, 1, dtype, settings)
    return decode + _case("prompt", [size], size, dtype, settings)


def _case(name: str, lengths: list[int], num_new: int, dtype: torch.dtype, settings: Settings) -> list[Measurement]:
    generator = torch.Generator().manual_seed(0)
    columns = -(-max(lengths) // _BLOCK_SIZE)
    num_blocks = columns * len(lengths)
    storage = KVStorage(num_blocks, _BLOCK_SIZE, num_layers=1, num_kv_heads=_KV_HEADS, head_dim=_HEAD_DIM, dtype=dtype)
    table = (torch.randperm(num_blocks, generator=generator) + 1).reshape(len(lengths), columns).int()
    keys = [torch.randn(length, _KV_HEADS, _HEAD_DIM, generator=generator).to(dtype) for length in lengths]
    values = [torch.randn(length, _KV_HEADS, _HEAD_DIM, generator=generator).to(dtype) for length in lengths]
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        places = torch.arange(len(key))
        slots = table[row, places // _BLOCK_SIZE].long() * _BLOCK_SIZE + places % _BLOCK_SIZE
        ops.write(key, value, storage.k(0), storage.v(0), slots)
    q = torch.randn(num_new * len(lengths), _Q_HEADS, _HEAD_DIM, generator=generator).to(dtype)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    cu_query_lens = torch.arange(len(lengths) + 1, dtype=torch.int32) * num_new
    cu_seq_lens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    k_out = torch.empty(sum(lengths), _KV_HEADS, _HEAD_DIM, dtype=dtype)
    v_out = torch.empty_like(k_out)

    def paged() -> Tensor:
        out, _ = ops.attend(q, storage.k(0), storage.v(0), table, seq_lens, cu_query_lens, max_query_len=num_new)
        return out

    def each(packed_keys: list[Tensor], packed_values: list[Tensor]) -> Tensor:
        outputs = []
        queries = [one.transpose(0, 1)[None] for one in torch.split(q, num_new)]
        for query, key, value in zip(queries, packed_keys, packed_values, strict=True):
            out = scaled_dot_product_attention(query, key, value, is_causal=num_new > 1, enable_gqa=True)
            outputs.append(out[0].transpose(0, 1))
        return torch.cat(outputs)

    def gathered() -> Tensor:
        ops.gather(storage.k(0), storage.v(0), table, cu_seq_lens, k_out=k_out, v_out=v_out)
        return each(*([one.transpose(0, 1)[None] for one in torch.split(out, lengths)] for out in (k_out, v_out)))

    # As transformers' caches hold them, the heads outside: PyTorch takes about half as long on these.
    by_head = [[one.transpose(0, 1)[None].contiguous() for one in given] for given in (keys, values)]

    def contiguous() -> Tensor:
        return each(*by_head)

    expected = contiguous()
    rtol, atol = _TOLERANCES[dtype]
    for out in (paged(), gathered()):
        torch.testing.assert_close(out, expected, rtol=rtol, atol=atol)
    case = f"{name}, {max(lengths):,} tokens, {_Q_HEADS}/{_KV_HEADS} heads, {str(dtype).removeprefix('torch.')}"
    callables = {"contiguous, PyTorch sdpa": contiguous, "gathered, PyTorch sdpa": gathered, "looseleaf, paged": paged}
    return measure(case, callables, settings)
