"""The paged KV cache: a block manager and the tensors that its blocks stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from looseleaf import ops
from looseleaf.allocator import Batch, BlockManager, Sequence
from looseleaf.cache.step import Step
from looseleaf.cache.storage import KVStorage, as_device, available_memory
from looseleaf.cache.tables import DeviceTables
from looseleaf.config import ModelShape, dtype_name
from looseleaf.errors import InvalidArgument, InvalidType
from looseleaf.sizing import memory_budget, num_blocks_for_budget

if TYPE_CHECKING:
    from torch import Tensor

    from looseleaf.allocator import Namespace, Stats
    from looseleaf.allocator.manager import Integers, Sequences

__all__ = ["PagedKVCache"]


class PagedKVCache:
    """Keys and values of many sequences in blocks of one pool.

    Calls check first and change afterwards: a call that raises leaves the cache as it was.

    Attributes:
        manager: which block holds which tokens of which sequence.
        storage: the tensors.
        num_steps: steps prepared so far.

    Example:
        >>> import torch
        >>> cache = PagedKVCache(num_layers=1, num_kv_heads=1, head_dim=2, dtype=torch.float32, num_blocks=8)
        >>> seq = cache.admit([11, 12, 13, 14, 15])
        >>> step = cache.step([seq])
        >>> rows = torch.ones(step.num_tokens, 1, 2)
        >>> step.attend(0, rows, rows, rows).shape
        torch.Size([5, 1, 2])
        >>> step.commit()
        >>> seq.num_computed
        5
    """

    __slots__ = ("_batch", "_tables", "manager", "num_steps", "storage")

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype | str,
        device: torch.device | str = "cpu",
        block_size: int = 16,
        num_blocks: int | None = None,
        memory: str | float | None = None,
        max_sequences: int = 256,
        max_sequence_len: int = 8192,
        max_batch_tokens: int | None = 2048,
        prefix_caching: bool = True,
    ) -> None:
        """Allocate the pool and the buffers of a step.

        Args:
            num_layers: layers that keep keys and values.
            num_kv_heads: KV heads of a layer.
            head_dim: elements of one key, and of one value.
            dtype: float32, float16 or bfloat16, or its name.
            device: device of the tensors, or its name.
            block_size: tokens of one block.
            num_blocks: usable blocks; give this or `memory`.
            memory: what the pool may take: bytes, a string such as "2GiB", or a float for that part of the device's
                free memory. The null block is inside the budget.
            max_sequences: sequences that can be alive at once; rows of a step.
            max_sequence_len: tokens that a sequence may hold.
            max_batch_tokens: new tokens of a step, over all sequences, at most; None: as many as the pool has slots.
            prefix_caching: keep computed blocks after their last holder, for prompts that begin alike, until an
                allocation needs them.

        Raises:
            OutOfMemory: the device does not have that much memory.
            InvalidArgument: an argument is out of range, neither or both of `num_blocks` and `memory` are given, or the
                budget does not hold two blocks.
            InvalidType: an argument is of another type.
        """
        if num_blocks is not None and memory is not None:
            raise InvalidArgument("exactly one of num_blocks and memory must be given, both were")
        if num_blocks is None:
            if memory is None:
                raise InvalidArgument("exactly one of num_blocks and memory must be given, neither was")
            shape = ModelShape(
                num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype_name(dtype)
            )
            num_blocks = num_blocks_for_budget(_budget(memory, device), shape, block_size)
        # The tensors first: they are what does not fit, and say so.
        self.storage = KVStorage(
            num_blocks,
            block_size,
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            device=device,
        )
        self.manager = BlockManager(
            num_blocks,
            block_size,
            max_sequences=max_sequences,
            max_sequence_len=max_sequence_len,
            prefix_caching=prefix_caching,
        )
        if max_batch_tokens is None:
            max_batch_tokens = min(num_blocks * block_size, 2**31 - 1)
        is_gpu = self.storage.device.type == "cuda"
        with torch.inference_mode(mode=False):
            # Not bind_batch: a step of the cache's is in it, which a reserve of somebody else's must not overwrite.
            self._batch: Batch[Tensor] = Batch(
                self.manager._core,  # noqa: SLF001 - one library
                max_batch_tokens,
                backend="torch",
                pin_memory=is_gpu,
            )
            self._tables = DeviceTables(self._batch, self.storage.device)
        self.num_steps = 0

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
            tokens: token ids of the whole prompt: ints, or an int32 or int64 array; at least one, none negative.
            reserve: allocate blocks for so many tokens instead.
            namespace: whose cached blocks may be shared; None: the namespace without parts.
            cache: take part in the prefix cache; False: neither adopt nor publish, forks included.

        Raises:
            OutOfBlocks: not enough blocks now.
            NeverFits: the pool is smaller than the prompt.
            TooManySequences: `max_sequences` are alive.
            EmptyPrompt, SequenceTooLong, InvalidArgument, InvalidType: `tokens` or `reserve` cannot be.
        """
        return self.manager.admit(tokens, reserve=reserve, namespace=namespace, cache=cache)

    def step(
        self,
        sequences: Sequences,
        *,
        num_new: int | Integers | None = None,
        tokens: Integers | None = None,
    ) -> Step:
        """Prepare a step: make the slots of its new tokens writable, and copy the blocks that they must not share.

        Args:
            sequences: `Sequence` objects, or an int64 array of handles; prefill and decode may stand in one batch.
            num_new: new tokens of the step: one number for all, or one for each. None: everything known and not
                computed yet, at least one: the rest of a prompt, or one decode token.
            tokens: ids of those new tokens that are not known yet, in batch order; exactly that many. None: they stay
                unknown.

        Returns:
            The step. An earlier one of this cache cannot be used any more.

        Raises:
            OutOfBlocks: not enough blocks now, for the step as a whole.
            NeverFits: a sequence would need more blocks than the pool has.
            SequenceTooLong: a sequence would outgrow `max_sequence_len`.
            BatchTooSmall: more new tokens than `max_batch_tokens`.
            StaleSequence, UnknownSequence, DuplicateSequence: a sequence cannot be.
            InvalidArgument, InvalidType: `num_new` or `tokens` do not match the sequences.
        """
        if isinstance(sequences, Sequence):
            raise InvalidType("sequences must be a list of sequences or an array of handles, was one Sequence")
        # A copy: the caller may change the array or the list before the step is committed.
        sequences = sequences.copy() if isinstance(sequences, np.ndarray) else list(sequences)
        self._tables.wait()
        self.manager.reserve(sequences, num_new, tokens=tokens, batch=self._batch)
        self.num_steps += 1
        self._tables.update()
        copies = self._tables.rows("copies")
        if len(copies):
            ops.copy_blocks(self.storage.layers, copies)
        return Step(self, sequences, self._tables)

    def stats(self) -> Stats:
        """Counters and gauges of the manager, a snapshot."""
        return self.manager.stats()

    def __repr__(self) -> str:
        storage = self.storage
        return (
            f"PagedKVCache(num_blocks={storage.num_blocks}, block_size={storage.block_size}, "
            f"num_layers={len(storage.layers)}, dtype={storage.dtype}, device={str(storage.device)!r})"
        )


def _budget(memory: str | float, device: torch.device | str) -> int:
    where = as_device(device)
    return memory_budget(memory) if where.type == "cpu" else memory_budget(memory, available_bytes=lambda: _left(where))


def _left(device: torch.device) -> int:
    left = available_memory(device)
    if left is None:
        raise InvalidArgument(f"memory must be bytes or a string with {device}, which does not tell what it has left")
    return left
