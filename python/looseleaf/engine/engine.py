"""Continuous batching of a transformers model on a paged cache."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn

from looseleaf.cache.swap import SwapSpace
from looseleaf.engine.graphs import DecodeGraphs, record_on_cuda
from looseleaf.engine.loop import Loop
from looseleaf.engine.prompts import Prompts
from looseleaf.engine.report import Meter, Report
from looseleaf.engine.runner import Runner
from looseleaf.engine.stream import Stream
from looseleaf.errors import InvalidArgument, InvalidType, LooseleafError, UnsupportedModel
from looseleaf.integrations.transformers.pool import cache_shape, new_pool
from looseleaf.integrations.transformers.versions import steady_rope_len, text_config
from looseleaf.sizing import bytes_per_token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from looseleaf.cache import PagedKVCache
    from looseleaf.engine.params import SamplingParams
    from looseleaf.engine.request import Request
    from looseleaf.engine.result import Result, TokenEvent

__all__ = ["Engine"]


class Engine:
    """Runs many prompts at once through one model, each token's keys and values in blocks of a shared pool.

    Requests join and leave the running batch between any two steps; who does not fit waits, first come, first served.
    When those that run need more blocks than there are, the newest gives way and is continued later. Streams that are
    open at the same time share one batch; threads may have one each.

    The model attends through block tables inside a step, and as before after it. Several engines and `PagedCache`s may
    run one model, in turn or in threads of their own; their steps wait for each other. Any other call of the model has
    its place between two steps, not beside one in another thread.

    Args:
        model: a transformers model for causal language, in eval mode; it decides device and dtype.
        tokenizer: its tokenizer; needed for prompts that are text, for answers that are, and for stop strings.
        num_blocks: blocks of the pool; give this or `memory`.
        memory: size of the pool: bytes, a text such as "2GiB", or a fraction of the free device memory.
        block_size: tokens of one block.
        max_sequences: most sequences that run at once.
        max_batch_tokens: most tokens of one step; longer prompts are computed in chunks.
        max_sequence_len: most tokens of prompt and answer together; None is what the model was made for, or 8192.
        prefix_caching: keep computed blocks for prompts that begin alike.
        swap_memory: size of a space on the host for the blocks of preempted requests: bytes, or a text such as "4GiB";
            None: they are computed again.
        preemption: with a swap space, whether a preempted request's blocks are swapped out ("swap"), computed again
            ("recompute"), or whichever costs less by what was measured so far ("auto").
        cuda_graphs: on a CUDA device, record the launches of decode steps for 1, 2, 4 … rows when they first run, and
            replay them. For models whose forward pass does not wait for the device.

    Raises:
        InvalidArgument: a number is out of range, not exactly one of `num_blocks` and `memory` is given, `preemption`
            is no such word or "swap" without `swap_memory`, `cuda_graphs` is asked for without a CUDA device, or the
            model is not in eval mode.
        OutOfMemory: the device does not have so much memory.
        InvalidType: an argument has another type.
        UnsupportedModel: the model has no head for language, its cache has a shape that is not supported, or
            `max_sequence_len` is beyond what its rotary embedding does for each sequence alone.

    Example:
        >>> from looseleaf import SamplingParams
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
        prefix_caching: bool = True,
        swap_memory: str | int | None = None,
        preemption: Literal["auto", "recompute", "swap"] = "auto",
        cuda_graphs: bool = False,
    ) -> None:
        _check_model(model, tokenizer)
        sizes = {"max_sequences": max_sequences, "max_batch_tokens": max_batch_tokens}
        _check_integers(sizes if max_sequence_len is None else sizes | {"max_sequence_len": max_sequence_len})
        if preemption not in ("auto", "recompute", "swap"):
            raise InvalidArgument(f'preemption must be "auto", "recompute" or "swap", not {preemption!r}')
        if preemption == "swap" and swap_memory is None:
            raise InvalidArgument('preemption="swap" needs swap_memory')
        if cuda_graphs and model.device.type != "cuda":
            raise InvalidArgument(f"cuda_graphs needs a model on a CUDA device, this one is on {model.device}")
        shape, max_sequence_len = cache_shape(model, max_sequence_len=max_sequence_len)
        steady_len = steady_rope_len(text_config(model))
        if steady_len is not None and max_sequence_len > steady_len:
            raise UnsupportedModel(
                f"{type(model).__name__} rotates tokens by the longest sequence of a batch above {steady_len} tokens: "
                f"answers would depend on each other; max_sequence_len must be at most that, not {max_sequence_len}"
            )
        self._cache = new_pool(
            model,
            shape,
            max_sequence_len=max_sequence_len,
            num_blocks=num_blocks,
            memory=memory,
            block_size=block_size,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
            prefix_caching=prefix_caching,
        )
        runner = Runner(model, num_layers=shape.num_layers)
        if cuda_graphs:
            runner.graphs = DecodeGraphs(self._cache, max_sequences, runner.call, partial(record_on_cuda, model.device))
        self._bytes_per_token = bytes_per_token(shape)
        is_swapping = swap_memory is not None and preemption != "recompute"
        self._loop = Loop(
            self._cache,
            runner.forward,
            max_batch_tokens=max_batch_tokens,
            meter=self._new_meter(),
            swap_space=SwapSpace(self._cache, memory=swap_memory) if is_swapping else None,
            chooses_by_cost=preemption == "auto",
        )
        self._prompts = Prompts(model, tokenizer)
        self._tokenizer = tokenizer
        self._lock = threading.RLock()
        self._is_busy = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="looseleaf")
        self._opened: deque[Stream] = deque()
        self._closed: deque[Stream] = deque()
        self._streams: list[Stream] = []
        self._owners: dict[Request, Stream] = {}

    @property
    def cache(self) -> PagedKVCache:
        """The pool. All of its blocks are available (free, or cached) while nothing runs."""
        return self._cache

    def generate(
        self,
        prompts: Iterable[str | Sequence[int]],
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
            `n` results for each prompt, in their order. A request that can never fit, or whose step failed, is a result
            with `error`; the others are answered.

        Raises:
            EmptyPrompt: a prompt has no token. Nothing ran.
            InvalidArgument: a token id is outside the vocabulary, a text or a stop string came without a tokenizer, or
                there are not as many params as prompts. Nothing ran.
            InvalidType: a prompt is neither text nor token ids. Nothing ran.
            UnsupportedModel: the model does not use the attention that it was given.
        """
        results = []
        with closing(self._run(self._prompts.requests(prompts, params), with_text=on_event is not None)) as events:
            for event in events:
                if on_event is not None:
                    on_event(event)
                if event.result is not None:
                    results.append(event.result)
        return sorted(results, key=lambda result: (result.index, result.sample))

    def stream(
        self,
        prompts: Iterable[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
    ) -> Generator[TokenEvent, None, None]:
        """Answer prompts, token by token.

        Closing the iterator early drops what is unfinished of it and gives back every block. Streams that are open at
        the same time run in one batch: each step serves all of them.

        Args:
            prompts: as for `generate`.
            params: as for `generate`.

        Returns:
            An iterator of events, one for every token, in the order of their steps; a beam search has events at its end
            only, one for each of its answers.

        Raises:
            As `generate`: wrong arguments at once, the others from the iterator.
        """
        return self._run(self._prompts.requests(prompts, params), with_text=True)

    def stream_async(
        self,
        prompts: Iterable[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
    ) -> AsyncGenerator[TokenEvent, None]:
        """Answer prompts, token by token, beside other tasks: steps run in a thread of the engine's own.

        Tasks that stream at the same time share one batch. Cancelling one drops its requests only; what
        they hold is given back at the end of the step that runs.

        Args, Returns, Raises: as `stream`, with an asynchronous iterator.
        """
        stream = Stream(self._prompts.requests(prompts, params), self._tokenizer, with_text=True)
        events = self._run_async(stream)
        # An event loop that is closed no longer closes the iterators that are left.
        weakref.finalize(events, self._close, stream).atexit = False
        return events

    def __reduce__(self) -> NoReturn:
        raise InvalidType("an Engine has a pool and running requests, it cannot be copied or pickled; make another one")

    def report(self) -> Report:
        """Time and memory of the latest run, or of the running one until now; streams open together are one run."""
        return self._loop.meter.report([request for stream in self._streams for request in stream.members])

    def _run(self, requests: list[Request], *, with_text: bool) -> Generator[TokenEvent, None, None]:
        stream = Stream(requests, self._tokenizer, with_text=with_text)
        try:
            self._opened.append(stream)
            while (events := self._pull(stream)) is not None:
                yield from events
        finally:
            self._close(stream)

    async def _run_async(self, stream: Stream) -> AsyncGenerator[TokenEvent, None]:
        self._cache.stats()  # raises in a forked process, which has no thread of the executor
        pull: Future[list[TokenEvent] | None] | None = None
        try:
            self._opened.append(stream)
            while True:
                pull = self._executor.submit(self._pull, stream)
                events = await asyncio.wrap_future(pull)
                if events is None:
                    return
                for event in events:
                    yield event
        finally:
            self._close(stream)
            # Cancelled in the middle of a step: its blocks are free at the end of that.
            if pull is not None and not pull.done():
                await asyncio.wait([asyncio.wrap_future(pull)])

    def _pull(self, stream: Stream) -> list[TokenEvent] | None:
        """Events of a stream, those of one step at most, perhaps none; None at its end. An error ends all streams."""
        try:
            with self._lock:
                if self._is_busy:
                    raise LooseleafError("called from inside a step of this engine; call it afterwards")
                try:
                    self._is_busy = True
                    self._take_over()
                    events = self._take(stream)
                    if events or not stream.outputs:
                        return events or None
                    self._deliver(self._loop.step())
                    return self._take(stream)
                except BaseException as error:
                    self._end_all(stream, error)
                    raise
                finally:
                    self._is_busy = False
        finally:
            self._drop_closed()

    def _end_all(self, raising: Stream, error: BaseException) -> None:
        """After an error that is nobody's in particular: whoever pulled gets it raised, the others as their result."""
        for stream in self._streams:
            if stream is not raising and isinstance(error, Exception):
                unfinished = [request for request in stream.outputs if request.finish_reason is None]
                self._loop.scheduler.fail(unfinished, error)
            self._loop.abort(stream.members)
            stream.news.update(dict.fromkeys(stream.outputs))

    def _take(self, stream: Stream) -> list[TokenEvent]:
        events, stopped = stream.take()
        if stopped:
            self._loop.abort(stopped)
        return events

    def _close(self, stream: Stream) -> None:
        """Drop a stream now, or after the step that runs: a generator is closed wherever it is collected."""
        if not stream.is_closed:
            stream.is_closed = True
            self._closed.append(stream)
            self._drop_closed()

    def _drop_closed(self) -> None:
        # Who finds the lock taken leaves the rest to its holder, who comes here after giving it back.
        while self._closed and self._lock.acquire(blocking=False):
            try:
                if self._is_busy:
                    return  # called in the middle of a step, by its own thread
                try:
                    self._is_busy = True
                    self._take_over()
                finally:
                    self._is_busy = False
            finally:
                self._lock.release()

    def _take_over(self) -> None:
        while self._opened:
            stream = self._opened[0]
            if stream.is_closed:
                self._opened.popleft()
                continue
            if not self._streams:
                self._loop.meter = self._new_meter()
            self._streams.append(stream)
            self._opened.popleft()
            self._owners |= dict.fromkeys(stream.members, stream)
            for request in stream.requests:
                try:
                    self._loop.scheduler.submit(request)
                except LooseleafError as error:
                    self._loop.scheduler.fail([request], error)
            self._deliver(self._loop.scheduler.take_news())
        while self._closed:
            stream = self._closed[0]
            self._loop.abort(stream.members)
            for request in stream.members:
                self._owners.pop(request, None)
            if stream in self._streams:
                self._streams = [other for other in self._streams if other is not stream]
                self._loop.meter.settle(stream.members)
            self._closed.popleft()
            if not self._streams:
                self._loop.scheduler.close()

    def _deliver(self, news: Iterable[Request]) -> None:
        for request in news:
            owner = self._owners.get(request)
            if owner is not None:
                owner.news[request] = None

    def _new_meter(self) -> Meter:
        manager = self._cache.manager
        return Meter(
            block_size=manager.block_size,
            bytes_per_token=self._bytes_per_token,
            max_sequence_len=manager.max_sequence_len,
        )


def _check_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    if not hasattr(model, "config") or not hasattr(model, "get_input_embeddings"):
        raise InvalidType(f"model has type {type(model).__name__}, must be a transformers model")
    if model.training:
        raise InvalidArgument("model must be in eval mode; call model.eval() first")
    if model.get_output_embeddings() is None:
        raise UnsupportedModel(f"{type(model).__name__} has no head for language: it returns no logits")
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise InvalidType(f"tokenizer must be a tokenizer of transformers, not {type(tokenizer).__name__}")


def _check_integers(sizes: dict[str, int]) -> None:
    for name, number in sizes.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidType(f"{name} must be an int, not {number!r}")
