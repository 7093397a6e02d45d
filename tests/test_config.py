from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from looseleaf.config import DTYPE_BYTES, ModelShape
from looseleaf.errors import InvalidArgument, InvalidType, UnsupportedModel

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LLAMA_SHAPE = ModelShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype="bfloat16", max_sequence_len=131072)
FALCON = {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71}
FIELDS: dict[str, Any] = {"num_layers": 30, "num_kv_heads": 3, "head_dim": 64, "dtype": "float32"}


def test_a_shape_is_a_value() -> None:
    shape = ModelShape(**FIELDS, max_sequence_len=8192)
    assert shape == ModelShape(**FIELDS, max_sequence_len=8192)
    assert hash(shape) == hash(pickle.loads(pickle.dumps(shape)))  # noqa: S301
    with pytest.raises(dataclasses.FrozenInstanceError):
        shape.num_layers = 1  # type: ignore[misc]
    assert not hasattr(shape, "__dict__")


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "head_dim", "max_sequence_len"])
@pytest.mark.parametrize("value", [0, -1])
def test_every_number_is_at_least_one(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} must be at least 1, not {value}"):
        ModelShape(**(FIELDS | {name: value}))


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "head_dim", "max_sequence_len"])
@pytest.mark.parametrize("value", [1.0, "8", True, [8, 8]])
def test_every_number_is_an_integer(name: str, value: object) -> None:
    with pytest.raises(InvalidType, match=f"{name} must be an integer"):
        ModelShape(**(FIELDS | {name: value}))


def test_numpy_integers_become_python_integers() -> None:
    shape = ModelShape(**(FIELDS | {"head_dim": np.int32(64)}))
    assert type(shape.head_dim) is int


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("fp32", "float32"),
        ("float", "float32"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("torch.float", "float32"),
    ],
)
def test_dtype_aliases_become_one_name(dtype: str, name: str) -> None:
    assert ModelShape(**(FIELDS | {"dtype": dtype})).dtype == name


def test_every_dtype_has_a_size() -> None:
    sizes = {dtype: ModelShape(**(FIELDS | {"dtype": dtype})).element_bytes for dtype in DTYPE_BYTES}
    assert sizes == {"float32": 4, "float16": 2, "bfloat16": 2}


@pytest.mark.parametrize("dtype", ["int8", "float64", "", "auto"])
def test_an_unknown_dtype_is_refused_with_the_known_ones(dtype: str) -> None:
    with pytest.raises(InvalidArgument, match="float32, float16, bfloat16"):
        ModelShape(**(FIELDS | {"dtype": dtype}))


@pytest.mark.parametrize("dtype", [None, np.float32])
def test_a_dtype_of_another_library_is_refused(dtype: object) -> None:
    with pytest.raises(InvalidType, match="dtype must be a string"):
        ModelShape(**(FIELDS | {"dtype": dtype}))


def test_a_shape_is_read_from_file_folder_mapping_and_object(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    configs: list[object] = [file, str(file), tmp_path, str(tmp_path), LLAMA, SimpleNamespace(**LLAMA)]
    assert [ModelShape.from_config(config) for config in configs] == [LLAMA_SHAPE] * 6


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        pytest.param({"num_key_value_heads": None}, (32, 32, 128), id="no KV heads: one per query head"),
        pytest.param({"head_dim": 256}, (32, 8, 256), id="head_dim wins over hidden_size"),
        pytest.param({"head_dim": 64, "hidden_size": None}, (32, 8, 64), id="head_dim needs no hidden_size"),
        pytest.param({"head_dim": 64, "num_attention_heads": None}, (32, 8, 64), id="KV heads need no query heads"),
        pytest.param({"layer_types": ["full_attention", "sliding_attention"] * 16}, (32, 8, 128), id="windows"),
        pytest.param(
            {"layer_types": ["attention"] * 32, "mamba_d_state": 128}, (32, 8, 128), id="dense of a hybrid family"
        ),
        pytest.param({"v_head_dim": 128, "head_dim": 128}, (32, 8, 128), id="values as large as keys"),
        pytest.param({"num_kv_shared_layers": 0}, (32, 8, 128), id="no shared layers"),
        pytest.param({"per_layer_config": {"05": {"sliding_window": 8}}}, (32, 8, 128), id="layers of one shape"),
    ],
)
def test_keys_that_are_absent_follow_from_others(config: dict[str, object], shape: tuple[int, int, int]) -> None:
    read = ModelShape.from_config(LLAMA | config)
    assert (read.num_layers, read.num_kv_heads, read.head_dim) == shape


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}, (12, 12, 64, 1024)),
        ({"n_layers": 24, "n_heads": 16, "d_model": 2048, "max_seq_len": 2048}, (24, 16, 128, 2048)),
        ({"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}}, (40, 8, 128, None)),
        ({"num_layers": 24, "num_heads": 16, "hidden_size": 2048}, (24, 16, 128, None)),
        ({"n_layer": 30, "n_head": 32, "n_embed": 4096, "seq_length": 2048}, (30, 32, 128, 2048)),
        (
            {"num_layers": 28, "num_attention_heads": 32, "kv_channels": 128, "hidden_size": 4096}
            | {"multi_query_attention": True, "multi_query_group_num": 2},
            (28, 2, 128, None),
        ),
        ({"model_type": "gpt_bigcode", "n_layer": 24, "n_head": 16, "n_embd": 2048}, (24, 1, 128, None)),
        (
            {"model_type": "gpt_bigcode", "n_layer": 24, "n_head": 16, "n_embd": 2048, "multi_query": False},
            (24, 16, 128, None),
        ),
        (FALCON, (32, 1, 64, None)),
        (FALCON | {"num_kv_heads": 71, "multi_query": True}, (32, 1, 64, None)),
        (FALCON | {"multi_query": False}, (32, 71, 64, None)),
        (FALCON | {"new_decoder_architecture": True, "num_kv_heads": 8}, (32, 8, 64, None)),
        (FALCON | {"new_decoder_architecture": True, "n_head_kv": 8}, (32, 8, 64, None)),
    ],
)
def test_other_names_for_the_same_numbers_are_known(
    config: dict[str, object], shape: tuple[int, int, int, int | None]
) -> None:
    read = ModelShape.from_config(config, dtype="fp16")
    assert (read.num_layers, read.num_kv_heads, read.head_dim, read.max_sequence_len) == shape


@pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config"])
@pytest.mark.parametrize("is_object", [False, True])
def test_the_text_model_of_a_multimodal_one_is_read(name: str, is_object: bool) -> None:
    inner: Any = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    config = {"hidden_size": 1, "dtype": "float16", name: SimpleNamespace(**inner) if is_object else inner}
    read = ModelShape.from_config(SimpleNamespace(**config) if is_object else config)
    assert read == dataclasses.replace(LLAMA_SHAPE, dtype="float16")


def test_the_dtype_of_the_text_model_wins_over_the_outer_one() -> None:
    assert ModelShape.from_config({"dtype": "float32", "text_config": LLAMA}) == LLAMA_SHAPE


def test_a_given_dtype_wins_over_the_configuration() -> None:
    assert ModelShape.from_config(LLAMA, dtype="fp32").dtype == "float32"


@pytest.mark.parametrize(
    ("absent", "named"),
    [
        (["num_hidden_layers"], "num_hidden_layers (or n_layer, n_layers, num_layers)"),
        (["torch_dtype"], "dtype (or torch_dtype)"),
        (["hidden_size"], "hidden_size (or n_embd, d_model, n_embed)"),
        (["num_attention_heads"], "num_attention_heads (or n_head, n_heads, num_heads)"),
        (["num_hidden_layers", "torch_dtype"], "num_layers), dtype (or torch_dtype)"),
    ],
)
def test_absent_keys_are_named_with_their_other_names(absent: list[str], named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ModelShape.from_config({key: value for key, value in LLAMA.items() if key not in absent})
    assert str(caught.value).startswith("config lacks ")
    assert named in str(caught.value)


def test_no_head_counts_at_all_is_named() -> None:
    with pytest.raises(InvalidArgument, match="config lacks num_key_value_heads"):
        ModelShape.from_config(LLAMA | {"head_dim": 64, "num_attention_heads": None, "num_key_value_heads": None})


def test_a_hidden_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="hidden_size 4096 is no multiple of 96 heads"):
        ModelShape.from_config(LLAMA | {"num_attention_heads": 96})


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads"])
def test_a_list_of_one_number_per_layer_is_refused(key: str) -> None:
    with pytest.raises(InvalidType, match="must be an integer, not"):
        ModelShape.from_config(LLAMA | {key: [4, 8]})


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"])
def test_zero_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match="must be at least 1, not 0"):
        ModelShape.from_config(LLAMA | {key: 0})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "deepseek_v3: latent attention"),
        ({"text_config": LLAMA | {"kv_lora_rank": 512}}, "latent attention"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, "not linear_attention"),
        ({"layer_types": ["conv", "mamba"]}, "not conv, mamba"),
        ({"model_type": "mamba2", "state_size": 128}, "mamba2: state-space.*state_size"),
        ({"model_type": "jamba", "attn_layer_period": 8, "mamba_d_state": 16}, "attn_layer_period, mamba_d_state"),
        ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"]}, "block_types"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"model_type": "lfm2", "conv_L_cache": 3}, "conv_L_cache"),
        ({"model_type": "rwkv"}, "rwkv: state-space"),
        ({"num_kv_shared_layers": 15}, "layers share keys and values"),
        ({"global_head_dim": 512}, "layers differ.*global_head_dim"),
        ({"per_layer_config": {"05": {"head_dim": 512}}}, "layers differ.*head_dim"),
        ({"cross_attention_layers": [3, 8]}, "layers differ.*cross_attention_layers"),
        ({"head_dim": 192, "v_head_dim": 128}, "v_head_dim 128"),
    ],
)
def test_layouts_that_are_not_one_shape_of_keys_and_values_are_refused(config: dict[str, object], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        ModelShape.from_config(LLAMA | config)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "not JSON"), ("[1, 2]", "JSON object.*list"), ('"llama"', "JSON object.*str"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_is_named(content: str | None, reason: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidArgument, match=reason) as caught:
        ModelShape.from_config(tmp_path / "config.json")
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_folder_without_config_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"config\.json: No such file"):
        ModelShape.from_config(tmp_path)


def test_reading_a_configuration_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    code = """
import sys
from looseleaf.config import ModelShape
assert ModelShape.from_config(sys.argv[1]).num_layers == 32
assert not {"torch", "transformers"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
