"""What differs between the versions of transformers, found by looking at the library, not at its number.

Seen in 4.57, 5.10 and 5.24. Each difference stands here once; the rest of the package knows none of them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from transformers import Cache

from looseleaf.errors import InvalidArgument, UnsupportedModel

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = [
    "CACHE_ARGUMENTS",
    "cropped_length",
    "has_steady_rope",
    "missing_scale",
    "num_queries",
    "steady_rope_len",
    "text_config",
]

CACHE_ARGUMENTS = ("past_key_values", "cache")
"""Arguments by which a model takes its cache: the first everywhere, the second from 5.2x on."""

_CROPS_BY_COUNT = "tokens_to_remove" in inspect.signature(Cache.crop).parameters


def text_config(model: PreTrainedModel) -> PretrainedConfig:
    """The configuration of the layers that fill the cache: of a multimodal model, that of its text model.

    Raises:
        UnsupportedModel: the model is an encoder-decoder.
    """
    if model.config.is_encoder_decoder:
        raise UnsupportedModel(
            f"{type(model).__name__} is an encoder-decoder: it keeps a second cache, for the encoder's output"
        )
    return model.config.get_text_config(decoder=True)


def cropped_length(argument: int, length: int) -> int:
    """The length that is left of a cache of `length` tokens after `crop(argument)`.

    Up to 5.1x the argument is the new length, or if it is negative minus the number of tokens to remove, so 0 empties
    the cache. Later it is minus the number of tokens to remove, so 0 keeps everything, and more is an error.

    Raises:
        InvalidArgument: a positive argument where it counts tokens to remove.
    """
    if argument < 0:
        return max(0, length + argument)
    if not _CROPS_BY_COUNT:
        return min(argument, length)
    if argument > 0:
        raise InvalidArgument(f"tokens_to_remove is {argument}, must be minus the tokens to remove, or 0")
    return length


def num_queries(argument: object) -> int:
    """New tokens, from the argument of `get_mask_sizes`: their number, in 4.57 a tensor of their positions."""
    return argument if isinstance(argument, int) else len(argument)  # type: ignore[arg-type]


def has_steady_rope(config: PretrainedConfig) -> bool:
    """Whether a token's rotation follows from its position alone, not from how long its sequence grows.

    The settings are in `rope_scaling`, in 5.x in `rope_parameters`, where layer types may have their own.
    """
    kinds = {setting.get(key) for setting in _rope_settings(config) for key in ("rope_type", "type")}
    return not kinds & {"dynamic", "longrope"}


def steady_rope_len(config: PretrainedConfig) -> int | None:
    """How long the sequences of a batch may be so that no token's rotation depends on their length; None: any length.

    Beyond the length that they were trained with, "dynamic" and "longrope" rotate by the longest sequence of the batch.
    """
    if has_steady_rope(config):
        return None
    trained = [setting.get("original_max_position_embeddings") for setting in _rope_settings(config)]
    trained += [getattr(config, "original_max_position_embeddings", None), config.max_position_embeddings]
    return min(int(length) for length in trained if length)


def _rope_settings(config: PretrainedConfig) -> list[dict[str, Any]]:
    settings = [getattr(config, name, None) or {} for name in ("rope_scaling", "rope_parameters")]
    return settings + [value for setting in settings for value in setting.values() if isinstance(value, dict)]


def missing_scale(module: nn.Module) -> float | None:
    """The factor of the scores that a layer does not hand over: None is 1 / sqrt(head_dim).

    GPT-2 computes it inside its own attention function up to 4.57.
    """
    if not hasattr(module, "scale_attn_by_inverse_layer_idx"):
        return None
    scale = float(module.head_dim) ** -0.5 if module.scale_attn_weights else 1.0  # type: ignore[arg-type]
    if module.scale_attn_by_inverse_layer_idx:
        scale /= float(module.layer_idx + 1)  # type: ignore[operator]
    return scale
