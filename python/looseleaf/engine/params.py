"""What a caller asks of one generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Literal, TypeAlias

from looseleaf.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from torch import Tensor

    LogitsProcessor: TypeAlias = Callable[[Tensor, Tensor], Tensor]

__all__ = ["SamplingParams"]

_AT_LEAST = {"max_tokens": 1, "min_tokens": 0, "top_k": 0, "n": 1, "num_beams": 1, "prompt_lookup_num_tokens": 0}
_OPTIONAL_AT_LEAST = {"seed": 0, "logprobs": 0, "prompt_logprobs": 0, "expected_tokens": 0}
_RANGES = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "length_penalty": (-math.inf, math.inf),
}
_ABOVE = ("top_p", "repetition_penalty")
_MAX_SEED = 2**63
_MAX_ANSWERS = 16_384  # each is a request of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen, and when a generation stops.

    The names are vLLM's and transformers'; the order in which they act is that of `looseleaf.engine.sampler.sample`.

    Attributes:
        max_tokens: most tokens to generate, a stop token included; at least 1.
        min_tokens: no stop token is chosen, and no stop string ends the answer, before so many were generated.
        temperature: logits are divided by it; 0 is greedy: the likeliest token, the lowest id among equals.
        top_p: only the likeliest tokens whose probabilities add up to it; in (0, 1], 1 is all.
        top_k: only so many of the likeliest tokens; 0 is all.
        min_p: only tokens at least so likely as the likeliest times it; in [0, 1].
        repetition_penalty: logits of tokens in prompt or answer are divided by it where positive, multiplied where
            negative; above 0, 1 is off.
        frequency_penalty: taken from a token's logit for each time the answer has it; in [-2, 2].
        presence_penalty: taken from the logits of all tokens that the answer has; in [-2, 2].
        logit_bias: added to the logits of these token ids.
        seed: of the draws; the same request with it gets the same answer, whatever runs beside it. None: one is drawn.
        n: answers to each prompt, at most 16,384. Sample i with seed s is the only one of a request with seed s + i;
            greedy samples are all alike. With beams: how many of the best are returned.
        stop: strings that end an answer, which is cut before them.
        stop_token_ids: further token ids that end a generation; the one that did is its last token.
        ignore_eos: go on after the model's own end-of-text tokens; `stop_token_ids` still stop.
        logprobs: return the log-probability of each token, and of so many of the likeliest at its place.
        prompt_logprobs: the same for the prompt; its tokens are all computed then, and not shared.
        logits_processors: called in turn with (int64 [1, tokens], prompt and answer; float32 [1, vocabulary], logits),
            they return the logits to use: transformers' `LogitsProcessor` is one.
        num_beams: above 1, search for the likeliest answer with so many beams, as transformers does: greedy, without
            `logprobs`, `prompt_logprobs`, `stop`, `prompt_lookup_num_tokens`. Penalties, biases and processors change
            the log-probabilities of each beam.
        length_penalty: of a beam search: scores are divided by length ** it.
        early_stopping: of a beam search, as transformers': stop when `num_beams` answers have ended (True), when no
            better is expected (False), or possible ("never").
        prompt_lookup_num_tokens: speculation: propose up to so many tokens that followed the latest tokens when they
            last came up, and check them in one step. It never changes the answer.
        expected_tokens: blocks for so many generated tokens are allocated at admission.

    Raises:
        InvalidArgument: a value is out of its range, or two cannot be together.
        InvalidType: a field has another type.

    >>> SamplingParams(max_tokens=8, stop_token_ids=[13], stop="END").stop
    ('END',)
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    seed: int | None = None
    n: int = 1
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logits_processors: Sequence[LogitsProcessor] = ()
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    prompt_lookup_num_tokens: int = 0
    expected_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            self._set(name, _at_least(name, getattr(self, name), least))
        if self.n > _MAX_ANSWERS:
            raise InvalidArgument(f"n must be at most {_MAX_ANSWERS}, not {self.n}")
        for name, least in _OPTIONAL_AT_LEAST.items():
            if getattr(self, name) is not None:
                self._set(name, _at_least(name, getattr(self, name), least))
        for name, (low, high) in _RANGES.items():
            self._set(name, _in_range(name, getattr(self, name), low, high))
        if not isinstance(self.ignore_eos, bool):
            raise InvalidType(f"ignore_eos must be a bool, not {self.ignore_eos!r}")
        if not isinstance(self.early_stopping, bool) and str(self.early_stopping) != "never":
            raise InvalidArgument(f'early_stopping must be True, False or "never", not {self.early_stopping!r}')
        self._set("stop_token_ids", _integers("stop_token_ids", self.stop_token_ids))
        self._set("stop", _strings("stop", self.stop))
        self._set("logits_processors", _callables("logits_processors", self.logits_processors))
        if self.logit_bias is not None:
            self._set("logit_bias", _bias(self.logit_bias))
        self._check_together()

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token of the untouched logits is all that is asked for."""
        return self.temperature == 0 and self.logprobs is None and not self.changes_logits

    @property
    def changes_logits(self) -> bool:
        """Whether a row of logits is changed before a token is chosen by it, temperature and cuts not counted."""
        return bool(
            self.min_tokens
            or self.repetition_penalty != 1
            or self.frequency_penalty
            or self.presence_penalty
            or self.logit_bias
            or self.logits_processors
        )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_together(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise InvalidArgument(f"min_tokens must be at most max_tokens, {self.max_tokens}, not {self.min_tokens}")
        if self.seed is not None and self.seed + self.n > _MAX_SEED:
            raise InvalidArgument(f"seed + n must be at most 2 ** 63, seed was {self.seed}")
        if self.num_beams == 1:
            for name, is_given in (
                ("length_penalty", self.length_penalty != 1),
                ("early_stopping", self.early_stopping is not False),
            ):
                if is_given:
                    raise InvalidArgument(f"{name} is for num_beams above 1, was {getattr(self, name)!r}")
            return
        if self.n > self.num_beams:
            raise InvalidArgument(f"n must be at most num_beams, {self.num_beams}, not {self.n}")
        others = {
            "temperature": self.temperature != 0,
            "prompt_lookup_num_tokens": self.prompt_lookup_num_tokens != 0,
            "logprobs": self.logprobs is not None,
            "prompt_logprobs": self.prompt_logprobs is not None,
            "stop": bool(self.stop),
        }
        wrong = [name for name, is_given in others.items() if is_given]
        if wrong:
            raise InvalidArgument(f"{', '.join(wrong)} cannot be together with num_beams={self.num_beams}")


def _at_least(name: str, value: object, least: int) -> int:
    number = _integer(name, value)
    if number < least:
        raise InvalidArgument(f"{name} must be at least {least}, not {number}")
    return number


def _in_range(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidType(f"{name} must be a number, not {value!r}")
    number = float(value)
    if not (low <= number <= high) or math.isinf(number) or (name in _ABOVE and number == low):
        bracket = "(" if name in _ABOVE or math.isinf(low) else "["
        end = ")" if math.isinf(high) else "]"
        raise InvalidArgument(f"{name} must be in {bracket}{low:g}, {high:g}{end}, not {value}")
    return number


def _bias(bias: object) -> Mapping[int, float]:
    if not isinstance(bias, Mapping):
        raise InvalidType(f"logit_bias must map token ids to numbers, not {bias!r}")
    checked: dict[int, float] = {}
    for token_id, value in bias.items():
        number = _at_least("a token id of logit_bias", token_id, 0)
        checked[number] = _in_range(f"logit_bias[{number}]", value, -math.inf, math.inf)
    return checked


def _strings(name: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str):
        values = (values,)
    if not isinstance(values, tuple | list) or not all(isinstance(value, str) for value in values):
        raise InvalidType(f"{name} must be a string, or a tuple or a list of strings, not {values!r}")
    if "" in values:
        raise InvalidArgument(f"{name} must hold no empty string")
    return tuple(values)


def _callables(name: str, values: object) -> tuple[LogitsProcessor, ...]:
    if not isinstance(values, tuple | list) or not all(callable(value) for value in values):
        raise InvalidType(f"{name} must be a tuple or a list of callables, not {values!r}")
    return tuple(values)


def _integers(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple | list):
        raise InvalidType(f"{name} must be a tuple or a list of integers, not {values!r}")
    numbers = tuple(_integer(name, value) for value in values)
    if any(number < 0 for number in numbers):
        raise InvalidArgument(f"{name} must be at least 0, not {numbers}")
    return numbers


def _integer(name: str, value: object) -> int:
    try:
        if not isinstance(value, bool):
            return index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # arrays and tensors that are no single integer
        pass
    raise InvalidType(f"{name} must be an integer, not {value!r}")
