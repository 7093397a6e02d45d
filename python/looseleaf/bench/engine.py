"""Generation of a batch: the engine, and transformers one by one and in a padded batch. Their tokens must be equal."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from looseleaf.bench.measure import Measurement, Settings, measure
from looseleaf.engine import Engine, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["random_model", "run"]


def random_model() -> PreTrainedModel:
    """A Llama of 8 layers with random weights, wide enough that the model's own work is most of a step."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        initializer_range=0.1,
        pad_token_id=0,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def run(settings: Settings, *, model: PreTrainedModel) -> list[Measurement]:
    """16 prompts of mixed lengths, 32 tokens each, on the model's device; a quarter with `is_quick`."""
    num_prompts, num_new = (4, 8) if settings.is_quick else (16, 32)
    rng = random.Random(0)  # noqa: S311 - prompts, not secrets
    size = int(model.config.vocab_size)
    prompts = [[rng.randrange(3, size) for _ in range(rng.randint(8, 200))] for _ in range(num_prompts)]
    engine = Engine(model, num_blocks=num_prompts * 16, max_sequences=num_prompts, prefix_caching=False)
    params = SamplingParams(max_tokens=num_new, ignore_eos=True)

    def paged() -> list[list[int]]:
        return [result.token_ids for result in engine.generate(prompts, params)]

    def alone() -> list[list[int]]:
        return [_generate(model, [prompt], num_new)[0] for prompt in prompts]

    def padded() -> list[list[int]]:
        return _generate(model, prompts, num_new)

    expected = alone()
    if not paged() == padded() == expected:
        raise AssertionError("the answers differ")
    dtype = str(model.dtype).removeprefix("torch.")
    case = f"{num_prompts} prompts, {num_new} new tokens, {type(model).__name__}, {dtype}, {model.device}"
    callables = {"transformers, one by one": alone, "transformers, padded batch": padded, "looseleaf engine": paged}
    return measure(case, callables, settings)


def _generate(model: PreTrainedModel, prompts: list[list[int]], num_new: int) -> list[list[int]]:
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        padded.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=num_new,
        min_new_tokens=num_new,
        do_sample=False,
        pad_token_id=0,
    )
    answers: list[list[int]] = output[:, longest:].tolist()
    return answers
