"""One model, several users of it: engines, paged caches, plain calls, in turn and in threads."""

from __future__ import annotations

import copy
import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from looseleaf import Engine, SamplingParams
from looseleaf.errors import UnsupportedModel
from looseleaf.integrations.transformers import PagedCache
from looseleaf.integrations.transformers.attention import ATTENTION_NAME
from looseleaf.integrations.transformers.switch import run_with_attention, turn
from looseleaf.integrations.transformers.versions import CACHE_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

PROMPT = list(range(40, 60))
MAX_TOKENS = 24


def small(**sizes: Any) -> dict[str, Any]:
    return {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "eos_token_id": None,
    } | sizes


@pytest.fixture
def model(one_thread: None) -> PreTrainedModel:  # noqa: ARG001 - steps of few tokens
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**small(vocab_size=128, initializer_range=0.2))).eval()


@pytest.fixture
def _often_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def plain(model: PreTrainedModel, prompt: list[int] = PROMPT, **options: Any) -> list[int]:
    output = model.generate(torch.tensor([prompt]), max_new_tokens=MAX_TOKENS, do_sample=False, **options)
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


def on_pages(model: PreTrainedModel, prompt: list[int] = PROMPT) -> list[int]:
    with PagedCache(model, num_blocks=32) as cache:
        return plain(model, prompt, **{argument_of(model): cache})


def argument_of(model: PreTrainedModel) -> str:
    """The newest name that the model's `forward` has: the other one warns."""
    names = inspect.signature(type(model).forward).parameters
    return [name for name in CACHE_ARGUMENTS if name in names][-1]


def by_engine(engine: Engine, prompt: list[int] = PROMPT) -> list[int]:
    (result,) = engine.generate([prompt], SamplingParams(max_tokens=MAX_TOKENS))
    if result.error is not None:
        raise result.error
    return result.token_ids


def test_two_engines_in_turn_answer_as_one_and_leave_the_model_as_it_was(model: PreTrainedModel) -> None:
    expected, before = plain(model), model.config._attn_implementation
    first, second = Engine(model, num_blocks=64), Engine(model, num_blocks=64)
    one = first.stream([PROMPT], SamplingParams(max_tokens=4))
    other = second.stream([PROMPT], SamplingParams(max_tokens=MAX_TOKENS))
    next(one), next(other)
    assert model.config._attn_implementation == before
    assert plain(model) == expected
    assert on_pages(model) == expected
    assert plain(copy.deepcopy(model)) == expected
    list(one)
    *_, last = other
    assert last.result is not None
    assert last.result.token_ids == expected
    assert model.config._attn_implementation == before
    assert by_engine(second, (PROMPT + expected)[:30]) == by_engine(
        Engine(model, num_blocks=64), (PROMPT + expected)[:30]
    )


@pytest.mark.usefixtures("_often_switching")
def test_threads_with_engines_and_caches_of_one_model_wait_for_each_other(model: PreTrainedModel) -> None:
    prompts = [PROMPT[number:] for number in range(8)]
    expected = [plain(model, prompt) for prompt in prompts]
    before = model.config._attn_implementation
    engines = [Engine(model, num_blocks=64), Engine(model, num_blocks=64)]
    users = [lambda prompt: by_engine(engines[0], prompt), lambda prompt: by_engine(engines[1], prompt)]
    users += [lambda prompt: on_pages(model, prompt)] * 2

    def answer_all(user: Any) -> list[list[int]]:
        return [user(prompt) for prompt in prompts]

    with ThreadPoolExecutor(len(users)) as threads:
        for answers in threads.map(answer_all, users):
            assert answers == expected
    assert model.config._attn_implementation == before
    assert plain(model) == expected[0]


@pytest.mark.usefixtures("_often_switching")
def test_a_plain_thread_beside_an_open_cache_gets_its_own_answer(model: PreTrainedModel) -> None:
    expected = plain(model)
    with PagedCache(model, num_blocks=32), ThreadPoolExecutor(2) as threads:
        paged = [threads.submit(on_pages, model) for _ in range(8)]
        others = [threads.submit(plain, model) for _ in range(8)]
        assert [future.result() for future in paged + others] == [expected] * 16


def test_a_window_that_only_the_mask_knows_is_refused(one_thread: None) -> None:  # noqa: ARG001
    torch.manual_seed(0)
    config = Qwen2MoeConfig(
        **small(
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            num_experts=4,
            num_experts_per_tok=2,
        )
    )
    model = Qwen2MoeForCausalLM(config).eval()
    prompt = list(range(20))
    with pytest.raises(UnsupportedModel, match="Qwen2MoeForCausalLM"), PagedCache(model, num_blocks=32) as cache:
        plain(model, prompt, **{argument_of(model): cache})
    with pytest.raises(UnsupportedModel, match="Qwen2MoeForCausalLM"):
        by_engine(Engine(model, num_blocks=32), prompt)


def test_a_window_that_layers_name_is_not_refused(one_thread: None) -> None:  # noqa: ARG001
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**small(sliding_window=5))).eval()
    prompt = list(range(20))
    model.set_attn_implementation("eager")
    assert plain(model, prompt) == on_pages(model, prompt) == by_engine(Engine(model, num_blocks=32), prompt)


def test_an_interrupt_anywhere_leaves_the_setting_and_the_lock_as_they_were(model: PreTrainedModel) -> None:
    before = model.config._attn_implementation
    points = 0

    def attempt(number: int) -> bool:
        """Whether the pass ended before the function call of this number, where an interrupt comes."""
        nonlocal points
        points = 0

        def interrupt(_frame: object, event: str, _argument: object) -> None:
            nonlocal points
            if event in ("call", "return", "c_return"):
                points += 1
                if points == number:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            run_with_attention(model, ATTENTION_NAME, lambda windows: windows.check(model))
        except KeyboardInterrupt as error:
            kept.append(error)  # with its traceback, as an interactive session does
            return False
        finally:
            sys.setprofile(None)
        return True

    kept: list[BaseException] = []
    number = 1
    while not attempt(number):
        assert model.config._attn_implementation == before, number
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(turn(model).acquire, timeout=5).result(), number
            threads.submit(turn(model).release).result()
        number += 1
    assert len(kept) > 10
