"""The block manager that most engines have, in plain Python: the baseline of the allocator's benchmarks.

A deque of free block ids, reference counts in a list, a list of ids per request, a dict from the chained hash of a
block's tokens to its block, cached blocks without a holder in the order in which they were let go, and arrays made from
lists at every step. It caches and gives up what `looseleaf.BlockManager` does, so that both find the same prefixes; a
test holds it to that. It checks nothing, and believes a hash.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class Request:
    """Tokens of a sequence, how many of them are computed, and where they lie."""

    tokens: list[int]
    computed: int
    blocks: list[int]
    hashes: list[int] = field(default_factory=list)


class PlainManager:
    """Requests by name over one pool; block 0 is the null block."""

    def __init__(self, num_blocks: int, block_size: int = 16, *, prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.free = deque(range(1, num_blocks + 1))
        self.idle: OrderedDict[int, None] = OrderedDict()  # a deque cannot lose a block from its middle in O(1)
        self.ref_counts = [0] * (num_blocks + 1)
        self.cached: dict[int, int] = {}
        self.hash_of: dict[int, int] = {}
        self.requests: dict[int, Request] = {}

    def find(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """The cached blocks of a prompt, one token at least left to compute, and their hashes."""
        blocks: list[int] = []
        hashes: list[int] = []
        previous = 0
        for end in range(self.block_size, len(tokens) if self.prefix_caching else 0, self.block_size):
            previous = hash((previous, *tokens[end - self.block_size : end]))
            block = self.cached.get(previous)
            if block is None:
                break
            blocks.append(block)
            hashes.append(previous)
        return blocks, hashes

    def admit(self, name: int, tokens: list[int]) -> int:
        """Begin a request; returns how many of its tokens are cached. Changes nothing where blocks run out."""
        hits, hashes = self.find(tokens)
        num_new = -(-len(tokens) // self.block_size) - len(hits)
        num_idle_hits = sum(1 for block in hits if not self.ref_counts[block])
        if num_new + num_idle_hits > len(self.free) + len(self.idle):
            raise MemoryError
        for block in hits:
            if not self.ref_counts[block]:
                del self.idle[block]
            self.ref_counts[block] += 1
        num_cached = len(hits) * self.block_size
        blocks = hits + [self._take() for _ in range(num_new)]
        self.requests[name] = Request(list(tokens), num_cached, blocks, hashes)
        return num_cached

    def reserve(self, names: list[int], tokens: list[int] | None = None) -> dict[str, NDArray[np.int64 | np.int32]]:
        """Add a token to each request if given, and make the arrays of a step that computes what is not computed."""
        rows = [self.requests[name] for name in names]
        slots: list[int] = []
        cu_query_lens = [0]
        for index, request in enumerate(rows):
            if tokens is not None:
                if len(request.tokens) == len(request.blocks) * self.block_size:
                    request.blocks.append(self._take())
                request.tokens.append(tokens[index])
            for position in range(request.computed, len(request.tokens)):
                block = request.blocks[position // self.block_size]
                slots.append(block * self.block_size + position % self.block_size)
            cu_query_lens.append(len(slots))
        return {
            "block_table": self.table(names),
            "slot_mapping": np.array(slots, dtype=np.int64),
            "seq_lens": np.array([len(request.tokens) for request in rows], dtype=np.int32),
            "cu_query_lens": np.array(cu_query_lens, dtype=np.int32),
        }

    def table(self, names: list[int]) -> NDArray[np.int32]:
        """The block tables of these requests, padded to the longest."""
        rows = [self.requests[name].blocks for name in names]
        width = max(map(len, rows))
        return np.array([blocks + [0] * (width - len(blocks)) for blocks in rows], dtype=np.int32)

    def commit(self, names: list[int]) -> None:
        """Note that all tokens of these requests are computed, and cache their full blocks."""
        for name in names:
            request = self.requests[name]
            request.computed = len(request.tokens)
            if self.prefix_caching:
                self._publish(request)

    def release(self, name: int) -> None:
        """End a request, its last block first."""
        for block in reversed(self.requests.pop(name).blocks):
            self._let_go(block)

    def evict(self, num_blocks: int) -> None:
        """Drop the content of the blocks that were let go first."""
        for _ in range(min(num_blocks, len(self.idle))):
            self.free.append(self._drop_oldest())

    def _publish(self, request: Request) -> None:
        size = self.block_size
        for column in range(len(request.hashes), request.computed // size):
            previous = request.hashes[-1] if request.hashes else 0
            key = hash((previous, *request.tokens[column * size : (column + 1) * size]))
            request.hashes.append(key)
            own = request.blocks[column]
            block = self.cached.setdefault(key, own)
            if block == own:
                self.hash_of[own] = key
                continue
            if not self.ref_counts[block]:
                del self.idle[block]
            self.ref_counts[block] += 1
            request.blocks[column] = block
            self._let_go(own)

    def _take(self) -> int:
        block = self.free.popleft() if self.free else self._drop_oldest()
        self.ref_counts[block] = 1
        return block

    def _drop_oldest(self) -> int:
        block, _ = self.idle.popitem(last=False)
        del self.cached[self.hash_of.pop(block)]
        return block

    def _let_go(self, block: int) -> None:
        self.ref_counts[block] -= 1
        if not self.ref_counts[block]:
            if block in self.hash_of:
                self.idle[block] = None
            else:
                self.free.append(block)
