"""What a request has to say: its new tokens as events, and its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from looseleaf.engine.result import Result, Timings, TokenEvent
from looseleaf.engine.text import TextStream, decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerBase

    from looseleaf.engine.request import Request

__all__ = ["Output"]


class Output:
    """Follows one request from outside.

    Args:
        request: which.
        tokenizer: None for answers without text.
        with_text: whether events carry text; results do anyway.
    """

    __slots__ = ("_num_reported", "_stream", "_tokenizer", "request")

    def __init__(self, request: Request, tokenizer: PreTrainedTokenizerBase | None, *, with_text: bool) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._num_reported = 0
        has_stream = tokenizer is not None and request.beam is None and (with_text or request.params.stop)
        self._stream = TextStream(tokenizer, stop=request.params.stop) if has_stream and tokenizer is not None else None

    def take(self) -> list[TokenEvent]:
        """Events of what happened since the last call; the last one of an answer has its result.

        A stop string that appears ends the request, whose `finish_reason` is then "stop".
        """
        request = self.request
        if request.beam is not None:
            return list(self._end_beams()) if request.finish_reason is not None else []
        new = request.token_ids[self._num_reported :]
        self._num_reported += len(new)
        texts = [""] * len(new)
        if self._stream is not None:
            for place, token_id in enumerate(new):
                is_end = request.finish_reason == "stop" and place == len(new) - 1
                may_stop = self._num_reported - len(new) + place + 1 >= request.params.min_tokens
                texts[place] = "" if is_end else self._stream.push(token_id, may_stop=may_stop)
                if self._stream.is_stopped:
                    self._stop(len(new) - place - 1)
                    del new[place + 1 :], texts[place + 1 :]
                    break
        events = [
            TokenEvent(index=request.index, sample=request.sample, token_id=token_id, text=text)
            for token_id, text in zip(new, texts, strict=True)
        ]
        if request.finish_reason is not None:
            last = events.pop() if events else None
            text = "" if last is None else last.text
            if self._stream is not None:
                text += self._stream.finish()
                if self._stream.is_stopped and request.finish_reason == "length":
                    request.finish_reason = "stop"
            result = self._result()
            events.append(
                TokenEvent(
                    index=request.index,
                    sample=request.sample,
                    token_id=None if last is None else last.token_id,
                    text=text,
                    result=result,
                )
            )
        return events

    def _stop(self, num_after: int) -> None:
        """End the request at its stop string, without the tokens that came after it in the same step."""
        request = self.request
        if num_after:
            del request.token_ids[-num_after:]
        request.finish_reason, request.error = "stop", None  # the answer was whole before it failed, if it did

    def _result(self) -> Result:
        request = self.request
        text = None
        if self._tokenizer is not None:
            if self._stream is not None and self._stream.is_stopped:
                text = self._stream.text
            else:
                is_token = bool(request.token_ids) and request.token_ids[-1] in request.stop_token_ids
                spoken = request.token_ids[:-1] if request.finish_reason == "stop" and is_token else request.token_ids
                text = decode(spoken, self._tokenizer)
        return Result(
            index=request.index,
            sample=request.sample,
            prompt_token_ids=request.prompt.tolist(),
            token_ids=list(request.token_ids),
            text=text,
            finish_reason=request.finish_reason or "error",
            error=request.error,
            logprobs=tuple(request.logprobs[: len(request.token_ids)]),
            prompt_logprobs=tuple(request.prompt_logprobs),
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            timings=_timings(request),
        )

    def _end_beams(self) -> Iterator[TokenEvent]:
        request = self.request
        assert request.beam is not None  # noqa: S101 - asked by the caller
        is_whole = request.finish_reason in ("stop", "length")
        answers: list[tuple[list[int], float | None]] = [([], None)] * request.params.n
        if is_whole:
            answers = [*request.beam.best(request.params.n)]
        for sample, (token_ids, score) in enumerate(answers):
            is_stopped = bool(token_ids) and token_ids[-1] in request.stop_token_ids
            spoken = token_ids[:-1] if is_stopped else token_ids
            reason = request.finish_reason or "error"
            result = Result(
                index=request.index,
                sample=sample,
                prompt_token_ids=request.prompt.tolist(),
                token_ids=list(token_ids),
                text=decode(spoken, self._tokenizer) if self._tokenizer is not None else None,
                finish_reason=("stop" if is_stopped else "length") if is_whole else reason,
                error=request.error,
                score=score,
                num_cached_tokens=request.num_cached_tokens,
                num_preemptions=request.num_preemptions,
                timings=_timings(request),
            )
            yield TokenEvent(index=request.index, sample=sample, token_id=None, text=result.text or "", result=result)


def _timings(request: Request) -> Timings:
    times = request.times
    start = times.submitted or times.finished or 0.0

    def after(moment: float | None) -> float | None:
        return None if moment is None else moment - start

    return Timings(
        admitted=after(times.admitted), first_token=after(times.first_token), finished=(times.finished or start) - start
    )
