"""Time of work on a device: replays of a CUDA graph between events; on a CPU, where tests run this, plain calls."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def seconds_of(call: Callable[[], object], device: str, repeats: int = 5) -> float:
    """Median time of a call."""
    call()
    samples = []
    for _ in range(repeats):
        if device == "cpu":
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        samples.append(float(begin.elapsed_time(end)) / 1e3)
    return sorted(samples)[repeats // 2]


def captured(calls: Sequence[Callable[[], object]], device: str) -> Callable[[], object]:
    """All calls as one CUDA graph."""

    def all_calls() -> None:
        for call in calls:
            call()

    if device == "cpu":
        return all_calls
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        all_calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_calls()
    return graph.replay


def read_ceiling(device: str, num_bytes: int) -> float:
    """Bytes a second of the fastest of PyTorch's reductions over memory that no cache holds."""
    values = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    words = values.view(torch.int32)
    reductions: tuple[Callable[[], Tensor], ...] = (values.sum, values.amax, words.amax)
    return max(num_bytes / seconds_of(captured([call], device), device) for call in reductions)
