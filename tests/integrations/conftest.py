from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from looseleaf.integrations.transformers import PagedCache

# The name without a warning: from 5.2x on the old one is deprecated.
CACHE_ARGUMENT = (
    "cache" if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"
)


@pytest.fixture(scope="session")
def cache_argument() -> str:
    """The argument by which models take their cache."""
    return CACHE_ARGUMENT


@pytest.fixture(scope="session")
def generate() -> Callable[..., torch.Tensor]:
    """`model.generate` with a fixed seed, over a paged cache or, with None, over transformers' own."""

    def run(model: PreTrainedModel, cache: PagedCache | None, ids: torch.Tensor, **options: object) -> torch.Tensor:
        torch.manual_seed(1)
        arguments: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False} | options
        if cache is not None:
            arguments[CACHE_ARGUMENT] = cache
        output: torch.Tensor = model.generate(ids, **arguments)
        return output

    return run


@pytest.fixture(scope="session")
def padded() -> tuple[torch.Tensor, torch.Tensor]:
    """Four prompts of 37, 32, 20 and 1 tokens, padded on the left."""
    ids = torch.randint(3, 128, (4, 37), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 5, 17, 36)):
        mask[row, :padding] = 0
        ids[row, :padding] = 0
    return ids, mask
