"""A paged cache for `model.generate()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import Tensor
from transformers import Cache

from looseleaf.errors import InvalidArgument, InvalidType
from looseleaf.integrations.transformers.binding import Binding, bind
from looseleaf.integrations.transformers.columns import (
    columns_of,
    ids_of,
    indices_of,
    integer_of,
    mask_of,
    shape_of_embeddings,
    without_first,
)
from looseleaf.integrations.transformers.forward import Forward
from looseleaf.integrations.transformers.layer import Layer
from looseleaf.integrations.transformers.pool import cache_shape, new_pool
from looseleaf.integrations.transformers.rows import BatchRows
from looseleaf.integrations.transformers.versions import cropped_length, has_steady_rope, num_queries, text_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from transformers import PreTrainedModel

    from looseleaf.cache import PagedKVCache

__all__ = ["PagedCache"]


class PagedCache(Cache):  # type: ignore[misc]
    """Keys and values of a model's batch in blocks of a pool, for `generate()` and for calls of the model itself.

    Pass it as `past_key_values=`, with transformers 5.2x as `cache=` too. Greedy search, sampling, beams, left padding,
    prompt lookup and assistants, and chunked prefill give the tokens that they give with transformers' own cache.

    - Rows that share tokens share blocks: beams, `num_return_sequences`, and `copy.deepcopy(cache)`, which is a fork.
      A block is copied when one of its holders writes into it.
    - Padding is not stored. It must be on the left, and the same in every call.
    - A prompt must begin with what the cache has computed, or `generate` raises `PromptMismatch`. `begin` goes over to
      another prompt and keeps what the pool has cached of it. Prompts of `inputs_embeds` begin with an empty cache.
    - A cache belongs to one thread at a time. Threads with a cache each may share a model: its passes wait for each
      other. While one runs, its cache refuses every call that would change its rows, `close` included.

    The model's `forward` and `generate` are wrapped while a cache of the model is open. A forward pass with this cache
    runs with an attention function that reads through block tables; without it the model is as it was. `close`, the end
    of a `with` block, or the last cache's end takes the wrappers off.

    Attributes:
        pool: the blocks. `pool.stats()` tells how many are available.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> with PagedCache(model, num_blocks=8) as cache:
        ...     output = model.generate(torch.tensor([[5, 6, 7]]), cache=cache, max_new_tokens=4, eos_token_id=None)
        >>> output.shape
        torch.Size([1, 7])
        >>> cache.pool.stats().num_in_use
        0
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_blocks: int | None = None,
        memory: str | float | None = None,
        block_size: int = 16,
        max_sequences: int = 256,
        max_sequence_len: int | None = None,
    ) -> None:
        """Allocate a pool for a model.

        Args:
            model: a transformers model that generates, in eval mode; it decides layers, heads, dtype and device.
            num_blocks: blocks of the pool; give this or `memory`.
            memory: size of the pool: bytes, a string such as "2GiB", or a float for that part of the device's free
                memory.
            block_size: tokens of one block.
            max_sequences: rows that can be alive at once, over all forks; a reordered batch of beams needs up to twice
                its rows for a moment.
            max_sequence_len: tokens that a row may hold; None: what the model was made for, or 8192. A model may go
                beyond that with rotary embeddings, but not with learned positions.

        Raises:
            OutOfMemory: the device does not have so much memory.
            UnsupportedModel: its layers keep something else than keys and values of one shape, see other tokens than
                all or the nearest, or compute their attention themselves. What shows only when the model runs is raised
                by its first forward pass.
            InvalidArgument, InvalidType: an argument cannot be.
        """
        self._binding: Binding | None = bind(model)
        shape, max_sequence_len = cache_shape(model, max_sequence_len=max_sequence_len)
        pool = new_pool(
            model,
            shape,
            max_sequence_len=max_sequence_len,
            num_blocks=num_blocks,
            memory=memory,
            block_size=block_size,
            max_sequences=max_sequences,
            max_batch_tokens=None,
        )
        self._open(BatchRows(pool))

    def _open(self, rows: BatchRows) -> None:
        """Begin over these rows."""
        self._rows = rows
        self._forward: Forward | None = None
        self._num_prompt_columns: int | None = None  # before the first pass of a generation that goes on
        # One object for every layer: they differ in nothing that transformers asks.
        super().__init__(layers=[Layer(rows)] * len(rows.pool.storage.layers))

    @property
    def pool(self) -> PagedKVCache:
        """The blocks, shared with every fork."""
        return self._rows.pool

    @property
    def num_rows(self) -> int:
        """Rows that the cache holds; 0 before the first forward pass."""
        return len(self._rows)

    def begin(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> int:
        """Go over to another prompt: let go of all rows, keep what the pool has cached of the prompt.

        Call `generate` with the same prompt next; it computes only what is not cached. Whole blocks are shared, of
        everything that any cache of this pool has computed with known ids and that no allocation has evicted.

        Args:
            input_ids: int64 [rows, columns].
            attention_mask: [rows, columns], 0 where there is padding; None: nowhere.

        Returns:
            Columns that need no computing; of a batch, those that need none in any row.

        Raises:
            EmptyPrompt: a row has no token.
            InvalidArgument, InvalidType: padding elsewhere than on the left, ids that are no tensor of integers from 0
                on, or the cache is closed.
            OutOfBlocks, TooManySequences: the new rows do not fit beside the old ones. Nothing has changed.

        Example:
            >>> import torch
            >>> from transformers import LlamaConfig, LlamaForCausalLM
            >>> config = LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
            >>> model = LlamaForCausalLM(config).eval()
            >>> cache = PagedCache(model, num_blocks=8, block_size=4)
            >>> prompt = torch.tensor([[5, 6, 7, 8, 9, 10]])
            >>> _ = model.generate(prompt, cache=cache, max_new_tokens=2)
            >>> cache.begin(torch.tensor([[5, 6, 7, 8, 1, 2, 3]]))
            4
        """
        self._check_open()
        self._rows.begin(ids_of(input_ids), mask_of(attention_mask))
        return self._rows.length

    def fork(self) -> PagedCache:
        """A cache that shares all computed blocks with this one; `copy.deepcopy` does the same.

        Copies nothing: a block is copied when one of the two writes into it.

        Raises:
            TooManySequences: no place for as many rows again.
            InvalidArgument: the cache is closed.
        """
        self._check_open()
        other = object.__new__(PagedCache)
        other._binding = self._binding
        other._open(self._rows.fork())
        return other

    def close(self) -> None:
        """Give up all rows, and let the model go, for good. Again: does nothing."""
        self._rows.release()
        self._binding = None

    # What transformers calls.

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Take a layer's new keys and values; they are written when the layer attends.

        Args:
            key_states: [rows, kv_heads, columns, head_dim].
            value_states: the same shape.
            layer_idx: the layer.

        Returns:
            The same two tensors, which the layer hands to its attention function.

        Raises:
            InvalidArgument: no forward pass of the cache's model runs.
            UnsupportedModel: the model does not attend by the function that it was given.
        """
        if self._forward is None:
            raise InvalidArgument(
                "the cache is filled by calls of the model that it was made for alone, until close(); this one is of "
                "another model, of a part of it, or comes too late"
            )
        self._forward.mark(key_states, layer_idx)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - the layers are alike
        """Columns that are computed, padding included."""
        return self._rows.length

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        """Columns that a mask of the next `query_length` columns would have, and where it would begin."""
        return self._rows.length + num_queries(query_length), 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make row `beam_idx[i]` the new row `i`: rows that are taken twice are forked, nothing is copied.

        Args:
            beam_idx: int64 [rows].

        Raises:
            TooManySequences: no place for the forks.
            InvalidArgument, InvalidType: there is no such row, or none would be left.
        """
        rows = indices_of(beam_idx, "beam_idx")
        if self._rows:
            self._rows.select(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Put `repeats` rows in the place of each, as forks.

        Raises:
            TooManySequences: no place for the forks.
            InvalidArgument, InvalidType: `repeats` is no number from 1 on.
        """
        repeats = integer_of(repeats, "repeats")
        if repeats < 1:
            raise InvalidArgument(f"repeats is {repeats}, must be 1 or more")
        if self._rows:
            self._rows.select([row for row in range(self.num_rows) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order.

        Args:
            indices: int64 [new rows], from the end where negative, or bool [rows].

        Raises:
            TooManySequences: no place for the forks of rows that are taken more than once.
            InvalidArgument, InvalidType: there is no such row, or none would be left.
        """
        rows = indices_of(indices, "indices", num_flags=self.num_rows)
        if self._rows:
            self._rows.select([row if row >= 0 else row + self.num_rows for row in rows])

    def crop(self, tokens_to_remove: int) -> None:
        """Drop columns at the end, exactly.

        Args:
            tokens_to_remove: minus the number of columns. In versions of transformers whose caches take a length here,
                a positive number is the length to keep, and 0 drops everything.

        Raises:
            InvalidArgument: a positive number in a later version.
            InvalidType: no integer.
        """
        tokens_to_remove = integer_of(tokens_to_remove, "tokens_to_remove")
        self._rows.crop(cropped_length(tokens_to_remove, self._rows.length))

    def reset(self) -> None:
        """Give up all rows. What they computed stays in the prefix cache of the pool until its blocks are needed."""
        self._rows.release()

    # What the model's wrapped methods call.

    def on_forward(
        self, model: PreTrainedModel, arguments: Mapping[str, Any], run: Callable[[Mapping[str, Any]], Any]
    ) -> Any:  # noqa: ANN401
        """Run a forward pass of the model over the cache; one that fails leaves the cache as it was.

        Args:
            model: whose pass it is.
            arguments: of the pass, by their names.
            run: runs it with such arguments.

        Returns:
            What the model returns.

        Raises:
            InvalidArgument: the cache is closed or of another model, or the pass cannot be run over it.
            UnsupportedModel: a layer did not attend as it must.
            OutOfBlocks, NeverFits, TooManySequences, SequenceTooLong: the new tokens do not fit.
        """
        if self._binding is None or not self._binding.is_of(model):
            raise InvalidArgument(f"the cache is closed, or of another model than this {type(model).__name__}")
        if arguments.get("use_cache") is False:
            raise InvalidArgument("use_cache is False, but the pass would fill the cache; leave one of the two away")
        needs_weights = arguments.get("output_attentions")
        if needs_weights is None:
            needs_weights = model.config.output_attentions or text_config(model).output_attentions
        if needs_weights:
            raise InvalidArgument("output_attentions is True: attention through block tables forms no weights")
        arguments = self._new_columns(arguments)
        columns = columns_of(arguments, is_rope_steady=has_steady_rope(text_config(model)))
        self._rows.check_idle()
        try:
            step = self._rows.prepare(columns)
            packed = self._rows.packed
            self._forward = Forward(
                step,
                num_rows=columns.num_rows,
                num_columns=columns.num_columns,
                packed_rows=None if packed is None else torch.from_numpy(packed).to(self.pool.storage.device),
                num_layers=len(self.layers),
                name=type(model).__name__,
            )
            output = run(arguments)
            self._forward.check_complete()
            self._rows.commit()
        finally:
            self._forward = None
            self._rows.roll_back()
        return output

    def _new_columns(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a pass, without columns that the cache has computed.

        All passes bring what is new, but for the first of a generation: from 5.2x on, assisted decoding brings the
        whole prompt in it; up to 5.1x, `prefill_chunk_size` cuts the first chunk from the beginning of the prompt.
        """
        num_prompt_columns, self._num_prompt_columns = self._num_prompt_columns, None
        input_ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
        if num_prompt_columns is None or input_ids is None:
            return arguments
        if mask is not None and mask.shape[-1] == self._rows.length + input_ids.shape[1]:
            return arguments
        if input_ids.shape[1] >= num_prompt_columns:
            return without_first(arguments, self._rows.length)
        if mask is not None and mask.shape[-1] == input_ids.shape[1]:
            raise InvalidArgument(
                "prefill_chunk_size makes this version of transformers begin with the first column of the prompt, but "
                f"the cache has computed {self._rows.length}; leave it away, or reset() first"
            )
        return arguments

    def on_generate(self, arguments: Mapping[str, Any], run: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Check that a prompt goes on from what the cache has computed, then run its generation.

        Args:
            arguments: of `generate`, by their names.
            run: runs it.

        Returns:
            What `generate` returns.

        Raises:
            PromptMismatch: it does not.
            InvalidArgument: the rows cannot belong to each other, the cache has computed the whole prompt, or nobody
                can tell, because one of the two came as embeddings.
        """
        if not self._rows.length:
            return run()
        embeddings = arguments.get("inputs_embeds")
        given = (embeddings, arguments.get("inputs"), arguments.get("input_ids"))
        prompt = next((tensor for tensor in given if tensor is not None), None)
        if prompt is None:
            raise InvalidArgument(
                f"input_ids is missing: the cache has computed {self._rows.length} columns of a prompt"
            )
        token_ids = ids_of(prompt) if embeddings is None else None
        num_rows, num_columns = shape_of_embeddings(embeddings) if token_ids is None else token_ids.shape
        mask = mask_of(arguments.get("attention_mask"))
        is_whole = mask is None or mask.shape[1] == num_columns
        self._rows.check_prompt(token_ids, num_rows=num_rows, num_columns=num_columns, is_whole=is_whole)
        self._num_prompt_columns = num_columns if is_whole else None
        try:
            return run()
        finally:
            self._num_prompt_columns = None

    def _check_open(self) -> None:
        if self._binding is None:
            raise InvalidArgument("the cache is closed")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> PagedCache:
        return self.fork()

    def __copy__(self) -> PagedCache:
        return self.fork()

    def __reduce__(self) -> NoReturn:
        raise InvalidType("a PagedCache owns blocks of its pool, it cannot be pickled; fork() shares them")

    def __repr__(self) -> str:
        return f"PagedCache(num_rows={self.num_rows}, length={self._rows.length}, pool={self.pool!r})"
