"""The prefix cache as the documentation describes it, in plain Python.

Cached blocks by their whole prefix, those without holders in one list, oldest first: no ids, no tree, no credits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from looseleaf import Sequence

Prefix: TypeAlias = tuple[int, tuple[int, ...]]
"""A namespace and all tokens from the start of the prompt to the end of a block."""

seen: Counter[str] = Counter()
"""How often something has happened, so that a test can tell that it did."""


@dataclass(eq=False)
class Block:
    num_cells: int = 1
    num_copies: int = 0
    """Copies that still read it."""
    num_read: int = 0
    """Slots that these copies read."""
    prefix: Prefix | None = None
    """What it is found by."""


@dataclass(eq=False)
class Row:
    """One sequence. `tokens` are those that the engine knows; the manager may have been told of fewer."""

    sequence: Sequence
    namespace: int
    epoch: int
    tokens: list[int]
    num_known: int
    computed: int
    reserved: int
    table: list[Block]
    num_kept: int
    """Blocks that the admission found: not of the sequence's own making."""
    num_published: int
    publishes: bool
    takes_part: bool
    copy: tuple[int, Block] | None = None
    """Column and source of a copy that is not acknowledged."""
    has_run: bool = True


@dataclass
class Plan:
    row: Row
    end: int
    num_blocks: int
    source: Block | None


@dataclass
class Oracle:
    num_blocks: int
    block_size: int
    cached: dict[Prefix, Block] = field(default_factory=dict)
    idle: list[Block] = field(default_factory=list)
    num_held: int = 0
    epochs: Counter[int] = field(default_factory=Counter)
    num_evicted: int = 0
    num_copies: int = 0
    num_hit_tokens: int = 0
    num_looked_up: int = 0

    @property
    def num_free(self) -> int:
        return self.num_blocks - self.num_held - len(self.idle)

    @property
    def num_available(self) -> int:
        return self.num_blocks - self.num_held

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def hits(self, tokens: list[int], namespace: int) -> list[Block]:
        hits: list[Block] = []
        for end in range(self.block_size, len(tokens), self.block_size):
            block = self.cached.get((namespace, tuple(tokens[:end])))
            if block is None:
                break
            hits.append(block)
        return hits

    def is_current(self, row: Row) -> bool:
        """Whether what it computes belongs to what the namespace caches now."""
        return row.takes_part and row.epoch == self.epochs[row.namespace]

    def lookup(self, tokens: list[int], namespace: int, rows: list[Row]) -> tuple[int, str]:
        num_hits = len(self.hits(tokens, namespace))
        if num_hits == (len(tokens) - 1) // self.block_size:
            reason = "capped"
        elif not any(name == namespace for name, _ in self.cached) and not any(
            row.namespace == namespace and self.is_current(row) for row in rows
        ):
            reason = "namespace"
        else:
            reason = "no entry"
        return num_hits * self.block_size, reason

    def hold(self, block: Block) -> None:
        if block in self.idle:
            self.idle.remove(block)
            self.num_held += 1
        block.num_cells += 1

    def settle(self, block: Block) -> None:
        """After a block has lost a holder."""
        if block.num_copies == 0:
            block.num_read = 0
        if block.num_cells + block.num_copies == 0:
            self.num_held -= 1
            if block.prefix is not None:
                self.idle.append(block)

    def let_go(self, block: Block) -> None:
        block.num_cells -= 1
        self.settle(block)

    def forget(self, block: Block) -> None:
        """Nobody finds it any more, nor what stands behind it."""
        assert block.prefix is not None
        namespace, tokens = block.prefix
        for prefix in [it for it in self.cached if it[0] == namespace and it[1][: len(tokens)] == tokens]:
            gone = self.cached.pop(prefix)
            gone.prefix = None
            if gone in self.idle:
                self.idle.remove(gone)

    def allocate(self) -> Block:
        if self.num_free == 0:
            seen["evicted"] += 1
            self.num_evicted += 1
            self.forget(self.idle[0])
        self.num_held += 1
        return Block()

    def publish(self, row: Row) -> None:
        size = self.block_size
        while row.publishes and (row.num_published + 1) * size <= min(row.computed, row.num_known):
            column = row.num_published
            own, prefix = row.table[column], (row.namespace, tuple(row.tokens[: (column + 1) * size]))
            before = row.table[column - 1].prefix if column else None
            row.publishes = self.is_current(row) and (column == 0 or before is not None)
            if not row.publishes:
                seen["stopped by an invalidation"] += 1
            elif own.prefix is not None:
                row.publishes = own.prefix == prefix
            elif prefix not in self.cached:
                self.cached[prefix] = own
                own.prefix = prefix
            elif own.num_cells > 1:
                seen["stopped by a fork"] += 1
                row.publishes = False
            else:
                seen["adopted at a commit"] += 1
                row.table[column] = self.cached[prefix]
                self.hold(self.cached[prefix])
                self.let_go(own)
            row.num_published += row.publishes

    def cut(self, row: Row, keep: int, *, forget: bool = False) -> None:
        """Give up the blocks from column `keep` on: an open copy first, then the last block first."""
        if row.copy is not None and row.copy[0] >= keep:
            self.end_copy(row)
        gone = row.table[keep:][::-1]
        del row.table[keep:]
        for block in gone:
            self.let_go(block)
        for block in gone if forget else []:
            if block in self.idle:
                seen["forgotten"] += 1
                self.forget(block)

    def end_copy(self, row: Row) -> None:
        if row.copy is not None:
            source = row.copy[1]
            row.copy, row.has_run = None, True
            source.num_copies -= 1
            self.settle(source)

    def plan(self, rows: list[Row], ends: list[int], lookahead: int, longest: int) -> list[Plan]:
        plans = []
        leaves: Counter[Block] = Counter()
        read: Counter[Block] = Counter()
        for row, end in zip(rows, ends, strict=True):
            capacity = min(end + lookahead, longest)
            num_blocks = max(self.blocks_for(capacity) - len(row.table), 0) if end > row.computed else 0
            column, offset = divmod(row.computed, self.block_size)
            source = None
            if end > row.computed and offset and row.copy is None:
                block = row.table[column]
                is_shared = block.prefix is not None or block.num_cells - leaves[block] > 1
                if is_shared or offset < max(block.num_read, read[block]):
                    source = block
                    leaves[block] += 1
                    read[block] = max(read[block], offset)
            plans.append(Plan(row, end, num_blocks, source))
        return plans

    def serve(self, plan: Plan) -> None:
        row = plan.row
        if plan.source is not None:
            column, offset = divmod(row.computed, self.block_size)
            row.table[column] = self.allocate()
            row.copy, row.has_run = (column, plan.source), False
            plan.source.num_cells -= 1
            plan.source.num_copies += 1
            plan.source.num_read = max(plan.source.num_read, offset)
            self.num_copies += 1
        row.table += [self.allocate() for _ in range(plan.num_blocks)]
        row.reserved = plan.end

    def invalidate(self, namespace: int) -> tuple[int, int]:
        gone = [self.cached.pop(prefix) for prefix in list(self.cached) if prefix[0] == namespace]
        num_held = len([block for block in gone if block not in self.idle])
        for block in gone:
            block.prefix = None
        self.idle = [block for block in self.idle if block not in gone]
        self.epochs[namespace] += 1
        return len(gone), num_held
