"""What comes out of a generation: an event for every token, a result for every prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looseleaf.engine.request import FinishReason
    from looseleaf.errors import LooseleafError

__all__ = ["Result", "TokenEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to one prompt.

    Attributes:
        index: position of the prompt in the call.
        prompt_token_ids: what the model read; a chat template's tokens are among them.
        token_ids: what it generated; a token that ended it is the last.
        text: `token_ids` as text without the token that ended it and without special tokens; None without a tokenizer.
        finish_reason: "stop" after a stop token, "length" after `max_tokens`, "error" if the request was refused.
        error: why it was refused: `NeverFits` or `SequenceTooLong`.
    """

    index: int
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str | None
    finish_reason: FinishReason
    error: LooseleafError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One generated token, or the refusal of a request.

    Attributes:
        index: position of the prompt in the call.
        token_id: the token; None for a refusal.
        text: what this token adds to the text, often the end of a word and sometimes nothing: characters wait for all
            of their bytes. The texts of all events of one prompt, joined, are the text of its result.
        result: the whole answer, with the last event of each prompt; None before.
    """

    index: int
    token_id: int | None
    text: str = ""
    result: Result | None = None
