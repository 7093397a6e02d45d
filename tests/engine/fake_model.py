"""A model of one layer whose next token depends on every token before it, read from the cache; and its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from looseleaf import PagedKVCache, SamplingParams
from looseleaf.engine.loop import Loop
from looseleaf.engine.report import Meter
from looseleaf.engine.request import Request

if TYPE_CHECKING:
    from torch import Tensor

    from looseleaf.cache import Step
    from looseleaf.cache.swap import SwapSpace

VOCABULARY = 97
BLOCK_SIZE = 4


def next_token(total: int, length: int) -> int:
    """What follows tokens of this sum and number."""
    return (total * 31 + length * 17) % VOCABULARY


def answer(prompt: list[int], max_tokens: int) -> list[int]:
    """What the model generates, by plain arithmetic."""
    total, tokens = sum(prompt), []
    for number in range(max_tokens):
        tokens.append(next_token(total, len(prompt) + number))
        total += tokens[-1]
    return tokens


class FakeModel:
    """Attends to all tokens alike with their ids as values: the mean of the ids, exact in float32 at these lengths.

    Args:
        spread: give other tokens some probability, too, of their own at every place.
    """

    def __init__(self, *, spread: bool = False) -> None:
        self.spread = spread
        self.num_steps = 0
        self.fails_at: int | None = None

    def __call__(self, step: Step, rows: Tensor | None) -> Tensor:
        """Logits [rows, vocabulary]."""
        self.num_steps += 1
        values = step.token_ids.float()[:, None, None]
        zeros = torch.zeros_like(values)
        means = step.attend(0, zeros, zeros, values)[:, 0, 0].double()
        if self.num_steps == self.fails_at:
            raise RuntimeError("the model fails")
        lengths = step.positions + 1
        totals = (means * lengths).round().long()
        chosen = step.last_rows if rows is None else rows
        logits = torch.zeros(len(chosen), VOCABULARY)
        if self.spread:
            places = torch.arange(VOCABULARY)[None]
            logits = ((totals[chosen][:, None] * 13 + places * 29 + lengths[chosen][:, None]) % 89) / 12
        following = (totals[chosen] * 31 + lengths[chosen] * 17) % VOCABULARY
        logits[torch.arange(len(chosen)), following] = 9.0
        return logits


def new_cache(num_blocks: int, *, max_sequences: int = 16, prefix_caching: bool = True) -> PagedKVCache:
    """One layer, one head, one element."""
    return PagedKVCache(
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        dtype=torch.float32,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_sequences=max_sequences,
        max_sequence_len=512,
        max_batch_tokens=64,
        prefix_caching=prefix_caching,
    )


def new_loop(
    cache: PagedKVCache,
    model: FakeModel,
    *,
    max_batch_tokens: int = 64,
    swap_space: SwapSpace | None = None,
    chooses_by_cost: bool = False,
) -> Loop:
    """A loop of the fake model."""
    return Loop(
        cache,
        model,
        max_batch_tokens=max_batch_tokens,
        meter=Meter(block_size=BLOCK_SIZE, bytes_per_token=8, max_sequence_len=512),
        swap_space=swap_space,
        chooses_by_cost=chooses_by_cost,
    )


def new_requests(sizes: list[tuple[int, int]], **params: object) -> list[Request]:
    """Requests of so many prompt and answer tokens."""
    rng = np.random.default_rng(0)
    return [
        Request(
            index,
            rng.integers(0, VOCABULARY, prompt_len),
            SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
        )
        for index, (prompt_len, max_tokens) in enumerate(sizes)
    ]


def expected(requests: list[Request]) -> list[list[int]]:
    """Their answers."""
    return [answer(request.prompt.tolist(), request.params.max_tokens) for request in requests]


def run(loop: Loop, requests: list[Request]) -> None:
    """To the end."""
    for request in requests:
        loop.scheduler.submit(request)
    for _ in range(100_000):
        if loop.scheduler.is_idle:
            return
        loop.step()
    raise AssertionError("does not end")


def assert_all_free(cache: PagedKVCache) -> None:
    """Nobody holds a block."""
    assert cache.stats().num_available == cache.manager.num_blocks
    assert cache.stats().num_sequences == 0
    cache.manager.validate()
