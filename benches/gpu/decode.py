"""Decode on a card: our kernel and what it is measured against, on blocks that no call before has read.

Baselines are checked against our result before they are timed: gather + SDPA, PyTorch's attention of variable lengths
with a block table, and the classic kernel of classic.cu. One that cannot run a case says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import looseleaf.ops  # noqa: F401 - defines the operators
from gpu.clock import captured, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu.classic import Classic

    Make = Callable[["Batch"], Callable[[Tensor], Tensor]]

INT32 = torch.int32
MOST_ERROR = 1e-2  # of a result in bf16 against another kernel's


@dataclass(frozen=True, slots=True)
class Case:
    """One call; `num_bytes` of keys and values are what it has to read."""

    name: str
    seq_lens: tuple[int, ...]
    q_heads: int = 32
    kv_heads: int = 8
    block_size: int = 16
    head_dim: int = 128
    is_8bit: bool = False

    @property
    def num_bytes(self) -> int:
        """Of keys and values."""
        return sum(self.seq_lens) * self.kv_heads * self.head_dim * 2 * (1 if self.is_8bit else 2)


@dataclass(slots=True)
class Timing:
    """What one case took. `others`: seconds of each baseline, or why there are none."""

    name: str
    seconds: float
    num_bytes: int
    share_of_ceiling: float
    others: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """A case in memory, with several tables so that calls read different blocks."""

    case: Case
    caches: tuple[Tensor, Tensor]
    query: Tensor
    tables: list[Tensor]
    lens: Tensor
    rows: Tensor
    scale: Tensor | None

    def attend(self, table: Tensor, out: Tensor) -> Tensor:
        """Our kernel."""
        arguments = (self.query, *self.caches, table, self.lens, self.rows, 1, self.case.head_dim**-0.5)
        torch.ops.looseleaf.attend_out(*arguments, k_scale=self.scale, v_scale=self.scale, out=out)
        return out


def make_batch(case: Case, device: str, cold_bytes: int) -> Batch:
    """Random keys and values in shuffled blocks, `cold_bytes` of them at least."""
    dtype = torch.bfloat16
    stored = torch.float8_e4m3fn if case.is_8bit else dtype
    rounds = max(2, -(-cold_bytes // case.num_bytes))
    used = [-(-length // case.block_size) for length in case.seq_lens]
    num_blocks = sum(used) * rounds
    shape = (num_blocks, 2, case.kv_heads, case.block_size, case.head_dim)
    pool = torch.empty(shape, dtype=dtype, device=device).normal_().to(stored)
    tables = []
    for part in torch.split(torch.randperm(num_blocks, device=device).to(INT32), sum(used)):
        table = torch.zeros(len(used), max(used), dtype=INT32, device=device)
        for seq, blocks in enumerate(torch.split(part, used)):
            table[seq, : len(blocks)] = blocks
        tables.append(table)
    return Batch(
        case,
        (pool[:, 0], pool[:, 1]),
        torch.randn(len(used), case.q_heads, case.head_dim, dtype=dtype, device=device),
        tables,
        torch.tensor(case.seq_lens, dtype=INT32, device=device),
        torch.arange(len(used) + 1, dtype=INT32, device=device),
        torch.ones(1, device=device) if case.is_8bit else None,
    )


class NotOffered(Exception):
    """A baseline does not take the case; the table says why."""


def gathered(batch: Batch) -> Callable[[Tensor], Tensor]:
    """gather, then SDPA over the longest length: of equal lengths only, so that nothing is masked or padded."""
    case = batch.case
    if len(set(case.seq_lens)) > 1:
        raise NotOffered("lengths differ")
    device, dtype = batch.query.device, batch.query.dtype
    shape = (sum(case.seq_lens), case.kv_heads, case.head_dim)
    key, value = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
    sums = torch.tensor([0, *case.seq_lens], dtype=INT32, device=device).cumsum(0, dtype=INT32)

    def call(table: Tensor) -> Tensor:
        torch.ops.looseleaf.gather(*batch.caches, table, sums, key, value, batch.scale, batch.scale)
        sides = [
            side.view(len(case.seq_lens), -1, case.kv_heads, case.head_dim).transpose(1, 2) for side in (key, value)
        ]
        return sdpa(batch.query[:, :, None], sides[0], sides[1], enable_gqa=True)[:, :, 0]

    return call


def varlen(batch: Batch) -> Callable[[Tensor], Tensor]:
    """PyTorch's attention with a block table, over the same blocks: tokens before heads is what it takes."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - not in every PyTorch
    except ImportError as error:
        raise NotOffered(str(error)) from error
    if batch.case.is_8bit:
        raise NotOffered("no scales")
    key, value = (cache.transpose(1, 2) for cache in batch.caches)

    def call(table: Tensor) -> Tensor:
        try:
            result = varlen_attn(
                batch.query,
                key,
                value,
                batch.rows,
                None,
                1,
                max(batch.case.seq_lens),
                seqused_k=batch.lens,
                block_table=table,
                enable_gqa=True,
            )
        except (TypeError, ValueError) as error:  # other versions take other arguments
            raise NotOffered(str(error)) from error
        assert isinstance(result, Tensor)
        return result

    return call


def classic(kernel: Classic | None, batch: Batch) -> Callable[[Tensor], Tensor]:
    """The kernel of classic.cu."""
    if kernel is None:
        raise NotOffered("not compiled")
    if batch.case.is_8bit or batch.case.head_dim != 128:
        raise NotOffered("bf16 of dim 128 only")
    longest = max(batch.case.seq_lens)
    return lambda table: kernel.attend(batch.query, batch.caches, table, batch.lens, longest)


def _time(make: Make, batch: Batch, expected: Tensor, device: str) -> float | str:
    try:
        call = make(batch)
        error = _error(call(batch.tables[0]), expected)
        if not error <= MOST_ERROR:
            return f"differs by {error:.1e}"
        calls = [partial(call, table) for table in batch.tables]
        return seconds_of(captured(calls, device), device) / len(calls)
    except (NotOffered, RuntimeError) as refused:  # PyTorch's own refusals; a fault of this file ends the run
        return (str(refused).strip().splitlines() or [type(refused).__name__])[0][:120]


def _error(result: Tensor, expected: Tensor) -> float:
    return float((result.float() - expected.float()).norm() / expected.float().norm())


def measure(case: Case, device: str, cold_bytes: int, ceiling: float, kernel: Classic | None) -> Timing:
    """Check one call against SDPA of each sequence, then time ours and the baselines."""
    batch = make_batch(case, device, cold_bytes)
    out = torch.empty_like(batch.query)
    expected = batch.attend(batch.tables[0], out).clone()
    for seq in {0, len(case.seq_lens) - 1}:
        exact = _alone(batch, seq)
        error = _error(expected[seq], exact)
        if not error <= MOST_ERROR:
            raise RuntimeError(f"{case.name}: sequence {seq} differs from attention over its tokens by {error:.1e}")
    calls = [partial(batch.attend, table, out) for table in batch.tables]
    seconds = seconds_of(captured(calls, device), device) / len(calls)
    timing = Timing(case.name, seconds, case.num_bytes, case.num_bytes / seconds / ceiling)
    baselines: dict[str, Make] = {"gather + SDPA": gathered, "varlen_attn": varlen, "classic": partial(classic, kernel)}
    for name, make in baselines.items():
        timing.others[name] = _time(make, batch, expected, device)
    return timing


def _alone(batch: Batch, seq: int) -> Tensor:
    """One sequence in fp32, over its tokens."""
    case, length = batch.case, batch.case.seq_lens[seq]
    blocks = batch.tables[0][seq, : -(-length // case.block_size)].long()
    key, value = (
        (cache.view(torch.uint8)[blocks].view(cache.dtype) if case.is_8bit else cache[blocks])
        .float()
        .transpose(1, 2)
        .flatten(0, 1)[:length]
        .transpose(0, 1)
        for cache in batch.caches
    )
    query = batch.query[seq].float().view(case.kv_heads, -1, case.head_dim)
    shares = (query @ key.transpose(1, 2) * case.head_dim**-0.5).softmax(-1)
    result: Tensor = (shares @ value).reshape(case.q_heads, case.head_dim)
    return result
