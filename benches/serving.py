"""Many requests at once through a real model: this engine, transformers' continuous batching, and the floor.

    python benches/serving.py [--workload chats|long|shared ...] [--threads 1 2] [--repeat 1] [--json FILE]

All run the same SmolLM2-135M in float32 on the same prompts in one process, and their tokens must be identical. The
floor is this engine's own loop with attention replaced by nothing: the model's other work and the bookkeeping. The
baselines are `generate_batch` of transformers as it comes (sdpa), and with a ragged attention forced in, which it does
not ship: sdpa for each sequence over its own keys. With one thread process CPU seconds are compared, with two wall
seconds. A first short run of each is not counted. A figure is one run, which takes minutes, or the median of as many as
--repeat says, all four in turn.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, ContinuousBatchingConfig, GenerationConfig

from looseleaf import Engine, SamplingParams
from looseleaf.bench.measure import machine
from looseleaf.cache import Step
from looseleaf.integrations.transformers.smollm2 import load_smollm2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn
    from transformers import PreTrainedModel

RAGGED = "ragged_flash_cpu"  # a name with "flash" takes the path of packed sequences
MAX_BATCH_TOKENS = 1024


@dataclass(frozen=True)
class Workload:
    """Requests, and what is expected of the ratios: times of the floor, of the two baselines over ours."""

    prompts: list[list[int]]
    num_new: int
    goals: tuple[float, float, float]


def workloads(tokens: list[int]) -> dict[str, Workload]:
    """Slices of a text; different ones begin differently."""
    rng = random.Random(0)

    def piece(length: int) -> list[int]:
        start = rng.randrange(len(tokens) - length)
        return tokens[start : start + length]

    system = piece(1000)
    return {
        "chats": Workload([piece(rng.randint(60, 120)) for _ in range(64)], 60, (1.15, 3.0, 1.35)),
        "long": Workload([piece(512) for _ in range(16)], 24, (1.25, 2.4, 1.3)),
        "shared": Workload([system + piece(rng.randint(20, 60)) for _ in range(32)], 24, (1.25, 3.0, 3.0)),
    }


def ours(model: PreTrainedModel, work: Workload) -> list[list[int]]:
    """This engine, with blocks for everybody."""
    num_blocks = sum(-(-(len(prompt) + work.num_new) // 16) for prompt in work.prompts) + 64
    engine = Engine(model, num_blocks=num_blocks, max_sequences=len(work.prompts), max_batch_tokens=MAX_BATCH_TOKENS)
    params = SamplingParams(max_tokens=work.num_new, ignore_eos=True)
    return [result.token_ids for result in engine.generate(work.prompts, params)]


def floor(model: PreTrainedModel, work: Workload) -> list[list[int]]:
    """The same without attention; the tokens mean nothing."""

    def nothing(_step: Step, _layer: int, q: Tensor, *_: Tensor, **__: object) -> Tensor:
        return q.contiguous()

    attend, Step.attend = Step.attend, nothing  # type: ignore[method-assign, assignment]
    try:
        return ours(model, work)
    finally:
        Step.attend = attend  # type: ignore[method-assign]


def theirs(model: PreTrainedModel, work: Workload, *, page_size: int = 256) -> list[list[int]]:
    """Continuous batching of transformers."""
    config = GenerationConfig(
        max_new_tokens=work.num_new, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
    )
    batching = ContinuousBatchingConfig(
        page_size=page_size,
        auto_switch_to_flash=False,
        max_batch_tokens=MAX_BATCH_TOKENS,
        num_blocks=256 * 256 // page_size,
    )
    outputs = model.generate_batch(
        work.prompts, generation_config=config, continuous_batching_config=batching, warmup=False
    )
    answers = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
    return [answers[tuple(prompt)] for prompt in work.prompts]


def _bounds(lengths: Tensor | dict[str, Tensor]) -> list[int]:
    tensor = next(iter(lengths.values())) if isinstance(lengths, dict) else lengths
    bounds: list[int] = tensor.tolist()
    return bounds


def ragged_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor | dict[str, Tensor],
    cu_seq_lens_k: Tensor | dict[str, Tensor],
    scaling: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Each sequence alone: query [1, heads, tokens, head_dim], key and value packed the same way."""
    out = torch.empty_like(query)
    queries, keys = _bounds(cu_seq_lens_q), _bounds(cu_seq_lens_k)
    for begin, end, first, last in zip(queries, queries[1:], keys, keys[1:], strict=False):
        num, length = end - begin, last - first
        if not num:
            continue
        mask = None
        if 1 < num < length:
            mask = torch.ones(num, length, dtype=torch.bool).tril(length - num)
        out[:, :, begin:end] = scaled_dot_product_attention(
            query[:, :, begin:end],
            key[:, :, first:last],
            value[:, :, first:last],
            attn_mask=mask,
            is_causal=num == length and num > 1,
            scale=scaling,
            enable_gqa=True,
        )
    return out.transpose(1, 2), None


@contextmanager
def ragged(model: PreTrainedModel) -> Iterator[None]:
    """Continuous batching with the ragged attention."""
    AttentionInterface.register(RAGGED, ragged_attention)
    before = model.config._attn_implementation_internal  # noqa: SLF001 - no public name takes it
    model.config._attn_implementation_internal = RAGGED  # noqa: SLF001
    try:
        yield
    finally:
        model.config._attn_implementation_internal = before  # noqa: SLF001


def theirs_ragged(model: PreTrainedModel, work: Workload) -> list[list[int]]:
    """With the ragged attention; pages of 16 tokens, as the blocks here."""
    with ragged(model):
        return theirs(model, work, page_size=16)


ENGINES: dict[str, Callable[[PreTrainedModel, Workload], list[list[int]]]] = {
    "looseleaf": ours,
    "floor": floor,
    "sdpa": theirs,
    "ragged": theirs_ragged,
}


def measure(model: PreTrainedModel, work: Workload, num_threads: int, num_runs: int) -> dict[str, float]:
    """Seconds of each engine, median of the runs: CPU with one thread, wall with more. Checks the tokens."""
    torch.set_num_threads(num_threads)
    clock = time.process_time if num_threads == 1 else time.perf_counter
    small = Workload([prompt[:20] for prompt in work.prompts[:2]], 2, work.goals)
    samples: dict[str, list[float]] = {name: [] for name in ENGINES}
    for engine in ENGINES.values():
        engine(model, small)
    for _ in range(num_runs):
        answers = {}
        for name, engine in ENGINES.items():
            start = clock()
            answers[name] = engine(model, work)
            samples[name].append(clock() - start)
            print(f"  {name:<12}{samples[name][-1]:>8.2f} s", flush=True)
        for name in ("sdpa", "ragged"):
            wrong = sum(found != own for found, own in zip(answers[name], answers["looseleaf"], strict=True))
            if wrong:
                raise SystemExit(f"{wrong} of {len(work.prompts)} answers of {name} are not those of looseleaf")
    return {name: median(seconds) for name, seconds in samples.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="*", default=["chats", "long", "shared"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, whose median counts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error(f"--repeat must be at least 1, not {options.repeat}")
    runs = "one run each" if options.repeat == 1 else f"median of {options.repeat} runs"
    model, tokenizer = load_smollm2("float32")
    tokens = tokenizer((Path(__file__).parents[1] / "LICENSE").read_text())["input_ids"]
    every = workloads(tokens)
    document: dict[str, Any] = {"machine": machine(), "rows": []}
    for name in options.workload:
        work = every[name]
        for num_threads in options.threads:
            clock = "CPU" if num_threads == 1 else "wall"
            print(f"{name}, {num_threads} thread(s), {clock} seconds, {runs}", flush=True)
            seconds = measure(model, work, num_threads, options.repeat)
            own = seconds["looseleaf"]
            ratios = {"over floor": own / seconds["floor"]} | {
                f"{other} / looseleaf": seconds[other] / own for other in ("sdpa", "ragged")
            }
            for (label, ratio), goal in zip(ratios.items(), work.goals, strict=True):
                is_met = ratio <= goal if label == "over floor" else ratio >= goal
                print(f"  {label:<20}{ratio:>7.2f}   goal {goal:g}{'' if is_met else ', missed'}", flush=True)
            case = {"workload": name, "threads": num_threads, "runs": options.repeat}
            document["rows"].append(case | {"seconds": seconds, "ratios": ratios})
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
