"""Decode steps in padded tables at fixed addresses answer as steps of their own size; a card records them, too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("transformers")

from looseleaf import Engine, SamplingParams
from looseleaf.engine.graphs import DecodeGraphs
from looseleaf.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedModel

    from looseleaf.engine.runner import Runner

MAX_TOKENS = 24


class Counting:
    """A record that runs the function again at every replay, into the same tensor."""

    def __init__(self) -> None:
        self.num_replays = 0

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        out = run().clone()

        def replay() -> Tensor:
            self.num_replays += 1
            return out.copy_(run())

        return replay


def with_graphs(engine: Engine) -> tuple[Counting, DecodeGraphs]:
    """Let an engine on the CPU replay."""
    runner: Runner = engine._loop._forward.__self__  # type: ignore[attr-defined]
    record = Counting()
    runner.graphs = DecodeGraphs(engine.cache, engine.cache.manager.max_sequences, runner.call, record)
    return record, runner.graphs


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
        SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, temperature=0.8, seed=3, n=2),
        SamplingParams(max_tokens=8, num_beams=3, ignore_eos=True),
        SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, prompt_lookup_num_tokens=2),
    ],
    ids=["greedy", "samples", "beams", "lookup"],
)
@pytest.mark.parametrize("num_blocks", [200, 30])
def test_replayed_steps_answer_as_launched_ones(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]], params: SamplingParams, num_blocks: int
) -> None:
    def answers(*, is_replayed: bool) -> list[list[int]]:
        engine = Engine(tiny_model, num_blocks=num_blocks, block_size=8, max_sequences=11)
        if is_replayed:
            record, graphs = with_graphs(engine)
        # One after the other leaves, so that steps have fewer and fewer rows.
        each = [replace(params, max_tokens=params.max_tokens - number // 2) for number in range(len(tiny_prompts))]
        results = engine.generate(tiny_prompts, each)
        assert [result.error for result in results] == [None] * len(results)
        assert engine.cache.stats().num_available == num_blocks
        engine.cache.manager.validate()
        if is_replayed:
            assert record.num_replays > 2
            assert set(graphs.sizes) <= {1, 2, 4, 8, 11}
            assert len(graphs.sizes) > 1
        return [result.token_ids for result in results]

    assert answers(is_replayed=True) == answers(is_replayed=False)


def test_padding_leaves_the_cache_alone(tiny_model: PreTrainedModel) -> None:
    engine = Engine(tiny_model, num_blocks=40, block_size=8, max_sequences=8)
    with_graphs(engine)
    untouched = [layer[0].clone() for layer in engine.cache.storage.layers]
    for layer in engine.cache.storage.layers:
        layer[20:] = torch.nan
    engine.generate([[5, 6], [7], [8, 9, 10]], SamplingParams(max_tokens=20, ignore_eos=True))
    for layer, before in zip(engine.cache.storage.layers, untouched, strict=True):
        assert torch.equal(layer[0], before)
        assert layer[20:].isnan().all()


def test_graphs_without_a_card_are_refused(tiny_model: PreTrainedModel) -> None:
    with pytest.raises(InvalidArgument, match="cuda_graphs needs a model on a CUDA device, this one is on cpu"):
        Engine(tiny_model, num_blocks=8, cuda_graphs=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recorded_steps_answer_as_launched_ones_on_a_card(
    tiny_model: PreTrainedModel, tiny_prompts: list[list[int]]
) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    try:
        tiny_model.to("cuda")
        launched, recorded = (
            Engine(tiny_model, num_blocks=200, block_size=8, max_sequences=11, cuda_graphs=cuda_graphs)
            for cuda_graphs in (False, True)
        )
        expected = [result.token_ids for result in launched.generate(tiny_prompts, params)]
        graphs = recorded._loop._forward.__self__.graphs  # type: ignore[attr-defined]
        for _ in range(2):
            assert [result.token_ids for result in recorded.generate(tiny_prompts, params)] == expected
        assert 8 in graphs.sizes
    finally:
        tiny_model.to("cpu")
