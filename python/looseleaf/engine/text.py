"""From prompts to tokens, and from tokens back to text as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from looseleaf.errors import EmptyPrompt, InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

__all__ = ["TextStream", "decode", "encode"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def encode(
    prompt: str | Sequence[int], tokenizer: PreTrainedTokenizerBase | None, *, vocabulary_size: int
) -> NDArray[np.int64]:
    """Turn a prompt into token ids.

    Args:
        prompt: token ids, taken as they are; or text, which becomes the user's message of the tokenizer's chat
            template if it has one, and is tokenized plainly if not.
        tokenizer: None if all prompts are token ids.
        vocabulary_size: token ids must be below.

    Returns:
        int64 [prompt_len].

    Raises:
        EmptyPrompt: there is no token.
        InvalidArgument: a token id is outside the vocabulary, or a text came without a tokenizer.
        InvalidType: the prompt is neither.

    >>> encode([1, 2, 3], None, vocabulary_size=10)
    array([1, 2, 3])
    """
    if isinstance(prompt, str):
        token_ids = np.asarray(_tokenize(prompt, tokenizer), dtype=np.int64)
    else:
        try:
            token_ids = np.asarray(prompt)
        except ValueError:
            token_ids = np.asarray(prompt, dtype=object)
        except Exception as error:
            raise InvalidType(f"a prompt must be a string or a flat list of integers, not {prompt!r}"[:200]) from error
        if token_ids.size and (token_ids.ndim != 1 or token_ids.dtype.kind not in "iu"):
            raise InvalidType(f"a prompt must be a string or a flat list of integers, not {prompt!r}"[:200])
    if not token_ids.size:
        raise EmptyPrompt
    low, high = int(token_ids.min()), int(token_ids.max())
    if low < 0 or high >= vocabulary_size:
        wrong = low if low < 0 else high
        raise InvalidArgument(f"token ids must be in [0, {vocabulary_size}), not {wrong}")
    return token_ids.astype(np.int64)  # a copy: the caller may use the array again


def decode(token_ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Turn token ids into text without special tokens."""
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True)
    return text


class TextStream:
    """The text of one answer, piece by piece, up to a stop string.

    A token can end inside a character, and a tokenizer can treat the first token of a text specially. So each piece is
    the difference of two texts that begin at the last piece's first token, and it waits for its last character's bytes.
    What may be the beginning of a stop string waits, too; with a whole one the text ends before it.

    Args:
        tokenizer: decodes.
        stop: strings that end the text.

    Attributes:
        text: the pieces handed out so far.
        is_stopped: whether a stop string came.
    """

    __slots__ = ("_begin", "_end", "_stop", "_token_ids", "_tokenizer", "_waiting", "is_stopped", "text")

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._begin = 0
        self._end = 0
        self._stop = stop
        self._waiting = ""
        self.text = ""
        self.is_stopped = False

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Add a token, and take the text that became certain with it.

        Args:
            token_id: the next token; none may come after a stop string.
            may_stop: whether a stop string that is whole with this token ends the text; if not, it is text.
        """
        self._token_ids.append(token_id)
        self._waiting += self._take(wait=True)
        return self._pass_on(may_stop=may_stop)

    def finish(self) -> str:
        """Take what still waited."""
        if self.is_stopped:
            return ""
        self._waiting += self._take(wait=False)
        piece = self._pass_on(may_stop=True)
        rest, self._waiting = self._waiting, ""
        self.text += rest
        return piece + rest

    def _pass_on(self, *, may_stop: bool) -> str:
        """Cut the waiting text at its first stop string, or where one may begin."""
        end = len(self._waiting)
        if self._stop:
            found = (self._waiting.find(stop) for stop in self._stop) if may_stop else ()
            places = [place for place in found if place >= 0]
            self.is_stopped = bool(places)
            end = min(places) if places else end - _longest_begin(self._waiting, self._stop)
        piece = self._waiting[:end]
        self._waiting = "" if self.is_stopped else self._waiting[end:]
        self.text += piece
        return piece

    def _take(self, *, wait: bool) -> str:
        given = decode(self._token_ids[self._begin : self._end], self._tokenizer)
        text = decode(self._token_ids[self._begin :], self._tokenizer)
        if wait and text.endswith(_REPLACEMENT):
            return ""
        self._begin = self._end
        self._end = len(self._token_ids)
        return text[len(given) :]


def _longest_begin(text: str, stop: Sequence[str]) -> int:
    """Characters at the end of a text with which a stop string may begin.

    >>> _longest_begin("we are at the EN", ("END", "NONE")), _longest_begin("end", ("END",))
    (2, 0)
    """
    longest = 0
    for one in stop:
        for length in range(min(len(one) - 1, len(text)), longest, -1):
            if text.endswith(one[:length]):
                longest = length
                break
    return longest


def _tokenize(prompt: str, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    if tokenizer is None:
        raise InvalidArgument("text prompts need a tokenizer; give the engine one, or give token ids")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"a prompt must be text that UTF-8 can encode: {error}") from error
    if getattr(tokenizer, "chat_template", None):
        message = [{"role": "user", "content": prompt}]
        encoded = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)
    else:
        encoded = tokenizer(prompt)
    token_ids: list[int] = encoded["input_ids"]
    return token_ids
