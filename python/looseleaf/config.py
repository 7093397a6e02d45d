"""The shape of a model's KV cache: all that storage and sizing need to know of a model. No torch, no transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any, Self

from looseleaf.errors import InvalidArgument, InvalidType, UnsupportedModel

__all__ = ["DTYPE_BYTES", "ModelShape", "dtype_name"]

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element of a KV cache, by dtype name."""

_DTYPE_ALIASES = {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}

# What model families call the same number, the usual name first.
_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "num_query_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "head_dim": ("head_dim", "kv_channels"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "dtype": ("dtype", "torch_dtype"),
    "max_sequence_len": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
}
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_ATTENTION_LAYERS = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
_MULTI_QUERY_MODELS = {"falcon", "gpt_bigcode"}  # one KV head unless they say otherwise

# Keys and model types of layers that keep something else than keys and values, or not the same in every layer.
_RECURRENT_KEYS = (
    *("layers_block_type", "block_types", "hybrid_override_pattern", "hybrid_layer_ids", "attn_layer_period"),
    *("state_size", "ssm_state_size", "ssm_cfg", "mamba_d_state", "mamba_n_heads"),
    *("linear_attn_config", "linear_conv_kernel_dim", "linear_num_heads", "conv_L_cache"),
)
_RECURRENT_MODELS = {"rwkv", "xlstm", "reformer"}
_UNEVEN_KEYS = (
    *("block_configs", "global_head_dim", "num_global_key_value_heads"),
    *("swa_head_dim", "swa_num_key_value_heads", "cross_attention_layers"),
)

_Get = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The shape of one token's KV cache, the same in every layer.

    Attributes:
        num_layers: layers that keep keys and values.
        num_kv_heads: KV heads of one layer, before they are shared among query heads.
        head_dim: elements of one key, and of one value.
        dtype: "float32", "float16" or "bfloat16"; "fp32", "fp16", "bf16" and "torch.float16" are understood too.
        max_sequence_len: tokens that the model was made for; None if it does not say.

    Raises:
        InvalidArgument: a number is below 1, or the dtype is none of the three.
        InvalidType: a number is not an integer, or the dtype not a string.

    >>> ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="fp16", max_sequence_len=4096).dtype
    'float16'
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    max_sequence_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim"):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        if self.max_sequence_len is not None:
            object.__setattr__(self, "max_sequence_len", _positive("max_sequence_len", self.max_sequence_len))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @classmethod
    def from_config(
        cls, config: str | os.PathLike[str] | Mapping[str, object] | object, *, dtype: str | None = None
    ) -> Self:
        """Read the shape out of a model's configuration.

        Args:
            config: a `config.json` or its folder, what is in it, or an object with its keys as attributes, such as a
                `transformers.PretrainedConfig`. Of a multimodal model, the text model is read.
            dtype: of the cache, in place of the configuration's.

        Raises:
            InvalidArgument: the file cannot be read, or keys are missing; the text names them.
            InvalidType: a key holds no integer.
            UnsupportedModel: not every layer keeps keys and values of one shape: latent attention, state-space and
                hybrid models, encoder-decoders.

        >>> ModelShape.from_config({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}, dtype="fp16")
        ModelShape(num_layers=12, num_kv_heads=12, head_dim=64, dtype='float16', max_sequence_len=1024)
        """
        get = _text_model(_getter(config))
        _refuse_other_layouts(get)
        fields: dict[str, Any] = {name: _first(get, name) for name in _NAMES if name != "dtype"}
        fields["dtype"] = _first(get, "dtype") if dtype is None else dtype
        fields["num_kv_heads"] = _num_kv_heads(get, fields)
        missing = [name for name in ("num_layers", "dtype") if fields[name] is None]
        if fields["head_dim"] is None:
            missing += [name for name in ("num_query_heads", "hidden_size") if fields[name] is None]
        elif fields["num_kv_heads"] is None:
            missing += ["num_kv_heads"]
        if missing:
            keys = ", ".join(f"{_NAMES[name][0]} (or {', '.join(_NAMES[name][1:])})" for name in missing)
            raise InvalidArgument(f"config lacks {keys}")
        if fields["head_dim"] is None:
            fields["head_dim"] = _head_dim(fields)
        return cls(
            num_layers=fields["num_layers"],
            num_kv_heads=fields["num_kv_heads"],
            head_dim=fields["head_dim"],
            dtype=dtype_name(fields["dtype"]),
            max_sequence_len=fields["max_sequence_len"],
        )

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidType(f"{name} must be an integer, not {value!r}")
    number = index(value)
    if number < 1:
        raise InvalidArgument(f"{name} must be at least 1, not {number}")
    return number


def dtype_name(dtype: object) -> str:
    """The one name of a dtype.

    Args:
        dtype: a name, an alias such as "bf16", or a `torch.dtype`.

    Raises:
        InvalidArgument: none of the dtypes of a KV cache.
        InvalidType: neither a string nor a `torch.dtype`.

    >>> dtype_name("bf16"), dtype_name("torch.float16")
    ('bfloat16', 'float16')
    """
    text = str(dtype)
    if not isinstance(dtype, str) and not text.startswith("torch."):
        raise InvalidType(f"dtype must be a string such as 'float16' or a torch.dtype, not {dtype!r}")
    name = text.removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    if name not in DTYPE_BYTES:
        raise InvalidArgument(f"dtype must be one of {', '.join(DTYPE_BYTES)}, not {text!r}")
    return name


def _getter(config: object) -> _Get:
    """How to ask a configuration for a key; an absent key is None."""
    if isinstance(config, str | os.PathLike):
        config = _read(Path(config))
    if isinstance(config, Mapping):
        return config.get
    return partial(_attribute, config)


def _attribute(config: object, name: str) -> object:
    try:
        return getattr(config, name, None)
    except RuntimeError as error:  # what transformers raises for a key that is not the same in every layer
        raise UnsupportedModel(f"layers differ in {name}") from error


def _read(path: Path) -> Mapping[str, object]:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"config cannot be read: {file}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"config is not JSON: {file}: {error}") from error
    if not isinstance(config, dict):
        raise InvalidArgument(f"config must be a JSON object: {file} holds a {type(config).__name__}")
    return config


def _text_model(get: _Get) -> _Get:
    """The text model inside a multimodal one, which often states its dtype outside only."""
    for name in _TEXT_CONFIGS:
        nested = get(name)
        if nested is not None:
            inner = _getter(nested)
            if _first(inner, "dtype") is not None:
                return inner
            return lambda name: (get if name in _NAMES["dtype"] else inner)(name)
    return get


def _first(get: _Get, name: str) -> object:
    return next((value for key in _NAMES[name] if (value := get(key)) is not None), None)


def _num_kv_heads(get: _Get, fields: Mapping[str, Any]) -> object:
    is_multi_query = get("multi_query")
    if is_multi_query is None:
        is_multi_query = get("model_type") in _MULTI_QUERY_MODELS
    if is_multi_query and not get("new_decoder_architecture"):
        return 1
    if get("multi_query_attention"):
        return get("multi_query_group_num")
    attention = get("attn_config")
    nested = None if attention is None else _getter(attention)("kv_n_heads")
    return next(
        (value for value in (nested, fields["num_kv_heads"], fields["num_query_heads"]) if value is not None), None
    )


def _head_dim(fields: Mapping[str, Any]) -> int:
    num_heads = _positive("num_attention_heads", fields["num_query_heads"])
    hidden_size = _positive("hidden_size", fields["hidden_size"])
    if hidden_size % num_heads:
        raise InvalidArgument(
            f"config lacks head_dim, and hidden_size {hidden_size} is no multiple of {num_heads} heads"
        )
    return hidden_size // num_heads


def _refuse_other_layouts(get: _Get) -> None:
    model = f"model type {get('model_type') or 'unknown'}"
    if get("kv_lora_rank") is not None:
        raise UnsupportedModel(f"{model}: latent attention (kv_lora_rank) keeps no keys and values per head")
    if get("is_encoder_decoder"):
        raise UnsupportedModel(f"{model}: an encoder-decoder keeps a second cache, for the encoder's output")
    layers = get("layer_types")
    others = set(layers) - _ATTENTION_LAYERS if isinstance(layers, list | tuple) else set()
    if others:
        names = ", ".join(sorted(map(str, others)))
        raise UnsupportedModel(f"{model}: layer_types must be {', '.join(sorted(_ATTENTION_LAYERS))}, not {names}")
    recurrent = [] if layers else [key for key in _RECURRENT_KEYS if get(key) is not None]
    if recurrent or get("model_type") in _RECURRENT_MODELS:
        found = f" ({', '.join(recurrent)})" if recurrent else ""
        raise UnsupportedModel(f"{model}: state-space, recurrent and hybrid layers{found} keep a state of fixed size")
    if get("num_kv_shared_layers"):
        raise UnsupportedModel(f"{model}: layers share keys and values (num_kv_shared_layers)")
    uneven = [key for key in _UNEVEN_KEYS if get(key) is not None] + _keys_per_layer(get)
    if uneven:
        raise UnsupportedModel(f"{model}: layers differ in the shape of keys and values ({', '.join(uneven)})")
    if get("v_head_dim") not in (None, get("head_dim")):
        raise UnsupportedModel(f"{model}: values (v_head_dim {get('v_head_dim')}) differ in size from keys")


def _keys_per_layer(get: _Get) -> list[str]:
    """The keys of the shape that `config.json` overrides for single layers."""
    layers = get("per_layer_config")
    overrides = (
        [layer for layer in layers.values() if isinstance(layer, Mapping)] if isinstance(layers, Mapping) else []
    )
    keys = {*_NAMES["num_kv_heads"], *_NAMES["num_query_heads"], *_NAMES["head_dim"], *_NAMES["hidden_size"]}
    return sorted(keys.intersection(chain.from_iterable(overrides)))
