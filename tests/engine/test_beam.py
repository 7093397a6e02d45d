from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from tests.engine.fake_model import FakeModel, assert_all_free, new_cache, new_loop, new_requests, run
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
)

from looseleaf import Engine, SamplingParams
from looseleaf.engine.beam import BeamSearch
from looseleaf.errors import InvalidArgument, TooManySequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_TOKENS = 12
PROMPT = [5, 9, 2, 7, 7, 3, 1, 8, 4]


@pytest.fixture(scope="module")
def small_model() -> PreTrainedModel:
    """Few tokens, so that the end of text is often among the likeliest."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=24,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=6,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight[6] *= 1.7
    return model


def theirs(model: PreTrainedModel, prompt: list[int], **options: object) -> list[list[int]]:
    """What transformers finds, without the padding behind an end."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        **({"max_new_tokens": MAX_TOKENS} | options),
    )
    answers: list[list[int]] = output[:, len(prompt) :].tolist()
    return [answer[: answer.index(6) + 1] if 6 in answer else answer for answer in answers]


def ours(model: PreTrainedModel, prompt: list[int], params: SamplingParams) -> list[list[int]]:
    """The search, driven by whole forward passes without a cache."""
    search = BeamSearch(params, frozenset({6}))
    branches: list[list[int]] = [[]]
    with torch.inference_mode():
        while not search.is_done:
            logits = model(torch.tensor([prompt + branch for branch in branches]), use_cache=False).logits[:, -1]
            step = search.advance(logits.log_softmax(-1))
            branches = [[*branches[parent], token] for parent, token in zip(step.parents, step.token_ids, strict=True)]
    return [token_ids for token_ids, _ in search.best(params.n)]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 0.5, 1.0, 2.0, -1.0])
def test_answers_are_those_of_transformers(
    small_model: PreTrainedModel, early_stopping: bool | Literal["never"], length_penalty: float
) -> None:
    num_ended = 0
    for num_beams in (2, 3, 4):
        for shift in range(4):
            prompt = [(token + shift) % 24 for token in PROMPT]
            params = SamplingParams(
                max_tokens=MAX_TOKENS,
                num_beams=num_beams,
                n=num_beams,
                early_stopping=early_stopping,
                length_penalty=length_penalty,
            )
            found = ours(small_model, prompt, params)
            expected = theirs(
                small_model,
                prompt,
                num_beams=num_beams,
                num_return_sequences=num_beams,
                early_stopping=early_stopping,
                length_penalty=length_penalty,
            )
            assert found == expected
            num_ended += sum(answer[-1] == 6 for answer in found)
    if length_penalty < 1:
        assert num_ended > 5, "answers were to end by themselves, too"


def test_no_answer_ends_before_min_tokens(small_model: PreTrainedModel) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS, min_tokens=7, num_beams=3)
    (found,) = ours(small_model, PROMPT, params)
    assert [found] == theirs(small_model, PROMPT, num_beams=3, min_new_tokens=7)
    assert 6 not in found[:7]


def test_a_stop_token_outside_the_vocabulary_never_comes() -> None:
    search = BeamSearch(SamplingParams(max_tokens=2, min_tokens=2, num_beams=2), frozenset({6, 99}))
    assert 6 not in search.advance(torch.zeros(1, 24)).token_ids


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("num_blocks", [22, 60])
def test_the_engine_answers_as_transformers_and_copies_what_beams_share(
    small_model: PreTrainedModel, num_blocks: int, prefix_caching: bool
) -> None:
    engine = Engine(
        small_model, num_blocks=num_blocks, block_size=8, max_batch_tokens=16, prefix_caching=prefix_caching
    )
    prompts = [[(token + shift) % 24 for token in PROMPT] for shift in range(5)]
    params = [SamplingParams(max_tokens=MAX_TOKENS, num_beams=number, n=number) for number in (2, 4, 3, 4, 2)]
    results = engine.generate(prompts, params)
    found = [[result.token_ids for result in results if result.index == index] for index in range(len(prompts))]
    expected = [
        theirs(small_model, prompt, num_beams=one.num_beams, num_return_sequences=one.n)
        for prompt, one in zip(prompts, params, strict=True)
    ]
    assert found == expected
    assert [result.sample for result in results] == [0, 1, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 0, 1]
    scores = [result.score for result in results[2:6]]
    assert scores == sorted(scores, key=lambda score: -(score or 0))
    stats = engine.cache.stats()
    assert stats.num_copies > 0
    assert stats.num_available == num_blocks
    engine.cache.manager.validate()


@pytest.mark.parametrize(
    ("params", "options"),
    [
        ({"repetition_penalty": 1.6}, {"repetition_penalty": 1.6}),
        ({"min_tokens": 5}, {"min_new_tokens": 5}),
        ({"logit_bias": {7: 3.0, 6: -2.0}}, {"sequence_bias": [[[7], 3.0], [[6], -2.0]]}),
        ({"logits_processors": [NoRepeatNGramLogitsProcessor(2)]}, {"no_repeat_ngram_size": 2}),
    ],
    ids="-".join,
)
def test_what_changes_logits_changes_each_beam(
    small_model: PreTrainedModel, params: dict[str, Any], options: dict[str, Any]
) -> None:
    engine = Engine(small_model, num_blocks=60, block_size=4)
    prompts = [PROMPT, PROMPT[:4]]
    wanted = SamplingParams(max_tokens=MAX_TOKENS, num_beams=3, n=3, **params)
    results = engine.generate([*prompts, PROMPT], [wanted, wanted, SamplingParams(max_tokens=3, num_beams=3, n=3)])
    found = [[result.token_ids for result in results if result.index == index] for index in range(2)]
    beams = {"num_beams": 3, "num_return_sequences": 3}
    assert found == [theirs(small_model, prompt, **beams, **options) for prompt in prompts]
    plain = [theirs(small_model, prompt, **beams) for prompt in prompts]
    assert found != plain
    assert engine.cache.stats().num_available == 60


@pytest.mark.parametrize("num_beams", [2, 3])
def test_a_beam_without_a_way_on_does_not_end_the_others(small_model: PreTrainedModel, num_beams: int) -> None:
    tree = {(): [5, 7], (5,): [8], (5, 8): [9], (5, 8, 9): [10], (7,): [3]}  # nothing follows 7, 3

    class Tree:
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            allowed = torch.full_like(scores, -torch.inf)
            for row, ids in enumerate(input_ids[:, 2:].tolist()):
                places = tree.get(tuple(ids), [])
                allowed[row, places] = scores[row, places]
            return allowed

    options = {"logits_processor": LogitsProcessorList([Tree()]), "max_new_tokens": 4}
    expected = theirs(small_model, [1, 4], num_beams=num_beams, **options)
    params = SamplingParams(max_tokens=4, num_beams=num_beams, logits_processors=[Tree()])
    (result,) = Engine(small_model, num_blocks=60, block_size=4).generate([[1, 4]], params)
    assert (result.error, [result.token_ids]) == (None, expected)
    assert expected == [[5, 8, 9, 10]]


def test_a_processor_that_raises_for_a_beam_ends_its_search_only(small_model: PreTrainedModel) -> None:
    def fail(history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if history.shape[1] > len(PROMPT) + 2:
            raise LookupError
        return scores

    engine = Engine(small_model, num_blocks=60, block_size=4)
    whole = SamplingParams(max_tokens=MAX_TOKENS, num_beams=3)
    params = [SamplingParams(max_tokens=MAX_TOKENS, num_beams=3, logits_processors=[fail]), whole]
    failed, other = engine.generate([PROMPT, PROMPT], params)
    assert isinstance(failed.error, LookupError)
    assert [other.token_ids] == theirs(small_model, PROMPT, num_beams=3)
    assert engine.cache.stats().num_available == 60


@pytest.mark.parametrize("sizes", [{"max_sequences": 4}, {"max_sequences": 9, "max_batch_tokens": 8}])
def test_samples_leave_beams_their_rows(small_model: PreTrainedModel, sizes: dict[str, Any]) -> None:
    engine = Engine(small_model, num_blocks=64, **sizes)
    params = [
        SamplingParams(max_tokens=3, num_beams=3, n=3),
        SamplingParams(max_tokens=3, n=8, temperature=1.0, seed=1, ignore_eos=True),
        SamplingParams(max_tokens=3, num_beams=3, n=3),
    ]
    results = engine.generate([PROMPT[:2], [7, 8], PROMPT[3:5]], params)
    assert [result.error for result in results] == [None] * 14
    found = [[result.token_ids for result in results if result.index == index] for index in (0, 2)]
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 3}
    assert found == [theirs(small_model, prompt, **options) for prompt in (PROMPT[:2], PROMPT[3:5])]
    assert engine.cache.stats().num_available == 64


def test_a_fork_that_somebody_outside_leaves_no_place_for_ends_its_search_only(small_model: PreTrainedModel) -> None:
    engine = Engine(small_model, num_blocks=64, max_sequences=4)
    others = [engine.cache.admit([1]) for _ in range(2)]
    params = [SamplingParams(max_tokens=6, ignore_eos=True), SamplingParams(max_tokens=6, num_beams=3)]
    stream = engine.stream([PROMPT, PROMPT[:4]], params)
    results = {event.index: event.result for event in stream if event.result is not None}
    assert isinstance(results[1].error, TooManySequences)
    assert results[0].error is None
    assert [results[0].token_ids] == [
        answer[:6] for answer in theirs(small_model, PROMPT, eos_token_id=None, max_new_tokens=6)
    ]
    for other in others:
        other.release()
    assert engine.cache.stats().num_available == 64
    assert engine.cache.stats().num_sequences == 0


def test_more_beams_than_tokens_are_refused(small_model: PreTrainedModel) -> None:
    with pytest.raises(InvalidArgument, match="num_beams must be at most the 24 tokens of the vocabulary, not 25"):
        Engine(small_model, num_blocks=64).generate([PROMPT], SamplingParams(max_tokens=3, num_beams=25))


def test_beams_that_are_preempted_are_computed_again_and_answer_the_same() -> None:
    sizes = [(9, 20), (6, 20), (11, 20), (4, 20)]

    def answers(num_blocks: int, *, prefix_caching: bool = True) -> tuple[list[list[list[int]]], int]:
        cache = new_cache(num_blocks, prefix_caching=prefix_caching)
        loop = new_loop(cache, FakeModel(spread=True), max_batch_tokens=24)
        requests = new_requests(sizes, num_beams=3, n=3)
        for request in requests:
            request.beam = BeamSearch(request.params, frozenset())
            request.takes_one_row = False
        run(loop, requests)
        assert all(request.finish_reason == "stop" for request in requests)
        assert_all_free(cache)
        found = [[tokens for tokens, _ in request.beam.best(3)] for request in requests if request.beam]
        return found, loop.scheduler.num_preemptions

    whole, num_preemptions = answers(400)
    assert num_preemptions == 0
    assert len({tuple(tokens) for one in whole for tokens in one}) == 12
    for prefix_caching in (False, True):
        found, num_preemptions = answers(30, prefix_caching=prefix_caching)
        assert found == whole
        assert num_preemptions > 0
