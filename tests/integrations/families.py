"""Tiny models of the families that paged caches are tested with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

SIZES = {"vocab_size": 128, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256}
OTHERS = {"initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # logits that differ
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
WINDOW = 9

# What each family adds: grouped heads; a window in all layers; soft capping and windows in every other layer; the same
# with norms of queries and keys; sinks, windows and experts; norms; a head for each query and learned positions; rotary
# embeddings of a part of each head; one KV head for all.
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS, **OTHERS)),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, **HEADS, **OTHERS, sliding_window=WINDOW)
    ),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            **SIZES, **HEADS, **OTHERS, sliding_window=WINDOW, attn_logit_softcapping=2.0, layer_types=MIXED
        )
    ),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**SIZES, **HEADS, **OTHERS, sliding_window=WINDOW, layer_types=MIXED)
    ),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            **SIZES,
            **HEADS,
            **OTHERS,
            sliding_window=WINDOW,
            layer_types=MIXED,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **HEADS, **OTHERS)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=128,
            n_positions=256,
            n_embd=48,
            n_layer=3,
            n_head=6,
            scale_attn_by_inverse_layer_idx=True,
            **OTHERS,
        )
    ),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**SIZES, num_attention_heads=6, max_position_embeddings=256, **OTHERS)
    ),
    "gpt_bigcode": lambda: transformers.GPTBigCodeForCausalLM(
        transformers.GPTBigCodeConfig(vocab_size=128, n_positions=256, n_embd=48, n_layer=3, n_head=6, **OTHERS)
    ),
}


# These compute their attention themselves, whatever they are told.
SELF_ATTENDING: dict[str, Callable[[], PreTrainedModel]] = {
    "falcon": lambda: transformers.FalconForCausalLM(
        transformers.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    ),
    "bloom": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    ),
}


def new_model(family: str, attention: str = "eager") -> PreTrainedModel:
    """A tiny model of a family; every family has transformers' eager attention."""
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.uniform_(parameter, -2, 2)
    model.set_attn_implementation(attention)
    return model
