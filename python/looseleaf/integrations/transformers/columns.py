"""The new columns of a forward pass: what transformers hands over, as arrays on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from looseleaf.errors import InvalidArgument
from looseleaf.integrations.transformers.versions import CACHE_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["Columns", "columns_of", "ids_of", "left_padding", "mask_of", "without_first"]

_NUM_MASK_DIMENSIONS = 2

# Arguments of a forward pass that change no key and no value, beside those that `BatchRows` reads. With any other,
# token types or pictures for example, the blocks are not those of the ids alone, and no other prompt may share them.
_PLAIN_ARGUMENTS = frozenset(
    {
        *("input_ids", "attention_mask", "position_ids", "cache_position", *CACHE_ARGUMENTS, "use_cache", "labels"),
        *("return_dict", "output_attentions", "output_hidden_states", "logits_to_keep", "num_logits_to_keep"),
    }
)

# Those of them that have something for each new column.
_BY_COLUMN = frozenset({"input_ids", "position_ids", "cache_position"})


class Columns(NamedTuple):
    """The new columns of a forward pass.

    Attributes:
        num_rows: rows of the batch.
        num_columns: how many there are.
        token_ids: int64 [num_rows, num_columns]; None: not known.
        mask: bool [num_rows, computed columns + num_columns], False where there is padding; None: nowhere.
        positions: int64 [num_rows or 1, num_columns]; None: the model counts.
        follows_from_ids: nothing but the ids, and the positions, goes into keys and values.
    """

    num_rows: int
    num_columns: int
    token_ids: NDArray[np.int64] | None
    mask: NDArray[np.bool_] | None
    positions: NDArray[np.int64] | None
    follows_from_ids: bool


def columns_of(arguments: Mapping[str, Any], *, is_rope_steady: bool) -> Columns:
    """Take over what a forward pass brings, on the host.

    Args:
        arguments: of the pass, by their names.
        is_rope_steady: whether a token's rotation follows from its position alone.

    Raises:
        InvalidArgument: there are no tokens, or the mask has another number of dimensions than two.
    """
    input_ids, positions = arguments.get("input_ids"), arguments.get("position_ids")
    tokens = arguments.get("inputs_embeds") if input_ids is None else input_ids
    if tokens is None:
        raise InvalidArgument("input_ids is missing")
    return Columns(
        num_rows=tokens.shape[0],
        num_columns=tokens.shape[1],
        token_ids=None if input_ids is None else ids_of(input_ids),
        mask=mask_of(arguments.get("attention_mask")),
        positions=None if positions is None else ids_of(positions),
        follows_from_ids=is_rope_steady
        and all(name in _PLAIN_ARGUMENTS for name, value in arguments.items() if value is not None),
    )


def without_first(arguments: Mapping[str, Any], count: int) -> Mapping[str, Any]:
    """The arguments of a forward pass that is to begin `count` columns later.

    Raises:
        InvalidArgument: something else than ids and positions comes by column, or the caller counts on hidden states of
            all columns.
    """
    others = [name for name, value in arguments.items() if value is not None and name not in _PLAIN_ARGUMENTS]
    if arguments.get("output_hidden_states"):
        others.append("output_hidden_states")
    if others:
        raise InvalidArgument(
            f"assisted decoding brings all columns of the prompt, the cache has computed {count} of them, and does not "
            f"know how to leave those out of {', '.join(others)}; reset() first"
        )
    return {
        name: value[..., count:] if name in _BY_COLUMN and value is not None else value
        for name, value in arguments.items()
    }


def ids_of(input_ids: Tensor) -> NDArray[np.int64]:
    """Ids or positions on the host."""
    return input_ids.cpu().to(torch.int64).numpy()


def mask_of(attention_mask: object) -> NDArray[np.bool_] | None:
    """A mask on the host: bool [rows, columns].

    Raises:
        InvalidArgument: it has another number of dimensions.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != _NUM_MASK_DIMENSIONS:
        shape = list(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise InvalidArgument(f"attention_mask must be [rows, columns] with a paged cache, was {shape}")
    return attention_mask.cpu().to(torch.bool).numpy()


def left_padding(mask: NDArray[np.bool_] | None, num_rows: int, num_columns: int) -> NDArray[np.int64]:
    """Columns of padding before the first token of each row: int64 [num_rows].

    Raises:
        InvalidArgument: the mask has another shape than [num_rows, num_columns], or padding behind a token.
    """
    if mask is None:
        return np.zeros(num_rows, np.int64)
    if mask.shape != (num_rows, num_columns):
        raise InvalidArgument(
            f"attention_mask must be [{num_rows}, {num_columns}], all computed columns and the new ones, "
            f"was {list(mask.shape)}"
        )
    num_tokens = mask.sum(axis=1)
    padding: NDArray[np.int64] = num_columns - num_tokens
    if ((mask.argmax(axis=1) != padding) & (num_tokens > 0)).any():
        raise InvalidArgument(
            "attention_mask has zeros behind a one: a paged cache takes padding on the left alone; "
            'set tokenizer.padding_side = "left"'
        )
    return padding
