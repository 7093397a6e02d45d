"""Traces of requests that are made up, as the hash ids of their prompts' blocks.

An id stands for the content of a block and of all blocks before it, so two prompts that share an id share all up to it.
"""

from __future__ import annotations

import random


def conversations(num_requests: int, seed: int) -> list[list[int]]:
    """Make up turns of conversations behind a few system prompts, of which some are far more popular than others."""
    rng = random.Random(seed)
    ids = iter(range(10**9))
    systems = [[next(ids) for _ in range(rng.randint(1, 12))] for _ in range(8)]
    weights = [1 / rank for rank in range(1, len(systems) + 1)]
    running: list[list[int]] = []
    requests = []
    for _ in range(num_requests):
        if running and rng.random() < 0.6:
            # Recent conversations go on more often than old ones.
            prompt = running[-min(len(running), int(rng.paretovariate(0.4)))]
        else:
            prompt = list(rng.choices(systems, weights)[0])
            running.append(prompt)
        prompt.extend(next(ids) for _ in range(rng.randint(1, 10)))
        requests.append(list(prompt))
        if len(prompt) > 60:
            running.remove(prompt)
    return requests
