"""The block manager: sequences over a pool of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, overload

import numpy as np

from looseleaf import _core
from looseleaf._core import Stats
from looseleaf.allocator.batch import Batch
from looseleaf.allocator.namespace import Namespace
from looseleaf.allocator.sequence import Sequence
from looseleaf.errors import InvalidArgument, InvalidType, UnknownSequence

if TYPE_CHECKING:
    from collections.abc import Sequence as PySequence

    import torch
    from numpy.typing import NDArray

    Integers: TypeAlias = PySequence[int] | NDArray[np.int64] | NDArray[np.int32]
    Sequences: TypeAlias = PySequence[Sequence] | NDArray[np.int64]

__all__ = ["BlockManager", "Invalidated", "Lookup", "Stats"]


class Lookup(NamedTuple):
    """What an admission would find in the cache.

    Attributes:
        num_tokens: tokens that need no computing.
        reason: why no more: "capped" (one token is left to compute, and only whole blocks are shared), "no entry" (the
            next block is not cached), "namespace" (nothing is cached in it, and no living sequence will
            cache anything there), "disabled".
    """

    num_tokens: int
    reason: str


class Invalidated(NamedTuple):
    """What an invalidation did.

    Attributes:
        num_dropped: blocks whose content nobody can find any more.
        num_held: of these, blocks that sequences still hold; their data is untouched, and they are free once let go.
    """

    num_dropped: int
    num_held: int


class BlockManager:
    """Sequences over one pool of blocks: which block of the KV cache holds which tokens of which sequence.

    Blocks have the ids 1 to `num_blocks`. Block 0 is the null block: never handed out, it is what padded table cells
    point to, so the storage has `num_blocks + 1` blocks.

    Calls check first and change afterwards: one that raises has changed nothing. Any thread may call; each call takes
    one mutex once.

    Example:
        >>> manager = BlockManager(num_blocks=8, block_size=4)
        >>> batch = manager.bind_batch(max_batch_tokens=16)
        >>> seq = manager.admit([11, 12, 13, 14, 15])
        >>> manager.reserve([seq])
        1
        >>> batch.slot_mapping.tolist(), batch.seq_lens.tolist()
        ([4, 5, 6, 7, 8], [5])
        >>> manager.commit([seq])
        >>> manager.reserve([seq], 1, tokens=[16])
        1
        >>> batch.slot_mapping.tolist(), batch.token_ids.tolist(), batch.positions.tolist()
        ([9], [16], [5])
        >>> seq.release()
        >>> manager.stats().num_available, manager.lookup([11, 12, 13, 14, 15])
        (8, Lookup(num_tokens=4, reason='capped'))
    """

    __slots__ = ("__weakref__", "_batch", "_core")

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        max_sequences: int = 256,
        max_sequence_len: int = 8192,
        prefix_caching: bool = True,
    ) -> None:
        """Make a pool of free blocks.

        Args:
            num_blocks: usable blocks, the null block not counted.
            block_size: tokens per block.
            max_sequences: sequences that can be alive at once; rows of a batch.
            max_sequence_len: tokens that a sequence may hold.
            prefix_caching: keep computed blocks after their last holder, for prompts that begin alike, until an
                allocation needs them.

        Raises:
            InvalidArgument: one of them is out of range.
            OutOfMemory: the system refuses the memory of so many blocks or sequences.
        """
        self._core = _core.BlockManager(num_blocks, block_size, max_sequences, max_sequence_len, prefix_caching)
        self._batch: Batch[Any] | None = None

    @property
    def num_blocks(self) -> int:
        """Usable blocks, the null block not counted."""
        return self._core.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._core.block_size

    @property
    def max_sequences(self) -> int:
        """Sequences that can be alive at once."""
        return self._core.max_sequences

    @property
    def max_sequence_len(self) -> int:
        """Tokens that a sequence may hold."""
        return self._core.max_sequence_len

    @property
    def max_blocks_per_sequence(self) -> int:
        """Columns of a block table: blocks that `max_sequence_len` tokens need."""
        return self._core.max_blocks_per_sequence

    @overload
    def bind_batch(
        self, *, max_batch_tokens: int, backend: Literal["numpy"] = "numpy", double_buffer: bool = False
    ) -> Batch[NDArray[Any]]: ...

    @overload
    def bind_batch(
        self,
        *,
        max_batch_tokens: int,
        backend: Literal["torch"],
        pin_memory: bool = False,
        double_buffer: bool = False,
    ) -> Batch[torch.Tensor]: ...

    def bind_batch(
        self,
        *,
        max_batch_tokens: int,
        backend: Literal["numpy", "torch"] = "numpy",
        pin_memory: bool = False,
        double_buffer: bool = False,
    ) -> Batch[Any]:
        """Allocate the buffers of a step, once. `reserve` fills the first batch bound unless told otherwise.

        Args:
            max_batch_tokens: new tokens of a step, over all sequences, at most.
            backend: "numpy" arrays, or "torch" tensors on the CPU.
            pin_memory: page-locked tensors, for asynchronous copies to a GPU.
            double_buffer: two sets of buffers that `reserve` fills in turn, so that the copies of a step may still run
                while the next one is prepared.

        Returns:
            The batch. `BatchBuffers` gives shapes and dtypes.

        Raises:
            InvalidArgument, InvalidType: an argument cannot be.
            OutOfMemory: the system refuses the memory of so large arrays; torch raises a RuntimeError of its own.
        """
        batch: Batch[Any] = Batch(
            self._core, max_batch_tokens, backend=backend, pin_memory=pin_memory, double_buffer=double_buffer
        )
        if self._batch is None:
            self._batch = batch
        return batch

    def admit(
        self,
        tokens: Integers,
        *,
        reserve: int | None = None,
        namespace: Namespace | None = None,
        cache: bool = True,
    ) -> Sequence:
        """Begin a sequence: adopt the longest cached prefix of its prompt, allocate blocks for the rest.

        Args:
            tokens: token ids of the whole prompt: ints, or an int32 or int64 array [num_tokens]; at least one, none
                negative.
            reserve: allocate blocks for so many tokens instead, such as the first chunk or the expected final length.
                Blocks past what a step reserves are capacity, no more.
            namespace: whose cached blocks may be shared; None: the namespace without parts.
            cache: take part in the prefix cache; False: neither adopt nor publish, forks included.

        Returns:
            The sequence. It lives until it is released or collected.

        Raises:
            OutOfBlocks: not enough blocks now.
            NeverFits: the pool is smaller than the prompt.
            TooManySequences: `max_sequences` are alive.
            EmptyPrompt, SequenceTooLong, InvalidArgument, InvalidType: `tokens` or `reserve` cannot be.
        """
        return Sequence(self._core.admit(tokens, reserve, _key(namespace), cache), self._core)

    def can_admit(
        self,
        prompt: int | Integers,
        *,
        reserve: int | None = None,
        namespace: Namespace | None = None,
        cache: bool = True,
        num_spare: int = 0,
    ) -> bool:
        """Whether an `admit` would succeed if it came next.

        Args:
            prompt: number of tokens, none of them cached; or the token ids of the prompt, as for `admit`.
            reserve: as for `admit`, with a prompt.
            namespace: as for `admit`, with a prompt.
            cache: as for `admit`, with a prompt.
            num_spare: blocks that the admission must leave available, for those that run; with a prompt.

        Returns:
            False also where `admit` would raise another error than OutOfBlocks.

        Raises:
            InvalidArgument, InvalidType: an argument cannot be.
        """
        if isinstance(prompt, Iterable):
            return self._core.can_admit_prompt(prompt, reserve, _key(namespace), cache, num_spare)
        if reserve is not None or namespace is not None or not cache or num_spare:
            raise InvalidArgument(f"prompt is {prompt}; reserve, namespace, cache and num_spare need its token ids")
        return self._core.can_admit(prompt)

    def lookup(self, tokens: Integers, *, namespace: Namespace | None = None) -> Lookup:
        """How many tokens of a prompt are in the cache, and why no more. Adopts nothing.

        Args:
            tokens: token ids of the whole prompt, as for `admit`.
            namespace: as for `admit`.
        """
        return Lookup(*self._core.lookup(tokens, _key(namespace)))

    def invalidate(self, namespace: Namespace | None = None) -> Invalidated:
        """Drop all cached content of a namespace, after its weights or adapter changed. No admission finds it any more.

        Sequences that live go on with their blocks; what they compute from now on is not published.

        Args:
            namespace: None: the namespace without parts.
        """
        return Invalidated(*self._core.invalidate(_key(namespace)))

    def reset(self) -> Invalidated:
        """Drop all cached content of all namespaces, as `invalidate` does."""
        return Invalidated(*self._core.reset())

    def evict(self, num_blocks: int) -> int:
        """Drop the content of the least recently used cached blocks without holders; they are free afterwards.

        Args:
            num_blocks: blocks to evict at most, and the cached ones behind them.

        Returns:
            Number of blocks evicted.
        """
        return self._core.evict(num_blocks)

    def reserve(
        self,
        sequences: Sequences,
        num_new: int | Integers | None = None,
        *,
        tokens: Integers | None = None,
        lookahead: int = 0,
        batch: Batch[Any] | None = None,
        oom: Literal["fail", "prefix"] = "fail",
    ) -> int:
        """Make the next slots of each sequence writable, allocate what is missing, fill the batch. Once per step.

        The step computes the tokens at positions `num_computed` to `num_computed + num_new`. A step that failed is
        repeated by calling `reserve` again (without `tokens`: their ids are known by then).

        Args:
            sequences: int64 array of handles (the step path), or `Sequence` objects; rows of the batch, in this order.
            num_new: new tokens of the step: one number for all, or one for each. None: everything known and not
                computed yet, at least one: the rest of a prompt, or one decode token. 0 is allowed and does nothing.
            tokens: ids of those new tokens that are not known yet, in batch order; exactly that many. None: they stay
                unknown.
            lookahead: allocate blocks for so many tokens more. Capacity only.
            batch: the batch to fill, by default the first one bound; with none bound only tables change.
            oom: what happens where there are not enough blocks for all: "fail" raises OutOfBlocks; "prefix" serves the
                first sequences, as many as there are blocks for, and leaves the others as they are.

        Returns:
            Number of sequences served: all of them, or with "prefix" perhaps fewer, 0 included.

        Raises:
            OutOfBlocks: not enough blocks now, for the step as a whole.
            NeverFits: a sequence would need more blocks than the pool has.
            SequenceTooLong: a sequence would outgrow `max_sequence_len`.
            BatchTooSmall: more new tokens than `max_batch_tokens`.
            StaleSequence, UnknownSequence, DuplicateSequence: a handle cannot be.
            InvalidArgument, InvalidType: `num_new` or `tokens` do not match the sequences.
        """
        chosen = self._batch if batch is None else batch
        if not isinstance(chosen, Batch | None):
            raise InvalidType(f"batch has type {type(chosen).__name__}, must be a Batch that this manager bound")
        if oom not in ("fail", "prefix"):  # no set: it would have to be hashed
            raise InvalidArgument(f'oom is {oom!r}, must be "fail" or "prefix"')
        handles = self._handles(sequences)
        if chosen is None:
            return self._core.reserve(handles, num_new, tokens, lookahead, None, oom == "prefix")
        target = chosen._next  # noqa: SLF001 - one class in two files
        served = self._core.reserve(handles, num_new, tokens, lookahead, target, oom == "prefix")
        chosen._turn()  # noqa: SLF001 - one class in two files
        return served

    def commit(
        self,
        sequences: Sequences,
        num_computed: int | Integers | None = None,
        *,
        tokens: Integers | None = None,
    ) -> None:
        """Note that tokens are computed and accepted, and that the copies of the step have run.

        Args:
            sequences: int64 array of handles (the step path), or `Sequence` objects.
            num_computed: computed tokens of a sequence counted from its start: one number for all, or one for each;
                never less than before, at most the reserved slots. None: all reserved slots.
            tokens: ids below `num_computed` that are not known yet, in batch order; exactly that many. None: they stay
                unknown.

        Raises:
            StaleSequence, UnknownSequence, DuplicateSequence: a handle cannot be.
            InvalidArgument, InvalidType: `num_computed` or `tokens` do not match the sequences.
        """
        self._core.commit(self._handles(sequences), num_computed, tokens)

    def release(self, sequences: Sequences, *, cache: bool = True) -> None:
        """End sequences and give up their blocks. One that was released already is passed over.

        Args:
            sequences: int64 array of handles, or `Sequence` objects.
            cache: keep what they have added to the prefix cache; False drops what nobody else holds of it.

        Raises:
            UnknownSequence, DuplicateSequence: a handle cannot be.
        """
        self._core.release(self._handles(sequences), cache)

    def gather_rows(self, sequences: Sequences, table: NDArray[np.int32]) -> None:
        """Write the whole block table of each sequence into a row of an array of the caller's.

        A step's own tables stand in its batch already; this is for engines with buffers of their own.

        Args:
            sequences: int64 array of handles, or `Sequence` objects.
            table: int32 [num_sequences, columns], C-contiguous and writable, not a bound batch's; padded with 0, the
                null block. Of a torch tensor on the CPU, pass `tensor.numpy()`.

        Raises:
            BatchTooSmall: a table has more blocks than `columns`.
            StaleSequence, UnknownSequence, DuplicateSequence: a handle cannot be.
            InvalidArgument, InvalidType: `table` is not such an array. Nothing is written, whatever is raised.

        Example:
            >>> manager = BlockManager(num_blocks=8, block_size=4)
            >>> seqs = [manager.admit([1, 2, 3, 4, 5]), manager.admit([6])]
            >>> table = np.empty((2, 3), np.int32)
            >>> manager.gather_rows(seqs, table)
            >>> table.tolist()
            [[1, 2, 0], [3, 0, 0]]
        """
        self._core.gather_rows(self._handles(sequences), table)

    def csr(
        self,
        sequences: Sequences,
        indptr: NDArray[np.int32],
        indices: NDArray[np.int32],
        last_page_len: NDArray[np.int32],
    ) -> int:
        """Write the blocks of the reserved tokens of each sequence as a compressed table, FlashInfer's `paged_kv_*`.

        "Page" is FlashInfer's word for a block. The arrays may be longer than needed, as for a captured CUDA graph.

        Args:
            sequences: int64 array of handles, or `Sequence` objects.
            indptr: int32 [num_sequences + 1 or more]; prefix sums of the pages; padded with the last value.
            indices: int32; block ids; what is past the last one used stays as it was.
            last_page_len: int32 [num_sequences or more]; tokens in the last page; padded with 0.

        Returns:
            Number of block ids written.

        Raises:
            BatchTooSmall: an array is too short, naming it.
            StaleSequence, UnknownSequence, DuplicateSequence: a handle cannot be.
            InvalidArgument, InvalidType: an array cannot be. Nothing is written, whatever is raised.
        """
        return self._core.csr(self._handles(sequences), indptr, indices, last_page_len)

    def digest(self) -> bytes:
        """SHA-256 (32 bytes) of the logical state: the same after the same calls by one thread, in every process.

        For ranks that keep managers of their own: comparing digests finds the step where two of them part. Counters and
        the order of free blocks do not go in. O(tokens of all sequences and cached blocks).
        """
        return self._core.digest()

    def stats(self) -> Stats:
        """Counters and gauges, a snapshot.

        Returns:
            num_blocks; num_free (on the free stack); num_idle (cached, without holders); num_available (free + idle:
            what an admission can get); num_in_use; peak_in_use; num_sequences alive; and since the beginning
            num_allocated and num_released blocks, num_copies (copy-on-write), num_evicted blocks that gave way to
            allocations, and num_hit_tokens found in the cache of num_looked_up tokens of admitted prompts.
        """
        return self._core.stats()

    def validate(self) -> None:
        """Recount everything. Slow: for tests, and when in doubt.

        Raises:
            CorruptState: the recount disagrees; the text says where.
        """
        self._core.validate()

    def __reduce__(self) -> NoReturn:
        raise InvalidType("a BlockManager owns the blocks of this process, it cannot be copied or pickled")

    def __repr__(self) -> str:
        return f"BlockManager(num_blocks={self.num_blocks}, block_size={self.block_size})"

    def _handles(self, sequences: Sequences) -> NDArray[np.int64] | list[int]:
        """Sequence objects of this manager as handles; an array is what the step path passes."""
        if isinstance(sequences, np.ndarray):
            return sequences
        if not isinstance(sequences, Iterable):
            raise InvalidType(f"sequences has type {type(sequences).__name__}, {_ALLOWED}")
        handles = []
        for sequence in sequences:
            if not isinstance(sequence, Sequence):
                raise InvalidType(f"sequences has an element of type {type(sequence).__name__}, {_ALLOWED}")
            if sequence._manager is not self._core:  # noqa: SLF001 - one class in two files
                raise UnknownSequence(sequence.handle)
            handles.append(sequence.handle)
        return handles


def _key(namespace: Namespace | None) -> _core.Namespace | None:
    if namespace is None:
        return None
    if not isinstance(namespace, Namespace):
        raise InvalidType(f"namespace has type {type(namespace).__name__}, must be a Namespace")
    return namespace._core  # noqa: SLF001 - one class in two files


_ALLOWED = "must be an int64 array of handles or a list of Sequence"
