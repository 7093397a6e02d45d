"""Swapping: blocks of sequences that give way go to the host, and come back when there is room.

Blocks in flight are never reused. A sequence that is swapped out is taken over: it holds its blocks until they are
copied, then it is released. A sequence that comes back holds its new blocks, and the space the old ones, until they are
copied; only then are its tokens computed, and may others find them in the prefix cache. What is discarded meanwhile
stays until its copies are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from looseleaf.allocator import Sequence
from looseleaf.cache.storage import KVStorage
from looseleaf.cache.transfer import Copier, Transfer, copier_for
from looseleaf.errors import InvalidArgument, InvalidType, OutOfBlocks
from looseleaf.sizing import blocks_for_tokens, memory_budget

if TYPE_CHECKING:
    from looseleaf.allocator import Namespace
    from looseleaf.allocator.manager import Integers
    from looseleaf.cache.paged import PagedKVCache

__all__ = ["SwapSpace", "SwappedIn", "SwappedOut"]


class SwappedOut:
    """The computed tokens of a sequence, in blocks of a swap space. Made by `SwapSpace.swap_out`.

    Attributes:
        num_tokens: computed tokens that it holds.
    """

    __slots__ = ("_blocks", "_is_discarded", "_num_copied", "_sequence", "_space", "_transfer", "num_tokens")

    def __init__(
        self, space: SwapSpace, sequence: Sequence, num_tokens: int, blocks: list[int], transfer: Transfer
    ) -> None:
        self.num_tokens = num_tokens
        self._space = space
        self._num_copied = len(blocks)
        self._sequence: Sequence | None = sequence
        self._blocks = blocks
        self._transfer = transfer
        self._is_discarded = False

    @property
    def is_done(self) -> bool:
        """Whether its copies are done, and its old blocks given back."""
        return self._sequence is None


class SwappedIn:
    """A sequence on its way back. Made by `SwapSpace.swap_in`.

    Attributes:
        sequence: holds the blocks already; its tokens are computed once `is_done`.
        num_tokens: tokens that are computed then.
    """

    __slots__ = ("_blocks", "_is_discarded", "_num_copied", "_space", "_transfer", "is_done", "num_tokens", "sequence")

    def __init__(
        self,
        space: SwapSpace,
        sequence: Sequence,
        swapped: SwappedOut,
        transfer: Transfer | None,
        num_copied: int,
    ) -> None:
        self._space = space
        self._num_copied = num_copied
        self.sequence = sequence
        self.num_tokens = swapped.num_tokens
        self.is_done = False
        self._blocks = swapped._blocks  # noqa: SLF001 - one module
        self._transfer = transfer
        self._is_discarded = False


_Swap = TypeVar("_Swap", SwappedOut, SwappedIn)


class SwapSpace:
    """Blocks on the host for sequences of a paged cache that give way to others.

    Copies to and from a GPU are asynchronous, through pinned memory; on the CPU they are done when a call returns.
    Every call first finishes what is done. For one thread at a time, like the steps of its cache.

    Args:
        cache: whose sequences are swapped.
        num_blocks: blocks of the space; give this or `memory`.
        memory: what the space may take: bytes, or a text such as "2GiB".
        copier: begins the copies; None: the one for the cache's device.

    Raises:
        InvalidArgument: neither or both of `num_blocks` and `memory` are given, or the budget does not hold a block.
        OutOfMemory: the host does not have so much memory.

    Example:
        >>> from looseleaf import PagedKVCache
        >>> cache = PagedKVCache(num_layers=1, num_kv_heads=1, head_dim=2, dtype="float32", num_blocks=4, block_size=4)
        >>> space = SwapSpace(cache, num_blocks=8)
        >>> seq = cache.admit([11, 12, 13, 14, 15])
        >>> step = cache.step([seq])
        >>> step.commit()
        >>> swapped = space.swap_out(seq)
        >>> cache.stats().num_in_use, space.num_free
        (0, 6)
        >>> seq = space.swap_in(swapped, [11, 12, 13, 14, 15, 16]).sequence
        >>> seq.num_computed, cache.stats().num_in_use, space.num_free
        (5, 2, 8)
    """

    __slots__ = ("_cache", "_coming", "_copier", "_free", "_leaving", "_storage", "seconds_per_block")

    def __init__(
        self,
        cache: PagedKVCache,
        *,
        num_blocks: int | None = None,
        memory: str | int | None = None,
        copier: Copier | None = None,
    ) -> None:
        storage = cache.storage
        if (num_blocks is None) == (memory is None):
            raise InvalidArgument("exactly one of num_blocks and memory must be given")
        if memory is not None:
            num_bytes = sum(layer[0].numel() * layer.element_size() for layer in storage.layers)
            num_blocks = memory_budget(memory) // num_bytes - 1  # block 0 is there, and not used
            if num_blocks < 1:
                raise InvalidArgument(f"memory must hold two blocks of {num_bytes} bytes, was {memory}")
        assert num_blocks is not None  # noqa: S101 - one of the two is given
        _, _, num_kv_heads, block_size, head_dim = storage.layers[0].shape
        self._cache = cache
        self._storage = KVStorage(
            num_blocks,
            block_size,
            num_layers=len(storage.layers),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=storage.dtype,
            pin_memory=storage.device.type == "cuda",
        )
        self._copier = copier or copier_for(storage.device)
        self._free = list(range(num_blocks, 0, -1))
        self._leaving: list[SwappedOut] = []
        self._coming: list[SwappedIn] = []
        self.seconds_per_block: float | None = None
        """Time to copy one block, all layers, one way: the mean of the latest copies; None before the first."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the space."""
        return self._storage.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks of the space that hold nothing."""
        self.settle()
        return len(self._free)

    @property
    def num_leaving_blocks(self) -> int:
        """Blocks of the pool that are given back when their copies are done, out or, of what was discarded, in."""
        self.settle()
        discarded = [coming for coming in self._coming if coming._is_discarded]  # noqa: SLF001 - one module
        num_blocks = sum(len(leaving._blocks) for leaving in self._leaving)  # noqa: SLF001 - one module
        return num_blocks + sum(len(coming._blocks) for coming in discarded)  # noqa: SLF001 - one module

    def swap_out(self, sequence: Sequence) -> SwappedOut:
        """Begin to copy a sequence's computed tokens out. The sequence is taken over, and released when that is done.

        Args:
            sequence: of the cache; must not be used any more.

        Raises:
            OutOfBlocks: the space has not enough blocks; the sequence is as it was.
            StaleSequence: it was released.
            InvalidArgument: none of its tokens is computed, or it is of another cache.
            InvalidType: it is no sequence.
        """
        if not isinstance(sequence, Sequence):
            raise InvalidType(f"sequence must be a Sequence, not {type(sequence).__name__}")
        if sequence._manager is not self._cache.manager._core:  # noqa: SLF001 - one library
            raise InvalidArgument("sequence must be one of the cache that this space swaps for")
        self.settle()
        num_tokens = sequence.num_computed
        if not num_tokens:
            raise InvalidArgument("sequence has no computed token to swap out; release it")
        needed = blocks_for_tokens(num_tokens, self._cache.manager.block_size)
        if needed > len(self._free):
            raise OutOfBlocks(needed, len(self._free), 0)
        blocks = self._free[-needed:]
        del self._free[-needed:]
        try:
            transfer = self._begin(self._cache.storage, self._storage, sequence.blocks[:needed], blocks)
        except BaseException:
            self._free += blocks
            raise
        swapped = SwappedOut(self, sequence, num_tokens, blocks, transfer)
        self._leaving.append(swapped)
        self.settle()
        return swapped

    @property
    def num_leaving_sequences(self) -> int:
        """Sequences of the pool that are released when their copies are done."""
        self.settle()
        return len(self._leaving) + sum(coming._is_discarded for coming in self._coming)  # noqa: SLF001 - one module

    def swap_in(
        self,
        swapped: SwappedOut,
        tokens: Integers,
        *,
        reserve: int | None = None,
        namespace: Namespace | None = None,
        cache: bool = True,
    ) -> SwappedIn:
        """Begin to bring a sequence back: admit it, and copy in what the prefix cache does not have.

        Args:
            swapped: what `swap_out` returned, once that is done. It is used up.
            tokens: token ids of the whole sequence, int [at least `swapped.num_tokens`]: the same as before, for others
                find its blocks by them.
            reserve: as for `admit`.
            namespace: the one that it was admitted in.
            cache: whether it takes part in the prefix cache, as when it was admitted.

        Returns:
            The new sequence; it may run once `is_done`. A discarded one must not be used.

        Raises:
            OutOfBlocks, TooManySequences: not now; `swapped` is as it was.
            InvalidArgument: `swapped` was used or discarded, is still being copied or of another space, or there are
                fewer tokens.
            InvalidType: `swapped` is none.
        """
        self._check(swapped, SwappedOut)
        self.settle()
        if not swapped.is_done or swapped._is_discarded:  # noqa: SLF001 - one module
            raise InvalidArgument("swapped must be copied out, and neither discarded nor swapped in before")
        if len(tokens) < swapped.num_tokens:
            raise InvalidArgument(f"tokens must be at least the {swapped.num_tokens} swapped ones, were {len(tokens)}")
        sequence = self._cache.admit(tokens, reserve=reserve, namespace=namespace, cache=cache)
        block_size = self._cache.manager.block_size
        first = sequence.num_cached_tokens // block_size
        sources = swapped._blocks[first:]  # noqa: SLF001 - one module
        transfer = None
        if sources:
            targets = sequence.blocks[first : first + len(sources)]
            try:
                transfer = self._begin(self._storage, self._cache.storage, sources, targets)
            except BaseException:
                sequence.release()
                raise
        coming = SwappedIn(self, sequence, swapped, transfer, num_copied=len(sources))
        swapped._is_discarded = True  # noqa: SLF001 - one module
        self._coming.append(coming)
        self.settle()
        return coming

    def discard(self, swapped: SwappedOut | SwappedIn) -> None:
        """Give up what was swapped: its blocks, and its sequence, as soon as its copies are done. Again: does nothing.

        A `SwappedIn` that is done is the caller's: its sequence is released by the caller.

        Raises:
            InvalidArgument: it is of another space.
            InvalidType: it is neither.
        """
        self._check(swapped, (SwappedOut, SwappedIn))
        if swapped._is_discarded:  # noqa: SLF001 - one module
            return
        swapped._is_discarded = True  # noqa: SLF001 - one module
        if isinstance(swapped, SwappedOut) and swapped.is_done:
            self._free += swapped._blocks  # noqa: SLF001 - one module
        self.settle()

    def settle(self, *, wait: bool = False) -> None:
        """Finish what is done.

        Args:
            wait: wait for everything that is in flight.
        """
        for leaving in self._finished(self._leaving, wait=wait):
            self._leaving.remove(leaving)
            sequence, leaving._sequence = leaving._sequence, None  # noqa: SLF001 - one module
            if leaving._is_discarded:  # noqa: SLF001 - one module
                self._free += leaving._blocks  # noqa: SLF001 - one module
            if sequence is not None:
                sequence.release()
        for coming in self._finished(self._coming, wait=wait):
            self._coming.remove(coming)
            self._free += coming._blocks  # noqa: SLF001 - one module
            if coming._is_discarded:  # noqa: SLF001 - one module
                coming.sequence.release()
            else:
                self._compute(coming)
                coming.is_done = True

    def _check(self, swapped: object, kinds: type | tuple[type, ...]) -> None:
        if not isinstance(swapped, kinds):
            raise InvalidType(f"swapped must come from swap_out or swap_in, was {type(swapped).__name__}")
        if swapped._space is not self:  # type: ignore[attr-defined]  # noqa: SLF001 - one module
            raise InvalidArgument("swapped must be of this space, it is of another")

    def _compute(self, coming: SwappedIn) -> None:
        """Note in the manager that the tokens are there; no batch is filled, for no step computes them."""
        num_new = coming.num_tokens - coming.sequence.num_computed
        if num_new > 0:
            handles = [coming.sequence.handle]
            core = self._cache.manager._core  # noqa: SLF001 - one library
            core.reserve(handles, num_new, None, 0, None, False)
            core.commit(handles, coming.num_tokens, None)

    def _begin(self, src: KVStorage, dst: KVStorage, sources: list[int], targets: list[int]) -> Transfer:
        mapping = torch.from_numpy(np.array([sources, targets], dtype=np.int64).T.copy())
        return self._copier(src.layers, dst.layers, mapping)

    def _finished(self, swaps: list[_Swap], *, wait: bool) -> list[_Swap]:
        return [swapped for swapped in swaps if self._is_finished(swapped._transfer, swapped._num_copied, wait=wait)]  # noqa: SLF001

    def _is_finished(self, transfer: Transfer | None, num_copied: int, *, wait: bool) -> bool:
        if transfer is None:
            return True
        if wait:
            transfer.wait()
        if transfer.is_done:
            self._measure(transfer.seconds / num_copied)
        return transfer.is_done

    def _measure(self, seconds: float) -> None:
        before = self.seconds_per_block
        self.seconds_per_block = seconds if before is None else 0.75 * before + 0.25 * seconds
