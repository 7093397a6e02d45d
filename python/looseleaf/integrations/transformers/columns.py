"""The new columns of a forward pass: what transformers hands over, as arrays on the host."""

from __future__ import annotations

from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from looseleaf.errors import InvalidArgument, InvalidType
from looseleaf.integrations.transformers.versions import CACHE_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = [
    "Columns",
    "columns_of",
    "ids_of",
    "indices_of",
    "integer_of",
    "left_padding",
    "mask_of",
    "shape_of_embeddings",
    "without_first",
]

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
        InvalidArgument: there are no tokens, or ids or mask have another number of dimensions than two.
        InvalidType: the ids are no tensor of integers.
    """
    input_ids, embeddings = arguments.get("input_ids"), arguments.get("inputs_embeds")
    positions = arguments.get("position_ids")
    if input_ids is None and embeddings is None:
        raise InvalidArgument("input_ids is missing")
    token_ids = None if input_ids is None else ids_of(input_ids)
    num_rows, num_columns = shape_of_embeddings(embeddings) if token_ids is None else token_ids.shape
    if not num_rows or not num_columns:
        raise InvalidArgument(f"input_ids must have a row and a column at least, was [{num_rows}, {num_columns}]")
    return Columns(
        num_rows=num_rows,
        num_columns=num_columns,
        token_ids=token_ids,
        mask=mask_of(arguments.get("attention_mask")),
        positions=None if positions is None else _on_host(positions),
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


def ids_of(input_ids: object) -> NDArray[np.int64]:
    """Ids on the host: int64 [rows, columns].

    Raises:
        InvalidType: they are no tensor of integers.
        InvalidArgument: they have another number of dimensions.
    """
    return _on_host(_integers(input_ids, "input_ids", "[rows, columns]"))


def shape_of_embeddings(embeddings: object) -> tuple[int, int]:
    """How many rows and columns embeddings have.

    Raises:
        InvalidType: they are no tensor.
        InvalidArgument: they have another number of dimensions than three.
    """
    num_rows, num_columns, _ = _tensor(embeddings, "inputs_embeds", "[rows, columns, hidden_size]").shape
    return num_rows, num_columns


def indices_of(indices: object, name: str, *, num_flags: int | None = None) -> list[int]:
    """The rows that a tensor names, by their numbers or by bools.

    Args:
        indices: the tensor.
        name: of it, for messages.
        num_flags: how many bools it must have, if it has bools; None: it may not.

    Raises:
        InvalidType: it is no tensor of integers or bools.
        InvalidArgument: it has another number of dimensions than one, or of bools than `num_flags`.
    """
    if num_flags is None or not isinstance(indices, Tensor) or indices.dtype != torch.bool:
        rows: list[int] = _integers(indices, name, "[rows]").tolist()
        return rows
    if list(indices.shape) != [num_flags]:
        raise InvalidArgument(f"{name} must be [{num_flags}], a bool for each row, was {list(indices.shape)}")
    return indices.nonzero().flatten().tolist()


def integer_of(value: object, name: str) -> int:
    """An integer, or what stands for one, such as a tensor of one.

    Raises:
        InvalidType: it is something else.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        with suppress(TypeError):  # tensors of floats have the method too
            return index(value)
    raise InvalidType(f"{name} must be an integer, was {value!r}")


def _tensor(value: object, name: str, shape: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise InvalidType(f"{name} must be a tensor, was {type(value).__name__}")
    if value.dim() != shape.count(",") + 1:
        raise InvalidArgument(f"{name} must be {shape}, was {list(value.shape)}")
    return value


def _integers(value: object, name: str, shape: str) -> Tensor:
    tensor = _tensor(value, name, shape)
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise InvalidType(f"{name} must hold integers, was {tensor.dtype}")
    return tensor


def _on_host(integers: Tensor) -> NDArray[np.int64]:
    return integers.cpu().to(torch.int64).numpy()


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
