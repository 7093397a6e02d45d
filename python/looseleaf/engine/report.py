"""What a run cost: time, blocks, memory beside what contiguous caches would take."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from looseleaf.engine.request import Request

__all__ = ["Meter", "Report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The measurements of one run; of an interrupted run, those until then.

    Attributes:
        num_requests: answers that were asked for: one for each prompt, or n.
        num_finished: those that came to their end.
        num_prompt_tokens: tokens of all prompts that were not refused.
        num_cached_tokens: those that were not computed, found in the prefix cache or shared by samples.
        num_generated_tokens: tokens that were generated; those of failed requests are not counted, in none of these.
        seconds: time inside the steps: the time that a caller of `stream` takes between events is not counted.
        tokens_per_second: generated tokens by seconds; 0 before the first.
        num_steps: forward passes of the model.
        num_preemptions: how often blocks were taken from a running request.
        num_swaps: how often they were swapped out then; the other times they were computed again.
        num_drafted: tokens that prompt lookup proposed.
        num_accepted: those that were right: each saved a step of its request.
        peak_running: most sequences that ran in one step.
        peak_blocks: most blocks in use in one step.
        paged_bytes: peak blocks x bytes of a block, all layers: what the keys and values really took.
        padded_bytes: peak_running x longest (prompt + max_tokens) of the run x bytes of a token: one contiguous region
            for each sequence that ran at once, each as long as the longest request may become.
        contiguous_bytes: peak_running x max_sequence_len x bytes of a token: the same, each as long as a sequence of
            the engine may become.
        wasted_slots_percent: slots of the blocks in use that held no token, after each step, as a share of all slots of
            the blocks in use, over all steps.
    """

    num_requests: int
    num_finished: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    seconds: float
    tokens_per_second: float
    num_steps: int
    num_preemptions: int
    num_swaps: int
    num_drafted: int
    num_accepted: int
    peak_running: int
    peak_blocks: int
    paged_bytes: int
    padded_bytes: int
    contiguous_bytes: int
    wasted_slots_percent: float


class Meter:
    """Adds up a run, step by step.

    Args:
        block_size: slots of a block.
        bytes_per_token: keys and values of one token, all layers.
        max_sequence_len: tokens that a sequence may hold.
    """

    def __init__(self, *, block_size: int, bytes_per_token: int, max_sequence_len: int) -> None:
        self._block_size = block_size
        self._bytes_per_token = bytes_per_token
        self._max_sequence_len = max_sequence_len
        self._settled = _Sums()
        self._seconds = 0.0
        self._num_steps = 0
        self._peak_running = 0
        self._peak_blocks = 0
        self._sum_slots = 0
        self._sum_empty = 0

    def add_step(self, *, num_running: int, num_blocks: int, num_empty: int) -> None:
        """Count a step.

        Args:
            num_running: sequences that run.
            num_blocks: blocks in use after it.
            num_empty: slots without a token in those blocks.
        """
        self._num_steps += 1
        self._peak_running = max(self._peak_running, num_running)
        self._peak_blocks = max(self._peak_blocks, num_blocks)
        self._sum_slots += num_blocks * self._block_size
        self._sum_empty += num_empty

    def add_seconds(self, seconds: float) -> None:
        """Count the time of a step."""
        self._seconds += seconds

    def settle(self, requests: Iterable[Request]) -> None:
        """Count requests for good: the meter keeps their numbers and not them."""
        self._settled.add(requests)

    def report(self, requests: Iterable[Request]) -> Report:
        """Sum up what was settled, and what requests that are not say of themselves."""
        sums = copy(self._settled)
        sums.add(requests)
        return Report(
            num_requests=sums.num_requests,
            num_finished=sums.num_finished,
            num_prompt_tokens=sums.num_prompt_tokens,
            num_cached_tokens=sums.num_cached_tokens,
            num_generated_tokens=sums.num_generated_tokens,
            seconds=self._seconds,
            tokens_per_second=sums.num_generated_tokens / self._seconds if self._seconds else 0.0,
            num_steps=self._num_steps,
            num_preemptions=sums.num_preemptions,
            num_swaps=sums.num_swaps,
            num_drafted=sums.num_drafted,
            num_accepted=sums.num_accepted,
            peak_running=self._peak_running,
            peak_blocks=self._peak_blocks,
            paged_bytes=self._peak_blocks * self._block_size * self._bytes_per_token,
            padded_bytes=self._peak_running * sums.longest * self._bytes_per_token,
            contiguous_bytes=self._peak_running * self._max_sequence_len * self._bytes_per_token,
            wasted_slots_percent=100 * self._sum_empty / self._sum_slots if self._sum_slots else 0.0,
        )


@dataclass(slots=True)
class _Sums:
    """Over requests, as `Report` names them; `longest`: prompt and `max_tokens` of one."""

    num_requests: int = 0
    num_finished: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    longest: int = 0

    def add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.num_requests += 1
            self.num_preemptions += request.num_preemptions
            self.num_swaps += request.num_swaps
            self.num_drafted += request.num_drafted
            self.num_accepted += request.num_accepted
            if request.finish_reason == "error":
                continue
            self.num_finished += request.finish_reason in ("stop", "length")
            self.num_prompt_tokens += len(request.prompt)
            self.num_cached_tokens += request.num_cached_tokens
            self.num_generated_tokens += request.num_generated * request.num_rows
            self.longest = max(self.longest, request.max_len)
