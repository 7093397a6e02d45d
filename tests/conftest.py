from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterator

    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Steps of few tokens gain nothing from a second thread, and lose tenfold on a busy machine."""
    import torch  # noqa: PLC0415 - tests of the allocator run without torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The compiled CPU kernels. Missing ones skip a test only where there is no compiler to make them with."""
    from looseleaf.machine.compiler import Compiler, CompilerUnavailable  # noqa: PLC0415
    from looseleaf.ops import native  # noqa: PLC0415

    if not native.load():
        try:
            Compiler.find()
        except CompilerUnavailable as error:
            pytest.skip(f"needs the compiled CPU kernels, but {error}")
        pytest.fail("there is a C++ compiler, but no compiled library of CPU kernels")
    assert native._STATE.library is not None
    return native._STATE.library


@pytest.fixture(scope="session")
def tiny_model() -> PreTrainedModel:
    """Three layers, six query heads on two KV heads. Wide weights, so that answers depend on all that was read."""
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerBase:
    """A token for each byte, after three special tokens: 259 in all, as many as the model reads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    special = {"<pad>": 0, "<s>": 1, "</s>": 2}
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), start=3)}
    tokenizer = Tokenizer(models.BPE(vocab=special | letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")  # noqa: S106
