from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looseleaf import Engine, SamplingParams
from looseleaf.engine.text import TextStream, decode, encode

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TEXT = "Zwölf 🦊 = 狐狸 e\N{COMBINING ACUTE ACCENT}"


def stream(token_ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    texts = TextStream(tokenizer)
    return [*(texts.push(token_id) for token_id in token_ids), texts.finish()]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(token_ids=st.lists(st.integers(0, 258), max_size=40))
def test_pieces_join_to_the_text_of_any_tokens(token_ids: list[int], tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    assert "".join(stream(token_ids, tiny_tokenizer)) == decode(token_ids, tiny_tokenizer)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(alphabet="abé🦊", max_size=24),
    stop=st.lists(st.text(alphabet="abé🦊", min_size=1, max_size=4), min_size=1, max_size=3),
    may_stop_from=st.integers(0, 6),
)
def test_text_ends_before_the_first_stop_string(
    text: str, stop: list[str], may_stop_from: int, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    token_ids = tiny_tokenizer(text)["input_ids"] if text else []
    texts = TextStream(tiny_tokenizer, stop=tuple(stop))
    pieces: list[str] = []
    for number, token_id in enumerate(token_ids):
        pieces.append(texts.push(token_id, may_stop=number >= may_stop_from))
        if texts.is_stopped:
            break
    pieces.append(texts.finish())
    assert "".join(pieces) == texts.text
    if may_stop_from == 0:
        # The one that is whole first.
        beginnings = [text[:length] for length in range(len(text) + 1)]
        whole = next((begin for begin in beginnings if any(one in begin for one in stop)), None)
        assert texts.is_stopped == (whole is not None)
        assert texts.text == (text if whole is None else whole[: min(whole.find(one) for one in stop if one in whole)])
    else:
        assert text.startswith(texts.text)
        assert texts.is_stopped or texts.text == text


def test_what_may_become_a_stop_string_waits(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    texts = TextStream(tiny_tokenizer, stop=("END", "DO"))
    pieces = [texts.push(token_id) for token_id in tiny_tokenizer("a EN EDO")["input_ids"]]
    assert pieces == ["a", " ", "", "", "EN ", "", "E", ""]
    assert texts.is_stopped
    assert texts.finish() == ""
    assert texts.text == "a EN E"


@pytest.mark.parametrize(("first", "text"), [(0, "a "), (4, "a "), (5, "a END"), (99, "a END")])
def test_a_stop_string_counts_by_its_last_token(first: int, text: str, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """It may begin among the tokens that could not end the answer."""
    texts = TextStream(tiny_tokenizer, stop=("END",))
    for number, token_id in enumerate(tiny_tokenizer("a END")["input_ids"]):
        texts.push(token_id, may_stop=number >= first)
    assert texts.is_stopped == (text == "a ")
    texts.finish()
    assert texts.text == text


def test_a_character_comes_with_its_last_byte(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    token_ids = encode(TEXT, tiny_tokenizer, vocabulary_size=259).tolist()
    assert len(token_ids) == len(TEXT.encode())
    pieces = stream(token_ids, tiny_tokenizer)
    assert [piece for piece in pieces if piece] == list(TEXT)
    assert pieces[:5] == ["Z", "w", "", "ö", "l"]


def test_text_is_the_users_message_of_the_chat_template(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    chatty = copy.deepcopy(tiny_tokenizer)
    chatty.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}|{% endfor %}assistant:"
    assert decode(encode("Hi", chatty, vocabulary_size=259).tolist(), chatty) == "user: Hi|assistant:"
    assert decode(encode("Hi", tiny_tokenizer, vocabulary_size=259).tolist(), tiny_tokenizer) == "Hi"


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_token_ids_may_be_an_array(dtype: type[np.generic]) -> None:
    token_ids = encode(np.array([3, 4, 5], dtype=dtype), None, vocabulary_size=259)  # type: ignore[arg-type]
    assert token_ids.dtype == np.int64
    assert token_ids.tolist() == [3, 4, 5]


def test_answers_have_text_with_and_without_streaming(
    tiny_model: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    engine = Engine(tiny_model, tiny_tokenizer, num_blocks=40)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    prompts: list[str | list[int]] = ["Hello there", TEXT, [70, 71, 72]]
    answers = engine.generate(prompts, params)
    pieces = ["", "", ""]
    for event in engine.stream(prompts, params):
        pieces[event.index] += event.text
        if event.result is not None:
            assert (event.result.text, event.result.token_ids) == (
                answers[event.index].text,
                answers[event.index].token_ids,
            )
    assert pieces == [answer.text for answer in answers]
    assert all(pieces)
    assert answers[1].prompt_token_ids == encode(TEXT, tiny_tokenizer, vocabulary_size=259).tolist()


def test_the_token_that_ended_an_answer_is_not_in_its_text(
    tiny_model: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    engine = Engine(tiny_model, tiny_tokenizer, num_blocks=40)
    (free,) = engine.generate(["Hello there"], SamplingParams(max_tokens=24, ignore_eos=True))
    stop = free.token_ids[9]
    params = SamplingParams(max_tokens=24, ignore_eos=True, stop_token_ids=(stop,))
    (stopped,) = engine.generate(["Hello there"], params)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids[-1] == stop
    assert stopped.text == decode(stopped.token_ids[:-1], tiny_tokenizer)
    assert "".join(event.text for event in engine.stream(["Hello there"], params)) == stopped.text
