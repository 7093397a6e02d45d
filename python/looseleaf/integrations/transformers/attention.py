"""Attention through a block table for transformers models, on packed input.

Importing this module registers the attention function "looseleaf_paged" with transformers. A model that runs with it
takes the tokens of a whole ragged batch in one row, `input_ids` [1, tokens], and a `Step` that says whose they are:

    model(input_ids=step.token_ids[None], position_ids=step.positions[None], use_cache=False, step=step)

Rotary embeddings come from `position_ids` and are the model's own work; keys and values are written to the cache, then
read through the table. Nothing here depends on the number of sequences.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from looseleaf.errors import InvalidArgument, UnsupportedModel
from looseleaf.integrations.transformers.switch import SETTING, note_mask, note_window, turn
from looseleaf.integrations.transformers.versions import missing_scale, text_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from looseleaf.cache import Step

__all__ = [
    "ATTENTION_NAME",
    "Scoring",
    "attention_function",
    "check_attention",
    "use_paged_attention",
]

ATTENTION_NAME = "looseleaf_paged"
"""What `set_attn_implementation` calls it. Names with "flash" in them take another path inside transformers."""

# Chunked attention keeps keys and values of the same shape, but its mask cannot be said to the operators.
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


class Scoring(NamedTuple):
    """How a layer turns queries and keys into weights, in the words of the operators.

    Attributes:
        scale: factor of the scores; None is 1 / sqrt(head_dim).
        window: keys that a token sees, its own included; None is all.
        softcap: scores become softcap * tanh(score / softcap); 0 is off.
        sinks: float32 [query_heads]; None: no sinks.
    """

    scale: float | None
    window: int | None
    softcap: float
    sinks: Tensor | None


class Attend(Protocol):
    """What is left of an attention function once its arguments are taken over."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scoring: Scoring,
        step: Step | None,
    ) -> Tensor:
        """Attend: [rows, heads, columns, head_dim] to [rows, columns, query_heads, head_dim]."""


def attention_function(attend: Attend) -> Callable[..., tuple[Tensor, None]]:
    """Make a function to register with transformers, which calls it by the names that stand here.

    It returns None for the weights, which are never formed. It raises InvalidArgument where an argument is there that
    must be absent, and UnsupportedModel where the layer is not causal.

    Args:
        attend: does the work.
    """

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        head_mask: Tensor | None = None,
        step: Step | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        if dropout or position_bias is not None or head_mask is not None:
            raise InvalidArgument(
                "dropout, position_bias and head_mask are not supported: call model.eval(), use another model"
            )
        if not getattr(module, "is_causal", True):
            raise UnsupportedModel(f"{type(module).__name__} is not causal")
        note_window(sliding_window)
        scoring = Scoring(
            scale=missing_scale(module) if scaling is None else scaling,
            window=sliding_window,
            softcap=softcap or 0.0,
            sinks=None if s_aux is None else s_aux.detach().float(),
        )
        return attend(module, query, key, value, attention_mask, scoring=scoring, step=step), None

    return attention


def _attend_packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scoring: Scoring,
    step: Step | None,
) -> Tensor:
    """Write a layer's new keys and values, [1, kv_heads, tokens, head_dim], and attend through the block table."""
    if step is None:
        raise InvalidArgument(
            f"step is missing: {ATTENTION_NAME} runs packed batches of a paged cache; call the model with step=..., "
            "set another attn_implementation, or wait for the engine that runs it in another thread"
        )
    if attention_mask is not None:
        raise InvalidArgument("attention_mask must be None: packed input has no padding, and the step is its mask")
    if query.shape[0] != 1:
        raise InvalidArgument(f"input_ids must be [1, tokens], all sequences in one row, not {query.shape[0]} rows")
    packed = [states[0].transpose(0, 1) for states in (query, key, value)]
    return step.attend(cast("int", module.layer_idx), *packed, **scoring._asdict())[None]


def check_attention(model: PreTrainedModel) -> None:
    """Refuse a model whose attention ours cannot take the place of.

    Raises:
        UnsupportedModel: it computes its attention itself, has layers that see something else than all or the nearest
            earlier tokens, or is an encoder-decoder.
    """
    if not model._can_set_attn_implementation():  # noqa: SLF001 - transformers has no public name for it
        raise UnsupportedModel(
            f"{type(model).__name__} does not take its attention from transformers' AttentionInterface"
        )
    layer_types = set(getattr(text_config(model), "layer_types", None) or ())
    if not layer_types <= _LAYER_TYPES:
        others = ", ".join(sorted(layer_types - _LAYER_TYPES))
        raise UnsupportedModel(f"layer_types must be {', '.join(sorted(_LAYER_TYPES))}, not {others}")


@contextmanager
def use_paged_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model attend through block tables inside a `with`, and as before after it.

    Raises:
        UnsupportedModel: as `check_attention`.
    """
    check_attention(model)
    settings = vars(text_config(model))
    with turn(model):
        before = settings.get(SETTING)
        try:
            settings[SETTING] = ATTENTION_NAME
            yield
        finally:
            settings[SETTING] = before


def _keep_mask(
    *_: object, attention_mask: Tensor | None = None, local_size: int | None = None, **__: object
) -> Tensor | None:
    """Hand the caller's mask through, to be refused: an attention without a mask function loses it silently."""
    note_mask(local_size)
    return attention_mask


AttentionInterface.register(ATTENTION_NAME, attention_function(_attend_packed))
AttentionMaskInterface.register(ATTENTION_NAME, _keep_mask)
