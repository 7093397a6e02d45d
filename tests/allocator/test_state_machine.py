"""Random calls against plain lists: what each sequence's tokens are, and what lies in each slot of the cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from looseleaf import BlockManager, OutOfBlocks, StaleSequence
from looseleaf.allocator import BatchBuffers
from looseleaf.errors import InvalidArgument, LooseleafError, NeverFits, SequenceTooLong, TooManySequences

if TYPE_CHECKING:
    from looseleaf import Batch, Sequence

SIZES = st.sampled_from([(12, 4, 4, 24), (8, 1, 3, 9), (20, 3, 5, 20), (5, 8, 2, 40), (16, 2, 6, 16)])
PICKS = st.sets(st.integers(0, 5), min_size=1)
PADDING = {"slot_mapping": -1, "copies": -1}


@dataclass
class Model:
    """One sequence. `contents` are the numbers that its computed tokens wrote into the cache."""

    sequence: Sequence
    tokens: list[int]
    contents: list[int] = field(default_factory=list)
    num_reserved: int = 0
    awaits_copy: bool = False
    """Its last block is a copy that has not run."""


class Manager(RuleBasedStateMachine):
    @initialize(sizes=SIZES)
    def start(self, sizes: tuple[int, int, int, int]) -> None:
        self.num_blocks, self.block_size, self.max_sequences, self.max_sequence_len = sizes
        self.manager = BlockManager(
            self.num_blocks,
            self.block_size,
            max_sequences=self.max_sequences,
            max_sequence_len=self.max_sequence_len,
            prefix_caching=False,
        )
        most = self.max_sequences * self.max_sequence_len  # every token of every sequence fits one batch
        self.batches = [self.manager.bind_batch(max_batch_tokens=most) for _ in range(2)]
        self.memory = np.zeros((self.num_blocks + 1) * self.block_size, dtype=np.int64)
        self.models: list[Model] = []
        self.ended: list[Sequence] = []
        self.numbers = count(1)

    @rule(num_tokens=st.integers(1, 30), reserve=st.none() | st.integers(0, 30))
    def admit(self, num_tokens: int, reserve: int | None) -> None:
        tokens = [next(self.numbers) for _ in range(num_tokens)]
        needed = -(-(num_tokens if reserve is None else reserve) // self.block_size)
        longest = max(num_tokens, reserve or 0)
        limits = [
            (longest > self.max_sequence_len, SequenceTooLong),
            (-(-longest // self.block_size) > self.num_blocks, NeverFits),
            (len(self.models) == self.max_sequences, TooManySequences),
            (needed > self.num_free(), OutOfBlocks),
        ]
        errors = tuple(error for applies, error in limits if applies)
        if reserve is None:
            assert self.manager.can_admit(num_tokens) == (not errors)
        if errors:
            with pytest.raises(errors):
                self.manager.admit(tokens, reserve=reserve)
        else:
            sequence = self.manager.admit(np.array(tokens), reserve=reserve)
            assert len(sequence.blocks) == needed
            self.models.append(Model(sequence, tokens))

    @precondition(lambda self: self.models)
    @rule(
        picks=PICKS,
        num_new=st.none() | st.integers(0, 6) | st.lists(st.integers(0, 6), min_size=6, max_size=6),
        gives_tokens=st.booleans(),
        lookahead=st.sampled_from([0, 0, 0, 3, 50]),
        batch=st.integers(0, 1),
        outcome=st.sampled_from(["committed", "committed", "partly committed", "failed", "never run"]),
    )
    def step(  # the parts of one step
        self,
        picks: set[int],
        num_new: int | list[int] | None,
        *,
        gives_tokens: bool,
        lookahead: int,
        batch: int,
        outcome: str,
    ) -> None:
        models = [self.models[pick] for pick in picks if pick < len(self.models)]
        numbers = num_new[: len(models)] if isinstance(num_new, list) else num_new
        new = [
            max(len(model.tokens) - len(model.contents), 1) if numbers is None
            else numbers[row] if isinstance(numbers, list)
            else numbers
            for row, model in enumerate(models)
        ]  # fmt: skip
        ends = [len(model.contents) + num for model, num in zip(models, new, strict=True)]
        unknown = [max(end - len(model.tokens), 0) for model, end in zip(models, ends, strict=True)]
        given = [[next(self.numbers) for _ in range(num)] for num in unknown]
        tokens = [token for row in given for token in row] if gives_tokens else None
        before = self.observed()
        refusal = self.try_reserve(models, numbers, tokens, lookahead, self.batches[batch])
        if refusal is not None:
            self.check_refusal(refusal, max(ends))
            assert self.observed() == before
            return
        for model, end, row in zip(models, ends, given, strict=True):
            model.num_reserved = end
            if gives_tokens:
                model.tokens += row
        contents = [[next(self.numbers) for _ in range(num)] for num in new]
        self.check_batch(self.batches[batch], models)
        destinations = {*self.batches[batch].copies[:, 1].tolist()}
        for model in models:
            model.awaits_copy |= bool(destinations & {*model.sequence.blocks})
        if outcome == "never run":
            return
        self.run(self.batches[batch], [number for row in contents for number in row])
        for model in models:
            model.awaits_copy = False
        if outcome == "failed":
            return
        accepted = [num if outcome == "committed" else num // 2 for num in new]
        ends = [len(model.contents) + num for model, num in zip(models, accepted, strict=True)]
        unknown = [max(end - len(model.tokens), 0) for model, end in zip(models, ends, strict=True)]
        late = [[next(self.numbers) for _ in range(num)] for num in unknown]
        self.manager.commit(self.handles(models), ends, tokens=[token for row in late for token in row])
        for model, num, row, content in zip(models, accepted, late, contents, strict=True):
            model.tokens += row
            model.contents += content[:num]

    @precondition(lambda self: self.models)
    @rule(pick=st.integers(0, 5))
    def fork(self, pick: int) -> None:
        parent = self.models[pick % len(self.models)]
        if len(self.models) == self.max_sequences:
            with pytest.raises(TooManySequences):
                parent.sequence.fork()
            return
        child = parent.sequence.fork()
        assert child.num_cached_tokens == len(parent.contents)
        self.models.append(Model(child, parent.tokens.copy(), parent.contents.copy(), len(parent.contents)))

    @precondition(lambda self: self.models)
    @rule(pick=st.integers(0, 5), length=st.integers(0, 30))
    def truncate(self, pick: int, length: int) -> None:
        model = self.models[pick % len(self.models)]
        if length > max(len(model.tokens), model.num_reserved):
            with pytest.raises(InvalidArgument, match="length"):
                model.sequence.truncate(length)
            return
        model.sequence.truncate(length)
        del model.tokens[length:], model.contents[length:]
        model.num_reserved = min(model.num_reserved, length)

    @precondition(lambda self: self.models)
    @rule(picks=PICKS, by_name=st.booleans())
    def end(self, picks: set[int], *, by_name: bool) -> None:
        models = [self.models[pick] for pick in picks if pick < len(self.models)]
        self.models = [model for model in self.models if model not in models]
        if by_name:
            self.manager.release([model.sequence for model in models])
            self.ended += [model.sequence for model in models]

    @precondition(lambda self: self.ended)
    @rule(pick=st.integers(0, 20))
    def use_after_the_end(self, pick: int) -> None:
        sequence = self.ended[pick % len(self.ended)]
        self.manager.release([sequence])
        handles = self.handles(self.models[:1])
        for call in (self.manager.reserve, self.manager.commit):
            with pytest.raises(StaleSequence):
                call(np.append(handles, sequence.handle))

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.validate()
        for model in self.models:
            sequence = model.sequence
            lengths = (sequence.num_tokens, sequence.num_reserved, sequence.num_computed)
            assert lengths == (len(model.tokens), model.num_reserved, len(model.contents))
            if not model.awaits_copy:
                assert self.read(sequence.blocks, len(model.contents)) == model.contents
        stats = self.manager.stats()
        assert stats.num_sequences == len(self.models)
        in_use = {block for model in self.models for block in model.sequence.blocks}
        assert len(in_use) <= stats.num_in_use
        assert stats.num_in_use <= len(in_use) + len(self.models), "a copy holds one block more"
        assert stats.num_available + stats.num_in_use == stats.num_blocks

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.models.clear()
            assert self.num_free() == self.num_blocks
            self.manager.validate()

    def try_reserve(
        self,
        models: list[Model],
        num_new: int | list[int] | None,
        tokens: list[int] | None,
        lookahead: int,
        batch: Batch[Any],
    ) -> LooseleafError | None:
        try:
            self.manager.reserve(self.handles(models), num_new, tokens=tokens, lookahead=lookahead, batch=batch)
        except (SequenceTooLong, NeverFits, OutOfBlocks) as error:
            return error.with_traceback(None)  # whose frames would keep sequences alive
        return None

    def check_refusal(self, refusal: LooseleafError, longest: int) -> None:
        if isinstance(refusal, SequenceTooLong):
            assert longest > self.max_sequence_len
        elif isinstance(refusal, NeverFits):
            assert longest > self.num_blocks * self.block_size
        else:
            assert isinstance(refusal, OutOfBlocks)
            assert refusal.requested > refusal.free == self.num_free()

    def num_free(self) -> int:
        return self.manager.stats().num_available

    def handles(self, models: list[Model]) -> Any:
        return np.array([model.sequence.handle for model in models], dtype=np.int64)

    def observed(self) -> tuple[object, ...]:
        sequences = [model.sequence for model in self.models]
        lengths = [(row.num_tokens, row.num_reserved, row.num_computed, row.blocks) for row in sequences]
        buffers = [getattr(batch.buffers, name).tolist() for batch in self.batches for name in BatchBuffers.__slots__]
        return self.manager.stats(), lengths, buffers

    def read(self, blocks: list[int], length: int) -> list[int]:
        slots = [
            blocks[position // self.block_size] * self.block_size + position % self.block_size
            for position in range(length)
        ]
        return [int(self.memory[slot]) for slot in slots]

    def run(self, batch: Batch[Any], contents: list[int]) -> None:
        """Do what an engine does with a batch: its copies, then its writes."""
        blocks = self.memory.reshape(-1, self.block_size)
        sources, destinations = batch.copies[:, 0], batch.copies[:, 1]
        assert not {*sources.tolist()} & {*destinations.tolist()}
        blocks[destinations] = blocks[sources]
        assert len({*batch.slot_mapping.tolist()}) == batch.num_tokens
        self.memory[batch.slot_mapping] = contents

    def check_batch(self, batch: Batch[Any], models: list[Model]) -> None:
        """Compare the whole buffers with ones that are built from scratch."""
        expected = {
            name: np.full_like(getattr(batch.buffers, name), PADDING.get(name, 0)) for name in BatchBuffers.__slots__
        }
        token = 0
        for row, model in enumerate(models):
            blocks, start, end = model.sequence.blocks, len(model.contents), model.num_reserved
            expected["block_table"][row, : len(blocks)] = blocks
            expected["seq_lens"][row] = end
            expected["query_lens"][row] = end - start
            expected["cu_query_lens"][row + 1 :] += end - start
            for position in range(start, end):
                block = blocks[position // self.block_size]
                expected["slot_mapping"][token] = block * self.block_size + position % self.block_size
                expected["positions"][token] = position
                expected["token_ids"][token] = model.tokens[position] if position < len(model.tokens) else -1
                token += 1
        expected["copies"][: batch.num_copies] = batch.copies
        for name, buffer in expected.items():
            assert np.array_equal(getattr(batch.buffers, name), buffer), name


Manager.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestManager = Manager.TestCase
