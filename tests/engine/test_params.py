from __future__ import annotations

from typing import Any

import pytest

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
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SamplingParams(**fields)


def test_params_with_the_same_fields_are_equal_and_hash_the_same() -> None:
    from_list = SamplingParams(max_tokens=3, stop_token_ids=[1, 2])  # type: ignore[arg-type]
    assert from_list == SamplingParams(max_tokens=3, stop_token_ids=(1, 2))
    assert len({from_list, SamplingParams(max_tokens=3, stop_token_ids=(1, 2))}) == 1
