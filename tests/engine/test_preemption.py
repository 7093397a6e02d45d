"""Under pressure: blocks are taken, computed again or swapped, and no text changes."""

from __future__ import annotations

import random

import pytest
from tests.cache.by_hand import ByHand
from tests.engine.fake_model import FakeModel, assert_all_free, expected, new_cache, new_loop, new_requests, run

from looseleaf.cache.swap import SwapSpace

SIZES = [(5 + 3 * number, 30) for number in range(8)]


def space_of(cache: object, copier: ByHand | None = None, num_blocks: int = 64) -> SwapSpace:
    return SwapSpace(cache, num_blocks=num_blocks, copier=copier)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("is_swapping", [False, True])
@pytest.mark.parametrize("max_batch_tokens", [9, 64])
def test_preempted_requests_answer_as_if_alone(is_swapping: bool, prefix_caching: bool, max_batch_tokens: int) -> None:
    cache = new_cache(24, prefix_caching=prefix_caching)
    space = space_of(cache) if is_swapping else None
    loop = new_loop(cache, FakeModel(), max_batch_tokens=max_batch_tokens, swap_space=space)
    requests = new_requests(SIZES)
    run(loop, requests)
    assert [request.token_ids for request in requests] == expected(requests)
    assert loop.scheduler.num_preemptions >= 5
    assert_all_free(cache)
    assert (sum(request.num_swaps for request in requests) >= 5) == is_swapping
    if space is not None:
        assert space.seconds_per_block is not None
        assert space.num_free == space.num_blocks


def test_a_space_that_is_full_leaves_the_rest_to_be_computed_again() -> None:
    cache = new_cache(24)
    space = space_of(cache, num_blocks=6)
    loop = new_loop(cache, FakeModel(), swap_space=space)
    requests = new_requests(SIZES)
    run(loop, requests)
    assert [request.token_ids for request in requests] == expected(requests)
    num_swaps = sum(request.num_swaps for request in requests)
    assert 0 < num_swaps < loop.scheduler.num_preemptions
    assert space.num_free == 6
    assert_all_free(cache)


def test_the_cheaper_way_is_chosen_once_both_are_known() -> None:
    class Slow(ByHand):
        seconds = 0.0

        def __call__(self, *arguments: object) -> object:  # type: ignore[override]
            flight = super().__call__(*arguments)  # type: ignore[arg-type]
            self.finish()
            flight.seconds = self.seconds
            return flight

    num_swaps = {}
    for seconds in (0.0, 1e6):
        cache, copier = new_cache(24, prefix_caching=False), Slow()
        copier.seconds = seconds
        loop = new_loop(cache, FakeModel(), swap_space=space_of(cache, copier), chooses_by_cost=True)
        requests = new_requests(SIZES)
        run(loop, requests)
        assert [request.token_ids for request in requests] == expected(requests)
        num_swaps[seconds] = copier.num_begun
        assert loop.scheduler.num_preemptions >= 5
    assert num_swaps[1e6] <= 2, "the first tells what a copy costs"
    assert num_swaps[0.0] > 5


@pytest.mark.parametrize("seed", range(6))
def test_copies_that_end_late_reuse_no_block_in_flight(seed: int) -> None:
    rng = random.Random(seed)
    cache, hand = new_cache(24, prefix_caching=seed % 2 == 0), ByHand(finishes_when_waited_for=True)
    space = space_of(cache, hand)
    loop = new_loop(cache, FakeModel(), swap_space=space)
    requests = new_requests(SIZES)
    for request in requests:
        loop.scheduler.submit(request)
    while not loop.scheduler.is_idle:
        loop.step()
        if hand.flying and rng.random() < 0.3:
            hand.finish(1)
        cache.manager.validate()
    assert [request.token_ids for request in requests] == expected(requests)
    assert hand.num_begun > 5
    assert space.num_free == space.num_blocks
    assert_all_free(cache)


@pytest.mark.parametrize("is_late", [False, True])
def test_each_request_aborted_at_each_step_while_others_are_swapped(is_late: bool) -> None:
    sizes = SIZES[:5]
    texts = expected(new_requests(sizes))
    num_steps = 70
    num_aborted = 0
    for index in range(len(sizes)):
        for number in range(0, num_steps, 4 - is_late):
            cache, hand = new_cache(14), ByHand(finishes_when_waited_for=True)
            space = space_of(cache, hand)
            loop = new_loop(cache, FakeModel(), swap_space=space)
            requests = new_requests(sizes)
            for request in requests:
                loop.scheduler.submit(request)
            for step in range(1000):
                if step == number:
                    loop.abort([requests[index]])
                    num_aborted += requests[index].finish_reason == "abort"
                if loop.scheduler.is_idle:
                    break
                loop.step()
                if not is_late:
                    hand.finish()
            for request, text in zip(requests, texts, strict=True):
                assert request.token_ids == (text[: request.num_generated] if request is requests[index] else text)
            loop.scheduler.close()
            assert space.num_free == space.num_blocks
            assert_all_free(cache)
    assert num_aborted > 20


def test_a_model_that_fails_at_each_step_leaks_nothing_and_changes_no_other() -> None:
    def one_run(fails_at: int | None) -> int:
        cache, model = new_cache(14), FakeModel()
        model.fails_at = fails_at
        space = space_of(cache)
        loop = new_loop(cache, model, max_batch_tokens=12, swap_space=space)
        requests = new_requests(SIZES[:5])
        run(loop, requests)
        for request, text in zip(requests, expected(requests), strict=True):
            if request.error is None:
                assert request.token_ids == text
            else:
                assert str(request.error) == "the model fails"
                assert request.token_ids == text[: request.num_generated]
        assert any(request.error for request in requests) == (fails_at is not None)
        assert space.num_free == space.num_blocks
        assert_all_free(cache)
        return model.num_steps

    num_steps = one_run(None)
    assert num_steps > 50
    for number in range(1, num_steps + 1):
        one_run(number)


def test_all_aborted_with_copies_in_flight_leave_nothing_behind() -> None:
    cache, hand = new_cache(14), ByHand(finishes_when_waited_for=True)
    space = space_of(cache, hand)
    loop = new_loop(cache, FakeModel(), swap_space=space)
    requests = new_requests(SIZES[:5])
    for request in requests:
        loop.scheduler.submit(request)
    while not hand.flying:
        loop.step()
    loop.abort(requests)
    assert cache.stats().num_available < 14
    loop.scheduler.close()
    assert loop.scheduler.is_idle
    assert space.num_free == space.num_blocks
    assert_all_free(cache)
