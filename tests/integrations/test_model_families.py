"""Every family generates the same tokens on paged caches as with transformers' eager attention and its own cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from tests.integrations.families import FAMILIES, SELF_ATTENDING, WINDOW, new_model

from looseleaf import Engine, SamplingParams
from looseleaf.errors import InvalidArgument, UnsupportedModel
from looseleaf.integrations.transformers import PagedCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    Generate = Callable[..., torch.Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_BLOCKS = 96


@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_generates_the_tokens_of_eager_attention(
    family: str, generate: Generate, padded: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model = new_model(family)
    ids, mask = padded
    with PagedCache(model, num_blocks=NUM_BLOCKS, block_size=8) as cache:
        for options in ({}, {"num_beams": 3, "max_new_tokens": 8}):
            expected = generate(model, None, ids, attention_mask=mask, **options)
            got = generate(model, cache, ids, attention_mask=mask, **options)
            assert got.tolist() == expected.tolist()
            cache.reset()
            assert cache.pool.stats().num_available == NUM_BLOCKS
        cache.pool.manager.validate()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_generates_the_tokens_of_eager_attention(
    family: str, generate: Generate, padded: tuple[torch.Tensor, torch.Tensor]
) -> None:
    if family in {"gpt2", "gpt_bigcode"} and transformers.__version__.startswith("4."):
        with pytest.raises(UnsupportedModel, match="does not hand arguments to its attention"):
            Engine(new_model(family), num_blocks=8).generate([[5, 6]], SamplingParams(max_tokens=2))
        return
    model = new_model(family)
    ids, mask = padded
    prompts = [row[row_mask.bool()].tolist() for row, row_mask in zip(ids, mask, strict=True)]
    engine = Engine(model, num_blocks=NUM_BLOCKS, block_size=8, max_batch_tokens=32, max_sequence_len=128)
    results = engine.generate(prompts, SamplingParams(max_tokens=16, ignore_eos=True))
    for prompt, result in zip(prompts, results, strict=True):
        alone = torch.tensor([prompt])
        expected = generate(model, None, alone, attention_mask=torch.ones_like(alone), eos_token_id=None)
        assert result.token_ids == expected[0, len(prompt) :].tolist()
    assert engine.cache.stats().num_available == NUM_BLOCKS


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2])
def test_a_window_counts_its_own_token(family: str, length: int, cache_argument: str) -> None:
    model = new_model(family)
    ids = torch.randint(3, 128, (2, length), generator=torch.Generator().manual_seed(length))
    with torch.inference_mode(), PagedCache(model, num_blocks=NUM_BLOCKS, block_size=8) as cache:
        expected = model(input_ids=ids, use_cache=False).logits
        got = model(input_ids=ids[:, :-1], **{cache_argument: cache}).logits
        last = model(input_ids=ids[:, -1:], **{cache_argument: cache}).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(torch.cat((got, last), dim=1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", SELF_ATTENDING)
def test_a_model_that_computes_its_attention_itself_is_refused(family: str) -> None:
    model = SELF_ATTENDING[family]().eval()
    with pytest.raises(UnsupportedModel, match=type(model).__name__):
        PagedCache(model, num_blocks=8)
    assert not {"forward", "generate"} & vars(model).keys()


def test_a_layer_that_attends_by_itself_is_caught_by_the_first_pass(
    monkeypatch: pytest.MonkeyPatch, generate: Generate
) -> None:
    model = new_model("llama")
    attention = model.model.layers[2].self_attn
    monkeypatch.setattr(attention, "config", transformers.LlamaConfig(attn_implementation="eager"))
    cache = PagedCache(model, num_blocks=8)
    with pytest.raises(UnsupportedModel, match=r"LlamaForCausalLM .* layer 2 did not attend"):
        generate(model, cache, torch.tensor([[3, 4, 5]]), max_new_tokens=1)
    assert cache.num_rows == 0
    assert cache.pool.stats().num_available == 8
    assert model.config._attn_implementation == "eager"


def test_the_last_layer_cannot_attend_by_itself_unseen(monkeypatch: pytest.MonkeyPatch, generate: Generate) -> None:
    model = new_model("llama")
    monkeypatch.setattr(
        model.model.layers[3].self_attn, "config", transformers.LlamaConfig(attn_implementation="eager")
    )
    cache = PagedCache(model, num_blocks=8)
    with pytest.raises(UnsupportedModel, match=r"layers \[3\] of 4 did not attend"):
        generate(model, cache, torch.tensor([[3, 4, 5]]), max_new_tokens=1)
    assert cache.pool.stats().num_available == 8


@pytest.mark.parametrize("open_pool", [PagedCache, Engine])
@pytest.mark.parametrize("family", ["gpt2", "gpt_bigcode", "opt", "roberta", "llama"])
def test_no_sequence_outgrows_the_positions_that_were_learned(family: str, open_pool: Callable[..., object]) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    models: dict[str, Callable[[], PreTrainedModel]] = FAMILIES | {
        "opt": lambda: transformers.OPTForCausalLM(
            transformers.OPTConfig(**sizes, ffn_dim=16, word_embed_proj_dim=16, max_position_embeddings=256)
        ),
        "roberta": lambda: transformers.RobertaForCausalLM(
            transformers.RobertaConfig(**sizes, intermediate_size=16, is_decoder=True, max_position_embeddings=258)
        ),
    }
    model = models[family]().eval()
    if open_pool is PagedCache and not model._can_set_attn_implementation():  # in older versions of transformers
        with pytest.raises(UnsupportedModel, match="does not take its attention from transformers"):
            open_pool(model, num_blocks=4, max_sequence_len=256)
        return
    for length in (256, None):
        open_pool(model, num_blocks=4, max_sequence_len=length)
    if family == "llama":
        open_pool(model, num_blocks=4, max_sequence_len=257)
    else:
        with pytest.raises(InvalidArgument, match=r"max_sequence_len is 257, must be 1 to 256: .* learned"):
            open_pool(model, num_blocks=4, max_sequence_len=257)


def test_the_decoder_of_an_encoder_decoder_is_refused() -> None:
    config = transformers.GPT2Config(
        vocab_size=32, n_embd=16, n_layer=1, n_head=2, add_cross_attention=True, bos_token_id=1, eos_token_id=2
    )
    with pytest.raises(UnsupportedModel, match="has add_cross_attention: it keeps a second cache"):
        PagedCache(transformers.GPT2LMHeadModel(config).eval(), num_blocks=4)
