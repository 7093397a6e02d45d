"""Decode steps as CUDA graphs: what a step launches is recorded once for a number of rows, then replayed.

A model of a hundred million to some billion parameters decodes faster than Python can launch its kernels. A graph reads
fixed addresses, so it has tables of its own, into which those of a step are copied; rows beyond the step's are padded:
of length 0 and with slot -1, which the kernels skip. Numbers of rows are rounded up to powers of two.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from looseleaf.cache.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from looseleaf.cache import PagedKVCache

    Replay = Callable[[], Tensor]
    Record = Callable[[Callable[[], Tensor]], Replay]

__all__ = ["DecodeGraphs", "record_on_cuda"]


class _Tables:
    """The tables of a step of `num_rows` decode rows, at fixed addresses."""

    def __init__(self, step: Step, num_rows: int) -> None:
        self.num_sequences = self.num_tokens = num_rows
        self.max_query_len = 1
        device = step.block_table.device
        self._rows = {
            "block_table": step.block_table.new_zeros((num_rows, step.block_table.shape[1])),
            "seq_lens": step.seq_lens.new_zeros(num_rows),
            "slot_mapping": step.slot_mapping.new_full((num_rows,), -1),
            "token_ids": step.token_ids.new_zeros(num_rows),
            "positions": step.positions.new_zeros(num_rows),
            "cu_query_lens": torch.arange(num_rows + 1, dtype=torch.int32, device=device),
        }
        self._last_rows = torch.arange(num_rows, device=device)

    def rows(self, name: str) -> Tensor:
        """A table."""
        return self._rows[name]

    def last_rows(self) -> Tensor:
        """int64 [rows], each its own."""
        return self._last_rows

    def load(self, step: Step) -> None:
        """Take over a step's rows; pad the rest."""
        number = step.num_sequences
        for name, padding in (
            ("block_table", 0),
            ("seq_lens", 0),
            ("slot_mapping", -1),
            ("token_ids", 0),
            ("positions", 0),
        ):
            table = self._rows[name]
            table[:number].copy_(getattr(step, name))
            table[number:].fill_(padding)


class _FixedStep(Step):
    """A step that is never followed by another: its tables are filled again for every replay."""

    __slots__ = ()

    def _check_newest(self) -> None:
        pass


class DecodeGraphs:
    """The graphs of one model on one cache.

    Args:
        cache: whose steps these are.
        most: most rows of a graph.
        call: the model on a step: logits [rows, vocabulary] after the last token of each sequence.
        record: turns a function into its replay, which returns the same tensor every time.
    """

    def __init__(self, cache: PagedKVCache, most: int, call: Callable[[Step], Tensor], record: Record) -> None:
        self._cache = cache
        self._call = call
        self._record = record
        self._most = most
        self._graphs: dict[int, tuple[_Tables, Replay]] = {}

    @property
    def sizes(self) -> list[int]:
        """Rows of the graphs that were recorded."""
        return list(self._graphs)

    def forward(self, step: Step) -> Tensor | None:
        """Logits [sequences, vocabulary] of a step, good until the next call; None: it does more than decode."""
        number = step.num_sequences
        if not 0 < number <= self._most or step.num_tokens != number or step.max_query_len != 1:
            return None
        size = min(1 << (number - 1).bit_length(), self._most)
        found = self._graphs.get(size)
        if found is None:
            # Recorded with nothing but padding in its tables: what runs meanwhile writes nowhere.
            tables = _Tables(step, size)
            fixed = _FixedStep(self._cache, [], tables)
            found = self._graphs[size] = tables, self._record(lambda: self._call(fixed))
        tables, replay = found
        tables.load(step)
        return replay()[:number]


_RECORDING = threading.Lock()  # one at a time in a process


def record_on_cuda(device: torch.device, run: Callable[[], Tensor]) -> Replay:
    """Record a function's launches on a device, after a run that lets libraries allocate what they keep."""
    with torch.cuda.device(device), _RECORDING:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            out = run()

    def replay() -> Tensor:
        with torch.cuda.device(device):
            graph.replay()
        return out

    return replay
