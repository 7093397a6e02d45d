"""`model.generate()` over a paged cache and over transformers' DynamicCache, SmolLM2 in float32.

Baseline: DynamicCache, which joins each layer's keys and values with the new ones in every step, selects all of them
for every reordering of beams, and copies all of them for a fork. Same model and process, one thread, CPU time; the
tokens are compared before anything is timed.

The prompt is computed once for each cache; every generation goes on from a copy. Steps are timed from one forward
pass to the next, all that happens between them included. Floor: the same model with attention and cache left out.

Run: python benches/transformers_cache.py [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import inspect
import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, DynamicCache

from looseleaf.integrations.transformers import PagedCache
from looseleaf.integrations.transformers.smollm2 import load_smollm2
from report import Report, median_seconds

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

NUM_BLOCKS = 1024
CONTEXT_LEN = 500
NUM_FORKED = 1000
WARM, MANY = 2, 8
REPEATS = 5


def generate(model: PreTrainedModel, ids: torch.Tensor, cache: Cache, num_new: int, num_beams: int) -> torch.Tensor:
    """One generation of exactly `num_new` tokens."""
    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    mask = torch.ones_like(ids)
    options: dict[str, Any] = {
        "attention_mask": mask,
        "max_new_tokens": num_new,
        "min_new_tokens": num_new,
        "num_beams": num_beams,
    }
    output: torch.Tensor = model.generate(ids, **{name: cache}, do_sample=False, **options)
    return output


def step_seconds(model: PreTrainedModel, ids: torch.Tensor, cache: Cache, num_beams: int) -> tuple[float, torch.Tensor]:
    """CPU seconds of one step of decode, and the tokens."""
    times: list[float] = []
    handle = model.model.register_forward_pre_hook(lambda *_: times.append(time.thread_time()))
    try:
        output = generate(model, ids, cache, MANY, num_beams)
    finally:
        handle.remove()
    steps = times[WARM:]
    return (steps[-1] - steps[0]) / (len(steps) - 1), output


def no_attention(_: object, query: torch.Tensor, *__: object, **___: object) -> tuple[torch.Tensor, None]:
    """Attention that costs nothing and is wrong."""
    return query.transpose(1, 2), None


def compare(report: Report, model: PreTrainedModel, paged: PagedCache, ids: torch.Tensor, num_beams: int) -> None:
    """Add both caches' time of a step, and the floor's."""
    paged.reset()
    prompts: dict[str, Cache] = {"DynamicCache": DynamicCache(config=model.config), "PagedCache": paged}
    for cache in prompts.values():
        generate(model, ids[:, :-1], cache, 1, 1)
    samples: dict[str, list[float]] = {name: [] for name in (*prompts, "floor")}
    for _ in range(REPEATS):
        outputs = []
        for name, prompt in prompts.items():
            cache = copy.deepcopy(prompt)
            cache.batch_repeat_interleave(num_beams)
            seconds, output = step_seconds(model, ids, cache, num_beams)
            samples[name].append(seconds)
            outputs.append(output.tolist())
            if isinstance(cache, PagedCache):
                cache.reset()
        assert outputs[0] == outputs[1], "the tokens differ"
        model.set_attn_implementation("no_attention")
        samples["floor"].append(step_seconds(model, ids, Nothing(ids.shape[1] - 1), num_beams)[0])
        model.set_attn_implementation("sdpa")
    medians = {name: sorted(values)[len(values) // 2] for name, values in samples.items()}
    what = f"{num_beams} beams" if num_beams > 1 else f"batch {len(ids)}"
    report.add(f"{what}, {ids.shape[1]} tokens of context: DynamicCache", medians["DynamicCache"], baseline=True)
    report.add(f"{what}, {ids.shape[1]} tokens of context: PagedCache", medians["PagedCache"])
    report.add(f"{what}: no cache and no attention", medians["floor"], note="the floor")


class Nothing(DynamicCache):  # type: ignore[misc]
    """Keeps lengths alone."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: object, **__: object) -> Any:  # noqa: ANN401
        if layer_idx == 0:
            self.length += key.shape[2]
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return self.length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        pass


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the table to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    AttentionInterface.register("no_attention", no_attention)
    model, _ = load_smollm2("float32", progress=False)
    model.set_attn_implementation("sdpa")
    generator = torch.Generator().manual_seed(0)
    report = Report("generate() of SmolLM2, CPU time of one decode step; a fork", baseline="DynamicCache")
    with PagedCache(model, num_blocks=NUM_BLOCKS) as paged, torch.inference_mode():
        for rows, num_beams in ((8, 1), (1, 4)):
            ids = torch.randint(3, 40000, (rows, CONTEXT_LEN), generator=generator)
            compare(report, model, paged, ids, num_beams)
        ids = torch.randint(3, 40000, (1, NUM_FORKED), generator=generator)
        paged.reset()
        contiguous = DynamicCache(config=model.config)
        for cache in (contiguous, paged):
            generate(model, ids, cache, 1, 1)
        report.add(
            f"fork of {NUM_FORKED} tokens: deepcopy of DynamicCache",
            median_seconds(lambda: copy.deepcopy(contiguous), repeats=REPEATS),
            baseline=True,
        )
        report.add(
            f"fork of {NUM_FORKED} tokens: deepcopy of PagedCache",
            median_seconds(lambda: copy.deepcopy(paged), repeats=REPEATS, calls=20),
        )
    report.finish(arguments.json)


if __name__ == "__main__":
    main()
