"""Continuous batching of a transformers model on a paged cache."""

from __future__ import annotations

from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING

from looseleaf.cache import PagedKVCache
from looseleaf.config import ModelShape
from looseleaf.engine.params import SamplingParams
from looseleaf.engine.report import Meter, Report
from looseleaf.engine.request import Request
from looseleaf.engine.result import Result, TokenEvent
from looseleaf.engine.runner import Runner
from looseleaf.engine.sampler import greedy
from looseleaf.engine.scheduler import Plan, Scheduler
from looseleaf.engine.text import TextStream, decode, encode
from looseleaf.errors import EngineBusy, InvalidArgument, InvalidType, NeverFits, SequenceTooLong
from looseleaf.integrations.transformers.attention import use_paged_attention
from looseleaf.sizing import bytes_per_token

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from looseleaf.errors import LooseleafError

__all__ = ["Engine"]

_MAX_SEQUENCE_LEN = 8192


class Engine:
    """Runs many prompts at once through one model, each token's keys and values in blocks of a shared pool.

    Requests join and leave the running batch between any two steps; who does not fit waits, first come, first served. A
    request that was admitted runs to its end: the pool keeps enough blocks for it at its longest.

    The model attends through block tables while a generation runs, and as before afterwards; between two events of an
    open `stream` it must not be called otherwise. An engine is used by one thread.

    Args:
        model: a transformers model for causal language, in eval mode; it decides device and dtype.
        tokenizer: its tokenizer; needed for prompts that are text, and for answers that are.
        num_blocks: blocks of the pool; give this or `memory`.
        memory: size of the pool: bytes, a text such as "2GiB", or a fraction of the free device memory.
        block_size: tokens of one block.
        max_sequences: most requests that run at once.
        max_batch_tokens: most tokens of one step; longer prompts are computed in chunks.
        max_sequence_len: most tokens of prompt and answer together; None is what the model was made for, or 8192.

    Raises:
        InvalidArgument: a number is out of range, not exactly one of `num_blocks` and `memory` is given, or the model
            is not in eval mode.
        OutOfMemory: the device does not have so much memory.
        UnsupportedModel: the model's cache has a shape that is not supported.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        >>> engine = Engine(LlamaForCausalLM(config).eval(), num_blocks=8)
        >>> results = engine.generate([[5, 6, 7], [8]], SamplingParams(max_tokens=4, ignore_eos=True))
        >>> [len(result.token_ids) for result in results]
        [4, 4]
        >>> engine.report().num_steps, engine.report().peak_blocks, engine.cache.stats().num_in_use
        (4, 2, 0)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        num_blocks: int | None = None,
        memory: str | float | None = None,
        block_size: int = 16,
        max_sequences: int = 64,
        max_batch_tokens: int = 1024,
        max_sequence_len: int | None = None,
    ) -> None:
        if not hasattr(model, "config") or not hasattr(model, "get_input_embeddings"):
            raise InvalidType(f"model has type {type(model).__name__}, must be a transformers model")
        if model.training:
            raise InvalidArgument("model must be in eval mode; call model.eval() first")
        shape = ModelShape.from_config(model.config, dtype=str(model.dtype))
        if max_sequence_len is None:
            max_sequence_len = shape.max_sequence_len or _MAX_SEQUENCE_LEN
        self._model = model
        self._tokenizer = tokenizer
        self._cache = PagedKVCache(
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=model.dtype,
            device=model.device,
            block_size=block_size,
            num_blocks=num_blocks,
            memory=memory,
            max_sequences=max_sequences,
            max_sequence_len=max_sequence_len,
            max_batch_tokens=max_batch_tokens,
        )
        self._scheduler = Scheduler(self._cache.manager, max_batch_tokens=max_batch_tokens)
        self._bytes_per_token = bytes_per_token(shape)
        self._runner = Runner(model, num_layers=shape.num_layers)
        self._vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        self._eos_token_ids = _eos_token_ids(model)
        self._requests: list[Request] = []
        self._meter = self._new_meter()
        self._is_running = False

    @property
    def cache(self) -> PagedKVCache:
        """The pool. All of its blocks are available (free, or cached) while nothing runs."""
        return self._cache

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        on_event: Callable[[TokenEvent], None] | None = None,
    ) -> list[Result]:
        """Answer prompts, and wait for all of them.

        Args:
            prompts: texts, each one user's message of the tokenizer's chat template if it has one; or token ids, taken
                as they are.
            params: for all prompts, or one for each.
            on_event: called after every token, for a display of progress.

        Returns:
            One result for each prompt, in their order. A request that can never fit is a result with `error`; the
            others are answered.

        Raises:
            EmptyPrompt: a prompt has no token. Nothing ran.
            InvalidArgument: a token id is outside the vocabulary, a text came without a tokenizer, or there are not as
                many params as prompts. Nothing ran.
            InvalidType: a prompt is neither text nor token ids. Nothing ran.
            EngineBusy: a stream of this engine is open.
            UnsupportedModel: the model does not use the attention that it was given.
        """
        results = []
        with closing(self._run(self._new_requests(prompts, params), with_text=on_event is not None)) as events:
            for event in events:
                if on_event is not None:
                    on_event(event)
                if event.result is not None:
                    results.append(event.result)
        return sorted(results, key=lambda result: result.index)

    def stream(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
    ) -> Generator[TokenEvent, None, None]:
        """Answer prompts, token by token.

        Closing the iterator early, or an exception in a step, drops what is unfinished and gives back every block.

        Args:
            prompts: as for `generate`.
            params: as for `generate`.

        Returns:
            An iterator of events, one for every token, in the order of their steps.

        Raises:
            As `generate`: wrong arguments at once, the others from the iterator.
        """
        return self._run(self._new_requests(prompts, params), with_text=True)

    def report(self) -> Report:
        """Time and memory of the latest run, or of the running one until now."""
        return self._meter.report(self._requests)

    def _run(self, requests: list[Request], *, with_text: bool) -> Generator[TokenEvent, None, None]:
        if self._is_running:
            raise EngineBusy
        self._is_running = True
        try:
            self._requests, self._meter = requests, self._new_meter()
            with use_paged_attention(self._model):
                yield from list(self._submit(requests))
                has_text = with_text and self._tokenizer is not None
                texts = [TextStream(self._tokenizer) if has_text else None for _ in requests]
                while (plan := self._scheduler.plan()) is not None:
                    for request in self._step(plan):
                        yield self._event(request, texts[request.index])
        finally:
            self._scheduler.abort(requests)
            self._is_running = False

    def _submit(self, requests: list[Request]) -> Iterator[TokenEvent]:
        for request in requests:
            try:
                self._scheduler.submit(request)
            except (NeverFits, SequenceTooLong) as error:
                request.finish_reason = "error"
                yield TokenEvent(index=request.index, token_id=None, result=self._result(request, error=error))

    def _step(self, plan: Plan) -> list[Request]:
        start = perf_counter()
        step = self._cache.step(plan.handles, num_new=plan.num_new, tokens=plan.token_ids)
        token_ids = greedy(self._runner.forward(step)).tolist()
        step.commit()
        num_running, num_blocks = self._scheduler.num_running, self._cache.manager.stats().num_in_use
        num_empty = self._scheduler.num_empty_slots(plan)
        served = self._scheduler.advance(plan, token_ids)
        self._meter.add_step(
            perf_counter() - start, num_running=num_running, num_blocks=num_blocks, num_empty=num_empty
        )
        return served

    def _event(self, request: Request, text_stream: TextStream | None) -> TokenEvent:
        text = ""
        if text_stream is not None:
            if request.finish_reason != "stop":
                text = text_stream.push(request.token_ids[-1])
            if request.finish_reason is not None:
                text += text_stream.finish()
        result = None if request.finish_reason is None else self._result(request)
        return TokenEvent(index=request.index, token_id=request.token_ids[-1], text=text, result=result)

    def _result(self, request: Request, error: LooseleafError | None = None) -> Result:
        spoken = request.token_ids[:-1] if request.finish_reason == "stop" else request.token_ids
        return Result(
            index=request.index,
            prompt_token_ids=request.prompt.tolist(),
            token_ids=request.token_ids,
            text=decode(spoken, self._tokenizer) if self._tokenizer is not None else None,
            finish_reason=request.finish_reason or "error",
            error=error,
        )

    def _new_requests(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
    ) -> list[Request]:
        if isinstance(prompts, str):
            raise InvalidType("prompts must be a list of prompts, not one string")
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise InvalidArgument(f"params must be one, or as many as the {len(prompts)} prompts, not {len(each)}")
        return [
            Request(
                number,
                encode(prompt, self._tokenizer, vocabulary_size=self._vocabulary_size),
                max_tokens=wish.max_tokens,
                stop_token_ids=self._stop_token_ids(wish),
            )
            for number, (prompt, wish) in enumerate(zip(prompts, each, strict=True))
        ]

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        own = frozenset(params.stop_token_ids)
        return own if params.ignore_eos else own | self._eos_token_ids

    def _new_meter(self) -> Meter:
        manager = self._cache.manager
        return Meter(
            block_size=manager.block_size,
            bytes_per_token=self._bytes_per_token,
            max_sequence_len=manager.max_sequence_len,
        )


def _eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    config = getattr(model, "generation_config", None) or model.config
    ids = config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
