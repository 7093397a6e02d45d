from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.cache.by_hand import ByHand

from looseleaf import Namespace, PagedKVCache
from looseleaf.cache.swap import SwappedIn, SwapSpace
from looseleaf.errors import InvalidArgument, InvalidType, OutOfBlocks, StaleSequence

if TYPE_CHECKING:
    from looseleaf import Sequence

BLOCK_SIZE = 4
LAYERS = 2


def new_cache(num_blocks: int = 8, *, prefix_caching: bool = False) -> PagedKVCache:
    return PagedKVCache(
        num_layers=LAYERS,
        num_kv_heads=2,
        head_dim=4,
        dtype=torch.float32,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_sequences=8,
        prefix_caching=prefix_caching,
    )


def computed(cache: PagedKVCache, tokens: list[int]) -> Sequence:
    """A sequence whose keys and values are its token ids, plus the layer's number in thousands."""
    seq = cache.admit(tokens)
    step = cache.step([seq])
    rows = step.token_ids.float()[:, None, None].expand(-1, 2, 4)
    for layer in range(LAYERS):
        step.write(layer, rows + 1000 * layer, -rows - 1000 * layer)
    step.commit()
    return seq


def content(cache: PagedKVCache, seq: Sequence, num_tokens: int) -> list[list[float]]:
    """Keys of each layer, of the first head and element; the values must be their negatives."""
    rows = []
    for layer in range(LAYERS):
        k, v = cache.storage.k(layer)[seq.blocks], cache.storage.v(layer)[seq.blocks]
        assert torch.equal(k, -v)
        rows.append(k[:, 0, :, 0].flatten()[:num_tokens].tolist())
    return rows


def expected(tokens: list[int]) -> list[list[float]]:
    return [[float(token + 1000 * layer) for token in tokens] for layer in range(LAYERS)]


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
def test_a_sequence_comes_back_as_it_went(length: int, prefix_caching: bool) -> None:
    cache = new_cache(prefix_caching=prefix_caching)
    space = SwapSpace(cache, num_blocks=4)
    tokens = list(range(100, 100 + length))
    swapped = space.swap_out(computed(cache, tokens))
    assert swapped.is_done
    assert cache.stats().num_available == 8
    assert space.num_free == 4 - -(-length // BLOCK_SIZE)
    others = [computed(cache, [7 + number] * 16) for number in range(2)]  # all of the pool, written over
    assert cache.stats().num_available == 0
    others[0].release(cache=False)
    coming = space.swap_in(swapped, [*tokens, 5])
    assert coming.is_done
    assert coming.sequence.num_computed == length
    assert content(cache, coming.sequence, length) == expected(tokens)
    assert space.num_free == 4
    step = cache.step([coming.sequence])
    assert step.positions.tolist() == [length]
    step.commit()
    coming.sequence.release()
    others[1].release()
    assert cache.stats().num_available == 8
    cache.manager.validate()


def test_a_space_that_is_full_refuses_and_the_sequence_goes_on() -> None:
    cache = new_cache()
    space = SwapSpace(cache, num_blocks=2)
    seq = computed(cache, list(range(9)))
    with pytest.raises(OutOfBlocks, match="need 3 blocks, 2 free, 0 evictable"):
        space.swap_out(seq)
    assert seq.num_computed == 9
    seq.truncate(8)
    space.swap_out(seq)
    assert space.num_free == 0
    with pytest.raises(StaleSequence):
        seq.fork()


def test_a_pool_that_is_full_refuses_and_what_was_swapped_stays() -> None:
    cache = new_cache(num_blocks=4)
    space = SwapSpace(cache, num_blocks=4)
    tokens = list(range(10, 20))
    swapped = space.swap_out(computed(cache, tokens))
    other = computed(cache, [1] * 8)
    with pytest.raises(OutOfBlocks):
        space.swap_in(swapped, tokens)
    assert (space.num_free, cache.stats().num_in_use) == (1, 2)
    other.release()
    assert content(cache, space.swap_in(swapped, tokens).sequence, 10) == expected(tokens)


def test_what_is_discarded_gives_its_room_back_once() -> None:
    cache = new_cache()
    space = SwapSpace(cache, num_blocks=3)
    swapped = space.swap_out(computed(cache, [1, 2, 3, 4, 5]))
    space.discard(swapped)
    space.discard(swapped)
    assert space.num_free == 3
    with pytest.raises(InvalidArgument, match="neither discarded nor swapped in before"):
        space.swap_in(swapped, [1, 2, 3, 4, 5])


def test_wrong_calls_are_refused() -> None:
    cache = new_cache()
    for sizes in ({}, {"num_blocks": 2, "memory": "1MiB"}):
        with pytest.raises(InvalidArgument, match="exactly one of num_blocks and memory"):
            SwapSpace(cache, **sizes)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="memory must hold two blocks of 512 bytes, was 1000"):
        SwapSpace(cache, memory=1000)
    space = SwapSpace(cache, memory=512 * 3)
    assert space.num_blocks == 2
    with pytest.raises(InvalidArgument, match="no computed token"):
        space.swap_out(cache.admit([1, 2]))
    swapped = space.swap_out(computed(cache, [1, 2, 3]))
    with pytest.raises(InvalidArgument, match="tokens must be at least the 3 swapped ones, were 2"):
        space.swap_in(swapped, [1, 2])
    assert space.num_free == 1


def test_blocks_in_flight_are_not_reused() -> None:
    cache, hand = new_cache(num_blocks=4), ByHand()
    space = SwapSpace(cache, num_blocks=4, copier=hand)
    tokens = list(range(10, 18))
    swapped = space.swap_out(computed(cache, tokens))
    assert (space.num_leaving_blocks, swapped.is_done) == (2, False)
    assert cache.stats().num_available == 2
    with pytest.raises(OutOfBlocks):
        cache.admit([0] * 12)
    with pytest.raises(InvalidArgument, match="must be copied out"):
        space.swap_in(swapped, tokens)
    hand.finish()
    space.settle()
    assert (space.num_leaving_blocks, swapped.is_done) == (0, True)
    other = computed(cache, [0] * 8)  # over the blocks that were copied
    coming = space.swap_in(swapped, tokens)
    assert (coming.is_done, cache.stats().num_available) == (False, 0)
    assert coming.sequence.num_computed == 0, "nothing may be found that is not there yet"
    assert space.num_free == 2
    hand.finish()
    space.settle()
    assert coming.is_done
    assert content(cache, coming.sequence, 8) == expected(tokens)
    assert space.num_free == 4
    other.release()


def test_others_find_a_prefix_that_comes_back_only_when_it_is_there() -> None:
    cache, hand = new_cache(prefix_caching=True), ByHand()
    space = SwapSpace(cache, num_blocks=4, copier=hand)
    tokens = list(range(10, 19))
    swapped = space.swap_out(computed(cache, tokens))
    hand.finish()
    space.settle()
    cache.manager.reset()
    coming = space.swap_in(swapped, tokens)
    assert cache.manager.lookup([*tokens, 1]).num_tokens == 0
    hand.finish()
    space.settle()
    assert cache.manager.lookup([*tokens, 1]).num_tokens == 8
    coming.sequence.release()


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_coming", [False, True])
def test_what_is_discarded_in_flight_is_given_back_when_its_copies_are_done(is_coming: bool, is_late: bool) -> None:
    cache, hand = new_cache(), ByHand()
    space = SwapSpace(cache, num_blocks=4, copier=hand)
    tokens = list(range(10, 18))
    flying: object = space.swap_out(computed(cache, tokens))
    if is_coming:
        hand.finish()
        space.settle()
        flying = space.swap_in(flying, tokens)  # type: ignore[arg-type]
    space.discard(flying)  # type: ignore[arg-type]
    assert cache.stats().num_available == 6, "in flight, so not available"
    assert space.num_free == 2
    if is_late:
        for _ in range(3):
            space.settle()
        assert cache.stats().num_available == 6
    hand.finish()
    space.settle(wait=True)
    assert cache.stats().num_available == 8
    assert space.num_free == 4
    assert not (isinstance(flying, SwappedIn) and flying.is_done)
    cache.manager.validate()


def test_settle_can_wait() -> None:
    cache, hand = new_cache(), ByHand(finishes_when_waited_for=True)
    space = SwapSpace(cache, num_blocks=4, copier=hand)
    swapped = space.swap_out(computed(cache, [1, 2, 3]))
    space.settle(wait=True)
    assert swapped.is_done
    assert cache.stats().num_available == 8
    assert space.seconds_per_block == 0.5


def test_a_sequence_comes_back_into_its_own_namespace() -> None:
    cache = new_cache(num_blocks=12, prefix_caching=True)
    space = SwapSpace(cache, num_blocks=4)
    tokens, tenant = list(range(10, 19)), Namespace(salt="tenant")
    own = cache.admit(tokens, namespace=tenant)
    cache.step([own]).commit()
    swapped = space.swap_out(own)
    cache.manager.reset()
    others = computed(cache, tokens)  # the same tokens of nobody's namespace
    coming = space.swap_in(swapped, tokens, namespace=tenant, reserve=16)
    assert not set(coming.sequence.blocks) & set(others.blocks)
    assert len(coming.sequence.blocks) == 4
    assert cache.manager.lookup(tokens, namespace=tenant).num_tokens == 8


def test_what_takes_no_part_in_the_prefix_cache_comes_back_so() -> None:
    cache = new_cache(num_blocks=12, prefix_caching=True)
    space = SwapSpace(cache, num_blocks=4)
    tokens = list(range(10, 19))
    own = cache.admit(tokens, cache=False)
    cache.step([own]).commit()
    coming = space.swap_in(space.swap_out(own), tokens, cache=False)
    assert coming.sequence.num_computed == 9
    assert cache.manager.lookup(tokens).num_tokens == 0


def test_sequences_in_flight_are_counted_until_they_are_released() -> None:
    cache, hand = new_cache(), ByHand()
    space = SwapSpace(cache, num_blocks=4, copier=hand)
    swapped = space.swap_out(computed(cache, [1, 2]))
    assert (space.num_leaving_sequences, cache.stats().num_sequences) == (1, 1)
    hand.finish()
    assert (space.num_leaving_sequences, cache.stats().num_sequences) == (0, 0)
    coming = space.swap_in(swapped, [1, 2, 3])
    assert space.num_leaving_sequences == 0
    space.discard(coming)
    assert space.num_leaving_sequences == 1
    hand.finish()
    assert (space.num_leaving_sequences, cache.stats().num_sequences) == (0, 0)


def test_what_belongs_to_another_space_or_cache_is_refused() -> None:
    cache, other_cache = new_cache(), new_cache()
    space, other = SwapSpace(cache, num_blocks=4), SwapSpace(cache, num_blocks=4)
    foreign = computed(other_cache, [1, 2, 3])
    with pytest.raises(InvalidArgument, match="one of the cache that this space swaps for"):
        space.swap_out(foreign)
    swapped = space.swap_out(computed(cache, [1, 2, 3]))
    with pytest.raises(InvalidArgument, match="must be of this space"):
        other.swap_in(swapped, [1, 2, 3])
    with pytest.raises(InvalidArgument, match="must be of this space"):
        other.discard(swapped)
    assert (space.num_free, other.num_free, foreign.num_computed) == (3, 4, 3)
    assert content(cache, space.swap_in(swapped, [1, 2, 3]).sequence, 3) == expected([1, 2, 3])


@pytest.mark.parametrize("wrong", [None, 7, "sequence"])
def test_what_is_no_sequence_or_nothing_swapped_is_refused(wrong: Any) -> None:
    space = SwapSpace(new_cache(), num_blocks=4)
    for call in (space.swap_out, space.discard, lambda value: space.swap_in(value, [1])):
        with pytest.raises(InvalidType, match="must"):
            call(wrong)


def test_the_time_of_a_block_counts_only_blocks_that_were_copied() -> None:
    cache, hand = new_cache(num_blocks=8, prefix_caching=True), ByHand()
    space = SwapSpace(cache, num_blocks=4, copier=hand)
    tokens = list(range(10, 23))
    swapped = space.swap_out(computed(cache, tokens))
    hand.finish()
    space.settle()
    before = space.seconds_per_block
    coming = space.swap_in(swapped, tokens)  # the first three of four blocks are cached
    assert coming.sequence.num_cached_tokens == 12
    hand.finish()
    space.settle()
    assert space.seconds_per_block == before
