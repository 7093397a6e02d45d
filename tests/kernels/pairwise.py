"""Few cases that hold every pair of values of every two parameters, the same each time."""

from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TRIES = 24


def pairwise(parameters: Mapping[str, Sequence[Any]], *, seed: int) -> list[dict[str, Any]]:
    """Cases (one value for each parameter) such that any two values of two parameters meet in one of them.

    Greedy: each case starts from a pair that is missing and takes the candidate that adds the most pairs.
    """
    rng = random.Random(seed)
    names = list(parameters)
    sizes = {name: len(parameters[name]) for name in names}
    missing = {(a, i, b, j) for a, b in combinations(names, 2) for i in range(sizes[a]) for j in range(sizes[b])}
    cases = []
    while missing:
        a, i, b, j = min(missing) if rng.random() < 0.5 else rng.choice(sorted(missing))
        best: dict[str, int] = {}
        most = -1
        for _ in range(_TRIES):
            case = {name: rng.randrange(sizes[name]) for name in names} | {a: i, b: j}
            found = sum((x, case[x], y, case[y]) in missing for x, y in combinations(names, 2))
            if found > most:
                best, most = case, found
        missing -= {(x, best[x], y, best[y]) for x, y in combinations(names, 2)}
        cases.append({name: parameters[name][best[name]] for name in names})
    return cases
