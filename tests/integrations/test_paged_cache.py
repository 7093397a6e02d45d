"""`generate()` over a paged cache gives the tokens that it gives over transformers' own."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from looseleaf.errors import InvalidArgument
from looseleaf.integrations.transformers import PagedCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Generate = Callable[..., torch.Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_BLOCKS = 128

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "num_return_sequences": 3, "temperature": 0.9, "top_k": 20},
    "two beams": {"num_beams": 2},
    "four beams": {"num_beams": 4, "num_return_sequences": 2},
    "chunked": {"prefill_chunk_size": 7},
}


@pytest.fixture
def cache(tiny_model: PreTrainedModel) -> Iterator[PagedCache]:
    """A cache, all of whose blocks must be available afterwards."""
    with PagedCache(tiny_model, num_blocks=NUM_BLOCKS, block_size=8) as opened:
        yield opened
    assert opened.pool.stats().num_available == NUM_BLOCKS
    opened.pool.manager.validate()


@pytest.mark.parametrize("mode", MODES)
def test_a_padded_batch_generates_the_same_tokens(
    mode: str,
    tiny_model: PreTrainedModel,
    cache: PagedCache,
    generate: Generate,
    padded: tuple[torch.Tensor, torch.Tensor],
) -> None:
    ids, mask = padded
    expected = generate(tiny_model, None, ids, attention_mask=mask, **MODES[mode])
    got = generate(tiny_model, cache, ids, attention_mask=mask, **MODES[mode])
    assert got.tolist() == expected.tolist()
    assert cache.get_seq_length() >= expected.shape[1] - 1
    assert cache.pool.stats().num_in_use > 0


@pytest.mark.parametrize("num_tokens", [1, 3, 10])
def test_prompt_lookup_generates_the_same_tokens(
    num_tokens: int,
    tiny_model: PreTrainedModel,
    cache: PagedCache,
    generate: Generate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = torch.tensor([[7, 8, 9, 10, 11] * 5])
    options = {"prompt_lookup_num_tokens": num_tokens, "max_new_tokens": 30}
    expected = generate(tiny_model, None, ids, **options)
    lengths: list[int] = []
    crop = cache.crop

    def note(count: int) -> None:
        crop(count)
        lengths.append(cache.get_seq_length())

    monkeypatch.setattr(cache, "crop", note)
    assert generate(tiny_model, cache, ids, **options).tolist() == expected.tolist()
    assert lengths
    assert lengths == sorted(lengths)
    assert len(lengths) < 30, "drafts were to be accepted"


def test_an_assistant_generates_the_same_tokens(
    tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    ids = torch.tensor([[7, 8, 9, 10, 11]])
    assistant = copy.deepcopy(tiny_model)
    assert vars(assistant)["forward"].__self__ is assistant
    expected = generate(tiny_model, None, ids)
    assert generate(tiny_model, cache, ids, assistant_model=assistant).tolist() == expected.tolist()


def test_every_name_of_the_argument_works(cache_argument: str, tiny_model: PreTrainedModel, cache: PagedCache) -> None:
    ids = torch.tensor([[5, 6, 7]])
    for argument in sorted({"past_key_values", cache_argument}):
        with pytest.warns(FutureWarning) if argument != cache_argument else nullcontext():
            tiny_model.generate(ids, **{argument: cache}, max_new_tokens=3, min_new_tokens=3, do_sample=False)
        assert cache.get_seq_length() == 5
        cache.reset()


def test_beams_share_blocks_and_copy_only_those_they_write(
    tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    ids = torch.randint(3, 128, (1, 64), generator=torch.Generator().manual_seed(0))
    generate(tiny_model, cache, ids, num_beams=4, max_new_tokens=8)
    stats = cache.pool.stats()
    assert stats.num_in_use < 2 * 9, "four beams hold the eight blocks of the prompt once"
    assert 0 < stats.num_copies <= 4 * 8


def test_a_fork_goes_its_own_way(tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate) -> None:
    def answer(one: PagedCache | None, ids: torch.Tensor) -> torch.Tensor:
        return generate(tiny_model, one, ids, attention_mask=torch.ones_like(ids), eos_token_id=None, max_new_tokens=4)

    prompt = answer(cache, torch.randint(3, 128, (2, 21), generator=torch.Generator().manual_seed(0)))
    in_use = cache.pool.stats().num_in_use
    fork = copy.deepcopy(cache)
    assert fork.pool is cache.pool
    assert cache.pool.stats().num_in_use == in_use
    conversations = {fork: prompt, cache: prompt}
    # The second time, each must take what it has computed for its own.
    for word in (5, 9):
        for place, (one, said) in enumerate(conversations.items()):
            ids = torch.cat((said, torch.full((2, 4), word + place)), dim=1)
            conversations[one] = answer(one, ids)
            assert conversations[one].tolist() == answer(None, ids).tolist()
    del fork, one, conversations
    cache.reset()
    assert cache.pool.stats().num_in_use == 0


def test_a_conversation_goes_on_from_what_is_computed(
    tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    for word in (10, 11, 12):
        ids = torch.cat((ids, torch.tensor([[word, word + 20]])), dim=1)
        expected = generate(tiny_model, None, ids, max_new_tokens=7)
        ids = generate(tiny_model, cache, ids, max_new_tokens=7)
        assert ids.tolist() == expected.tolist()
        assert cache.get_seq_length() == ids.shape[1] - 1


def test_rows_can_be_repeated_and_selected(tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate) -> None:
    prompt = torch.randint(3, 128, (2, 19), generator=torch.Generator().manual_seed(0))
    generate(tiny_model, cache, prompt, max_new_tokens=1, min_new_tokens=1)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0, 1]))
    ids = torch.cat((prompt[[1, 0, 0]], torch.tensor([[4], [5], [6]])), dim=1)
    expected = generate(tiny_model, None, ids)
    assert generate(tiny_model, cache, ids).tolist() == expected.tolist()


def test_embeddings_in_the_place_of_ids_generate_the_same_tokens(
    tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str
) -> None:
    with torch.inference_mode():
        embeddings = tiny_model.get_input_embeddings()(torch.tensor([[5, 6, 7, 8]]))
    options = {"max_new_tokens": 9, "do_sample": False, "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    expected = tiny_model.generate(inputs_embeds=embeddings, **options)
    got = tiny_model.generate(inputs_embeds=embeddings, **{cache_argument: cache}, **options)
    assert got.tolist() == expected.tolist()
    assert cache.pool.stats().num_idle == 0


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_model_is_as_it_was_without_the_cache(attention: str, generate: Generate) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()
    before = set(vars(model))
    ids = torch.tensor([[5, 6, 7]])
    expected = generate(model, None, ids)
    cache, second = PagedCache(model, num_blocks=4), PagedCache(model, num_blocks=4)
    assert generate(model, cache, ids).tolist() == expected.tolist()
    assert model.config._attn_implementation == attention
    assert generate(model, None, ids).tolist() == expected.tolist()
    cache.close()
    assert generate(model, second, ids).tolist() == expected.tolist()
    del second
    gc.collect()
    assert set(vars(model)) == before


def test_a_copy_of_a_model_takes_caches_of_its_own(
    tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [8, 7, 6, 5]])
    model = copy.deepcopy(tiny_model)
    expected = generate(tiny_model, None, ids)
    with PagedCache(model, num_blocks=8) as own:
        for one, opened in ((model, own), (tiny_model, cache), (copy.deepcopy(model), None)):
            assert generate(one, opened, ids).tolist() == expected.tolist()


def test_threads_open_and_close_caches_of_one_model(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    before = set(vars(model))
    ids = torch.tensor([[5, 6, 7]])
    expected = generate(model, None, ids, max_new_tokens=2).tolist()
    together = threading.Barrier(4, timeout=20)
    monkeypatch.setattr("looseleaf.integrations.transformers.binding.check_attention", lambda _: together.wait())

    def answer(_: int) -> list[list[int]]:
        with PagedCache(model, num_blocks=4) as cache:
            together.wait()
            answered: list[list[int]] = generate(model, cache, ids, max_new_tokens=2).tolist()
        return answered

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(answer, range(80))) == [expected] * 80
    finally:
        sys.setswitchinterval(interval)
    assert set(vars(model)) == before


@pytest.mark.parametrize("is_closed_first", [True, False])
def test_others_may_wrap_forward_between_two_caches(is_closed_first: bool, generate: Generate) -> None:
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.tensor([[5, 6, 7]])
    expected = generate(model, None, ids).tolist()
    first = PagedCache(model, num_blocks=8)
    inner, calls = model.forward, []

    def outer(*args: object, **options: object) -> object:
        calls.append(1)
        return inner(*args, **options)

    model.forward = outer
    if is_closed_first:
        first.close()
    second = PagedCache(model, num_blocks=8)
    assert generate(model, second, ids).tolist() == expected
    assert calls
    if not is_closed_first:
        assert generate(model, first, ids).tolist() == expected
    first.close()
    second.reset()
    assert generate(model, second, ids).tolist() == expected
    second.close()
    assert model.forward is outer
    assert generate(model, None, ids).tolist() == expected


def test_an_interrupted_pass_leaves_model_and_cache_as_they_were(
    tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13]])
    expected = generate(tiny_model, None, ids)
    generate(tiny_model, cache, ids[:, :5], max_new_tokens=1, min_new_tokens=1)
    attention = tiny_model.config._attn_implementation

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for layer in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(tiny_model.model.layers[layer].mlp, "forward", interrupt)
            with pytest.raises(KeyboardInterrupt):
                generate(tiny_model, cache, torch.cat((ids[:, :5], torch.full((1, 4), 99)), dim=1))
        assert tiny_model.config._attn_implementation == attention
        assert cache.get_seq_length() == 5
        cache.pool.manager.validate()
    assert generate(tiny_model, cache, ids).tolist() == expected.tolist()


INSIDE: dict[str, Callable[[PreTrainedModel, PagedCache], object]] = {
    "reset": lambda _, cache: cache.reset(),
    "crop": lambda _, cache: cache.crop(-2),
    "begin": lambda _, cache: cache.begin(torch.tensor([[5, 6]])),
    "fork": lambda _, cache: cache.fork(),
    "reorder": lambda _, cache: cache.reorder_cache(torch.tensor([0])),
    "repeat": lambda _, cache: cache.batch_repeat_interleave(2),
    "select": lambda _, cache: cache.batch_select_indices(torch.tensor([0])),
    "close": lambda _, cache: cache.close(),
    "pass": lambda model, cache: model(torch.tensor([[5]]), None, None, cache),
}


@pytest.mark.parametrize("call", INSIDE)
@pytest.mark.parametrize("num_computed", [0, 5])
def test_nothing_changes_the_rows_while_a_pass_runs(
    num_computed: int, call: str, tiny_model: PreTrainedModel, cache: PagedCache, generate: Generate
) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13]])
    if num_computed:
        generate(tiny_model, cache, ids[:, :num_computed], max_new_tokens=1, min_new_tokens=1)
    refused: list[str] = []

    def try_it(*_: object) -> None:
        hook.remove()
        with pytest.raises(InvalidArgument, match="a forward pass of the cache runs") as caught:
            INSIDE[call](tiny_model, cache)
        refused.append(str(caught.value))

    hook = tiny_model.model.layers[1].register_forward_hook(try_it)
    assert generate(tiny_model, cache, ids).tolist() == generate(tiny_model, None, ids).tolist()
    assert len(refused) == 1


@pytest.mark.parametrize("num_computed", [0, 5])
def test_a_pass_that_cannot_begin_leaves_the_cache_as_it_was(
    num_computed: int,
    tiny_model: PreTrainedModel,
    cache: PagedCache,
    generate: Generate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13]])
    if num_computed:
        generate(tiny_model, cache, ids[:, :num_computed], max_new_tokens=1, min_new_tokens=1)
    num_in_use = cache.pool.stats().num_in_use

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr("looseleaf.integrations.transformers.paged_cache.Forward", fail)
        with pytest.raises(torch.OutOfMemoryError):
            generate(tiny_model, cache, torch.cat((ids[:, :5], torch.full((1, 4), 99)), dim=1))
    assert (cache.get_seq_length(), cache.pool.stats().num_in_use) == (num_computed, num_in_use)
    assert generate(tiny_model, cache, ids).tolist() == generate(tiny_model, None, ids).tolist()


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["greedy", "four beams"])
def test_smollm2_generates_the_same_text(
    mode: str, smollm2: tuple[PreTrainedModel, PreTrainedTokenizerBase], generate: Generate
) -> None:
    model, tokenizer = smollm2
    texts = ["The capital of France is", "A loose-leaf binder keeps pages in any order, so that they can be"]
    tokenizer.padding_side = "left"
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    options = MODES[mode] | {"attention_mask": batch["attention_mask"], "max_new_tokens": 12}
    expected = generate(model, None, batch["input_ids"], **options)
    with PagedCache(model, num_blocks=64) as cache:
        assert generate(model, cache, batch["input_ids"], **options).tolist() == expected.tolist()


@pytest.fixture(scope="module")
def smollm2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from looseleaf.integrations.transformers.smollm2 import load_smollm2  # noqa: PLC0415

    return load_smollm2("float32", progress=False)
