"""A paged cache, step by step."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from looseleaf import NeverFits, OutOfBlocks, PagedKVCache, Sequence, StaleSequence
from looseleaf.errors import BatchTooSmall, InvalidArgument, InvalidType, SequenceTooLong, StaleStep


def _cache(**changes: Any) -> PagedKVCache:
    arguments: dict[str, Any] = {"num_layers": 2, "num_kv_heads": 1, "head_dim": 1, "dtype": torch.float32}
    arguments |= {"num_blocks": 8, "block_size": 4, "max_sequences": 4, "max_sequence_len": 32, "max_batch_tokens": 32}
    return PagedKVCache(**arguments | changes)


def _rows(values: list[float] | Tensor, heads: int = 1) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)[:, None, None].expand(-1, heads, 1)


def _compute(
    cache: PagedKVCache, sequences: list[Sequence], tokens: list[int] | None = None, num_new: int | None = None
) -> list[float]:
    """Run a step whose keys are 0 and whose values are the token ids; gives each row's mean of what it saw."""
    step = cache.step(sequences, tokens=tokens, num_new=num_new)
    values = step.token_ids.float()
    for layer in range(2):
        out = step.attend(layer, *(_rows(rows * (layer + 1)) for rows in (0 * values, 0 * values, values)))
    step.commit()
    return (out.flatten() / 2).tolist()


def _content(cache: PagedKVCache, sequence: Sequence, layer: int = 0) -> list[float]:
    """Values of all computed tokens, read through the sequence's blocks."""
    values = cache.storage.v(layer)[sequence.blocks].transpose(1, 2).flatten()
    return values[: sequence.num_computed].tolist()


def test_prompt_and_decode_attend_to_what_was_written() -> None:
    cache = _cache()
    with cache.admit([2, 4, 6, 8, 10]) as sequence:
        assert _compute(cache, [sequence]) == pytest.approx([2, 3, 4, 5, 6])
        assert _compute(cache, [sequence], [12]) == pytest.approx([7])
        assert _content(cache, sequence) == [2, 4, 6, 8, 10, 12]
        assert _content(cache, sequence, layer=1) == [4, 8, 12, 16, 20, 24]
    assert cache.stats().num_available == 8


def test_blocks_of_a_fresh_pool_stand_side_by_side() -> None:
    """Memory is read fastest where a sequence's blocks are neighbors."""
    cache = _cache()
    first, second = cache.admit(list(range(14))), cache.admit(list(range(100, 109)))
    _compute(cache, [first, second])
    for blocks in (first.blocks, second.blocks):
        assert blocks == list(range(blocks[0], blocks[0] + len(blocks)))
    assert (len(first.blocks), len(second.blocks)) == (4, 3)


def test_token_after_a_full_block_takes_a_new_one() -> None:
    cache = _cache()
    sequence = cache.admit([1, 2, 3, 4, 5, 6, 7])
    _compute(cache, [sequence])
    blocks = sequence.blocks
    assert len(blocks) == 2
    step = cache.step([sequence], tokens=[8])
    assert step.slot_mapping.tolist() == [blocks[1] * 4 + 3]
    step.commit()
    step = cache.step([sequence], tokens=[9])
    assert sequence.blocks[:2] == blocks
    assert step.slot_mapping.tolist() == [sequence.blocks[2] * 4]


def test_step_names_rows_lengths_and_positions() -> None:
    cache = _cache()
    first, second = cache.admit([1, 2, 3, 4, 5]), cache.admit([11, 12])
    _compute(cache, [first])
    step = cache.step([second, first], tokens=[6], num_new=np.array([2, 1]))
    assert (step.num_sequences, step.num_tokens, step.max_query_len) == (2, 3, 2)
    assert step.token_ids.tolist() == [11, 12, 6]
    assert step.positions.tolist() == [0, 1, 5]
    assert step.seq_lens.tolist() == [2, 6]
    assert step.cu_query_lens.tolist() == [0, 2, 3]
    assert step.last_rows.tolist() == [1, 2]
    assert (step.last_rows.dtype, step.seq_lens.dtype, step.slot_mapping.dtype) == (
        torch.int64,
        torch.int32,
        torch.int64,
    )
    assert step.block_table[0, :1].tolist() == second.blocks
    assert step.block_table[1, :2].tolist() == first.blocks


def test_tables_stand_on_the_device_of_the_tensors() -> None:
    cache = _cache(device="meta")  # knows shapes only
    sequence = cache.admit([1, 2, 3, 4, 5])
    step = cache.step([sequence])
    tables = (step.block_table, step.seq_lens, step.cu_query_lens, step.slot_mapping, step.token_ids, step.positions)
    assert [tensor.shape[0] for tensor in (*tables, step.last_rows)] == [1, 1, 2, 5, 5, 5, 1]
    assert {tensor.device.type for tensor in (*tables, step.last_rows)} == {"meta"}
    rows = torch.zeros(5, 1, 1, device="meta")
    assert step.attend(1, rows, rows, rows).shape == (5, 1, 1)
    step.commit()
    assert sequence.num_computed == 5


def test_handles_and_sequences_name_the_same() -> None:
    cache = _cache()
    first, second = cache.admit([1, 2, 3]), cache.admit([4, 5])
    handles = np.array([first.handle, second.handle])
    step = cache.step(handles)
    handles[:] = 0  # the step kept its own
    step.write(0, _rows([1, 2, 3, 4, 5]), _rows([1, 2, 3, 4, 5]))
    step.commit()
    assert [first.num_computed, second.num_computed] == [3, 2]


def test_fork_and_write_copies_one_block_with_its_content() -> None:
    cache = _cache()
    parent = cache.admit([1, 2, 3, 4, 5, 6])
    _compute(cache, [parent])
    child = parent.fork()
    assert _compute(cache, [child], [100]) == pytest.approx([(21 + 100) / 7])
    assert cache.stats().num_copies == 1
    assert _compute(cache, [parent], [200]) == pytest.approx([(21 + 200) / 7])
    assert cache.stats().num_copies == 1
    assert parent.blocks[0] == child.blocks[0]
    assert cache.stats().num_in_use == 3
    for layer in range(2):
        factor = layer + 1
        assert _content(cache, parent, layer) == [factor * token for token in [1, 2, 3, 4, 5, 6, 200]]
        assert _content(cache, child, layer) == [factor * token for token in [1, 2, 3, 4, 5, 6, 100]]
    parent.release()
    child.release()
    assert cache.stats().num_available == 8


def test_fork_at_a_full_block_copies_nothing() -> None:
    cache = _cache()
    parent = cache.admit(list(range(1, 9)))
    _compute(cache, [parent])
    child = parent.fork()
    _compute(cache, [child, parent], [100, 200])
    assert cache.stats().num_copies == 0
    assert (_content(cache, child)[-1], _content(cache, parent)[-1]) == (100, 200)


def test_forks_in_one_step_diverge() -> None:
    cache = _cache()
    parent = cache.admit([1, 2])
    _compute(cache, [parent])
    children = [parent.fork() for _ in range(3)]
    means = _compute(cache, [parent, *children], [3, 30, 300, 3000])
    assert means == pytest.approx([2, 11, 101, 1001])
    assert [_content(cache, sequence)[-1] for sequence in (parent, *children)] == [3, 30, 300, 3000]


def test_truncated_tokens_are_written_again() -> None:
    cache = _cache()
    sequence = cache.admit([1, 2, 3, 4, 5, 6, 7])
    _compute(cache, [sequence])
    sequence.truncate(3)
    assert _compute(cache, [sequence], [60, 70], 2) == pytest.approx([66 / 4, 136 / 5])
    assert _content(cache, sequence) == [1, 2, 3, 60, 70]


def test_interleaved_sequences_keep_their_own_tokens() -> None:
    cache = _cache(num_blocks=12)
    texts: list[list[int]] = [[10, 11, 12], [20], [30, 31, 32, 33, 34]]
    sequences = [cache.admit(text) for text in texts]
    _compute(cache, sequences)
    for round_ in range(7):
        order = [(round_ + place) % 3 for place in range(3)][: 1 + round_ % 3]
        tokens = [100 * (index + 1) + round_ for index in order]
        for index, token in zip(order, tokens, strict=True):
            texts[index].append(token)
        means = _compute(cache, [sequences[index] for index in order], tokens)
        assert means == pytest.approx([sum(texts[index]) / len(texts[index]) for index in order])
    assert [_content(cache, sequence) for sequence in sequences] == texts
    cache.manager.validate()


def test_prompt_in_chunks_is_the_prompt_at_once() -> None:
    cache = _cache()
    sequence = cache.admit(list(range(1, 15)))
    means = [mean for _ in range(3) for mean in _compute(cache, [sequence], num_new=4)]
    means += _compute(cache, [sequence])
    assert means == pytest.approx([(length + 1) / 2 for length in range(1, 15)])


def test_step_that_failed_is_repeated() -> None:
    cache = _cache()
    parent = cache.admit([1, 2, 3, 4, 5, 6])
    _compute(cache, [parent])
    child = parent.fork()
    step = cache.step([child], tokens=[100])
    step.write(0, _rows([100]), _rows([100]))
    with pytest.raises(InvalidArgument, match="k must have the shape"):
        step.attend(1, _rows([0]), _rows([0], heads=2), _rows([0]))
    assert child.num_computed == 6
    assert _compute(cache, [child]) == pytest.approx([121 / 7])  # its id is known by now
    assert _content(cache, child) == [1, 2, 3, 4, 5, 6, 100]
    assert _content(cache, parent) == [1, 2, 3, 4, 5, 6]
    cache.manager.validate()


def test_step_is_refused_after_its_commit() -> None:
    cache = _cache()
    step = cache.step([cache.admit([1, 2, 3])])
    rows = _rows([1, 2, 3])
    with pytest.raises(InvalidArgument):
        step.commit(99)
    step.write(0, rows, rows)
    step.commit()
    for use in (lambda: step.write(0, rows, rows), lambda: step.attend(0, rows, rows, rows), step.commit):
        with pytest.raises(StaleStep, match="was committed"):
            use()


def test_step_is_refused_after_the_next_one() -> None:
    cache = _cache()
    first, second = cache.admit([1, 2, 3]), cache.admit([4, 5, 6])
    step = cache.step([first])
    newer = cache.step([second])
    rows = _rows([1, 2, 3])
    for use in (lambda: step.write(0, rows, rows), lambda: step.attend(0, rows, rows, rows), step.commit):
        with pytest.raises(StaleStep, match="followed by another"):
            use()
    assert bool((cache.storage.layers[0] == 0).all())
    newer.attend(0, rows, rows, rows)
    newer.commit()


def _state(cache: PagedKVCache) -> tuple[object, ...]:
    stats = cache.stats()
    return (stats.num_available, stats.num_in_use, stats.num_sequences, stats.num_copies, cache.num_steps)


def test_exhaustion_changes_nothing_and_the_last_step_goes_on() -> None:
    cache = _cache(num_blocks=3)
    first, second = cache.admit([1, 2, 3, 4]), cache.admit([5, 6, 7, 8])
    _compute(cache, [first, second])
    step = cache.step([first], tokens=[9])
    before, slots = _state(cache), step.slot_mapping.tolist()
    with pytest.raises(OutOfBlocks) as caught:
        cache.step([first, second], tokens=[10])
    assert (caught.value.requested, caught.value.free) == (1, 0)
    with pytest.raises(OutOfBlocks):
        cache.admit([1])
    with pytest.raises(NeverFits):
        cache.admit(list(range(13)))
    with pytest.raises(SequenceTooLong):
        cache.admit(list(range(33)))
    assert _state(cache) == before
    assert step.slot_mapping.tolist() == slots
    step.attend(0, _rows([0]), _rows([0]), _rows([9]))
    step.commit()
    assert first.num_computed == 5
    cache.manager.validate()


def test_step_larger_than_its_buffers_changes_nothing() -> None:
    cache = _cache(max_batch_tokens=6)
    first, second = cache.admit([1, 2, 3, 4]), cache.admit([5, 6, 7])
    before = _state(cache)
    with pytest.raises(BatchTooSmall):
        cache.step([first, second])
    assert _state(cache) == before
    assert _compute(cache, [first]) == pytest.approx([1, 1.5, 2, 2.5])


def test_released_sequence_is_refused() -> None:
    cache = _cache()
    sequence = cache.admit([1, 2, 3])
    sequence.release()
    with pytest.raises(StaleSequence):
        cache.step([sequence])
    assert cache.num_steps == 0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"layer": 2}, "layer must be 0 to 1, was 2"),
        ({"layer": -1}, "layer must be 0 to 1, was -1"),
        ({"q": _rows([1, 2])}, "q must have the step's 3 tokens"),
        ({"k": _rows([1, 2, 3, 4])}, "tokens"),
        ({"v": _rows([1, 2])}, "tokens=3"),
        ({"window": 0}, "window must be at least 1"),
        ({"q": _rows([1, 2, 3]).clone().requires_grad_()}, "q requires grad"),
    ],
)
def test_wrong_attention_is_named(wrong: dict[str, Any], text: str) -> None:
    cache = _cache()
    step = cache.step([cache.admit([1, 2, 3])])
    rows = _rows([1, 2, 3])
    arguments: dict[str, Any] = {"layer": 0, "q": rows, "k": rows, "v": rows}
    with pytest.raises(InvalidArgument, match=text):
        step.attend(**arguments | wrong)


def test_options_reach_the_operator() -> None:
    cache = _cache()
    step = cache.step([cache.admit([1, 2, 3])])
    zeros, values = _rows([0, 0, 0]), _rows([1, 2, 3])
    lse = torch.zeros(3, 1)
    out = torch.zeros(3, 1, 1)
    assert step.attend(0, zeros, zeros, values, window=2, out=out, lse=lse) is out
    assert out.flatten().tolist() == [1, 1.5, 2.5]
    assert lse.exp().flatten().tolist() == pytest.approx([1, 2, 2])
    halved = step.attend(0, zeros, zeros, values, sinks=torch.zeros(1), window=1)
    assert halved.flatten().tolist() == [0.5, 1, 1.5]
    assert step.attend(0, zeros, zeros, values, causal=False).flatten().tolist() == [2, 2, 2]


def test_empty_step_does_nothing() -> None:
    cache = _cache()
    sequence = cache.admit([1, 2, 3])
    for sequences in ([], [sequence]):
        step = cache.step(sequences, num_new=0)
        assert step.num_tokens == 0
        rows = _rows([])
        assert step.attend(0, rows, rows, rows).shape == (0, 1, 1)
        step.commit()
    assert sequence.num_computed == 0


@pytest.mark.parametrize(
    ("memory", "num_blocks"),
    [(128 * 10, 9), (128 * 10 + 127, 9), (128 * 2, 1), ("1280B", 9), ("12.8KB", 99)],
)
def test_null_block_is_inside_the_budget(memory: str | int, num_blocks: int) -> None:
    cache = _cache(num_layers=4, num_blocks=None, memory=memory)  # a block: 4 layers x 2 x 4 tokens x 4 bytes = 128
    assert cache.manager.num_blocks == cache.storage.num_blocks == num_blocks
    assert cache.storage.num_bytes == 128 * (num_blocks + 1)


def test_budget_may_be_a_part_of_what_is_free() -> None:
    cache = _cache(num_kv_heads=8, head_dim=64, num_blocks=None, memory=1e-3, block_size=256)
    assert 0 < cache.storage.num_bytes < 2**30


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"num_blocks": None}, InvalidArgument, "neither was"),
        ({"memory": "1KiB"}, InvalidArgument, "both were"),
        ({"num_blocks": None, "memory": 63}, InvalidArgument, "memory is 63 bytes"),
        ({"num_blocks": None, "memory": "much"}, InvalidArgument, "memory cannot be 'much'"),
        ({"num_blocks": None, "memory": 1.5}, InvalidArgument, "fraction"),
        ({"num_blocks": 0}, InvalidArgument, "num_blocks"),
        ({"dtype": torch.int8}, InvalidArgument, "dtype"),
        ({"head_dim": 0}, InvalidArgument, "head_dim"),
        ({"block_size": 0}, InvalidArgument, "block_size"),
        ({"max_batch_tokens": 0}, InvalidArgument, "max_batch_tokens"),
        ({"num_layers": "2"}, InvalidType, "num_layers"),
    ],
)
def test_wrong_argument_is_named(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        _cache(**changes)


def test_one_sequence_in_place_of_a_list_is_refused() -> None:
    cache = _cache()
    with pytest.raises(InvalidType, match="sequences must be a list"):
        cache.step(cache.admit([1]))  # type: ignore[arg-type] # wrong on purpose


def test_cache_and_its_tensors_go_when_the_last_step_goes() -> None:
    cache = _cache()
    step = cache.step([cache.admit([1, 2])])
    layer = weakref.ref(cache.storage.layers[0])
    del cache
    assert layer() is not None
    step.write(0, _rows([1, 2]), _rows([1, 2]))
    del step
    assert layer() is None


def test_a_step_stands_whatever_the_manager_reserves_meanwhile() -> None:
    cache = _cache()
    first, other = cache.admit([1, 2, 3]), cache.admit([9, 9, 9])
    _compute(cache, [first, other])
    step = cache.step([first], tokens=[7])
    slots = step.slot_mapping.tolist()
    assert cache.manager.reserve([other], 1, tokens=[8]) == 1
    assert step.slot_mapping.tolist() == slots
    for layer in range(2):
        step.attend(layer, *(_rows([0.0]), _rows([0.0]), _rows([7.0 * (layer + 1)])))
    step.commit()
    assert _content(cache, first) == [1.0, 2.0, 3.0, 7.0]
    assert _content(cache, other) == [9.0, 9.0, 9.0]
