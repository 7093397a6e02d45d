from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from looseleaf import SamplingParams
from looseleaf.engine.draw import _least_kept, draw

SIZE = 5003
"""Some blocks of the sums and a rest, and more tokens than are looked at first."""


def new_params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, **{"temperature": 1.0, **fields})


def new_scores(rows: int, spread: float) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(0)) * spread


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1024])
def test_every_token_is_found_in_the_middle_of_its_interval(size: int) -> None:
    probabilities = torch.rand(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    probabilities /= probabilities.sum()
    middles = (probabilities.cumsum(-1) - probabilities / 2).tolist()
    scores = probabilities.log().float().expand(size, -1)
    assert draw(scores, [new_params()] * size, middles).tolist() == list(range(size))


@pytest.mark.parametrize("number", [0.0, 0.25, 0.5, 1 - 2.0**-53])
def test_a_token_without_probability_is_never_drawn(number: float) -> None:
    """At the borders of the unit interval and of the blocks, too."""
    for places in ([0], [SIZE - 1], [255, 256], [300, 4999], [1, 700, 701, 1500]):
        scores = torch.full((1, SIZE), -torch.inf)
        scores[0, places] = 0
        assert draw(scores, [new_params()], [number]).item() in places


BOUNDS: list[dict[str, Any]] = [
    {"top_p": 0.3},
    {"top_p": 0.97},
    {"top_k": 7},
    {"top_k": 3000},
    {"top_k": 3000, "top_p": 0.5},
    {"top_k": 20, "top_p": 0.8},
    {"min_p": 0.05},
    {"min_p": 1e-4, "top_p": 0.9},
    {"min_p": 0.01, "top_k": 2000, "top_p": 0.6},
    {"min_p": 0.02, "top_k": 5},
    {"top_k": SIZE + 1},
    {},
]


@pytest.mark.parametrize("spread", [0.3, 2.0, 6.0])
def test_bounds_keep_what_transformers_processors_keep(spread: float) -> None:
    """In one batch, where some need the whole vocabulary and others a few tokens."""
    scores = new_scores(len(BOUNDS), spread)
    probabilities = scores.softmax(-1)
    least = _least_kept(probabilities, [new_params(**bounds) for bounds in BOUNDS])
    history = torch.zeros(1, 1, dtype=torch.int64)
    for row, bounds in enumerate(BOUNDS):
        expected = scores[row : row + 1].clone()
        if "min_p" in bounds:
            expected = MinPLogitsWarper(bounds["min_p"])(history, expected)
        if "top_k" in bounds:
            expected = TopKLogitsWarper(bounds["top_k"])(history, expected)
        if "top_p" in bounds:
            expected = TopPLogitsWarper(bounds["top_p"])(history, expected)
        num_expected = int((expected > -torch.inf).sum())
        # The sum that reaches top_p is rounded differently: that may be one token of a flat tail of thousands.
        assert int((probabilities[row] >= least[row]).sum()) == pytest.approx(num_expected, abs=0.001 * num_expected)


@pytest.mark.parametrize("spread", [0.3, 2.0, 6.0])
def test_what_is_kept_of_a_row_does_not_depend_on_the_rows_beside_it(spread: float) -> None:
    probabilities = new_scores(len(BOUNDS), spread).softmax(-1)
    params = [new_params(**bounds) for bounds in BOUNDS]
    together = _least_kept(probabilities, params)
    alone = [_least_kept(probabilities[row : row + 1], params[row : row + 1]) for row in range(len(BOUNDS))]
    assert torch.equal(together, torch.cat(alone))


def test_equal_tokens_are_kept_together() -> None:
    scores = torch.tensor([[0.0, 4.0, 1.0, 4.0]]).expand(40, -1)
    drawn = draw(scores, [new_params(top_k=1)] * 40, np.linspace(0, 0.999, 40).tolist())
    assert set(drawn.tolist()) == {1, 3}


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-37, 1e-40, 1e-300])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    scores = new_scores(8, 3.0)
    scores[:, 4000:] = -torch.inf
    drawn = draw(scores, [new_params(temperature=temperature)] * 8, [0.9] * 8)
    assert torch.equal(drawn, scores.argmax(-1))


def test_a_huge_temperature_makes_possible_tokens_equal() -> None:
    scores = torch.tensor([[9.0, -torch.inf, 1.0, -5.0]]).expand(3, -1)
    assert draw(scores, [new_params(temperature=1e300)] * 3, [0.2, 0.5, 0.9]).tolist() == [0, 2, 3]


@pytest.mark.parametrize("bounds", [{}, {"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.1}])
def test_what_is_no_distribution_is_chosen_as_greedy_does(bounds: dict[str, Any]) -> None:
    scores = torch.zeros(4, 6)
    scores[0, 3] = torch.inf
    scores[1] = -torch.inf
    scores[2, 4] = torch.nan
    scores[3, 5] = 90
    assert draw(scores, [new_params(**bounds)] * 4, [0.5] * 4).tolist() == [3, 0, 4, 5]
