from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from looseleaf import SamplingParams
from looseleaf.errors import InvalidArgument, InvalidType


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"max_tokens": 0}, InvalidArgument, "max_tokens must be at least 1, not 0"),
        ({"max_tokens": 2.0}, InvalidType, "max_tokens must be an integer, not 2.0"),
        ({"max_tokens": True}, InvalidType, "max_tokens must be an integer, not True"),
        ({"max_tokens": 1, "ignore_eos": 1}, InvalidType, "ignore_eos must be a bool, not 1"),
        ({"max_tokens": 1, "stop_token_ids": 7}, InvalidType, "stop_token_ids must be a tuple or a list"),
        ({"max_tokens": 1, "stop_token_ids": "7"}, InvalidType, "stop_token_ids must be a tuple or a list"),
        ({"max_tokens": 1, "stop_token_ids": ("7",)}, InvalidType, "stop_token_ids must be an integer, not '7'"),
        ({"max_tokens": 1, "stop_token_ids": (-1,)}, InvalidArgument, "stop_token_ids must be at least 0"),
        ({"max_tokens": 3, "min_tokens": 4}, InvalidArgument, "min_tokens must be at most max_tokens, 3, not 4"),
        ({"max_tokens": 1, "temperature": -0.1}, InvalidArgument, r"temperature must be in \[0, inf\), not -0.1"),
        ({"max_tokens": 1, "temperature": float("nan")}, InvalidArgument, "temperature must be in .*, not nan"),
        ({"max_tokens": 1, "temperature": "hot"}, InvalidType, "temperature must be a number, not 'hot'"),
        ({"max_tokens": 1, "top_p": 0}, InvalidArgument, r"top_p must be in \(0, 1\], not 0"),
        ({"max_tokens": 1, "top_p": 1.5}, InvalidArgument, r"top_p must be in \(0, 1\], not 1.5"),
        ({"max_tokens": 1, "top_k": -1}, InvalidArgument, "top_k must be at least 0, not -1"),
        ({"max_tokens": 1, "min_p": 2}, InvalidArgument, r"min_p must be in \[0, 1\], not 2"),
        ({"max_tokens": 1, "repetition_penalty": 0}, InvalidArgument, "repetition_penalty must be in .*, not 0"),
        ({"max_tokens": 1, "frequency_penalty": 3}, InvalidArgument, "frequency_penalty must be in .*, not 3"),
        ({"max_tokens": 1, "presence_penalty": -3}, InvalidArgument, "presence_penalty must be in .*, not -3"),
        ({"max_tokens": 1, "logit_bias": [1]}, InvalidType, "logit_bias must map token ids to numbers"),
        ({"max_tokens": 1, "logit_bias": {-1: 2.0}}, InvalidArgument, "a token id of logit_bias must be at least 0"),
        ({"max_tokens": 1, "logit_bias": {1: float("inf")}}, InvalidArgument, r"logit_bias\[1\] must be in"),
        ({"max_tokens": 1, "seed": -1}, InvalidArgument, "seed must be at least 0, not -1"),
        ({"max_tokens": 1, "seed": 2**63}, InvalidArgument, r"seed \+ n must be at most 2 \*\* 63"),
        ({"max_tokens": 1, "n": 0}, InvalidArgument, "n must be at least 1, not 0"),
        ({"max_tokens": 1, "n": 10**12}, InvalidArgument, "n must be at most 16384, not 1000000000000"),
        ({"max_tokens": torch.tensor([1, 2])}, InvalidType, "max_tokens must be an integer"),
        ({"max_tokens": np.array([1, 2])}, InvalidType, "max_tokens must be an integer"),
        ({"max_tokens": 1, "early_stopping": np.array([1, 2])}, InvalidArgument, "early_stopping must be True"),
        ({"max_tokens": 1, "stop": 7}, InvalidType, "stop must be a string, or a tuple or a list of strings, not 7"),
        ({"max_tokens": 1, "stop": ("a", "")}, InvalidArgument, "stop must hold no empty string"),
        ({"max_tokens": 1, "logprobs": True}, InvalidType, "logprobs must be an integer, not True"),
        ({"max_tokens": 1, "logits_processors": (1,)}, InvalidType, "logits_processors must be a tuple or a list of c"),
        ({"max_tokens": 1, "early_stopping": "maybe"}, InvalidArgument, "early_stopping must be True, False or"),
        ({"max_tokens": 1, "early_stopping": 1}, InvalidArgument, "early_stopping must be True, False or"),
        ({"max_tokens": 1, "num_beams": 2, "n": 3}, InvalidArgument, "n must be at most num_beams, 2, not 3"),
        ({"max_tokens": 1, "num_beams": 2, "temperature": 1}, InvalidArgument, "temperature cannot be together with"),
        ({"max_tokens": 1, "length_penalty": 2}, InvalidArgument, "length_penalty is for num_beams above 1, was 2.0"),
        ({"max_tokens": 1, "early_stopping": True}, InvalidArgument, "early_stopping is for num_beams above 1, was Tr"),
        (
            {"max_tokens": 1, "num_beams": 2, "stop": "a", "prompt_lookup_num_tokens": 2},
            InvalidArgument,
            "prompt_lookup_num_tokens, stop cannot be together with num_beams=2",
        ),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SamplingParams(**fields)


def test_params_with_the_same_fields_are_equal_and_hash_the_same() -> None:
    from_list = SamplingParams(max_tokens=3, stop_token_ids=[1, 2])
    assert from_list == SamplingParams(max_tokens=3, stop_token_ids=(1, 2))
    assert len({from_list, SamplingParams(max_tokens=3, stop_token_ids=(1, 2))}) == 1
    assert hash(SamplingParams(max_tokens=3, logit_bias={1: 2})) is not None


def test_lists_and_single_strings_become_tuples_and_a_bias_is_the_params_own() -> None:
    bias = {3: 1}
    params = SamplingParams(max_tokens=1, stop="END", stop_token_ids=[4], logit_bias=bias)
    bias[5] = 2
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("END",), (4,), {3: 1.0})


def test_numbers_may_be_those_of_numpy() -> None:
    params = SamplingParams(max_tokens=np.int32(2), temperature=np.float32(0.5), top_p=np.float64(0.25))  # type: ignore[arg-type]
    assert (params.max_tokens, params.temperature, params.top_p) == (2, 0.5, 0.25)
    assert (type(params.max_tokens), type(params.temperature)) == (int, float)


def test_only_the_likeliest_of_untouched_logits_is_greedy() -> None:
    assert SamplingParams(max_tokens=9, stop="a", stop_token_ids=(1,), ignore_eos=True, n=2, top_k=3).is_greedy
    for fields in (
        {"temperature": 0.5},
        {"logprobs": 0},
        {"min_tokens": 1},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": 0.1},
        {"logit_bias": {1: 1.0}},
        {"logits_processors": (lambda _, scores: scores,)},
    ):
        assert not SamplingParams(max_tokens=9, **cast("Any", fields)).is_greedy
