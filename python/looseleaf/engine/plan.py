"""What one step computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from looseleaf.engine.request import Branch, Request

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The sequences of a step, and how far each of them gets. Good until the scheduler's next call.

    Attributes:
        rows: int64 [sequences], their rows among the running ones.
        branches: whose they are.
        handles: int64 [sequences], the sequences in the block manager.
        num_new: int64 [sequences], tokens that each of them computes, drafts included, at least 1.
        num_computed: int64 [sequences], its computed tokens afterwards if all drafts are accepted.
        num_logits: int64 [sequences], its last rows whose logits are needed: none for a prompt that goes on, one for
            its end and for a decode row, one more for each draft, all for log-probabilities of the prompt.
        token_ids: int64, the tokens that the manager does not know yet, in order.
        drafts: proposed tokens that follow the known ones, by place in the plan.
        is_greedy: whether each row of logits is a choice of its own, of the likeliest token; False says nothing.
    """

    rows: NDArray[np.int64]
    branches: list[Branch]
    handles: NDArray[np.int64]
    num_new: NDArray[np.int64]
    num_computed: NDArray[np.int64]
    num_logits: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    drafts: dict[int, NDArray[np.int64]]
    is_greedy: bool

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return int(self.num_new.sum())

    @property
    def requests(self) -> list[Request]:
        """Whose sequences they are, each once."""
        return list({id(branch.request): branch.request for branch in self.branches}.values())

    def logits_rows(self) -> NDArray[np.int64] | None:
        """int64, the token rows of the step whose logits are needed; None if that is the last row of each sequence."""
        if (self.num_logits == 1).all():
            return None
        ends = np.cumsum(self.num_new)
        first = np.cumsum(self.num_logits) - self.num_logits
        rows: NDArray[np.int64] = np.repeat(ends - self.num_logits - first, self.num_logits)
        return rows + np.arange(len(rows))
