"""From logits to tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["greedy"]


def greedy(logits: Tensor) -> Tensor:
    """Choose the most likely token of each row, the lowest id among equals.

    Args:
        logits: [rows, vocabulary], any floating dtype.

    Returns:
        int64 [rows], on the device of `logits`.

    >>> import torch
    >>> greedy(torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 0.0]])).tolist()
    [1, 0]
    """
    return logits.argmax(dim=-1)
