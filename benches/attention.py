"""Prompt fill and decode, apart: contiguous SDPA, the paged reference operators, the tutorial's token loop.

Contiguous SDPA is the baseline: it reads the same keys and values from one packed tensor per sequence and cannot share,
grow or give back memory in blocks. Every result is checked against it before it is timed.

Floor of decode: all keys and values read once, `2 x tokens x kv_heads x head_dim x bytes`, over the memory's bandwidth.

Run: python benches/attention.py [--dtype float32] [--device cpu] [--json FILE]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from looseleaf import ops
from looseleaf.cache import KVStorage
from report import Report, median_wall_seconds
from tutorial import TutorialCache

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16  # the shape of SmolLM2-135M
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class Layer:
    """One layer's keys and values of several sequences, contiguous and paged over shuffled blocks."""

    lengths: list[int]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    storage: KVStorage
    block_table: torch.Tensor
    slots: list[torch.Tensor]

    @classmethod
    def random(cls, lengths: list[int], dtype: torch.dtype, device: str) -> Layer:
        generator = torch.Generator().manual_seed(7)
        columns = -(-max(lengths) // BLOCK_SIZE)
        num_blocks = columns * len(lengths)
        storage = KVStorage(
            num_blocks,
            BLOCK_SIZE,
            num_layers=1,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            dtype=dtype,
            device=device,
        )
        order = torch.randperm(num_blocks, generator=generator) + 1
        block_table = order.reshape(len(lengths), columns).to(torch.int32)
        keys, values, slots = [], [], []
        for row, length in enumerate(lengths):
            shape = (length, NUM_KV_HEADS, HEAD_DIM)
            keys.append(torch.randn(shape, generator=generator).to(device, dtype))
            values.append(torch.randn(shape, generator=generator).to(device, dtype))
            positions = torch.arange(length)
            blocks = block_table[row, positions // BLOCK_SIZE].long()
            slots.append((blocks * BLOCK_SIZE + positions % BLOCK_SIZE).to(device))
            ops.write(keys[-1], values[-1], storage.k(0), storage.v(0), slots[-1])
        return cls(lengths, keys, values, storage, block_table.to(device), slots)

    def num_bytes(self) -> int:
        return 2 * sum(self.lengths) * NUM_KV_HEADS * HEAD_DIM * self.keys[0].element_size()


def contiguous(layer: Layer, queries: list[torch.Tensor]) -> torch.Tensor:
    """SDPA for each sequence over its own packed tensors; decode rows see every key, prompt rows are causal."""
    outputs = []
    for query, key, value in zip(queries, layer.keys, layer.values, strict=True):
        out = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            is_causal=query.shape[0] > 1,
            enable_gqa=True,
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def run(phase: str, lengths: list[int], dtype: torch.dtype, device: str, json_path: str | None) -> None:
    """Time one phase over one set of lengths."""
    layer = Layer.random(lengths, dtype, device)
    generator = torch.Generator().manual_seed(11)
    rows = lengths if phase == "prefill" else [1] * len(lengths)
    queries = [torch.randn(n, NUM_Q_HEADS, HEAD_DIM, generator=generator).to(device, dtype) for n in rows]
    packed = torch.cat(queries)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    cu_query_lens = torch.tensor([0, *rows], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    k_cache, v_cache = layer.storage.k(0), layer.storage.v(0)

    def paged() -> torch.Tensor:
        out, _ = ops.attend(
            packed, k_cache, v_cache, layer.block_table, seq_lens, cu_query_lens, max_query_len=max(rows)
        )
        synchronize(device)
        return out

    def packed_sdpa() -> torch.Tensor:
        out = contiguous(layer, queries)
        synchronize(device)
        return out

    torch.testing.assert_close(paged(), packed_sdpa(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    shape = f"{len(lengths)} sequences of {min(lengths)} to {max(lengths)} tokens, block size {BLOCK_SIZE}"
    report = Report(
        f"{phase}, {dtype}, {device}, {shape}, {NUM_Q_HEADS}/{NUM_KV_HEADS} heads of {HEAD_DIM}",
        baseline="contiguous SDPA",
    )
    note = f"{layer.num_bytes() / 2**20:.1f} MiB of keys and values" if phase == "decode" else ""
    report.add("contiguous SDPA", median_wall_seconds(packed_sdpa, repeats=5), note=note)
    report.add("looseleaf attend", median_wall_seconds(paged, repeats=5))
    if phase == "decode" and device == "cpu":
        tutorial = TutorialCache(int(layer.block_table.max()) + 1, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, dtype)
        for name, (keys, values) in enumerate(zip(layer.keys, layer.values, strict=True)):
            for key, value in zip(keys, values, strict=True):
                tutorial.append(name, key, value)

        def token_loop() -> torch.Tensor:
            return torch.stack([tutorial.attend(name, query[0]) for name, query in enumerate(queries)])

        torch.testing.assert_close(token_loop(), packed_sdpa(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        report.add("tutorial's token loop", median_wall_seconds(token_loop, repeats=3))
    report.finish(json_path and json_path.replace(".json", f"-{phase}-{len(lengths)}.json"))


def main() -> None:
    """Run both phases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", help="also write each table to a file of this name, with phase and batch added")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    for lengths in ([512] * 8, [17, 100, 333, 512, 1000, 1500, 2000, 64]):
        run("prefill", lengths, dtype, arguments.device, arguments.json)
        run("decode", lengths, dtype, arguments.device, arguments.json)


if __name__ == "__main__":
    main()
