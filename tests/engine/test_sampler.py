from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from looseleaf import SamplingParams
from looseleaf.engine.draw import uniform
from looseleaf.engine.logprobs import prompt_logprobs, token_logprobs
from looseleaf.engine.sampler import Row, sample
from looseleaf.errors import InvalidArgument, InvalidType

VOCABULARY = 40
PROMPT = np.array([3, 5, 5, 7])
ANSWER = [7, 9, 9, 9]


def new_logits(rows: int = 1, vocabulary: int = VOCABULARY, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def new_row(seed: int = 0, token_ids: list[int] | None = None, **params: Any) -> Row:
    token_ids = ANSWER if token_ids is None else token_ids
    history = np.array([*PROMPT, *token_ids])
    return Row(SamplingParams(max_tokens=1000, **params), history, len(PROMPT), seed, frozenset({1, 2}))


def distribution(logits: torch.Tensor, params: dict[str, Any]) -> torch.Tensor:
    """What the logits of one row become, by transformers' own processors, in the documented order."""
    history = torch.tensor([[*PROMPT.tolist(), *ANSWER]])
    scores = logits.clone()[None]
    for token_id, value in params.get("logit_bias", {}).items():
        scores[0, token_id] += value
    if len(ANSWER) < params.get("min_tokens", 0):
        scores[0, [1, 2]] = -torch.inf
    if params.get("repetition_penalty", 1) != 1:
        scores = RepetitionPenaltyLogitsProcessor(params["repetition_penalty"])(history, scores)
    for token_id in set(ANSWER):  # as OpenAI and vLLM define the two
        count = ANSWER.count(token_id)
        scores[0, token_id] -= params.get("frequency_penalty", 0) * count + params.get("presence_penalty", 0)
    if params["temperature"] != 1:
        scores = TemperatureLogitsWarper(params["temperature"])(history, scores)
    if params.get("min_p"):
        scores = MinPLogitsWarper(params["min_p"])(history, scores)
    if params.get("top_k"):
        scores = TopKLogitsWarper(params["top_k"])(history, scores)
    if params.get("top_p", 1) < 1:
        scores = TopPLogitsWarper(params["top_p"])(history, scores)
    return scores[0].softmax(-1)


def drawn(logits: torch.Tensor, number: int, **params: Any) -> np.ndarray[Any, Any]:
    """How often each token is drawn by so many seeds."""
    rows = [new_row(seed, **params) for seed in range(number)]
    token_ids = sample(logits.expand(number, -1), rows).token_ids
    return np.bincount(token_ids, minlength=logits.shape[-1])


@settings(deadline=None, max_examples=80)
@given(
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 39, 40, 99]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    presence_penalty=st.sampled_from([0.0, 1.1]),
    min_tokens=st.sampled_from([0, 9]),
    logit_bias=st.sampled_from([{}, {1: 6.0, 9: -2.0}]),
    seed=st.integers(0, 100),
)
def test_draws_follow_the_distribution_of_transformers_processors(seed: int, **params: Any) -> None:
    """By the inverse of the cumulative distribution: the token of a row is the one whose interval holds its number."""
    logits = new_logits(seed=seed)[0]
    probabilities = distribution(logits, params).double()
    ends = probabilities.cumsum(-1)
    rows = [new_row(number, **params) for number in range(50)]
    token_ids = sample(logits.expand(50, -1), rows).token_ids
    for row, token_id in zip(rows, token_ids, strict=True):
        point = uniform(row.seed, len(ANSWER)) * float(ends[-1])
        assert probabilities[token_id] > 0
        assert float(ends[token_id] - probabilities[token_id]) - 1e-5 <= point <= float(ends[token_id]) + 1e-5


def test_draws_pass_a_chi_square_test() -> None:
    number = 20_000
    logits = new_logits(vocabulary=12)[0]
    params = {"temperature": 1.5, "top_k": 9}
    expected = distribution(logits, params).numpy() * number
    counts = drawn(logits, number, **params)
    kept = expected > 0
    assert kept.sum() == 9
    assert counts[~kept].sum() == 0
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < 26.12, "8 degrees of freedom: more than this once in a thousand times"
    wrong = np.roll(counts[kept], 1)
    assert ((wrong - expected[kept]) ** 2 / expected[kept]).sum() > 26.12


def test_the_numbers_of_a_seed_are_uniform_and_unlike_those_of_its_neighbors() -> None:
    numbers = np.array([[uniform(seed, position) for position in range(200)] for seed in range(50)])
    assert 0 <= numbers.min() < numbers.max() < 1
    counts = np.bincount((numbers.ravel() * 20).astype(int), minlength=20)
    assert ((counts - 500) ** 2 / 500).sum() < 43.8, "19 degrees of freedom"
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.05


def test_a_row_gets_the_same_token_whatever_stands_beside_it() -> None:
    logits = new_logits(rows=30)
    every: list[dict[str, Any]] = [
        {"temperature": 0.9},
        {"temperature": 1.2, "top_p": 0.8, "top_k": 9},
        {},
        {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.2},
        {"logprobs": 3},
        {"temperature": 1.4, "frequency_penalty": 0.3, "logit_bias": {4: 2.0}},
    ]
    rows = [new_row(seed=place, **every[place % len(every)]) for place in range(30)]
    together = sample(logits, rows).token_ids
    alone = [sample(logits[place : place + 1], [row]).token_ids[0] for place, row in enumerate(rows)]
    assert together == alone
    order = np.random.default_rng(0).permutation(30)
    shuffled = sample(logits[order.copy()], [rows[place] for place in order]).token_ids
    assert shuffled == [together[place] for place in order]
    assert torch.equal(logits, new_logits(rows=30)), "the logits are the caller's"


def test_positions_and_seeds_decide() -> None:
    logits = torch.zeros(1, 1000)
    tokens = {
        (seed, length): sample(logits, [new_row(seed, token_ids=[0] * length, temperature=1.0)]).token_ids[0]
        for seed in (1, 2)
        for length in (0, 1, 2)
    }
    assert len(set(tokens.values())) == 6


def test_greedy_takes_the_lowest_of_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0]])
    assert sample(logits, [new_row(token_ids=[])]).token_ids == [1]
    assert sample(logits, [new_row(token_ids=[], logit_bias={2: 0.5})]).token_ids == [2]


def test_stop_tokens_are_impossible_before_min_tokens() -> None:
    logits = torch.tensor([[0.0, 9.0, 8.0, 1.0]])
    row = Row(SamplingParams(max_tokens=9, min_tokens=2), np.array([0, 0]), 1, 0, frozenset({1, 2}))
    assert sample(logits, [row]).token_ids == [3]
    late = Row(row.params, np.array([0, 0, 0]), 1, 0, row.stop_token_ids)
    assert sample(logits, [late]).token_ids == [1]


def test_logprobs_are_those_of_the_untouched_logits() -> None:
    logits = new_logits(rows=2)
    rows = [new_row(temperature=2.0, logit_bias={4: 50.0}, logprobs=3), new_row()]
    sampled = sample(logits, rows)
    found = sampled.logprobs[0]
    assert sampled.logprobs[1] is None
    assert sampled.token_ids[0] == 4
    expected = logits[0].log_softmax(-1)
    assert found is not None
    assert found.token_id == 4
    assert found.logprob == pytest.approx(float(expected[4]))
    assert found.rank == int((expected > expected[4]).sum()) + 1
    assert list(found.top) == expected.topk(3).indices.tolist()
    assert list(found.top.values()) == pytest.approx(expected.topk(3).values.tolist())
    assert token_logprobs(logits[:0], [], []) == []
    assert [one.token_id for one in prompt_logprobs(logits, np.array([7, 8]), num_top=0)] == [7, 8]


def test_processors_see_the_history_and_decide() -> None:
    seen = []

    def forbid(history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(history.tolist())
        return scores.masked_fill(scores == scores.max(), -torch.inf)

    logits = torch.tensor([[0.0, 2.0, 1.0, 0.5]])
    assert sample(logits, [new_row(token_ids=[1], logits_processors=[forbid, forbid])]).token_ids == [3]
    assert seen == [[[3, 5, 5, 7, 1]]] * 2


def raises(error: Exception) -> Any:
    raise error


NO_CHOICE = "logits must have a greatest that is finite"
WRONG = [
    (lambda _, scores: scores[0], InvalidArgument, r"logits_processors must return [1, 4]"),
    (lambda *_: None, InvalidType, "returned NoneType"),
    (lambda _, scores: scores.long(), InvalidType, "returned torch.int64"),
    (lambda _, scores: scores - torch.inf, InvalidArgument, NO_CHOICE),
    (lambda _, scores: scores + torch.inf, InvalidArgument, NO_CHOICE),
    (lambda _, scores: scores * torch.nan, InvalidArgument, NO_CHOICE),
    (lambda *_: raises(LookupError("mine")), LookupError, "mine"),
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("processor", "error", "message"), WRONG)
def test_a_processor_that_goes_wrong_spoils_its_own_row_only(
    processor: Any, error: type[Exception], message: str, temperature: float
) -> None:
    num_calls = 0

    def count(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return scores

    logits = torch.tensor([[0.0, 2.0, 1.0, 0.5]]).expand(3, -1)
    rows = [
        new_row(token_ids=[], logits_processors=[one], temperature=temperature) for one in (count, processor, count)
    ]
    sampled = sample(logits, rows)
    assert list(sampled.errors) == [1]
    assert isinstance(sampled.errors[1], error)
    assert message in str(sampled.errors[1])
    assert num_calls == 2
    expected = sample(logits[:1], [new_row(token_ids=[], temperature=temperature)]).token_ids
    assert sampled.token_ids[::2] == expected * 2


def test_a_processor_may_return_what_has_a_gradient() -> None:
    weight = torch.zeros(1, requires_grad=True)
    row = new_row(token_ids=[], logits_processors=[lambda _, scores: scores + weight])
    assert sample(torch.tensor([[0.0, 2.0, 1.0, 0.5]]), [row]).token_ids == [1]


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": dict.fromkeys(range(4), -1e300)},
        {"repetition_penalty": 1e-300, "logit_bias": {3: 1e30}},
        {"min_tokens": 4},
        {"logit_bias": {9: 1.0}},
    ],
)
def test_what_leaves_nothing_to_choose_is_an_error(params: dict[str, Any]) -> None:
    row = Row(SamplingParams(max_tokens=9, **params), np.array([3]), 1, 0, frozenset(range(4)))
    sampled = sample(torch.tensor([[0.0, 2.0, 1.0, 0.5]]), [row])
    assert isinstance(sampled.errors[0], InvalidArgument)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_an_error(wrong: float, temperature: float) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 0.5]]).repeat(2, 1)
    logits[1, 2] = wrong
    sampled = sample(logits, [new_row(token_ids=[], temperature=temperature)] * 2)
    assert list(sampled.errors) == [1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_drawn_in_float32(dtype: torch.dtype) -> None:
    logits = new_logits().to(dtype)
    row = new_row(temperature=0.7, top_p=0.9)
    assert sample(logits, [row]).token_ids == sample(logits.float(), [row]).token_ids
