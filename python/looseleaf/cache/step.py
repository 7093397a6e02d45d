"""One step of a batch: where its tokens go, what they see, and when they are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from looseleaf import ops
from looseleaf.errors import InvalidArgument, StaleStep

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from looseleaf.allocator.manager import Integers, Sequences
    from looseleaf.cache.paged import PagedKVCache
    from looseleaf.cache.tables import Tables

__all__ = ["Step"]


class Step:
    """The new tokens of a batch, packed: rows of one sequence after rows of the other, prefill and decode alike.

    Made by `PagedKVCache.step`. Its tensors are views of buffers that the next step fills again; using a step after
    that, or after its commit, raises `StaleStep`. Its sequences must live as long as it is used. A step that failed
    half-way changed nothing that counts: prepare it again, or go through its layers again.

    Attributes:
        num_sequences: sequences of the batch.
        num_tokens: new tokens, over all sequences.
        max_query_len: most new tokens of one sequence.
        block_table: int32 [num_sequences, max_blocks_per_sequence].
        seq_lens: int32 [num_sequences], tokens of each sequence, the new ones included.
        cu_query_lens: int32 [num_sequences + 1], prefix sums of the new tokens of each sequence.
        slot_mapping: int64 [num_tokens], where each new token goes.
        token_ids: int64 [num_tokens], -1 where an id is not known yet.
        positions: int64 [num_tokens], position of each new token in its sequence.
        last_rows: int64 [num_sequences], the row of each sequence's last new token; for a sequence without new tokens
            the row before its place.
    """

    __slots__ = (
        "_cache",
        "_is_committed",
        "_number",
        "_sequences",
        "block_table",
        "cu_query_lens",
        "last_rows",
        "max_query_len",
        "num_sequences",
        "num_tokens",
        "positions",
        "seq_lens",
        "slot_mapping",
        "token_ids",
    )

    def __init__(self, cache: PagedKVCache, sequences: Sequences | NDArray[np.int64], tables: Tables) -> None:
        """Name what is in the tables; users call `PagedKVCache.step`."""
        self._cache = cache
        self._number = cache.num_steps
        self._is_committed = False
        self._sequences = sequences
        self.num_sequences, self.num_tokens = tables.num_sequences, tables.num_tokens
        self.max_query_len = tables.max_query_len
        self.block_table = tables.rows("block_table")
        self.seq_lens = tables.rows("seq_lens")
        self.cu_query_lens = tables.rows("cu_query_lens")
        self.slot_mapping = tables.rows("slot_mapping")
        self.token_ids = tables.rows("token_ids")
        self.positions = tables.rows("positions")
        self.last_rows = tables.last_rows()

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write the new tokens of a layer into their slots.

        Args:
            layer: 0 to num_layers - 1.
            k: [num_tokens, kv_heads, head_dim], dtype of the cache.
            v: the same shape and dtype.

        Raises:
            StaleStep: a newer step of the cache was prepared, or this one was committed.
            InvalidArgument: a shape, device or stride that is not allowed, or a tensor that requires grad.
            InvalidType: another dtype.
        """
        k_cache, v_cache = self._caches(layer)
        ops.write(k, v, k_cache, v_cache, self.slot_mapping)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        causal: bool = True,
        window: int | None = None,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """Write the new tokens of a layer, then attend from them to their sequences, themselves included.

        Args:
            layer: 0 to num_layers - 1.
            q: [num_tokens, q_heads, head_dim], dtype of the cache; q_heads is a multiple of kv_heads.
            k: [num_tokens, kv_heads, head_dim].
            v: the same shape.
            scale: factor of q x k; None for head_dim ** -0.5.
            causal: whether a token sees only itself and those before it.
            window: keys that a token sees, its own included; None for all.
            softcap: scores become softcap x tanh(score / softcap); 0 for as they are.
            sinks: float32 [q_heads], scores of a key without a value that every token sees.
            alibi_slopes: float32 [q_heads]; a score loses slope x distance to its key.
            out: [num_tokens, q_heads, head_dim], to be filled; None for a new tensor. Must not overlap `q`.
            lse: float32 [num_tokens, q_heads], to be filled with the natural log-sum-exp of each row's scores.

        Returns:
            [num_tokens, q_heads, head_dim].

        Raises:
            StaleStep: a newer step of the cache was prepared, or this one was committed.
            InvalidArgument: a shape, device, stride or value that is not allowed, or a tensor that requires grad.
            InvalidType: a type or dtype that is not allowed.
        """
        k_cache, v_cache = self._caches(layer)
        if q.shape[:1] != (self.num_tokens,):
            raise InvalidArgument(f"q must have the step's {self.num_tokens} tokens as rows, was {list(q.shape)}")
        ops.write(k, v, k_cache, v_cache, self.slot_mapping)
        out, _ = ops.attend(
            q,
            k_cache,
            v_cache,
            self.block_table,
            self.seq_lens,
            self.cu_query_lens,
            max_query_len=self.max_query_len,
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            out=out,
            lse=lse,
        )
        return out

    def commit(self, num_computed: int | Integers | None = None, *, tokens: Integers | None = None) -> None:
        """Note that the tokens of all layers are computed.

        Args:
            num_computed: computed tokens of a sequence counted from its start, one number for all or one for each;
                None: all of the step's.
            tokens: ids of computed tokens that are not known yet, in batch order; None: they stay unknown.

        Raises:
            StaleStep: a newer step of the cache was prepared, or this one was committed.
            StaleSequence: a sequence was released.
            InvalidArgument, InvalidType: `num_computed` or `tokens` do not match the sequences.
        """
        self._check_newest()
        self._cache.manager.commit(self._sequences, num_computed, tokens=tokens)
        self._is_committed = True

    def _caches(self, layer: int) -> tuple[Tensor, Tensor]:
        self._check_newest()
        storage = self._cache.storage
        if not 0 <= layer < len(storage.layers):
            raise InvalidArgument(f"layer must be 0 to {len(storage.layers) - 1}, was {layer}")
        return storage.k(layer), storage.v(layer)

    def _check_newest(self) -> None:
        if self._number != self._cache.num_steps:
            raise StaleStep("this step was followed by another of the same cache, which now has its tables and slots")
        if self._is_committed:
            raise StaleStep("this step was committed: others may share its blocks now")
