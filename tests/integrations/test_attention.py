from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integrations.families import FAMILIES, new_model

from looseleaf.errors import InvalidArgument
from looseleaf.integrations.transformers.attention import ATTENTION_NAME, use_paged_attention
from looseleaf.integrations.transformers.pool import cache_shape, new_pool

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from looseleaf.cache import PagedKVCache, Step

pytestmark = pytest.mark.usefixtures("one_thread")


def new_cache(model: PreTrainedModel) -> PagedKVCache:
    shape, max_sequence_len = cache_shape(model, max_sequence_len=128)
    return new_pool(
        model,
        shape,
        max_sequence_len=max_sequence_len,
        num_blocks=32,
        memory=None,
        block_size=8,
        max_sequences=4,
        max_batch_tokens=None,
    )


def run(model: PreTrainedModel, step: Step, /, **changes: object) -> torch.Tensor:
    arguments: dict[str, Any] = {
        "input_ids": step.token_ids[None],
        "position_ids": step.positions[None],
        "use_cache": False,
        "step": step,
    }
    with torch.inference_mode(), use_paged_attention(model):
        logits: torch.Tensor = model(**arguments | changes).logits
    return logits


def pieces(logits: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    return [logits[0, end - length : end] for end, length in zip(ends, lengths, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_batch_computes_what_each_sequence_alone_computes(family: str) -> None:
    model = new_model(family)
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(1, 128, (length,), generator=generator).tolist() for length in (5, 37, 1, 16)]
    num_first = [3, 20, 1, 15]
    cache = new_cache(model)
    sequences = [cache.admit(text[:length]) for text, length in zip(texts, num_first, strict=True)]
    got: list[list[torch.Tensor]] = [[] for _ in texts]
    # The prompts in one step, then a second step that mixes single tokens with a longer piece.
    step = cache.step(sequences)
    for rows, part in zip(got, pieces(run(model, step), num_first), strict=True):
        rows.append(part)
    step.commit()
    rest = [text[length:] for text, length in zip(texts, num_first, strict=True)]
    num_rest = [len(tokens) for tokens in rest]
    served = [index for index, count in enumerate(num_rest) if count]
    step = cache.step(
        [sequences[index] for index in served],
        num_new=[num_rest[index] for index in served],
        tokens=[token for tokens in rest for token in tokens],
    )
    for index, part in zip(served, pieces(run(model, step), [num_rest[index] for index in served]), strict=True):
        got[index].append(part)
    step.commit()
    assert len(served) == 3
    for text, rows in zip(texts, got, strict=True):
        with torch.inference_mode():
            alone = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
        assert alone.std() > 0.1
        torch.testing.assert_close(torch.cat(rows), alone, rtol=1e-4, atol=1e-4)
    cache.manager.release(sequences)
    cache.manager.validate()


def test_the_model_has_its_own_attention_back_afterwards() -> None:
    model = new_model("llama", "sdpa")
    with use_paged_attention(model):
        assert model.config._attn_implementation == ATTENTION_NAME
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(LookupError), use_paged_attention(model):
        raise LookupError
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": None}, "step is missing"),
        ({"attention_mask": torch.ones(1, 4, dtype=torch.long)}, "attention_mask must be None"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1]])}, "attention_mask must be None"),
        ({"attention_mask": torch.zeros(1, 1, 4, 4)}, "attention_mask must be None"),
        (
            {"input_ids": torch.ones(2, 4, dtype=torch.long), "position_ids": torch.arange(4).expand(2, 4)},
            "all sequences in one row, not 2 rows",
        ),
    ],
)
def test_what_would_change_the_result_is_refused(changes: dict[str, object], message: str) -> None:
    model = new_model("llama")
    cache = new_cache(model)
    step = cache.step([cache.admit([1, 2, 3, 4])])
    with pytest.raises(InvalidArgument, match=message):
        run(model, step, **changes)


def test_generate_without_a_step_is_refused() -> None:
    model = new_model("llama")
    with use_paged_attention(model), pytest.raises(InvalidArgument, match="step is missing"):
        model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, do_sample=False, pad_token_id=0)


def test_dropout_is_refused() -> None:
    model = new_model("llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    cache = new_cache(model)
    step = cache.step([cache.admit([1, 2, 3, 4])])
    with pytest.raises(InvalidArgument, match="dropout"):
        run(model.train(), step)
