"""A multimodal model answers text on paged caches, by what its text model is; its other parts stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from looseleaf import Engine, SamplingParams
from looseleaf.errors import UnsupportedModel
from looseleaf.integrations.transformers import PagedCache
from looseleaf.integrations.transformers.attention import use_paged_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    Generate = Callable[..., torch.Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.randint(3, 120, (1, 20), generator=torch.Generator().manual_seed(7))
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
ATTENTION = {"": "sdpa", "text_config": "eager", "vision_config": "sdpa"}


def new_model(**text: Any) -> PreTrainedModel:
    """A model of texts and pictures, with another attention for each."""
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(
            vocab_size=128,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=32,
            initializer_range=0.2,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            **text,
        ),
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
        ),
        image_token_index=127,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.set_attn_implementation(ATTENTION)
    return model


def attention_of(model: PreTrainedModel) -> dict[str, str]:
    parts = {"": model.config, "text_config": model.config.text_config, "vision_config": model.config.vision_config}
    return {name: config._attn_implementation for name, config in parts.items()}


def test_text_is_answered_as_without_a_paged_cache(generate: Generate) -> None:
    model = new_model()
    assert attention_of(model) == ATTENTION
    expected = generate(model, None, IDS, max_new_tokens=8, eos_token_id=None).tolist()
    with PagedCache(model, num_blocks=8) as cache:
        assert generate(model, cache, IDS, max_new_tokens=8, eos_token_id=None).tolist() == expected
        assert attention_of(model) == ATTENTION
    engine = Engine(model, num_blocks=8)
    (result,) = engine.generate(IDS.tolist(), SamplingParams(max_tokens=8, ignore_eos=True))
    assert [IDS[0].tolist() + result.token_ids] == expected
    assert attention_of(model) == ATTENTION


def test_only_the_text_model_attends_through_block_tables() -> None:
    model = new_model()
    with use_paged_attention(model):
        assert attention_of(model) == ATTENTION | {"text_config": "looseleaf_paged"}
    assert attention_of(model) == ATTENTION


def test_layers_that_hide_other_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model()
    layer_types = ["full_attention", "chunked_attention"]
    monkeypatch.setattr(model.config.text_config, "layer_types", layer_types, raising=False)
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        PagedCache(model, num_blocks=8)
    with pytest.raises(UnsupportedModel, match="chunked_attention"), use_paged_attention(model):
        pass


def test_a_rotation_by_the_longest_of_a_batch_is_refused_and_shares_nothing(generate: Generate) -> None:
    model = new_model(rope_scaling=DYNAMIC)
    with pytest.raises(UnsupportedModel, match=r"above 32 tokens: .* not 48"):
        Engine(model, num_blocks=8, max_sequence_len=48)
    with PagedCache(model, num_blocks=8) as cache:
        generate(model, cache, IDS, max_new_tokens=2)
        assert cache.begin(IDS) == 0


def test_an_encoder_decoder_is_refused() -> None:
    part = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(vocab_size=32, **part), transformers.BertConfig(vocab_size=32, **part)
    )
    model = transformers.EncoderDecoderModel(config).eval()
    with pytest.raises(UnsupportedModel, match="EncoderDecoderModel is an encoder-decoder"):
        PagedCache(model, num_blocks=8)
    with pytest.raises(UnsupportedModel, match="EncoderDecoderModel is an encoder-decoder"):
        Engine(model, num_blocks=8)
