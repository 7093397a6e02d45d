"""One forward pass of a model over a paged cache: what its layers do instead of the attention that they had.

Importing this module registers the attention function "looseleaf_cache" with transformers. A model runs with it only
while `binding` has switched it to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from looseleaf.errors import InvalidArgument, UnsupportedModel
from looseleaf.integrations.transformers.attention import attention_function
from looseleaf.integrations.transformers.switch import note_mask

if TYPE_CHECKING:
    from torch import Tensor, nn

    from looseleaf.cache import Step
    from looseleaf.integrations.transformers.attention import Scoring

__all__ = ["CACHE_ATTENTION_NAME", "Forward"]

CACHE_ATTENTION_NAME = "looseleaf_cache"
_MARK = "looseleaf_forward"
_NUM_MASK_DIMENSIONS = 2


class Forward:
    """The layers of one forward pass: each must hand its keys and values to the cache, then come here to attend.

    The keys that a layer gets back from `mark` are those it gave, with the mark that leads the attention function here.
    So what transformers does between the two must leave them alone, and a layer that never comes is noticed.

    Attributes:
        name: of the model, for messages.
    """

    __slots__ = ("_is_done", "_num_columns", "_num_rows", "_packed_rows", "_pending", "_step", "name")

    def __init__(
        self, step: Step, *, num_rows: int, num_columns: int, packed_rows: Tensor | None, num_layers: int, name: str
    ) -> None:
        """Begin.

        Args:
            step: the new tokens.
            num_rows: rows of the batch.
            num_columns: new columns of the batch.
            packed_rows: int64 [tokens of the step], the places of the tokens in the flattened batch; None: all of them.
            num_layers: layers that are to attend.
            name: of the model, for messages.
        """
        self._step = step
        self._num_rows = num_rows
        self._num_columns = num_columns
        self._packed_rows = packed_rows
        self._pending: int | None = None
        self._is_done = [False] * num_layers
        self.name = name

    def mark(self, key: Tensor, layer: int) -> None:
        """Note that a layer is about to attend with these keys.

        Raises:
            UnsupportedModel: the layer before did not attend, or this one did already.
        """
        if self._pending is not None:
            self._refuse(f"layer {self._pending} did not attend by it")
        if not 0 <= layer < len(self._is_done) or self._is_done[layer]:
            self._refuse(f"layer {layer} came twice, or is none of {len(self._is_done)}")
        self._pending = layer
        setattr(key, _MARK, self)

    def check_complete(self) -> None:
        """Check that every layer has attended.

        Raises:
            UnsupportedModel: one has not.
        """
        if not all(self._is_done):
            missing = [layer for layer, is_done in enumerate(self._is_done) if not is_done]
            self._refuse(f"layers {missing} of {len(self._is_done)} did not attend by it")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Write the keys and values of the marked layer, and attend to all that its rows hold.

        Args:
            query: [rows, query_heads, columns, head_dim].
            key: [rows, kv_heads, columns, head_dim].
            value: the shape of `key`.
            scoring: of the layer.

        Returns:
            [rows, columns, query_heads, head_dim]; zeros where there is padding.
        """
        layer = self._pending
        if layer is None:
            raise UnsupportedModel(f"{self.name} attends twice with the same keys")
        packed = [self._pack(states) for states in (query, key, value)]
        out = self._step.attend(layer, *packed, **scoring._asdict())
        self._pending = None
        self._is_done[layer] = True
        shape = (self._num_rows, self._num_columns, *out.shape[1:])
        if self._packed_rows is None:
            return out.view(shape)
        padded = out.new_zeros((self._num_rows * self._num_columns, *out.shape[1:]))
        return padded.index_copy_(0, self._packed_rows, out).view(shape)

    def _pack(self, states: Tensor) -> Tensor:
        """[rows, heads, columns, head_dim] to [tokens, heads, head_dim], padding left out."""
        if states.shape[0] != self._num_rows or states.shape[2] != self._num_columns:
            self._refuse(f"it hands over states {list(states.shape)} of {self._num_rows} x {self._num_columns} tokens")
        packed = states.transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])
        return packed if self._packed_rows is None else packed.index_select(0, self._packed_rows)

    def _refuse(self, what: str) -> None:
        raise UnsupportedModel(
            f"{self.name} does not take its attention from transformers' AttentionInterface as this cache needs: {what}"
        )


def _attend_marked(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scoring: Scoring,
    step: Step | None,  # noqa: ARG001 - the mark of the keys leads to it
) -> Tensor:
    """Attend through the block tables of the cache that the keys were given to: they are what its `update` returned."""
    forward: Forward | None = getattr(key, _MARK, None)
    if forward is None:
        raise UnsupportedModel(
            f"{type(module).__name__} attends with keys that it did not give to the cache as they are"
        )
    if attention_mask is not None and attention_mask.dim() != _NUM_MASK_DIMENSIONS:
        raise InvalidArgument(
            f"attention_mask must be [rows, columns] with a paged cache, a layer got {list(attention_mask.shape)}"
        )
    return forward.attend(query, key, value, scoring)


def _no_mask(*_: object, allow_is_causal_skip: bool = True, local_size: int | None = None, **__: object) -> None:
    """Make no mask: the cache has read the padding, and the operators are causal. Other shapes are refused.

    transformers allows to leave a mask away where it says nothing but "causal", with a window or without.
    """
    note_mask(local_size)
    if not allow_is_causal_skip:
        raise UnsupportedModel(
            "a paged cache hides later keys, padding, and keys out of a window; this model hides others"
        )


AttentionInterface.register(CACHE_ATTENTION_NAME, attention_function(_attend_marked))
AttentionMaskInterface.register(CACHE_ATTENTION_NAME, _no_mask)
