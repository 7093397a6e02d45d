"""What a caller asks of one generation."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from looseleaf.errors import InvalidArgument, InvalidType

__all__ = ["SamplingParams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen, and when a generation stops. Greedy: the most likely token, the lowest id among equals.

    Attributes:
        max_tokens: most tokens to generate, a stop token included; at least 1.
        ignore_eos: go on after the model's own end-of-text tokens; `stop_token_ids` still stop.
        stop_token_ids: further token ids that end a generation; the one that did is its last token.

    Raises:
        InvalidArgument: `max_tokens` is below 1, or a stop token id below 0.
        InvalidType: a field has another type.

    >>> SamplingParams(max_tokens=8, stop_token_ids=[13]).stop_token_ids
    (13,)
    """

    max_tokens: int
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        max_tokens = _integer("max_tokens", self.max_tokens)
        if max_tokens < 1:
            raise InvalidArgument(f"max_tokens must be at least 1, not {max_tokens}")
        if not isinstance(self.ignore_eos, bool):
            raise InvalidType(f"ignore_eos must be a bool, not {self.ignore_eos!r}")
        stop_token_ids = _integers("stop_token_ids", self.stop_token_ids)
        if any(token_id < 0 for token_id in stop_token_ids):
            raise InvalidArgument(f"stop_token_ids must be at least 0, not {stop_token_ids}")
        object.__setattr__(self, "max_tokens", max_tokens)
        object.__setattr__(self, "stop_token_ids", stop_token_ids)


def _integers(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple | list):
        raise InvalidType(f"{name} must be a tuple or a list of integers, not {values!r}")
    return tuple(_integer(name, value) for value in values)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidType(f"{name} must be an integer, not {value!r}")
    return index(value)
