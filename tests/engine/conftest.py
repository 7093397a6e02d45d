from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel


@pytest.fixture(autouse=True, scope="module")
def _one_thread(one_thread: None) -> None:
    """For every test of this folder."""


@pytest.fixture(scope="session")
def tiny_prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, 259) for _ in range(length)] for length in (1, 15, 16, 17, 33, 64, 100, 8)]


@pytest.fixture(scope="session")
def generate_alone() -> Callable[..., list[list[int]]]:
    """What transformers generates for each prompt alone, greedily, with its own attention and its own cache."""

    def generate(
        model: PreTrainedModel, prompts: list[list[int]], max_tokens: int, **options: object
    ) -> list[list[int]]:
        answers = []
        for prompt in prompts:
            output = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=max_tokens,
                do_sample=False,
                **options,
            )
            answers.append(output[0, len(prompt) :].tolist())
        return answers

    return generate
