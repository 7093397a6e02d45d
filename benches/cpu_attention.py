"""The CPU kernels against what memory gives, against SDPA, and against their goals.

Decode is memory: what counts is the share of a paged read of the same blocks, in the same order, on as many threads. A
ratio to another way of attention cannot exceed that way's time over the paged read's: the limit, printed beside it. A
share above 1 says that the probe was disturbed, not that the kernel is faster than memory. Prefill is arithmetic: its
share of the processor's matrix product.
Results are checked before they are timed. Exits with 1 where a gate fails.

Floor of decode: all keys and values once, over the paged read. Run: python benches/cpu_attention.py [--quick]
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from goals import Gates, interleaved, load
from looseleaf import ops
from looseleaf.bench.measure import machine
from looseleaf.ops import native
from tutorial import TutorialCache

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_SIZE = 16
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
INT32 = torch.int32


@dataclass(frozen=True, slots=True)
class Shape:
    q_heads: int
    kv_heads: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.q_heads}/{self.kv_heads}x{self.head_dim}"


LARGE, SMOLLM2 = Shape(32, 8, 128), Shape(9, 3, 64)


class Probe:
    """csrc/check/probe.cpp, compiled for this processor."""

    def __init__(self) -> None:
        source = Path(__file__).parents[1] / "csrc" / "check" / "probe.cpp"
        with tempfile.TemporaryDirectory() as folder:
            library = str(Path(folder, "probe.so"))
            flags = ["-std=c++20", "-O3", "-march=native", "-w", "-shared", "-fPIC"]
            subprocess.run(["c++", *flags, str(source), "-o", library], check=True)  # noqa: S607
            self.read = ctypes.CDLL(library).looseleaf_read
        self.workers = ThreadPoolExecutor(max_workers=8)  # a call of ctypes leaves the interpreter's lock
        self.read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]

    def paged(self, pool: Tensor, table: Tensor, num_threads: int) -> Callable[[], object]:
        chunk, count = pool[0].numel() * pool.element_size(), table.numel()
        cuts = [count * thread // num_threads for thread in range(num_threads + 1)]

        def part(first: int, end: int) -> None:
            self.read(pool.data_ptr(), table.data_ptr(), first, end, chunk)

        def read() -> None:
            others = [self.workers.submit(part, *cut) for cut in pairwise(cuts[1:])]
            part(cuts[0], cuts[1])
            for other in others:
                other.result()

        return read


class Decode:
    """One layer of a batch: a row for each sequence, blocks shuffled over the pool."""

    def __init__(
        self, shape: Shape, dtype: torch.dtype, lengths: list[int], *, stored: torch.dtype | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        used = [-(-length // BLOCK_SIZE) for length in lengths]
        self.shape, self.dtype, self.lengths = shape, dtype, lengths
        cache_dtype = stored or dtype
        block = (2, shape.kv_heads, BLOCK_SIZE, shape.head_dim)
        self.pool = torch.empty(sum(used) + 1, *block, dtype=cache_dtype)
        some = torch.randn(64, *self.pool.shape[1:], generator=generator)
        some = (some * 20).to(cache_dtype) if cache_dtype == torch.int8 else some.to(cache_dtype)
        for first in range(0, len(self.pool), 64):
            part = self.pool[first : first + 64]
            part.view(torch.uint8).copy_(some[: len(part)].view(torch.uint8))
        self.ids = (torch.randperm(sum(used), generator=generator) + 1).to(INT32)
        self.table = torch.nn.utils.rnn.pad_sequence(list(torch.split(self.ids, used)), batch_first=True)
        self.seq_lens = torch.tensor(lengths, dtype=INT32)
        self.sums = torch.arange(len(lengths) + 1, dtype=INT32)
        self.q = torch.randn(len(lengths), shape.q_heads, shape.head_dim, generator=generator).to(dtype)
        self.out, self.lse = torch.empty_like(self.q), torch.empty(len(lengths), shape.q_heads)
        self.scale = torch.ones(1) if stored else None
        self.num_bytes = 2 * sum(lengths) * shape.kv_heads * shape.head_dim * self.pool.element_size()

    def attend(self) -> None:
        tables = (self.table, self.seq_lens, self.sums)
        arguments = (self.q, self.pool[:, 0], self.pool[:, 1], *tables, 1, self.shape.head_dim**-0.5)
        scales = {"k_scale": self.scale, "v_scale": self.scale}
        torch.ops.looseleaf.attend_out(*arguments, **scales, out=self.out, lse=self.lse)

    def contiguous(self) -> tuple[Tensor, Tensor]:
        """[sequences, kv_heads, tokens, head_dim], for equal lengths."""
        sums = torch.tensor([0, *self.lengths], dtype=INT32).cumsum(0, dtype=INT32)
        key, value = ops.gather(self.pool[:, 0], self.pool[:, 1], self.table, sums)
        shape = (len(self.lengths), self.lengths[0], self.shape.kv_heads, self.shape.head_dim)
        return key.view(shape).transpose(1, 2).contiguous(), value.view(shape).transpose(1, 2).contiguous()

    def packed(self, key: Tensor, value: Tensor) -> Tensor:
        query = self.q.view(len(self.lengths), self.shape.kv_heads, -1, self.shape.head_dim)
        return sdpa(query, key, value).view_as(self.q)

    def grouped(self, key: Tensor, value: Tensor) -> Tensor:
        return sdpa(self.q[:, :, None], key, value, enable_gqa=True)[:, :, 0]

    def gathered(self) -> Tensor:
        """What is done without kernels: index the blocks of the table, then SDPA."""
        key, value = (self.pool[:, i][self.table.long()].transpose(1, 2).flatten(2, 3) for i in (0, 1))
        return self.packed(key, value)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bench_decode(gates: Gates, probe: Probe, num_threads: int, repeats: int) -> None:
    """Shares of the paged read and ratios to contiguous attention."""
    for shape in (LARGE, SMOLLM2):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            decode = Decode(shape, dtype, [4096] * (8 if shape is LARGE else 24))
            key, value = decode.contiguous()
            decode.attend()
            torch.testing.assert_close(
                decode.out, decode.packed(key, value), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype]
            )
            in_order = torch.arange(1, len(decode.ids) + 1, dtype=INT32)
            ours, paged, sequential, packed = interleaved(
                decode.attend,
                probe.paged(decode.pool, decode.ids, num_threads),
                probe.paged(decode.pool, in_order, num_threads),
                lambda decode=decode, key=key, value=value: decode.packed(key, value),  # type: ignore[misc]
                repeats=repeats,
                num_threads=num_threads,
            )
            title = f"decode {name(dtype)} {shape}, {num_threads} thread{'s' * (num_threads > 1)}"
            rate = decode.num_bytes / 1e9
            note = f"{rate / ours:.1f} GB/s of {rate / paged:.1f} paged, {rate / sequential:.1f} in order"
            gates.add(f"{title}: share of the paged read", paged / ours, goal=0.85, gate=0.6, note=note)
            if shape is not LARGE:
                continue
            goal, gate = (1.25, 1.05) if dtype == torch.float32 else (2.2, 1.4)
            limit = packed / paged  # what a kernel at the paged read would reach
            note = f"limit {limit:.2f}"
            gates.add(f"{title}: packed SDPA / ours", packed / ours, goal=goal, gate=gate, note=note)
            if num_threads == 1:
                grouped, gathered, again = interleaved(
                    lambda decode=decode, key=key, value=value: decode.grouped(key, value),  # type: ignore[misc]
                    decode.gathered,
                    decode.attend,
                    repeats=3,
                    num_threads=1,
                )
                gates.add(f"{title}: enable_gqa SDPA / ours", grouped / again, goal=None, gate=None)
                gates.add(f"{title}: gather + SDPA / ours", gathered / again, goal=15, gate=5)


def bench_ragged(gates: Gates, num_threads: int, repeats: int) -> None:
    generator = torch.Generator().manual_seed(5)
    lengths = [1, 8192, *torch.randint(1, 8193, (14,), generator=generator).tolist()]
    ragged, equal = Decode(LARGE, torch.bfloat16, lengths), Decode(LARGE, torch.bfloat16, [sum(lengths) // 16] * 16)
    ours, baseline = interleaved(ragged.attend, equal.attend, repeats=repeats, num_threads=num_threads)
    value = (ragged.num_bytes / ours) / (equal.num_bytes / baseline)
    gates.add(f"ragged 1 to 8192 / equal lengths, bandwidth, {num_threads} threads", value, goal=0.9, gate=0.75)


def bench_8bit(gates: Gates, repeats: int) -> None:
    lengths = [8192] * 8
    plain = Decode(LARGE, torch.bfloat16, lengths)
    for stored in (torch.float8_e4m3fn, torch.int8):
        small = Decode(LARGE, torch.bfloat16, lengths, stored=stored)
        ours, baseline = interleaved(small.attend, plain.attend, repeats=repeats, num_threads=1)
        gates.add(
            f"decode {name(stored)} / bfloat16, time, 1 thread", ours / baseline, goal=0.65, gate=None, least=False
        )


def bench_prefill(gates: Gates, repeats: int) -> None:
    tokens, shape = 2048, LARGE
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        batch = Decode(shape, dtype, [tokens])
        key, value = batch.contiguous()
        query = torch.randn(tokens, shape.q_heads, shape.head_dim).to(dtype)
        out, sums = torch.empty_like(query), torch.tensor([0, tokens], dtype=INT32)
        expanded = [part.repeat_interleave(shape.q_heads // shape.kv_heads, 1) for part in (key, value)]
        rows = query.transpose(0, 1)[None].contiguous()
        square = torch.randn(1024, 1024).to(dtype)

        def ours(batch: Decode = batch, query: Tensor = query, out: Tensor = out, sums: Tensor = sums) -> None:
            tables = (batch.pool[:, 0], batch.pool[:, 1], batch.table, batch.seq_lens, sums)
            torch.ops.looseleaf.attend_out(query, *tables, tokens, shape.head_dim**-0.5, out=out)

        def baseline(rows: Tensor = rows, expanded: list[Tensor] = expanded) -> Tensor:
            return sdpa(rows, expanded[0], expanded[1], is_causal=True)

        ours()
        torch.testing.assert_close(out, baseline()[0].transpose(0, 1), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])

        def product(square: Tensor = square) -> Tensor:
            return square @ square

        seconds, other, product_seconds = interleaved(
            ours, baseline, product, repeats=max(3, repeats // 3), num_threads=1
        )
        flops = 2 * shape.q_heads * shape.head_dim * tokens * tokens
        best = 2 * 1024**3 / product_seconds
        title = f"prefill {name(dtype)} {tokens} causal, 1 thread"
        goal = 1.5 if dtype == torch.bfloat16 else 1.15
        gates.add(
            f"{title}: SDPA / ours", other / seconds, goal=goal, gate=1.0, note=f"{flops / seconds / 1e9:.0f} GFLOP/s"
        )
        gates.add(
            f"{title}: share of the GEMM rate",
            flops / seconds / best,
            goal=0.7,
            gate=None,
            note=f"{best / 1e9:.0f} GFLOP/s",
        )


def bench_calls(gates: Gates) -> None:
    attend, attend_out = torch.ops.looseleaf.attend.default, torch.ops.looseleaf.attend_out.default
    for shape in (LARGE, SMOLLM2):
        batch = Decode(shape, torch.float32, [16])
        arguments = (batch.q, batch.pool[:, 0], batch.pool[:, 1], batch.table, batch.seq_lens, batch.sums, 1, 0.1)

        def filled(n: int = 500, arguments: tuple[object, ...] = arguments, out: Tensor = batch.out) -> None:
            for _ in range(n):
                attend_out(*arguments, out=out)

        def made(n: int = 500, arguments: tuple[object, ...] = arguments) -> None:
            for _ in range(n):
                attend(*arguments)

        one, two = (seconds / 500 * 1e6 for seconds in interleaved(filled, made, repeats=7, num_threads=1))
        gates.add(f"call {shape}, 16 tokens, us: attend_out", one, goal=8, gate=None, least=False)
        gates.add(f"call {shape}, 16 tokens, us: attend", two, goal=12, gate=None, least=False)


def bench_tutorial(gates: Gates) -> None:
    batch = Decode(SMOLLM2, torch.float32, [512])
    cache = TutorialCache(64, BLOCK_SIZE, SMOLLM2.kv_heads, SMOLLM2.head_dim, torch.float32)
    key, value = batch.contiguous()
    for token in range(512):
        cache.append(0, key[0, :, token], value[0, :, token])
    ours, loop = interleaved(batch.attend, lambda: cache.attend(0, batch.q[0]), repeats=5, num_threads=1)
    gates.add("tutorial's token loop / ours", loop / ours, goal=30, gate=10)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, one thread")
    arguments = parser.parse_args()
    repeats = 5 if arguments.quick else 11
    for key, text in machine().items():
        print(f"  {key}: {text}")
    kernels = {name(dtype): native.kernel_name(dtype) for dtype in TOLERANCES}
    print(f"  kernels: {kernels}\n  load: {load()}")
    gates, probe = Gates(), Probe()
    for num_threads in (1,) if arguments.quick else (1, 2):
        torch.set_num_threads(num_threads)
        bench_decode(gates, probe, num_threads, repeats)
        bench_ragged(gates, num_threads, repeats)
    torch.set_num_threads(1)
    bench_8bit(gates, repeats)
    bench_prefill(gates, repeats)
    bench_calls(gates)
    bench_tutorial(gates)
    print(f"  load: {load()}")
    gates.finish()


if __name__ == "__main__":
    main()
