"""The shape read from a configuration is the shape of the cache that the model fills."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.config import ModelShape
from looseleaf.errors import UnsupportedModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {"vocab_size": 32, "num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 6}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", SMALL | {"num_key_value_heads": 2, "intermediate_size": 8}),
    ("llama", SMALL | {"intermediate_size": 8, "head_dim": 16}),
    ("mistral", SMALL | {"num_key_value_heads": 3, "intermediate_size": 8, "sliding_window": 4}),
    ("gemma2", SMALL | {"num_key_value_heads": 2, "intermediate_size": 8, "head_dim": 16}),
    ("gpt2", {"vocab_size": 32, "n_layer": 2, "n_head": 4, "n_embd": 32}),
    ("gpt_bigcode", {"vocab_size": 32, "n_layer": 2, "n_head": 4, "n_embd": 32}),
    ("gpt_bigcode", {"vocab_size": 32, "n_layer": 2, "n_head": 4, "n_embd": 32, "multi_query": False}),
    ("falcon", SMALL),
    ("falcon", SMALL | {"multi_query": False}),
    # Falcon's new architecture has num_kv_heads heads, but transformers repeats them before it caches them: not here.
    ("mpt", {"vocab_size": 32, "n_layers": 2, "n_heads": 4, "d_model": 32}),
    ("bloom", {"vocab_size": 32, "n_layer": 2, "n_head": 4, "hidden_size": 32}),
    ("opt", SMALL | {"ffn_dim": 8, "word_embed_proj_dim": 48, "max_position_embeddings": 16}),
]


@pytest.mark.parametrize(("model_type", "options"), MODELS)
def test_the_shape_is_that_of_the_cache_a_model_fills(model_type: str, options: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(
        model_type, **options, dtype=torch.float32, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.inference_mode():
        cache = model(input_ids=torch.tensor([[3, 4, 5]]), use_cache=True).past_key_values
    layers = [(layer.keys, layer.values) for layer in cache.layers]
    for shape in (ModelShape.from_config(config), ModelShape.from_config(config.to_dict())):
        assert len(layers) == shape.num_layers
        assert {tuple(tensor.shape) for layer in layers for tensor in layer} == {
            (1, shape.num_kv_heads, 3, shape.head_dim)
        }
        assert shape.dtype == "float32"


@pytest.mark.parametrize("model_type", ["deepseek_v3", "mamba", "jamba", "qwen3_next", "bart"])
def test_other_caches_are_refused(model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    for source in (config, config.to_dict()):
        with pytest.raises(UnsupportedModel, match=f"model type {model_type}"):
            ModelShape.from_config(source, dtype="float16")


def test_a_key_that_varies_by_layer_is_refused() -> None:
    config = transformers.AutoConfig.for_model("gemma4_text")
    for source in (config, config.to_dict()):
        with pytest.raises(UnsupportedModel, match=r"layers differ in .*head_dim"):
            ModelShape.from_config(source, dtype="float16")
