"""Cache and operators with a tiny model: ragged prefill, decode, and the same attention without pages to compare.

Run: python examples/cache.py
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

import looseleaf

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 2, 6, 2, 32
NUM_DECODE_STEPS = 20
TOLERANCE = 1e-5  # float32, sums of at most 60 products in another order


class Projections:
    """Stands in for a transformer: queries, keys and values of each layer, drawn once for each token id."""

    def __init__(self, vocabulary_size: int = 100) -> None:
        self._table = torch.randn(NUM_LAYERS, vocabulary_size, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM)

    def __call__(self, layer: int, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k, v, each [tokens, heads, head_dim]."""
        rows = self._table[layer, token_ids]
        return rows[:, :NUM_HEADS], rows[:, NUM_HEADS:-NUM_KV_HEADS], rows[:, -NUM_KV_HEADS:]


def contiguous_attention(model: Projections, layer: int, token_ids: list[int]) -> torch.Tensor:
    """Attention of the last token over the whole sequence, [heads, head_dim], with all keys and values side by side."""
    q, k, v = (tensor.transpose(0, 1) for tensor in model(layer, torch.tensor(token_ids)))
    return scaled_dot_product_attention(q[:, -1:], k, v, enable_gqa=True)[:, 0]


def main() -> None:
    """Prefill three prompts of different lengths in one step, decode, compare every step with contiguous attention."""
    torch.manual_seed(0)
    model = Projections()
    cache = looseleaf.PagedKVCache(
        num_layers=NUM_LAYERS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=torch.float32,
        block_size=16,
        num_blocks=16,
        max_sequence_len=64,
    )
    texts = [list(range(40)), [7], list(range(50, 67))]
    sequences = [cache.admit(text) for text in texts]

    difference = 0.0
    step = cache.step(sequences)
    for _ in range(NUM_DECODE_STEPS):
        for layer in range(NUM_LAYERS):
            output = step.attend(layer, *model(layer, step.token_ids))[step.last_rows]
            expected = torch.stack([contiguous_attention(model, layer, text) for text in texts])
            difference = max(difference, (output - expected).abs().max().item())
        step.commit()
        for text in texts:
            text.append((text[-1] + 1) % 100)
        step = cache.step(sequences, tokens=[text[-1] for text in texts])

    print("lengths           ", [sequence.num_computed for sequence in sequences])
    print("block tables      ", [sequence.blocks for sequence in sequences])
    print("largest difference", f"{difference:.1e}")
    if difference > TOLERANCE:
        raise SystemExit("paged and contiguous attention differ")


if __name__ == "__main__":
    main()
