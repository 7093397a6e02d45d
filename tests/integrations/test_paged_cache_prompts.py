"""Prompts and paddings that a paged cache takes over, and those that it refuses. Never a wrong text."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from looseleaf.errors import (
    EmptyPrompt,
    InvalidArgument,
    InvalidType,
    NeverFits,
    OutOfBlocks,
    PromptMismatch,
    TooManySequences,
    UnsupportedModel,
)
from looseleaf.integrations.transformers import PagedCache
from looseleaf.integrations.transformers.versions import cropped_length, has_steady_rope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    Generate = Callable[..., torch.Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_BLOCKS = 64
IDS = torch.randint(3, 128, (1, 40), generator=torch.Generator().manual_seed(7))


@pytest.fixture
def cache(tiny_model: PreTrainedModel) -> Iterator[PagedCache]:
    """A cache, all of whose blocks must be available afterwards."""
    with PagedCache(tiny_model, num_blocks=NUM_BLOCKS, block_size=8, max_sequences=16) as opened:
        yield opened
    assert opened.pool.stats().num_available == NUM_BLOCKS
    opened.pool.manager.validate()


def test_a_prompt_of_another_text_is_refused(
    tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    generate(tiny_model, cache, IDS[:, :20], max_new_tokens=4, min_new_tokens=4)
    other = IDS.clone()
    other[0, 13] = 1
    with pytest.raises(PromptMismatch, match="token 1 in row 0, column 13") as caught:
        generate(tiny_model, cache, other)
    assert (caught.value.row, caught.value.column, caught.value.cached_token_id) == (0, 13, int(IDS[0, 13]))
    with pytest.raises(InvalidArgument, match="the prompt has 20 columns, the cache has computed 23"):
        generate(tiny_model, cache, IDS[:, :20])
    with pytest.raises(InvalidArgument, match="the prompt has 2 rows, the cache 1"):
        generate(tiny_model, cache, IDS.expand(2, -1))
    with pytest.raises(PromptMismatch):
        generate(tiny_model, cache, other, prefill_chunk_size=5)


@pytest.mark.parametrize("rows", [1, 4])
def test_begin_computes_only_what_no_prompt_before_has(
    rows: int, tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    shared = IDS[:, :26].expand(rows, -1)
    first = torch.cat((shared, torch.full((rows, 3), 9)), dim=1)
    answer = generate(tiny_model, cache, first, max_new_tokens=12, min_new_tokens=12)
    second = torch.cat((shared, torch.arange(30, 30 + 5 * rows).view(rows, 5)), dim=1)
    assert cache.begin(second) == 24
    assert cache.get_seq_length() == 24
    assert generate(tiny_model, cache, second).tolist() == generate(tiny_model, None, second).tolist()
    # Generated tokens are found like those of a prompt.
    third = torch.cat((answer, torch.full((rows, 2), 7)), dim=1)
    assert cache.begin(third) == 40
    assert generate(tiny_model, cache, third).tolist() == generate(tiny_model, None, third).tolist()


def test_nobody_goes_on_from_embeddings(
    tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str, generate: Generate
) -> None:
    with torch.inference_mode():
        embeddings = tiny_model.get_input_embeddings()(IDS)
    options = {"max_new_tokens": 4, "do_sample": False, cache_argument: cache}
    tiny_model.generate(inputs_embeds=embeddings[:, :8], **options)
    for arguments in ({"input_ids": IDS}, {"inputs_embeds": embeddings}):
        with pytest.raises(InvalidArgument, match=r"the .* columns that .* came as inputs_embeds|the prompt comes as"):
            tiny_model.generate(**arguments, **options)
    cache.reset()
    expected = generate(tiny_model, cache, IDS[:, :20], max_new_tokens=4)
    for mask in (torch.ones(1, 40), torch.ones(1, 63)):
        with pytest.raises(InvalidArgument, match=r"the prompt comes as inputs_embeds, .* computed 23 columns"):
            tiny_model.generate(inputs_embeds=embeddings, attention_mask=mask, **options)
    with pytest.raises(InvalidArgument, match="input_ids is missing"):
        tiny_model.generate(**options)
    assert cache.get_seq_length() == 23
    ids = torch.cat((expected, IDS), dim=1)
    assert generate(tiny_model, cache, ids).tolist() == generate(tiny_model, None, ids).tolist()


def test_begin_computes_a_padded_batch_from_the_column_that_all_rows_have(
    tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    generate(tiny_model, cache, IDS)
    ids, mask = torch.zeros(2, 44, dtype=torch.long), torch.ones(2, 44, dtype=torch.long)
    ids[0, :40], ids[1, 3:35] = IDS, IDS[:, :32]
    ids[0, 40:], ids[1, 35:] = 5, 6
    mask[1, :3] = 0
    assert cache.begin(ids, mask) == 35
    expected = generate(tiny_model, None, ids, attention_mask=mask)
    assert generate(tiny_model, cache, ids, attention_mask=mask).tolist() == expected.tolist()
    ids[1, 10] = 1
    assert cache.begin(ids, mask) == 3
    expected = generate(tiny_model, None, ids, attention_mask=mask)
    assert generate(tiny_model, cache, ids, attention_mask=mask).tolist() == expected.tolist()


@pytest.mark.parametrize("way", ["begin", "conversation"])
@pytest.mark.parametrize("kind", ["prompt lookup", "assistant"])
def test_drafts_go_on_from_what_is_computed(
    kind: str, way: str, tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    options: dict[str, Any] = {"eos_token_id": 258}  # one that does not come
    said = generate(tiny_model, cache, IDS[:, :20], max_new_tokens=7, **options)
    ids = torch.cat((said, said[:, 3:12]), dim=1)
    if way == "begin":
        assert cache.begin(ids) == 24
    expected = generate(tiny_model, None, ids, **options)
    if kind == "assistant":
        options["assistant_model"] = copy.deepcopy(tiny_model)
    else:
        options["prompt_lookup_num_tokens"] = 3
    got = generate(tiny_model, cache, ids, **options)
    assert got.tolist() == expected.tolist()
    assert cache.get_seq_length() < expected.shape[1]
    ids = torch.cat((got, said[:, 3:12]), dim=1)
    assert generate(tiny_model, cache, ids).tolist() == generate(tiny_model, None, ids).tolist()


@pytest.mark.parametrize("kind", ["prompt lookup", "assistant"])
def test_more_drafts_than_columns_that_are_computed(
    kind: str, tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str, generate: Generate
) -> None:
    ids = IDS[:, :5].repeat(1, 4)
    with torch.inference_mode():
        tiny_model(input_ids=ids[:, :2], **{cache_argument: cache})
    options: dict[str, Any] = {"eos_token_id": 258, "max_new_tokens": 12}
    expected = generate(tiny_model, None, ids, **options)
    if kind == "assistant":
        options["assistant_model"] = copy.deepcopy(tiny_model)
    else:
        options["prompt_lookup_num_tokens"] = 5
    assert generate(tiny_model, cache, ids, **options).tolist() == expected.tolist()


def test_chunks_go_on_from_what_is_computed_or_say_why_not(
    tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str, generate: Generate
) -> None:
    generate(tiny_model, cache, IDS)
    assert cache.begin(IDS) == 32
    expected = generate(tiny_model, None, IDS).tolist()
    if cache_argument == "cache":
        assert generate(tiny_model, cache, IDS, prefill_chunk_size=3).tolist() == expected
    else:
        with pytest.raises(InvalidArgument, match=r"prefill_chunk_size makes .* the cache has computed 32; leave"):
            generate(tiny_model, cache, IDS, prefill_chunk_size=3)
        assert generate(tiny_model, cache, IDS).tolist() == expected


def test_only_keys_that_follow_from_the_ids_are_shared(
    tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str, generate: Generate
) -> None:
    with torch.inference_mode():
        tiny_model(input_ids=IDS, position_ids=torch.arange(40)[None] + 3, **{cache_argument: cache})
    assert cache.begin(IDS) == 0
    with torch.inference_mode():
        tiny_model(input_ids=IDS, position_ids=torch.arange(40)[None], **{cache_argument: cache})
    assert cache.begin(IDS) == 32
    assert generate(tiny_model, cache, IDS).tolist() == generate(tiny_model, None, IDS).tolist()


def test_ids_by_position_are_shared_too(tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str) -> None:
    with torch.inference_mode():
        tiny_model(IDS, **{cache_argument: cache})
    assert cache.begin(IDS) == 32


def test_a_rope_that_changes_with_the_length_shares_nothing() -> None:
    config = transformers.LlamaConfig
    assert has_steady_rope(config())
    name = "rope_parameters" if "rope_parameters" in inspect.signature(config).parameters else "rope_scaling"
    for kind in ("dynamic", "longrope"):
        settings: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
        if kind == "longrope":
            settings |= {"short_factor": [1.0], "long_factor": [2.0]}
        assert not has_steady_rope(config(**{name: settings}, hidden_size=8, num_attention_heads=4))


MASKS = {
    "another mask than before": (torch.tensor([[0] + [1] * 7]), "pads the first .1. columns"),
    "padding on the right": (torch.tensor([[1] * 6 + [0] * 2]), "zeros behind a one"),
    "a hole": (torch.tensor([[1] * 5 + [0] + [1] * 2]), "zeros behind a one"),
    "a mask of the new columns alone": (torch.ones(1, 3), r"must be \[1, 8\], .* was \[1, 3\]"),
    "a mask of four dimensions": (torch.zeros(1, 1, 3, 8), r"must be \[rows, columns\]"),
}


@pytest.mark.parametrize("case", MASKS)
def test_a_mask_that_cannot_be_honored_is_refused(
    case: str, tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str
) -> None:
    mask, message = MASKS[case]
    with torch.inference_mode():
        tiny_model(input_ids=IDS[:, :5], **{cache_argument: cache})
        with pytest.raises(InvalidArgument, match=message):
            tiny_model(input_ids=IDS[:, 5:8], attention_mask=mask, **{cache_argument: cache})
        assert cache.get_seq_length() == 5
        got = tiny_model(input_ids=IDS[:, 5:8], attention_mask=torch.ones(1, 8), **{cache_argument: cache}).logits
        expected = tiny_model(input_ids=IDS[:, :8], use_cache=False).logits[:, 5:]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_missing_mask_does_not_uncover_padding(
    tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str
) -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    with torch.inference_mode():
        tiny_model(input_ids=IDS[:, :5], attention_mask=mask, **{cache_argument: cache})
        with pytest.raises(InvalidArgument, match=r"the cache holds rows with \[2\]"):
            tiny_model(input_ids=IDS[:, 5:8], **{cache_argument: cache})


def test_what_does_not_fit_changes_nothing(tiny_model: PreTrainedModel, cache_argument: str) -> None:
    cache = PagedCache(tiny_model, num_blocks=6, block_size=8, max_sequences=3)
    options = {cache_argument: cache}
    with torch.inference_mode():
        with pytest.raises(NeverFits):
            tiny_model(input_ids=IDS.expand(2, -1), **options)
        with pytest.raises(TooManySequences):
            tiny_model(input_ids=IDS[:, :2].expand(4, -1), **options)
        assert cache.num_rows == cache.pool.stats().num_in_use == 0
        tiny_model(input_ids=IDS[:, :17].expand(2, -1), **options)
        with pytest.raises(TooManySequences):
            cache.fork()
        with pytest.raises(OutOfBlocks):
            tiny_model(input_ids=IDS[:, 17:40].expand(2, -1), **options)
        with pytest.raises(InvalidArgument, match="the batch has 1 rows, the cache 2"):
            tiny_model(input_ids=IDS[:, 17:18], **options)
        assert (cache.num_rows, cache.get_seq_length()) == (2, 17)
        tiny_model(input_ids=IDS[:, 17:20].expand(2, -1), **options)
    cache.pool.manager.validate()
    cache.close()
    assert cache.pool.stats().num_available == 6


def test_a_cache_belongs_to_one_model_until_it_is_closed(
    tiny_model: PreTrainedModel, cache_argument: str, generate: Generate
) -> None:
    torch.manual_seed(0)
    other = transformers.LlamaForCausalLM(tiny_model.config).eval()
    cache = PagedCache(tiny_model, num_blocks=8)
    for model in (other, tiny_model.model):
        with pytest.raises(InvalidArgument, match="the model that it was made for"), torch.inference_mode():
            model(input_ids=IDS, **{cache_argument: cache})
    theirs = PagedCache(other, num_blocks=8)
    with pytest.raises(InvalidArgument, match="of another model"):
        generate(other, cache, IDS)
    theirs.close()
    cache.close()
    cache.close()
    with pytest.raises(InvalidArgument, match="until close"):
        generate(tiny_model, cache, IDS)


def test_wrong_arguments_are_named(
    tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str, generate: Generate
) -> None:
    with pytest.raises(InvalidType, match="model has type int"):
        PagedCache(3, num_blocks=4)
    with pytest.raises(InvalidArgument, match="num_blocks and memory"):
        PagedCache(tiny_model)
    with pytest.raises(InvalidArgument, match="max_sequence_len is 0, must be 1 to"):
        PagedCache(tiny_model, num_blocks=4, max_sequence_len=0)
    tiny_model.train()
    with pytest.raises(InvalidArgument, match="eval mode"):
        PagedCache(tiny_model, num_blocks=4)
    tiny_model.eval()
    with pytest.raises(InvalidArgument, match="output_attentions"):
        tiny_model(input_ids=IDS, output_attentions=True, **{cache_argument: cache})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_model.config, "_attn_implementation_internal", "eager")
        patch.setattr(tiny_model.config, "output_attentions", True)
        with pytest.raises(InvalidArgument, match="output_attentions"):
            tiny_model(input_ids=IDS, **{cache_argument: cache})
    with pytest.raises(InvalidArgument, match="use_cache is False"):
        tiny_model(input_ids=IDS, use_cache=False, **{cache_argument: cache})
    with pytest.raises(InvalidArgument, match="use_cache is False"):
        generate(tiny_model, cache, IDS, use_cache=False)
    assert cache.num_rows == 0
    with pytest.raises(EmptyPrompt):
        cache.begin(torch.tensor([[4, 5]]), torch.tensor([[0, 0]]))
    with torch.inference_mode():
        tiny_model(input_ids=IDS, **{cache_argument: cache})
    with pytest.raises(InvalidArgument, match="there is no row 1"):
        cache.reorder_cache(torch.tensor([0, 1]))
    with pytest.raises(InvalidType, match="cannot be pickled"):
        pickle.dumps(cache)


def test_crop_follows_the_version(cache_argument: str, tiny_model: PreTrainedModel, cache: PagedCache) -> None:
    with torch.inference_mode():
        tiny_model(input_ids=IDS[:, :10], **{cache_argument: cache})
    cache.crop(-3)
    assert cache.get_seq_length() == 7
    states = torch.zeros(1, 2, 7, 16)
    for count in (0, -2, -7):
        theirs = transformers.DynamicCache()
        theirs.update(states, states, 0)
        theirs.crop(count)
        assert cropped_length(count, 7) == theirs.get_seq_length()
    if "tokens_to_remove" in inspect.signature(transformers.Cache.crop).parameters:
        with pytest.raises(InvalidArgument, match="tokens_to_remove is 4"):
            cache.crop(4)
    else:
        cache.crop(4)
        assert cache.get_seq_length() == 4


def test_layers_that_hide_other_keys_are_refused(tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    layer_types = ["full_attention", "chunked_attention", "full_attention"]
    monkeypatch.setattr(tiny_model.config, "layer_types", layer_types, raising=False)
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        PagedCache(tiny_model, num_blocks=4)
