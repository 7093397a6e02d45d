"""The tables of a step on the device of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from looseleaf.allocator import Batch

__all__ = ["DeviceTables", "Tables"]

_NAMES = ("block_table", "seq_lens", "cu_query_lens", "slot_mapping", "positions", "token_ids", "copies")


class Tables(Protocol):
    """What a step reads: its sizes, and its tables by name."""

    num_sequences: int
    num_tokens: int
    max_query_len: int

    def rows(self, name: str) -> Tensor:
        """The live part of a table."""

    def last_rows(self) -> Tensor:
        """int64 [num_sequences]: the row of each sequence's last new token."""


class DeviceTables:
    """The buffers of a batch: itself on the CPU, a copy of equal size on another device. Addresses never change."""

    __slots__ = (
        "_batch",
        "_copied",
        "_last_rows",
        "_lengths",
        "_tensors",
        "max_query_len",
        "num_sequences",
        "num_tokens",
    )

    def __init__(self, batch: Batch[Tensor], device: torch.device) -> None:
        """Allocate what the device needs.

        Args:
            batch: tensors on the CPU, in pinned memory for a GPU.
            device: where the caches are.
        """
        self._batch = batch
        host = {name: getattr(batch.buffers, name) for name in _NAMES}
        is_host = device.type == "cpu"
        self._tensors = host if is_host else {name: torch.zeros_like(host[name], device=device) for name in _NAMES}
        self._last_rows = torch.zeros(len(host["seq_lens"]), dtype=torch.int64, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._lengths = dict.fromkeys(_NAMES, 0)
        self.num_sequences = self.num_tokens = self.max_query_len = 0

    def wait(self) -> None:
        """Wait until the device has read the batch, so that it may be filled again."""
        if self._copied is not None:
            self._copied.synchronize()

    def update(self) -> None:
        """Take over what the batch holds now; asynchronous on a GPU."""
        batch = self._batch
        self.num_sequences, self.num_tokens, self.max_query_len = (
            batch.num_sequences,
            batch.num_tokens,
            batch.max_query_len,
        )
        rows, tokens = self.num_sequences, self.num_tokens
        self._lengths = {"block_table": rows, "seq_lens": rows, "cu_query_lens": rows + 1, "copies": batch.num_copies}
        self._lengths |= {"slot_mapping": tokens, "positions": tokens, "token_ids": tokens}
        for name, length in self._lengths.items():
            host = getattr(batch.buffers, name)
            if self._tensors[name] is not host:
                self._tensors[name][:length].copy_(host[:length], non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def rows(self, name: str) -> Tensor:
        """The live part of a buffer."""
        return self._tensors[name][: self._lengths[name]]

    def last_rows(self) -> Tensor:
        """int64 [num_sequences]: the row of each sequence's last new token."""
        return torch.sub(self.rows("cu_query_lens")[1:], 1, out=self._last_rows[: self.num_sequences])
