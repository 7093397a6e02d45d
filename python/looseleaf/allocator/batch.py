"""The buffers of a step, allocated once and filled by Rust."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

import numpy as np

from looseleaf import _core
from looseleaf.errors import InvalidArgument, InvalidType, LooseleafError, OutOfMemory
from looseleaf.host_memory import available_host_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    _Memory: TypeAlias = tuple[Callable[[tuple[int, ...], str], Any], Callable[[Any], Any]]

__all__ = ["Batch", "BatchBuffers"]

Array = TypeVar("Array")
"""`numpy.ndarray`, or `torch.Tensor` with `backend="torch"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBuffers(Generic[Array]):
    """The whole buffers, padding included. Their addresses never change, so that a captured CUDA graph may read them.

    With `R = max_sequences`, `C = max_blocks_per_sequence`, `T = max_batch_tokens`:

    Attributes:
        block_table: int32 [R, C]; block ids of each sequence, padded with 0, the null block.
        seq_lens: int32 [R]; tokens in the cache, the step's new ones included; padded with 0.
        query_lens: int32 [R]; the step's new tokens; padded with 0.
        cu_query_lens: int32 [R + 1]; prefix sums of `query_lens`; padded with the last value.
        slot_mapping: int64 [T]; slot = block id x block size + offset of each new token; padded with -1.
        positions: int64 [T]; position of each new token in its sequence; padded with 0.
        token_ids: int64 [T]; id of each new token, -1 while unknown; padded with 0.
        copies: int32 [R, 2]; (source, destination) blocks to copy before the step writes; padded with -1.
    """

    block_table: Array
    seq_lens: Array
    query_lens: Array
    cu_query_lens: Array
    slot_mapping: Array
    positions: Array
    token_ids: Array
    copies: Array


class Batch(Generic[Array]):
    """What a step feeds to the model and the kernels: views of the live part of `buffers`.

    Made by `BlockManager.bind_batch`, filled by `BlockManager.reserve`. The arrays belong to Rust: read them, do not
    write into them; a step writes only what differs from the step before. Double-buffered, a batch shows the set that
    was filled last; the other one stays as it was for one step more.
    """

    __slots__ = ("_core", "_other", "buffers", "max_batch_tokens")

    def __init__(
        self,
        manager: _core.BlockManager,
        max_batch_tokens: int,
        *,
        backend: Literal["numpy", "torch"] = "numpy",
        pin_memory: bool = False,
        double_buffer: bool = False,
    ) -> None:
        """Allocate and bind the buffers; users call `BlockManager.bind_batch`."""
        if not isinstance(max_batch_tokens, int | np.integer):
            raise InvalidType(f"max_batch_tokens has type {type(max_batch_tokens).__name__}, must be an int")
        if not 1 <= max_batch_tokens < 2**31:
            raise InvalidArgument(f"max_batch_tokens is {max_batch_tokens}, must be 1 to {2**31 - 1}")
        self.max_batch_tokens = int(max_batch_tokens)
        memory = _backend(backend, pin_memory=pin_memory)
        self.buffers: BatchBuffers[Array]
        self._other: tuple[BatchBuffers[Array], _core.Batch] | None = None
        if double_buffer:
            self._other = self._bind(manager, memory)
        self.buffers, self._core = self._bind(manager, memory)

    def _bind(self, manager: _core.BlockManager, memory: _Memory) -> tuple[BatchBuffers[Array], _core.Batch]:
        rows, columns, num_tokens = manager.max_sequences, manager.max_blocks_per_sequence, self.max_batch_tokens
        allocate, as_numpy = memory
        num_bytes = 4 * (rows * (columns + 5) + 1) + 8 * 3 * num_tokens
        _check_memory(num_bytes)
        try:
            buffers: BatchBuffers[Array] = BatchBuffers(
                block_table=allocate((rows, columns), "int32"),
                seq_lens=allocate((rows,), "int32"),
                query_lens=allocate((rows,), "int32"),
                cu_query_lens=allocate((rows + 1,), "int32"),
                slot_mapping=allocate((num_tokens,), "int64"),
                positions=allocate((num_tokens,), "int64"),
                token_ids=allocate((num_tokens,), "int64"),
                copies=allocate((rows, 2), "int32"),
            )
        except MemoryError as error:
            raise OutOfMemory(num_bytes, 0, "cpu") from error
        arrays = {name: as_numpy(getattr(buffers, name)) for name in BatchBuffers.__slots__}
        return buffers, _core.Batch(manager, num_tokens, **arrays)

    @property
    def _next(self) -> _core.Batch:
        """What the next step fills."""
        return self._core if self._other is None else self._other[1]

    def _turn(self) -> None:
        """Show what was filled last."""
        if self._other is not None:
            shown = self.buffers, self._core
            self.buffers, self._core = self._other
            self._other = shown

    @property
    def num_sequences(self) -> int:
        """Rows of the newest step."""
        return self._core.sizes()[0]

    @property
    def num_tokens(self) -> int:
        """New tokens of the newest step, over all sequences."""
        return self._core.sizes()[1]

    @property
    def num_copies(self) -> int:
        """Blocks to copy before the newest step writes."""
        return self._core.sizes()[2]

    @property
    def max_query_len(self) -> int:
        """Most new tokens of one sequence in the newest step."""
        return self._core.sizes()[3]

    @property
    def max_seq_len(self) -> int:
        """Longest sequence of the newest step, its new tokens included."""
        return self._core.sizes()[4]

    @property
    def block_table(self) -> Array:
        """int32 [num_sequences, max_blocks_per_sequence]."""
        return self._view("block_table", self.num_sequences)

    @property
    def seq_lens(self) -> Array:
        """int32 [num_sequences], the step's new tokens included."""
        return self._view("seq_lens", self.num_sequences)

    @property
    def query_lens(self) -> Array:
        """int32 [num_sequences]."""
        return self._view("query_lens", self.num_sequences)

    @property
    def cu_query_lens(self) -> Array:
        """int32 [num_sequences + 1]."""
        return self._view("cu_query_lens", self.num_sequences + 1)

    @property
    def slot_mapping(self) -> Array:
        """int64 [num_tokens]."""
        return self._view("slot_mapping", self.num_tokens)

    @property
    def positions(self) -> Array:
        """int64 [num_tokens]."""
        return self._view("positions", self.num_tokens)

    @property
    def token_ids(self) -> Array:
        """int64 [num_tokens]; -1 where the id is not known yet."""
        return self._view("token_ids", self.num_tokens)

    @property
    def copies(self) -> Array:
        """int32 [num_copies, 2], (source, destination)."""
        return self._view("copies", self.num_copies)

    def __reduce__(self) -> NoReturn:
        raise InvalidType(
            "a Batch is bound to its manager, it cannot be copied or pickled; copy the arrays of its buffers"
        )

    def _view(self, name: str, length: int) -> Array:
        view: Array = getattr(self.buffers, name)[:length]
        return view


def _backend(backend: Literal["numpy", "torch"], *, pin_memory: bool) -> _Memory:
    """How to allocate an array, and how to see it as a numpy array without a copy."""
    if backend == "numpy":
        if pin_memory:
            raise InvalidArgument('pin_memory is True with backend "numpy", it needs backend "torch"')
        # Views: an array that owns its memory could be made to move it, by resize(refcheck=False).
        return lambda shape, dtype: np.empty(shape, dtype)[:], lambda array: array
    if backend == "torch":
        # By name: this package must import without torch, and only callers who have torch come here.
        torch = importlib.import_module("torch")

        def allocate(shape: tuple[int, ...], dtype: str) -> Any:  # noqa: ANN401 - a torch.Tensor
            return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=pin_memory)

        return allocate, lambda tensor: tensor.numpy()
    raise InvalidArgument(f'backend is {backend!r}, must be "numpy" or "torch"')


def _check_memory(num_bytes: int) -> None:
    """Refuse what the system promises and does not have: padding the buffers would end the process."""
    try:
        available = available_host_memory()
    except LooseleafError:
        return  # outside Linux
    if num_bytes > available:
        raise OutOfMemory(num_bytes, available, "cpu")
