"""What comes out of a generation: an event for every token, a result for every answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looseleaf.engine.logprobs import TokenLogprobs
    from looseleaf.engine.request import FinishReason

__all__ = ["Result", "Timings", "TokenEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """When an answer came, in seconds after its request was submitted.

    Attributes:
        admitted: when it was first admitted; None if it never was.
        first_token: when its first token was chosen; None if there is none.
        finished: when it ended.
    """

    admitted: float | None
    first_token: float | None
    finished: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One answer to a prompt.

    Attributes:
        index: position of the prompt in the call.
        sample: which of the prompt's answers this is: 0 to n - 1; of a beam search the best is 0.
        prompt_token_ids: what the model read; a chat template's tokens are among them.
        token_ids: what it generated; a token that ended it is the last.
        text: `token_ids` as text without the token that ended it, without special tokens, cut before the stop string
            that ended it; None without a tokenizer.
        finish_reason: "stop" after a stop token or a stop string, "length" after `max_tokens`, "error" if the request
            was refused or failed, "abort" if its stream was closed or interrupted.
        error: what the model raised, or why the request was refused: `NeverFits`, `SequenceTooLong`, `OutOfBlocks`.
        logprobs: of each token, if `SamplingParams.logprobs` asked for them; else empty.
        prompt_logprobs: of each prompt token but the first, if `SamplingParams.prompt_logprobs` asked for them.
        score: of a beam search: sum of the log-probabilities by length ** length_penalty.
        num_cached_tokens: tokens of the prompt that were not computed: they were in the prefix cache, or computed for
            another sample of the prompt.
        num_preemptions: how often its blocks were taken for others, and computed or swapped in again.
        timings: when it was admitted, served and finished.
    """

    index: int
    sample: int = 0
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str | None
    finish_reason: FinishReason
    error: Exception | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    score: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    timings: Timings = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One generated token, or the end of a request.

    Attributes:
        index: position of the prompt in the call.
        sample: which of the prompt's answers this is.
        token_id: the token; None for an end without one: a refusal, an error, the answer of a beam search.
        text: what this token adds to the text, often the end of a word and sometimes nothing: characters wait for all
            of their bytes, and what may become a stop string waits, too. The texts of all events of one answer, joined,
            are the text of its result.
        result: the whole answer, with the last event of each; None before.
    """

    index: int
    sample: int = 0
    token_id: int | None
    text: str = ""
    result: Result | None = None
