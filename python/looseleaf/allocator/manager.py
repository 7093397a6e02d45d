"""The block manager: sequences over a pool of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, overload

import numpy as np

from looseleaf import _core
from looseleaf._core import Stats
from looseleaf.allocator.batch import Batch
from looseleaf.allocator.sequence import Sequence
from looseleaf.errors import InvalidType, UnknownSequence

if TYPE_CHECKING:
    from collections.abc import Sequence as PySequence

    import torch
    from numpy.typing import NDArray

    Integers: TypeAlias = PySequence[int] | NDArray[np.int64] | NDArray[np.int32]
    Sequences: TypeAlias = PySequence[Sequence] | NDArray[np.int64]

__all__ = ["BlockManager", "Lookup", "Stats"]


class Lookup(NamedTuple):
    """What an admission would find in the cache.

    Attributes:
        num_tokens: tokens that need no computing.
        reason: why no more; "disabled" while prefixes are not cached.
    """

    num_tokens: int
    reason: str


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
        >>> manager.stats().num_free
        8
    """

    __slots__ = ("__weakref__", "_batch", "_core")

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        max_sequences: int = 256,
        max_sequence_len: int = 8192,
    ) -> None:
        """Make a pool of free blocks.

        Args:
            num_blocks: usable blocks, the null block not counted.
            block_size: tokens per block.
            max_sequences: sequences that can be alive at once; rows of a batch.
            max_sequence_len: tokens that a sequence may hold.

        Raises:
            InvalidArgument: one of them is out of range.
        """
        self._core = _core.BlockManager(num_blocks, block_size, max_sequences, max_sequence_len)
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
    def bind_batch(self, *, max_batch_tokens: int, backend: Literal["numpy"] = "numpy") -> Batch[NDArray[Any]]: ...

    @overload
    def bind_batch(
        self, *, max_batch_tokens: int, backend: Literal["torch"], pin_memory: bool = False
    ) -> Batch[torch.Tensor]: ...

    def bind_batch(
        self,
        *,
        max_batch_tokens: int,
        backend: Literal["numpy", "torch"] = "numpy",
        pin_memory: bool = False,
    ) -> Batch[Any]:
        """Allocate the buffers of a step, once. `reserve` fills the first batch bound unless told otherwise.

        Args:
            max_batch_tokens: new tokens of a step, over all sequences, at most.
            backend: "numpy" arrays, or "torch" tensors on the CPU.
            pin_memory: page-locked tensors, for asynchronous copies to a GPU.

        Returns:
            The batch. `BatchBuffers` gives shapes and dtypes.

        Raises:
            InvalidArgument: an argument is out of range.
        """
        batch: Batch[Any] = Batch(self._core, max_batch_tokens, backend=backend, pin_memory=pin_memory)
        if self._batch is None:
            self._batch = batch
        return batch

    def admit(self, tokens: Integers, *, reserve: int | None = None) -> Sequence:
        """Begin a sequence with the tokens of its prompt and allocate blocks for them.

        Args:
            tokens: token ids of the whole prompt: ints, or an int32 or int64 array [num_tokens]; at least one, none
                negative.
            reserve: allocate blocks for so many tokens instead, such as the first chunk or the expected final length.
                Blocks past what a step reserves are capacity, no more.

        Returns:
            The sequence. It lives until it is released or collected.

        Raises:
            OutOfBlocks: not enough blocks now.
            NeverFits: the pool is smaller than the prompt.
            TooManySequences: `max_sequences` are alive.
            EmptyPrompt, SequenceTooLong, InvalidArgument, InvalidType: `tokens` or `reserve` cannot be.
        """
        return Sequence(self._core.admit(tokens, reserve), self._core)

    def can_admit(self, num_tokens: int) -> bool:
        """Whether an `admit` of so many tokens would succeed if it came next.

        Args:
            num_tokens: tokens that it would allocate blocks for.
        """
        return self._core.can_admit(num_tokens)

    def lookup(self, tokens: Integers) -> Lookup:
        """How many tokens of a prompt are in the cache, and why no more. Adopts nothing.

        Args:
            tokens: token ids of the whole prompt, as for `admit`.
        """
        return Lookup(*self._core.lookup(tokens))

    def reserve(
        self,
        sequences: Sequences,
        num_new: int | Integers | None = None,
        *,
        tokens: Integers | None = None,
        lookahead: int = 0,
        batch: Batch[Any] | None = None,
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

        Returns:
            Number of sequences served: all of them.

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
        core = None if chosen is None else chosen._core  # noqa: SLF001 - one class in two files
        return self._core.reserve(self._handles(sequences), num_new, tokens, lookahead, core)

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

    def release(self, sequences: Sequences) -> None:
        """End sequences and give up their blocks. One that was released already is passed over.

        Args:
            sequences: int64 array of handles, or `Sequence` objects.

        Raises:
            UnknownSequence, DuplicateSequence: a handle cannot be.
        """
        self._core.release(self._handles(sequences))

    def stats(self) -> Stats:
        """Counters and gauges, a snapshot.

        Returns:
            num_blocks; num_free (on the free stack); num_idle (cached, without holders); num_available (free + idle:
            what an admission can get); num_in_use; peak_in_use; num_sequences alive; and since the beginning
            num_allocated and num_released blocks and num_copies (copy-on-write).
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


_ALLOWED = "must be an int64 array of handles or a list of Sequence"
