"""The real model: batched answers are, token for token, those of transformers for each prompt alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from looseleaf import Engine, SamplingParams
from looseleaf.engine.text import TextStream, decode
from looseleaf.integrations.transformers.smollm2 import load_smollm2

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

MAX_TOKENS = 40
FRENCH = "Translate to French: The book is on the table."
LENGTHS = (700, 1, 15, 16, 17, 2, 5, 8, 24, 31, 32, 33, 40, 47, 48, 49, 64, 80, 100, 128, 150, 200, 260, 400)


@pytest.fixture(scope="module")
def smollm2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return load_smollm2("float32", progress=False)


def _is_greedy(model: PreTrainedModel, prompt: list[int], answer: list[int]) -> bool:
    """Whether transformers, without a cache, takes each token of the answer next: all tokens at once, so one pass."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return bool((logits.argmax(-1) == torch.tensor(answer)).all())


def test_batched_answers_are_those_of_each_prompt_alone(
    smollm2: tuple[PreTrainedModel, PreTrainedTokenizerBase], generate_alone: Callable[..., list[list[int]]]
) -> None:
    model, tokenizer = smollm2
    text = tokenizer((Path(__file__).parents[2] / "LICENSE").read_text())["input_ids"]
    rng = random.Random(0)
    starts = [rng.randrange(len(text) - length) for length in LENGTHS]
    prompts = [text[start : start + length] for start, length in zip(starts, LENGTHS, strict=True)]
    # Two that are no text at all.
    prompts[5:7] = [[rng.randrange(model.config.vocab_size) for _ in prompt] for prompt in prompts[5:7]]
    assert [len(prompt) for prompt in prompts] == list(LENGTHS)
    engine = Engine(model, num_blocks=64, block_size=16, max_batch_tokens=256)
    results = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True))
    assert {len(result.token_ids) for result in results} == {MAX_TOKENS}
    # A greedy answer is one whose every token is the likeliest after those before it: one pass shows that, where
    # generating it again takes forty. Two are generated again all the same, the longest among them.
    wrong = [
        length
        for length, prompt, result in zip(LENGTHS, prompts, results, strict=True)
        if not _is_greedy(model, prompt, result.token_ids)
    ]
    assert wrong == []
    alone = generate_alone(model, prompts[:2], MAX_TOKENS, eos_token_id=None)
    assert [result.token_ids for result in results[:2]] == alone
    assert engine.report().peak_running < len(prompts), "the pool was to be too small for all at once"
    assert engine.cache.manager.stats().num_available == 64
    engine.cache.manager.validate()


def test_a_chat_ends_by_itself_and_its_pieces_join_to_its_text(
    smollm2: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = smollm2
    engine = Engine(model, tokenizer, memory="64MiB")
    pieces = ["", ""]
    answers = ["", ""]
    for event in engine.stream(["What is the capital of France?", FRENCH], SamplingParams(max_tokens=60)):
        pieces[event.index] += event.text
        if event.result is not None:
            assert event.result.finish_reason == "stop"
            answers[event.index] = event.result.text or ""
    assert "Paris" in answers[0]
    assert pieces == answers


def test_characters_of_several_tokens_come_whole(smollm2: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    _, tokenizer = smollm2
    text = "Grüße 🦊🦊 狐狸, ok?"
    token_ids = tokenizer(text)["input_ids"]
    texts = TextStream(tokenizer)
    pieces = [*(texts.push(token_id) for token_id in token_ids), texts.finish()]
    assert "".join(pieces) == decode(token_ids, tokenizer) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert pieces.count("") > 1


@pytest.mark.parametrize("preemption", [{}, {"swap_memory": "64MiB", "preemption": "swap"}])
def test_the_real_model_answers_the_same_when_its_requests_are_preempted(
    smollm2: tuple[PreTrainedModel, PreTrainedTokenizerBase], preemption: dict[str, Any]
) -> None:
    model, tokenizer = smollm2
    text = tokenizer((Path(__file__).parents[2] / "LICENSE").read_text())["input_ids"]
    prompts = [text[start : start + 20 + start % 13] for start in range(0, 600, 75)]
    engine = Engine(model, num_blocks=15, block_size=16, max_batch_tokens=64, **preemption)
    params = SamplingParams(max_tokens=24, ignore_eos=True, prompt_lookup_num_tokens=2)
    results = engine.generate(prompts, params)
    wrong = [
        result.index
        for prompt, result in zip(prompts, results, strict=True)
        if not _is_greedy(model, prompt, result.token_ids)
    ]
    assert wrong == []
    assert engine.report().num_preemptions >= 2
    assert engine.report().num_swaps == (engine.report().num_preemptions if preemption else 0)
    assert engine.cache.manager.stats().num_available == 15
    engine.cache.manager.validate()


def test_beams_of_the_real_model(
    smollm2: tuple[PreTrainedModel, PreTrainedTokenizerBase], generate_alone: Callable[..., list[list[int]]]
) -> None:
    model, tokenizer = smollm2
    prompt = tokenizer("The capital of France is")["input_ids"]
    expected = generate_alone(model, [prompt], 12, num_beams=4)
    engine = Engine(model, num_blocks=32, block_size=16)
    (result,) = engine.generate([prompt], SamplingParams(max_tokens=12, num_beams=4))
    assert result.token_ids == expected[0]
