"""Attention through a block table for transformers models, on packed input.

Importing this module registers the attention function "looseleaf_paged" with transformers. A model that runs with it
takes the tokens of a whole ragged batch in one row, `input_ids` [1, tokens], and a `Step` that says whose they are:

    model(input_ids=step.token_ids[None], position_ids=step.positions[None], use_cache=False, step=step)

Rotary embeddings come from `position_ids` and are the model's own work; keys and values are written to the cache, then
read through the table. Nothing here depends on the number of sequences.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from looseleaf.errors import InvalidArgument, UnsupportedModel
from looseleaf.integrations.transformers.versions import missing_scale, text_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from looseleaf.cache import Step

__all__ = [
    "ATTENTION_NAME",
    "Scoring",
    "check_attention",
    "paged_attention",
    "scoring",
    "use_attention",
    "use_paged_attention",
]

ATTENTION_NAME = "looseleaf_paged"
"""What `set_attn_implementation` calls it. Names with "flash" in them take another path inside transformers."""

# Chunked attention keeps keys and values of the same shape, but its mask cannot be said to the operators.
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


class Scoring(NamedTuple):
    """How a layer turns queries and keys into weights, in the words of the operators."""

    scale: float | None
    softcap: float
    sinks: Tensor | None


def scoring(
    module: nn.Module,
    *,
    scaling: float | None,
    dropout: float,
    softcap: float | None,
    s_aux: Tensor | None,
    position_bias: Tensor | None,
    head_mask: Tensor | None,
) -> Scoring:
    """Take over what a layer hands to an attention function.

    Args:
        module: the attention module.
        scaling: factor of the scores; None is the module's own, else 1 / sqrt(head_dim).
        dropout: must be 0.
        softcap: scores become softcap * tanh(score / softcap); None is off.
        s_aux: [query_heads], attention sinks.
        position_bias: must be None.
        head_mask: must be None.

    Raises:
        InvalidArgument: an argument that must be absent is there.
        UnsupportedModel: the layer is not causal.
    """
    if dropout or position_bias is not None or head_mask is not None:
        raise InvalidArgument(
            "dropout, position_bias and head_mask are not supported: call model.eval(), use another model"
        )
    if not getattr(module, "is_causal", True):
        raise UnsupportedModel(f"{type(module).__name__} is not causal")
    return Scoring(
        missing_scale(module) if scaling is None else scaling,
        softcap or 0.0,
        None if s_aux is None else s_aux.detach().float(),
    )


def paged_attention(
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
    """Write a layer's new keys and values into the cache, and attend through the block table.

    Args:
        module: the attention module; its `layer_idx` is the layer of the cache.
        query: [1, query_heads, tokens, head_dim], rotated.
        key: [1, kv_heads, tokens, head_dim], rotated.
        value: [1, kv_heads, tokens, head_dim].
        attention_mask: must be None; the step knows what each token sees.
        scaling: as for `scoring`.
        dropout: as for `scoring`.
        sliding_window: keys that a token sees, its own included; None is all.
        softcap: as for `scoring`.
        s_aux: as for `scoring`.
        position_bias: as for `scoring`.
        head_mask: as for `scoring`.
        step: whose tokens these are, from `PagedKVCache.step`.

    Returns:
        [1, tokens, query_heads, head_dim], and None for the weights, which are never formed.

    Raises:
        InvalidArgument: the step is missing, the batch is not 1, or an argument that must be absent is there.
        UnsupportedModel: the layer is not causal.
    """
    if step is None:
        raise InvalidArgument(
            f"step is missing: {ATTENTION_NAME} runs packed batches of a paged cache; call the model with step=..., "
            "or set another attn_implementation"
        )
    if attention_mask is not None:
        raise InvalidArgument("attention_mask must be None: packed input has no padding, and the step is its mask")
    if query.shape[0] != 1:
        raise InvalidArgument(f"input_ids must be [1, tokens], all sequences in one row, not {query.shape[0]} rows")
    scale, cap, sinks = scoring(
        module,
        scaling=scaling,
        dropout=dropout,
        softcap=softcap,
        s_aux=s_aux,
        position_bias=position_bias,
        head_mask=head_mask,
    )
    out = step.attend(
        cast("int", module.layer_idx),
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=scale,
        window=sliding_window,
        softcap=cap,
        sinks=sinks,
    )
    return out[None], None


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
def use_attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Let the layers that fill the cache attend by a registered function inside a `with`, and as before after it.

    Other parts of a multimodal model, such as its vision tower, keep their attention.
    """
    config = text_config(model)
    # `set_attn_implementation` would walk through all modules, and set the parts of a multimodal model alike.
    before = config._attn_implementation_internal  # noqa: SLF001
    config._attn_implementation_internal = name  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation_internal = before  # noqa: SLF001


@contextmanager
def use_paged_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model attend through block tables inside a `with`, and as before after it.

    Raises:
        UnsupportedModel: as `check_attention`.
    """
    check_attention(model)
    with use_attention(model, ATTENTION_NAME):
        yield


def _keep_mask(*_: object, attention_mask: Tensor | None = None, **__: object) -> Tensor | None:
    """Hand the caller's mask through, to be refused: an attention without a mask function loses it silently."""
    return attention_mask


AttentionInterface.register(ATTENTION_NAME, paged_attention)
AttentionMaskInterface.register(ATTENTION_NAME, _keep_mask)
