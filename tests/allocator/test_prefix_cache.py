"""The prefix cache as a caller of the allocator sees it."""

from __future__ import annotations

import numpy as np
import pytest

import looseleaf
from looseleaf import BlockManager, Namespace, OutOfBlocks


def compute(manager: BlockManager, tokens: list[int], namespace: Namespace | None = None) -> looseleaf.Sequence:
    """Admit and compute a prompt."""
    sequence = manager.admit(tokens, namespace=namespace)
    manager.reserve([sequence])
    manager.commit([sequence])
    return sequence


def test_a_prompt_that_begins_alike_shares_the_computed_blocks() -> None:
    manager = BlockManager(16, 4)
    first = compute(manager, list(range(10)))
    second = manager.admit([*range(8), 50, 51, 52])
    assert (second.num_cached_tokens, second.num_computed, second.num_tokens) == (8, 8, 11)
    assert second.blocks[:2] == first.blocks[:2]
    batch = manager.bind_batch(max_batch_tokens=16)
    manager.reserve([second])
    assert batch.positions.tolist() == [8, 9, 10]
    assert batch.token_ids.tolist() == [50, 51, 52]
    assert batch.seq_lens.tolist() == [11]
    manager.validate()


def test_released_content_is_found_until_blocks_run_out() -> None:
    manager = BlockManager(4, 4)
    compute(manager, list(range(8))).release()
    assert manager.lookup(list(range(9))) == (8, "capped")
    assert (manager.stats().num_idle, manager.stats().num_free, manager.stats().num_available) == (2, 2, 4)
    other = manager.admit(list(range(100, 112)))
    assert manager.lookup(list(range(9))) == (4, "no entry")
    assert manager.stats().num_evicted == 1
    other.release()
    manager.validate()


def test_generated_tokens_are_found_like_prompt_tokens() -> None:
    manager = BlockManager(8, 4)
    sequence = compute(manager, [1, 2, 3])
    for token in range(4, 9):
        manager.reserve([sequence], 1, tokens=[token])
        manager.commit([sequence])
    assert manager.lookup([1, 2, 3, 4, 5, 6, 7, 8, 9]) == (8, "capped")


def test_a_duplicate_gives_way_to_the_block_that_is_there() -> None:
    manager = BlockManager(8, 4)
    first, second = manager.admit(list(range(9))), manager.admit(list(range(9)))
    handles = np.array([first.handle, second.handle], dtype=np.int64)
    batch = manager.bind_batch(max_batch_tokens=32)
    manager.reserve(handles)
    assert first.blocks[:2] != second.blocks[:2]
    manager.commit(handles)
    assert first.blocks[:2] == second.blocks[:2]
    manager.reserve(handles, 1, tokens=[9, 9])
    assert batch.block_table[:, :3].tolist() == [first.blocks, second.blocks]
    assert manager.stats().num_in_use == 4
    manager.validate()


def test_namespaces_never_share() -> None:
    manager = BlockManager(16, 4)
    compute(manager, list(range(8)), Namespace(adapter=("S", "")))
    assert manager.lookup(list(range(9)), namespace=Namespace(adapter=("S", ""))) == (8, "capped")
    for other in (None, Namespace(salt="S"), Namespace(adapter=("", "S")), Namespace(parts={"adapter": "S"})):
        assert manager.lookup(list(range(9)), namespace=other) == (0, "namespace")


@pytest.mark.parametrize("wrong", [3, None, ["a"]])
def test_a_part_that_is_no_text_is_refused(wrong: object) -> None:
    with pytest.raises(looseleaf.errors.InvalidType, match="parts has type"):
        Namespace(parts={"name": wrong})  # type: ignore[dict-item]
    with pytest.raises(looseleaf.errors.InvalidType, match="namespace has type"):
        BlockManager(4).lookup([1], namespace="tenant")  # type: ignore[arg-type]


def test_arguments_of_another_kind_are_refused() -> None:
    wrong: list[tuple[str, dict[str, object]]] = [
        ("weight_epoch", {"weight_epoch": -1}),
        ("weight_epoch", {"weight_epoch": "1"}),
        ("adapter", {"adapter": ("id",)}),
        ("adapter", {"adapter": "id"}),
        ("parts", {"parts": ["a"]}),
        ("salt", {"salt": 3}),
    ]
    for argument, arguments in wrong:
        with pytest.raises(looseleaf.LooseleafError, match=argument):
            Namespace(**arguments)  # type: ignore[arg-type]


def test_equal_parts_make_equal_namespaces() -> None:
    one = Namespace(salt="a", weight_epoch=2, parts={"x": b"1", "y": "2"})
    two = Namespace(parts={"y": b"2", "x": "1"}, weight_epoch=2, salt=b"a")
    assert one == two
    assert hash(one) == hash(two)
    assert one.key == two.key
    assert len({one.key, Namespace().key, Namespace(salt="").key, Namespace(parts={"xy": "12"}).key}) == 4
    assert "a" not in repr(one).split("bytes")[0].removeprefix("Namespace(<")


def test_an_invalidation_counts_what_is_dropped_and_what_is_held() -> None:
    manager = BlockManager(16, 4)
    compute(manager, list(range(20, 28))).release()
    alive = compute(manager, list(range(9)))
    assert manager.invalidate() == (4, 2)
    assert manager.lookup(list(range(9))) == (0, "namespace")
    assert alive.num_computed == 9
    alive.release()
    assert manager.stats().num_free == 16
    assert manager.reset() == (0, 0)
    manager.validate()


def test_what_is_not_to_be_cached_is_not() -> None:
    manager = BlockManager(16, 4)
    quiet = manager.admit(list(range(8)), cache=False)
    manager.reserve([quiet])
    manager.commit([quiet])
    assert manager.lookup(list(range(9)))[0] == 0
    quiet.release()
    compute(manager, list(range(8))).release(cache=False)
    assert manager.lookup(list(range(9)))[0] == 0
    assert manager.stats().num_free == 16


def test_evict_frees_the_oldest() -> None:
    manager = BlockManager(8, 4)
    compute(manager, [1, 2, 3, 4]).release()
    compute(manager, [5, 6, 7, 8]).release()
    assert manager.evict(1) == 1
    assert manager.lookup([1, 2, 3, 4, 5])[0] == 0
    assert manager.lookup([5, 6, 7, 8, 9])[0] == 4
    assert manager.evict(10) == 1


def test_can_admit_agrees_with_an_admission_that_follows() -> None:
    for extra in range(1, 20):
        manager = BlockManager(5, 4)
        compute(manager, list(range(8))).release()
        prompt = [*range(8), *range(100, 100 + extra)]
        can = manager.can_admit(prompt)
        try:
            manager.admit(prompt)
        except (OutOfBlocks, looseleaf.NeverFits):
            assert not can
        else:
            assert can
        manager.validate()


def test_a_number_of_tokens_takes_no_other_wishes() -> None:
    manager = BlockManager(5, 4)
    assert manager.can_admit(20)
    for wish in ({"reserve": 100}, {"namespace": Namespace(salt="a")}, {"cache": False}):
        with pytest.raises(looseleaf.errors.InvalidArgument, match="need its token ids"):
            manager.can_admit(5, **wish)


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    manager = BlockManager(8, 4, prefix_caching=False)
    compute(manager, list(range(8))).release()
    assert manager.lookup(list(range(9))) == (0, "disabled")
    assert (manager.stats().num_free, manager.stats().num_idle) == (8, 0)


def test_sizes_that_no_machine_has_are_refused() -> None:
    with pytest.raises(looseleaf.errors.OutOfMemory, match="bytes"):
        BlockManager(2**31 - 2, 1, max_sequences=2**31 - 1, max_sequence_len=2**31 - 1)


def test_hit_rates_are_counted_in_tokens() -> None:
    manager = BlockManager(16, 4)
    compute(manager, list(range(8)))
    manager.admit(list(range(10)))
    stats = manager.stats()
    assert (stats.num_hit_tokens, stats.num_looked_up) == (8, 18)
