from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from looseleaf.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

SHAPE = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128"]
LENGTHS = ["--sequence-len", "200", "--max-sequence-len", "4096"]
CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
    "dtype": "float32",
}


def size(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["size", *map(str, arguments)])


def size_json(*arguments: str | Path) -> dict[str, Any]:
    result = size(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "config.json"


def test_the_numbers_are_exact() -> None:
    assert size_json(*SHAPE, *LENGTHS, "--memory", "128GiB") == {
        "num_layers": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "dtype": "float16",
        "block_size": 16,
        "sequence_len": 200,
        "max_sequence_len": 4096,
        "bytes_per_token": 131_072,
        "bytes_per_block": 2_097_152,
        "blocks_per_sequence": 13,
        "paged_bytes_per_sequence": 27_262_976,
        "contiguous_bytes_per_sequence": 536_870_912,
        "saved_percent": 94.92,
        "memory_bytes": 137_438_953_472,
        "num_blocks": 65_535,
        "num_paged_sequences": 5041,
        "num_contiguous_sequences": 256,
    }


def test_the_table_says_the_same() -> None:
    result = size(*SHAPE, *LENGTHS, "--memory", "128GiB")
    assert (result.exit_code, result.stderr) == (0, "")
    for cell in ("128 KiB", "2 MiB", "26 MiB", "512 MiB", "94.92 %", "65,535", "5,041", "256", "200 tokens", "4,096"):
        assert cell in result.stdout


def test_without_memory_nothing_is_said_about_what_fits() -> None:
    assert "sequences in" not in size(*SHAPE, *LENGTHS).stdout
    assert size_json(*SHAPE, *LENGTHS)["num_blocks"] is None


def test_a_file_and_its_folder_are_the_same(config: Path) -> None:
    document = size_json(config, "--memory", "2GiB")
    assert document == size_json(config.parent, "--memory", "2GiB")
    assert document["bytes_per_block"] == 737_280
    assert document["sequence_len"] == document["max_sequence_len"] == 8192
    assert document["saved_percent"] == 0


def test_the_given_dtype_wins(config: Path) -> None:
    assert size_json(config)["bytes_per_token"] == 46_080
    assert size_json(config, "--dtype", "bf16")["bytes_per_token"] == 23_040


def test_one_length_stands_for_the_other() -> None:
    for option in ("--sequence-len", "--max-sequence-len"):
        document = size_json(*SHAPE, option, "100")
        assert document["sequence_len"] == document["max_sequence_len"] == 100
        assert document["blocks_per_sequence"] == 7
        assert document["saved_percent"] == -12


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "missing: --layers, --kv-heads, --head-dim"),
        (["--layers", "2"], "missing: --kv-heads, --head-dim"),
        ([*SHAPE, *LENGTHS, "--memory", "24G"], "memory cannot be '24G'; allowed: a number of bytes"),
        ([*SHAPE, *LENGTHS, "--memory", "0"], "memory must be at least 1 byte"),
        ([*SHAPE, *LENGTHS, "--dtype", "int4"], "dtype must be one of float32, float16, bfloat16"),
        ([*SHAPE, *LENGTHS, "--block-size", "0"], "--block-size"),
        ([*SHAPE, *LENGTHS, "--layers", "many"], "--layers"),
        (SHAPE, "give --sequence-len or --max-sequence-len"),
        (
            [*SHAPE, "--sequence-len", "5", "--max-sequence-len", "4"],
            "--sequence-len 5 is above the longest sequence, 4",
        ),
        (["no-such-file.json"], "does not exist"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], reason: str) -> None:
    result = size(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert result.stderr.startswith("looseleaf: ")
    assert result.stderr.count("\n") == 1


def test_config_and_numbers_exclude_each_other(config: Path) -> None:
    result = size(config, "--layers", "2")
    assert result.exit_code == 2
    assert "give CONFIG or --layers, not both" in result.stderr


@pytest.mark.parametrize(
    ("content", "arguments", "reason"),
    [
        ("{", [], "config is not JSON"),
        ("{}", [], "config lacks num_hidden_layers (or n_layer, n_layers, num_layers), dtype (or torch_dtype)"),
        (json.dumps(CONFIG | {"kv_lora_rank": 512}), [], "latent attention"),
        (json.dumps(CONFIG | {"num_hidden_layers": "30"}), [], "num_layers must be an integer, not '30'"),
        (json.dumps(CONFIG), ["--memory", "1MiB"], "1 usable block and the null block need 2 x 737280 = 1474560 bytes"),
    ],
)
def test_what_could_not_be_sized_is_one_line_and_exit_code_1(
    content: str, arguments: list[str], reason: str, config: Path
) -> None:
    config.write_text(content)
    result = size(config, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_process_sizes_a_model_without_torch(config: Path) -> None:
    code = """
import sys, looseleaf.cli
try:
    looseleaf.cli.main()
except SystemExit as exit:
    assert exit.code == 0, exit.code
heavy = {"torch", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""
    command = [sys.executable, "-c", code, "size", str(config), "--memory", "2GiB", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["num_blocks"] == 2911


def test_an_error_of_the_process_has_no_traceback(config: Path) -> None:
    config.write_text("{}")
    command = [sys.executable, "-m", "looseleaf.cli", "size", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("looseleaf: config lacks num_hidden_layers")
    assert result.stderr.count("\n") == 1
