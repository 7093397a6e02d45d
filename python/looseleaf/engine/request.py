"""One prompt on its way through the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from looseleaf.allocator import Sequence

__all__ = ["FinishReason", "Request"]

FinishReason = Literal["stop", "length", "error"]
"""A stop token was generated; `max_tokens` were generated; the request was refused before it ran."""


class Request:
    """A prompt, how far it may run, and what came out so far.

    Attributes:
        index: the caller's number of this prompt.
        prompt: int64 [prompt_len], the prompt's token ids.
        max_tokens: most tokens to generate.
        stop_token_ids: token ids that end it.
        token_ids: what was generated so far, the stop token included.
        finish_reason: None while it waits or runs.
        sequence: its sequence in the block manager while it runs.
    """

    __slots__ = ("finish_reason", "index", "max_tokens", "prompt", "sequence", "stop_token_ids", "token_ids")

    def __init__(
        self, index: int, prompt: NDArray[np.int64], *, max_tokens: int, stop_token_ids: frozenset[int] = frozenset()
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.stop_token_ids = stop_token_ids
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.sequence: Sequence | None = None

    @property
    def max_len(self) -> int:
        """Tokens that it may hold at the end: prompt and answer."""
        return len(self.prompt) + self.max_tokens

    def accept(self, token_id: int) -> None:
        """Take the next generated token, and see whether it is the last."""
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) == self.max_tokens:
            self.finish_reason = "length"
