"""The pool of a transformers model: its shape is read from the model, its tensors are where the model is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from looseleaf.cache import PagedKVCache
from looseleaf.config import ModelShape
from looseleaf.errors import InvalidArgument
from looseleaf.integrations.transformers.columns import integer_of
from looseleaf.integrations.transformers.versions import text_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["cache_shape", "new_pool"]

_MAX_SEQUENCE_LEN = 8192

# What the families call their embeddings of positions.
_POSITION_TABLES = frozenset({"wpe", "embed_positions", "position_embeddings", "positions_embed"})


def cache_shape(model: PreTrainedModel, *, max_sequence_len: int | None) -> tuple[ModelShape, int]:
    """Read the shape of a model's cache, and how long its sequences may be.

    Args:
        model: a transformers model; of a multimodal one, its text model counts.
        max_sequence_len: tokens that a sequence may hold; None: what the model was made for, or 8192.

    Returns:
        The shape and that length.

    Raises:
        InvalidArgument, InvalidType: the model's configuration lacks keys, its dtype cannot be that of a cache, or it
            has learned fewer positions than `max_sequence_len`.
        UnsupportedModel: not every layer keeps keys and values of one shape.
    """
    shape = ModelShape.from_config(text_config(model), dtype=str(model.dtype))
    num_positions = _num_learned_positions(model)
    max_sequence_len = None if max_sequence_len is None else integer_of(max_sequence_len, "max_sequence_len")
    if max_sequence_len is None:
        max_sequence_len = shape.max_sequence_len or _MAX_SEQUENCE_LEN
        return shape, max_sequence_len if num_positions is None else min(max_sequence_len, num_positions)
    if num_positions is not None and max_sequence_len > num_positions:
        raise InvalidArgument(
            f"max_sequence_len is {max_sequence_len}, must be 1 to {num_positions}: {type(model).__name__} has learned "
            "no more positions"
        )
    return shape, max_sequence_len


def _num_learned_positions(model: PreTrainedModel) -> int | None:
    """Positions that a model has an embedding for, beyond which it would fail; None: it computes any position."""
    tables = [
        module
        for name, module in model.get_decoder().named_modules()
        if name.rpartition(".")[2] in _POSITION_TABLES and isinstance(module, nn.Embedding)
    ]
    # Some begin behind an offset, some behind the index of their padding.
    firsts = [
        getattr(table, "offset", 0) + (0 if table.padding_idx is None else table.padding_idx + 1) for table in tables
    ]
    return min((table.num_embeddings - first for table, first in zip(tables, firsts, strict=True)), default=None)


def new_pool(
    model: PreTrainedModel,
    shape: ModelShape,
    *,
    max_sequence_len: int,
    num_blocks: int | None,
    memory: str | float | None,
    block_size: int,
    max_sequences: int,
    max_batch_tokens: int | None,
    prefix_caching: bool = True,
) -> PagedKVCache:
    """Allocate the blocks of a model.

    Args:
        model: where the tensors are to be.
        shape: from `cache_shape`.
        max_sequence_len: from `cache_shape`.
        num_blocks: as for `PagedKVCache`, like the others.
        memory: size of the pool, in the place of `num_blocks`.
        block_size: tokens of one block.
        max_sequences: sequences that can be alive at once.
        max_batch_tokens: new tokens of a step at most; None: as many as the pool has slots.
        prefix_caching: whether to keep computed blocks for prompts that begin alike.

    Raises:
        OutOfMemory, InvalidArgument, InvalidType: as `PagedKVCache`.
    """
    return PagedKVCache(
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        device=model.device,
        block_size=block_size,
        num_blocks=num_blocks,
        memory=memory,
        max_sequences=max_sequences,
        max_sequence_len=max_sequence_len,
        max_batch_tokens=max_batch_tokens,
        prefix_caching=prefix_caching,
    )
