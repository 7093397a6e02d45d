from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import transformers

from looseleaf import Engine, SamplingParams
from looseleaf.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# These compute their attention themselves, whatever `set_attn_implementation` says.
OTHERS = {
    "falcon": lambda: transformers.FalconForCausalLM(
        transformers.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    ),
    "bloom": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    ),
}


@pytest.mark.parametrize("family", OTHERS)
def test_a_model_that_ignores_our_attention_is_refused_at_its_first_step(family: str) -> None:
    torch.manual_seed(0)
    model: PreTrainedModel = OTHERS[family]().eval()
    engine = Engine(model, num_blocks=8, block_size=16, max_sequence_len=64)
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match=type(model).__name__):
            engine.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
        assert engine.cache.manager.stats().num_available == 8
