"""Random calls on the prefix cache against an oracle in plain Python.

Which id a block has is the manager's affair; ids have to be equal where the oracle has one block, and only there. What
a step writes lies in a fake memory, so that a hit on wrong content shows, too.

`LOOSELEAF_OPERATIONS` sets the number of operations, new ones each time (default 1,500, always the same).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from prefix_oracle import Block, Oracle, Row, seen

from looseleaf import BlockManager, Namespace, OutOfBlocks, StaleSequence
from looseleaf.errors import InvalidArgument, LooseleafError, NeverFits, SequenceTooLong, TooManySequences

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf import Sequence

NUM_OPERATIONS = int(os.environ.get("LOOSELEAF_OPERATIONS", "1500"))
NUM_STEPS = 50
NAMESPACES = [None, Namespace(salt="a"), Namespace(weight_epoch=1)]
SIZES = st.sampled_from([(6, 2, 4, 14), (16, 2, 8, 24), (9, 3, 5, 20), (12, 4, 6, 32), (5, 4, 5, 40)])
# Prompts begin alike, part, and meet again.
STEMS = st.sampled_from([[0] * 12, [0] * 4 + [1] * 8, [0] * 6 + [1, 0] * 3])
TOKENS = st.builds(
    lambda stem, length, tail: stem[:length] + tail,
    STEMS,
    st.integers(1, 12),
    st.lists(st.sampled_from([0, 1, 2]), max_size=3),
)
NAMES = st.sampled_from([0, 0, 0, 1, 2])
PICK = st.integers(0, 7)


class PrefixMachine(RuleBasedStateMachine):
    @initialize(sizes=SIZES)
    def start(self, sizes: tuple[int, int, int, int]) -> None:
        num_blocks, self.block_size, self.max_sequences, self.max_len = sizes
        self.manager = BlockManager(
            num_blocks, self.block_size, max_sequences=self.max_sequences, max_sequence_len=self.max_len
        )
        self.batch = self.manager.bind_batch(max_batch_tokens=256)
        self.oracle = Oracle(num_blocks, self.block_size)
        self.longest = min(self.max_len, num_blocks * self.block_size)
        self.memory: dict[int, tuple[int, ...]] = {}
        self.rows: list[Row] = []
        self.prompts: list[tuple[list[int], int]] = []

    def outcome(self, call: Callable[[], object]) -> LooseleafError | None:
        """The error of a call, which has changed nothing then."""
        before = self.manager.digest(), self.manager.stats()
        try:
            call()
        except LooseleafError as error:
            refusal = error.with_traceback(None)  # whose frames would keep sequences alive
        else:
            return None
        assert (self.manager.digest(), self.manager.stats()) == before, f"changed by a call that raised {refusal!r}"
        return refusal

    def expect(self, call: Callable[[], object], refusal: LooseleafError | None) -> bool:
        """Make a call. Whether it has succeeded, as it should."""
        error = self.outcome(call)
        assert type(error) is type(refusal), f"{error!r} instead of {refusal!r}"
        # The texts of InvalidArgument are not the oracle's.
        assert error is None or refusal is None or type(error) is InvalidArgument or error.args == refusal.args
        seen[type(error).__name__] += 1
        return error is None

    def too_long(self, num_tokens: int) -> LooseleafError | None:
        if num_tokens <= self.longest:
            return None
        if num_tokens > self.max_len:
            return SequenceTooLong(num_tokens, self.max_len)
        return NeverFits(self.oracle.blocks_for(num_tokens), self.oracle.num_blocks)

    def short_of(self, num_blocks: int) -> LooseleafError | None:
        if num_blocks <= self.oracle.num_available:
            return None
        return OutOfBlocks(num_blocks, self.oracle.num_free, len(self.oracle.idle))

    def full(self) -> LooseleafError | None:
        return TooManySequences(self.max_sequences) if len(self.rows) == self.max_sequences else None

    @rule(tokens=TOKENS, name=NAMES, reserve=st.none() | st.integers(0, 20), cache=st.sampled_from([True, True, False]))
    def admit(self, tokens: list[int], name: int, reserve: int | None, *, cache: bool) -> None:
        oracle, namespace = self.oracle, NAMESPACES[name]
        hits = oracle.hits(tokens, name) if cache else []
        num_new = max(oracle.blocks_for(len(tokens) if reserve is None else reserve) - len(hits), 0)
        num_idle = len([block for block in hits if block in oracle.idle])
        refusal = self.too_long(max(len(tokens), reserve or 0)) or self.full() or self.short_of(num_new + num_idle)
        can = self.manager.can_admit(tokens, reserve=reserve, namespace=namespace, cache=cache)
        assert can == (refusal is None)
        num_left = oracle.num_available - num_new - num_idle
        for spare in range(max(num_left - 1, 0), num_left + 2):
            fits = can and spare <= num_left
            left = self.manager.can_admit(tokens, reserve=reserve, namespace=namespace, cache=cache, num_spare=spare)
            assert left == fits
        length = len(tokens)
        room = length <= self.longest and oracle.blocks_for(length) <= oracle.num_available and not self.full()
        assert self.manager.can_admit(length) == room
        admitted: list[Sequence] = []

        def call() -> None:
            admitted.append(self.manager.admit(tokens, reserve=reserve, namespace=namespace, cache=cache))

        self.prompts = [*self.prompts[-5:], (tokens, name)]
        if not self.expect(call, refusal):
            return
        seen["hit"] += bool(hits)
        seen["hit an idle block"] += bool(num_idle)
        for block in hits:
            oracle.hold(block)
        length = len(hits) * self.block_size
        assert admitted[0].num_cached_tokens == length
        oracle.num_hit_tokens += length
        oracle.num_looked_up += len(tokens) if cache else 0
        table = hits + [oracle.allocate() for _ in range(num_new)]
        row = Row(admitted.pop(), name, oracle.epochs[name], list(tokens), len(tokens), length, length, table,
                  len(hits), len(hits), publishes=cache, takes_part=cache)  # fmt: skip
        self.rows.append(row)

    @rule(tokens=TOKENS, name=NAMES, ends=st.sampled_from(["stays", "released", "dropped", "dropped"]))
    def answer(self, tokens: list[int], name: int, ends: str) -> None:
        """A whole request, as an engine makes most of them."""
        num_rows = len(self.rows)
        self.admit(tokens, name, None, cache=True)
        if len(self.rows) > num_rows:
            self.step([num_rows], None, [0], 0, "fail", "known", "committed")
            if ends == "released":
                self.release([num_rows], cache=True)
            elif ends == "dropped":
                self.drop(num_rows)

    @precondition(lambda self: self.rows)
    @rule(
        picks=st.lists(PICK, min_size=1, max_size=4, unique=True),
        num_new=st.none() | st.integers(0, 5) | st.lists(st.integers(0, 5), min_size=4, max_size=4),
        drafts=st.lists(st.sampled_from([0, 0, 1, 2]), min_size=1, max_size=5),
        lookahead=st.sampled_from([0, 0, 0, 3, 50]),
        oom=st.sampled_from(["fail", "fail", "prefix"]),
        ids=st.sampled_from(["known", "known", "late", "unknown"]),
        outcome=st.sampled_from(["committed", "committed", "partly", "failed", "never run"]),
    )
    def step(  # noqa: C901 - the parts of one step
        self,
        picks: list[int],
        num_new: int | list[int] | None,
        drafts: list[int],
        lookahead: int,
        oom: Literal["fail", "prefix"],
        ids: str,
        outcome: str,
    ) -> None:
        rows = [self.rows[pick] for pick in picks if pick < len(self.rows)]
        numbers = num_new[: len(rows)] if isinstance(num_new, list) else num_new
        each = [num_new] * len(rows) if isinstance(num_new, int) else numbers
        if not isinstance(each, list):
            each = [max(row.num_known - row.computed, 1) for row in rows]
        ends = [row.computed + num for row, num in zip(rows, each, strict=True)]
        drafted = [
            (row.tokens + drafts * end)[: max(end, len(row.tokens))] for row, end in zip(rows, ends, strict=True)
        ]
        unknown = [token for row, end, own in zip(rows, ends, drafted, strict=True)
                   for token in own[max(row.num_known, row.computed):end]]  # fmt: skip
        tokens = unknown if ids == "known" else None
        refusal = next((error for end in ends if (error := self.too_long(end))), None)
        for row, num in zip(rows, each, strict=True):
            if tokens is not None and num and row.num_known < row.computed:
                # Whichever of the two comes first in the step; `outcome` looks at digests alone.
                error = self.outcome(lambda: self.manager.reserve([it.sequence for it in rows], numbers, tokens=tokens))
                assert isinstance(error, InvalidArgument | NeverFits)
                return
        plans = self.oracle.plan(rows, ends, lookahead, self.longest) if refusal is None else []
        costs = [plan.num_blocks + (plan.source is not None) for plan in plans]
        num_served = len(rows)
        if refusal is None and oom == "fail":
            refusal = self.short_of(sum(costs))
        elif refusal is None:
            num_served = max(num for num in range(len(rows) + 1) if sum(costs[:num]) <= self.oracle.num_available)
            seen["served a part"] += num_served < len(rows)
        served: list[int] = []

        def call() -> None:
            sequences = [row.sequence for row in rows]
            served.append(
                self.manager.reserve(sequences, numbers, tokens=tokens, lookahead=lookahead, batch=self.batch, oom=oom)
            )

        if not self.expect(call, refusal):
            return
        assert served == [num_served]
        for plan, own in zip(plans[:num_served], drafted, strict=False):
            seen["copied"] += plan.source is not None
            self.oracle.serve(plan)
            if tokens is not None and plan.row.num_known >= plan.row.computed:
                plan.row.tokens, plan.row.num_known = own, max(plan.row.num_known, plan.end)
        if outcome == "never run":
            return
        self.run_batch(rows[:num_served], [own[: plan.end] for own, plan in zip(drafted, plans, strict=True)])
        if outcome != "failed":
            self.commit(rows[:num_served], drafted, partly=outcome == "partly", tells=ids != "unknown")

    def run_batch(self, rows: list[Row], contents: list[list[int]]) -> None:
        """What an engine does with a batch: its copies, then its writes."""
        size = self.block_size
        for source, destination in self.batch.copies.tolist():
            for offset in range(size):
                self.memory[destination * size + offset] = self.memory.get(source * size + offset, ())
        slots = iter(self.batch.slot_mapping.tolist())
        for row, content in zip(rows, contents, strict=False):
            row.has_run = True
            for position in range(row.computed, row.reserved):
                self.memory[next(slots)] = tuple(content[: position + 1])
        assert next(slots, None) is None

    def commit(self, rows: list[Row], drafted: list[list[int]], *, partly: bool, tells: bool) -> None:
        ends = [(row.computed + row.reserved) // 2 if partly else row.reserved for row in rows]
        late = [token for row, end, own in zip(rows, ends, drafted, strict=False) for token in own[row.num_known : end]]
        sequences = [row.sequence for row in rows]
        if late and tells:
            assert not self.expect(lambda: self.manager.commit(sequences, ends, tokens=late[1:]), InvalidArgument())
        assert self.expect(lambda: self.manager.commit(sequences, ends, tokens=late if tells else None), None)
        for row, end, own in zip(rows, ends, drafted, strict=False):
            row.num_known = max(row.num_known, end) if tells else row.num_known
            row.tokens = own[: max(row.num_known, end)]
            row.computed = end
            self.oracle.end_copy(row)
            self.oracle.publish(row)

    @precondition(lambda self: self.rows)
    @rule(token=st.integers(0, 2), ids=st.sampled_from(["known", "late"]))
    def decode(self, token: int, ids: str) -> None:
        self.step([*range(len(self.rows))], 1, [token], 0, "prefix", ids, "committed")

    @precondition(lambda self: self.rows)
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        parent = self.rows[pick % len(self.rows)]
        forked: list[Sequence] = []
        if not self.expect(lambda: forked.append(parent.sequence.fork()), self.full()):
            return
        table = parent.table[: self.oracle.blocks_for(parent.computed)]
        if parent.copy is not None and parent.copy[0] < len(table):
            table[parent.copy[0]] = parent.copy[1]  # what is computed lies there until the copy has run
        for block in table:
            block.num_cells += 1
        tokens = parent.tokens[: max(parent.num_known, parent.computed)]
        child = Row(forked.pop(), parent.namespace, parent.epoch, tokens, parent.num_known, parent.computed,
                    parent.computed, table, parent.computed // self.block_size, parent.num_published,
                    publishes=parent.publishes, takes_part=self.oracle.is_current(parent))  # fmt: skip
        self.rows.append(child)

    @precondition(lambda self: 0 < len(self.rows) < self.max_sequences)
    @rule(pick=PICK, token=st.integers(0, 2))
    def rewrite_what_a_copy_reads(self, pick: int, token: int) -> None:
        parent = pick % len(self.rows)
        self.fork(parent)
        self.step([len(self.rows) - 1], 1, [token], 0, "fail", "late", "never run")
        self.truncate(parent, 1)
        self.step([parent], None, [token], 0, "fail", "late", "committed")

    @precondition(lambda self: len(self.rows) + 3 <= self.max_sequences)
    @rule(name=NAMES)
    def learn_too_late_to_adopt(self, name: int) -> None:
        first, num_new = len(self.rows), self.block_size
        self.admit([0], name, None, cache=True)
        if len(self.rows) > first:
            self.step([first], num_new, [0], 0, "fail", "unknown", "committed")
            self.fork(first)
            self.answer([0] * (num_new + 1), name, "stays")
            self.step([first], 0, [0], 0, "fail", "late", "committed")

    @precondition(lambda self: self.rows)
    @rule(pick=PICK, back=st.integers(-1, 8))
    def truncate(self, pick: int, back: int) -> None:
        row = self.rows[pick % len(self.rows)]
        longest = max(row.num_known, row.reserved)
        length = max(longest - back, 0)
        if not self.expect(lambda: row.sequence.truncate(length), InvalidArgument() if length > longest else None):
            return
        del row.tokens[length:]
        row.num_known, row.computed = min(row.num_known, length), min(row.computed, length)
        row.reserved = min(row.reserved, length)
        row.num_kept = min(row.num_kept, length // self.block_size)
        row.num_published = min(row.num_published, length // self.block_size)
        self.oracle.cut(row, self.oracle.blocks_for(length))

    @precondition(lambda self: self.rows)
    @rule(picks=st.lists(PICK, min_size=1, max_size=4, unique=True), cache=st.sampled_from([True, True, False]))
    def release(self, picks: list[int], *, cache: bool) -> None:
        rows = [self.rows[pick] for pick in picks if pick < len(self.rows)]
        self.rows = [row for row in self.rows if row not in rows]
        self.manager.release([row.sequence for row in rows], cache=cache)
        for row in rows:
            self.oracle.cut(row, 0 if cache else row.num_kept, forget=not cache)
            self.oracle.cut(row, 0)
            assert isinstance(self.outcome(row.sequence.fork), StaleSequence)

    @precondition(lambda self: self.rows)
    @rule(pick=PICK)
    def drop(self, pick: int) -> None:
        row = self.rows.pop(pick % len(self.rows))
        self.oracle.cut(row, 0)
        del row.sequence

    @rule(what=st.sampled_from([1, 1, 1, 1, 2, 2, 3, 3, "invalidate", "reset"]), name=NAMES)
    def drop_content(self, what: int | str, name: int) -> None:
        if what == "invalidate":
            assert self.manager.invalidate(NAMESPACES[name]) == self.oracle.invalidate(name)
        elif what == "reset":
            dropped = [self.oracle.invalidate(name) for name in range(len(NAMESPACES))]
            assert self.manager.reset() == tuple(map(sum, zip(*dropped, strict=True)))
        else:
            num_victims = min(int(what), len(self.oracle.idle))
            assert self.manager.evict(int(what)) == num_victims
            for _ in range(num_victims):
                self.oracle.forget(self.oracle.idle[0])

    @invariant()
    def manager_and_oracle_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.validate()
        oracle, stats = self.oracle, self.manager.stats()
        seen["operation"] += 1
        assert (stats.num_free, stats.num_idle) == (oracle.num_free, len(oracle.idle))
        assert (stats.num_available, stats.num_in_use) == (oracle.num_available, oracle.num_held)
        assert (stats.num_evicted, stats.num_copies) == (oracle.num_evicted, oracle.num_copies)
        assert (stats.num_hit_tokens, stats.num_looked_up) == (oracle.num_hit_tokens, oracle.num_looked_up)
        assert stats.num_sequences == len(self.rows)
        ids: dict[Block, int] = {}
        for row in self.rows:
            sequence, blocks = row.sequence, row.sequence.blocks
            assert (sequence.num_tokens, sequence.num_reserved) == (row.num_known, row.reserved)
            assert sequence.num_computed == row.computed
            assert [ids.setdefault(block, id_) for block, id_ in zip(row.table, blocks, strict=True)] == blocks
            if row.has_run:
                for position in range(row.computed):
                    slot = blocks[position // self.block_size] * self.block_size + position % self.block_size
                    assert self.memory[slot] == tuple(row.tokens[: position + 1])
        assert len({*ids.values()}) == len(ids)
        prompts = [(tokens, name) for name, key in oracle.cached for tokens in ([*key], [*key, 0], [*key, *[1] * 4])]
        for tokens, name in [*prompts, *self.prompts]:
            assert self.manager.lookup(tokens, namespace=NAMESPACES[name]) == oracle.lookup(tokens, name, self.rows), (
                tokens,
                name,
            )

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.rows.clear()
            assert self.manager.stats().num_in_use == 0
            self.manager.validate()


def test_the_prefix_cache_is_that_of_the_oracle() -> None:
    seen.clear()
    profile = settings(
        max_examples=max(NUM_OPERATIONS // NUM_STEPS, 1),
        stateful_step_count=NUM_STEPS,
        deadline=None,
        derandomize="LOOSELEAF_OPERATIONS" not in os.environ,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(PrefixMachine, settings=profile)
    # Some examples end early.
    assert seen["operation"] > NUM_OPERATIONS // 3
    for what in (
        "hit",
        "hit an idle block",
        "evicted",
        "OutOfBlocks",
        "copied",
        "adopted at a commit",
        "stopped by a fork",
    ):
        assert seen[what] > 0, f"never {what}: {seen}"
