from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from tests.integrations.families import SELF_ATTENDING

from looseleaf import Engine, SamplingParams
from looseleaf.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@pytest.mark.parametrize("family", SELF_ATTENDING)
def test_a_model_that_ignores_our_attention_is_refused_at_its_first_step(family: str) -> None:
    torch.manual_seed(0)
    model: PreTrainedModel = SELF_ATTENDING[family]().eval()
    engine = Engine(model, num_blocks=8, block_size=16, max_sequence_len=64)
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match=type(model).__name__):
            engine.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
        assert engine.cache.manager.stats().num_available == 8


def test_a_layer_that_attends_by_itself_is_refused_at_the_first_step(
    tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = tiny_model.model.layers[1].self_attn
    monkeypatch.setattr(attention, "config", transformers.LlamaConfig(attn_implementation="eager"))
    engine = Engine(tiny_model, num_blocks=8)
    with pytest.raises(UnsupportedModel, match=r"LlamaForCausalLM called looseleaf_paged for layers \[0, 2\]"):
        engine.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
    assert engine.cache.manager.stats().num_available == 8


def test_a_rotation_by_the_longest_of_a_batch_is_refused_beyond_where_it_begins() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        rope_scaling=rope,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model: PreTrainedModel = transformers.LlamaForCausalLM(config).eval()
    with pytest.raises(UnsupportedModel, match=r"above 32 tokens: .* max_sequence_len must be at most that, not 48"):
        Engine(model, num_blocks=8, max_sequence_len=48)
    engine = Engine(model, num_blocks=8)
    (result,) = engine.generate([[1, 2, 3]], SamplingParams(max_tokens=4))
    expected = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert result.token_ids == expected[0, 3:].tolist()
