"""What a paged cache cannot do is refused by an error that names it, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from looseleaf.errors import InvalidArgument, InvalidType, LooseleafError
from looseleaf.integrations.transformers import PagedCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    Generate = Callable[..., torch.Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_BLOCKS = 32
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [10, 9, 8, 7, 6, 5]])


@pytest.fixture
def cache(tiny_model: PreTrainedModel) -> Iterator[PagedCache]:
    """A cache, all of whose blocks must be available afterwards."""
    with PagedCache(tiny_model, num_blocks=NUM_BLOCKS, block_size=4, max_sequences=16) as opened:
        yield opened
    assert opened.pool.stats().num_available == NUM_BLOCKS
    opened.pool.manager.validate()


Case = tuple["Callable[[Any, Any], object]", type[LooseleafError], str]

OF_A_FULL_CACHE: dict[str, Case] = {
    "reorder by a list": (lambda _, cache: cache.reorder_cache([0, 1]), InvalidType, "beam_idx must be a tensor"),
    "reorder by a matrix": (
        lambda _, cache: cache.reorder_cache(torch.tensor([[0, 1]])),
        InvalidArgument,
        r"beam_idx must be \[rows\], was \[1, 2\]",
    ),
    "reorder by floats": (
        lambda _, cache: cache.reorder_cache(torch.tensor([0.0, 1.5])),
        InvalidType,
        "beam_idx must hold integers, was torch.float32",
    ),
    "reorder by flags": (
        lambda _, cache: cache.reorder_cache(torch.tensor([True, True])),
        InvalidType,
        "beam_idx must hold integers, was torch.bool",
    ),
    "reorder to nothing": (
        lambda _, cache: cache.reorder_cache(torch.tensor([], dtype=torch.long)),
        InvalidArgument,
        r"no row of 2 would be left; reset\(\) empties",
    ),
    "select nothing": (
        lambda _, cache: cache.batch_select_indices(torch.tensor([False, False])),
        InvalidArgument,
        "no row of 2 would be left",
    ),
    "select another row": (
        lambda _, cache: cache.batch_select_indices(torch.tensor([0, 2])),
        InvalidArgument,
        "the cache has 2 rows, there is no row 2",
    ),
    "select by a matrix": (
        lambda _, cache: cache.batch_select_indices(torch.tensor([[0], [1]])),
        InvalidArgument,
        r"indices must be \[rows\], was \[2, 1\]",
    ),
    "select by too few flags": (
        lambda _, cache: cache.batch_select_indices(torch.tensor([True])),
        InvalidArgument,
        r"indices must be \[2\], a bool for each row, was \[1\]",
    ),
    "repeat never": (lambda _, cache: cache.batch_repeat_interleave(0), InvalidArgument, "repeats is 0, must be 1"),
    "repeat less": (lambda _, cache: cache.batch_repeat_interleave(-1), InvalidArgument, "repeats is -1, must be 1"),
    "repeat a": (lambda _, cache: cache.batch_repeat_interleave("a"), InvalidType, "repeats must be an integer"),
    "crop none": (lambda _, cache: cache.crop(None), InvalidType, "tokens_to_remove must be an integer, was None"),
    "crop a half": (lambda _, cache: cache.crop(torch.tensor(-0.5)), InvalidType, "tokens_to_remove must be an int"),
    "begin with a list": (lambda _, cache: cache.begin([[5]]), InvalidType, "input_ids must be a tensor, was list"),
    "begin with none": (lambda _, cache: cache.begin(None), InvalidType, "input_ids must be a tensor, was NoneType"),
    "begin with a row": (
        lambda _, cache: cache.begin(IDS[0]),
        InvalidArgument,
        r"input_ids must be \[rows, columns\], was \[6\]",
    ),
    "begin with floats": (
        lambda _, cache: cache.begin(IDS + 0.5),
        InvalidType,
        "input_ids must hold integers, was torch.float32",
    ),
    "pass a row": (lambda call, _: call(IDS[0]), InvalidArgument, r"input_ids must be \[rows, columns\], was \[6\]"),
    "pass no column": (
        lambda call, _: call(IDS[:, :0]),
        InvalidArgument,
        r"input_ids must have a row and a column at least, was \[2, 0\]",
    ),
    "pass flat embeddings": (
        lambda call, _: call(inputs_embeds=torch.zeros(2, 96)),
        InvalidArgument,
        r"inputs_embeds must be \[rows, columns, hidden_size\], was \[2, 96\]",
    ),
    "reset a layer": (lambda _, cache: cache.layers[0].reset(), InvalidArgument, "through the cache's methods"),
    "reorder a layer": (
        lambda _, cache: cache.layers[1].reorder_cache(torch.tensor([0, 1])),
        InvalidArgument,
        "through the cache's methods",
    ),
    "offload a layer": (lambda _, cache: cache.layers[0].offload(), InvalidArgument, "stays on its device"),
    "offload": (lambda _, cache: cache.offload(0), InvalidArgument, "stays on its device"),
}


@pytest.mark.parametrize("case", OF_A_FULL_CACHE)
def test_what_cannot_be_is_refused_and_changes_nothing(
    case: str, tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str
) -> None:
    def call(*args: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = tiny_model(*args, **options, **{cache_argument: cache}).logits
        return logits

    misuse, error, message = OF_A_FULL_CACHE[case]
    call(IDS)
    with pytest.raises(error, match=message):
        misuse(call, cache)
    assert (cache.num_rows, cache.get_seq_length()) == (2, 6)
    with torch.inference_mode():
        expected = tiny_model(torch.cat((IDS, IDS), dim=1)).logits[:, 6:]
    torch.testing.assert_close(call(IDS), expected, rtol=1e-4, atol=1e-4)


def test_an_integer_tensor_is_as_good_as_an_integer(
    tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str
) -> None:
    with torch.inference_mode():
        tiny_model(IDS, **{cache_argument: cache})
    minus_two: Any = torch.tensor(-2)
    cache.crop(minus_two)
    assert type(cache.get_seq_length()) is int
    cache.batch_select_indices(torch.tensor([-1, -1, 0]))
    assert (cache.num_rows, cache.get_seq_length()) == (3, 4)
    lengths: tuple[Any, ...] = (True, "8", 8.0)
    for length in lengths:
        with pytest.raises(InvalidType, match="max_sequence_len must be an integer"):
            PagedCache(tiny_model, num_blocks=4, max_sequence_len=length)


def test_a_closed_cache_stays_closed(tiny_model: PreTrainedModel) -> None:
    cache = PagedCache(tiny_model, num_blocks=4)
    cache.close()
    for use in (lambda: cache.begin(IDS), cache.fork, cache.__enter__):
        with pytest.raises(InvalidArgument, match="the cache is closed"):
            use()
    assert cache.pool.stats().num_available == 4


def test_two_caches_of_one_call_are_refused(
    tiny_model: PreTrainedModel, cache: PagedCache, cache_argument: str
) -> None:
    other = {"cache": "past_key_values", "past_key_values": "cache"}[cache_argument]
    for second in (PagedCache(tiny_model, num_blocks=4), transformers.DynamicCache()):
        for options in ({cache_argument: cache, other: second}, {cache_argument: second, other: cache}):
            for call in (tiny_model, tiny_model.generate):
                with pytest.raises(InvalidArgument, match="two caches are given by past_key_values and cache"):
                    call(IDS, **options)
    assert cache.num_rows == 0
