"""Random use of a paged cache against plain lists of tokens: every sequence keeps exactly its own content."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from looseleaf import OutOfBlocks, PagedKVCache, Sequence

NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES = 10, 3, 5
TOKENS = st.integers(0, 99)


class PagedCacheMachine(RuleBasedStateMachine):
    """One layer; keys are 0 and values the token ids, so that each output is the mean of the ids that a row saw."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PagedKVCache(
            num_layers=1,
            num_kv_heads=1,
            head_dim=1,
            dtype=torch.float32,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_sequences=MAX_SEQUENCES,
            max_sequence_len=24,
            max_batch_tokens=64,
        )
        self.cache.storage.layers[0].fill_(torch.nan)
        self.sequences: list[Sequence] = []
        self.known: list[list[int]] = []  # token ids of each sequence
        self.num_computed: list[int] = []

    @precondition(lambda self: len(self.sequences) < MAX_SEQUENCES)
    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=10))
    def admit(self, prompt: list[int]) -> None:
        try:
            sequence = self.cache.admit(prompt)
        except OutOfBlocks:
            return
        self.sequences.append(sequence)
        self.known.append(prompt)
        self.num_computed.append(0)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), fails=st.booleans())
    def step(self, data: st.DataObject, fails: bool) -> None:
        chosen = data.draw(st.permutations(range(len(self.sequences))))
        chosen = chosen[: data.draw(st.integers(1, len(chosen)))]
        num_new = [
            data.draw(st.integers(0, min(4, 24 - self.num_computed[index])), label="num_new") for index in chosen
        ]
        texts = [list(self.known[index]) for index in chosen]
        tokens = []
        for text, index, count in zip(texts, chosen, num_new, strict=True):
            unknown = self.num_computed[index] + count - len(text)
            fresh = data.draw(st.lists(TOKENS, min_size=max(0, unknown), max_size=max(0, unknown)), label="tokens")
            text.extend(fresh)
            tokens.extend(fresh)
        try:
            step = self.cache.step([self.sequences[index] for index in chosen], num_new=num_new, tokens=tokens)
        except OutOfBlocks:
            return
        ends = [self.num_computed[index] + count for index, count in zip(chosen, num_new, strict=True)]
        for index, text in zip(chosen, texts, strict=True):
            self.known[index] = text
        values = step.token_ids.float()[:, None, None]
        if fails:
            half = torch.where(torch.arange(len(values)) % 2 == 0, 0.0, torch.nan)[:, None, None]
            step.write(0, half, half)
            return
        out = step.attend(0, torch.zeros_like(values), torch.zeros_like(values), values).flatten().tolist()
        step.commit()
        expected = []
        for text, index, end in zip(texts, chosen, ends, strict=True):
            expected += [sum(text[: row + 1]) / (row + 1) for row in range(self.num_computed[index], end)]
            self.num_computed[index] = end
        assert out == pytest.approx(expected)

    @precondition(lambda self: 0 < len(self.sequences) < MAX_SEQUENCES)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.sequences) - 1))
        self.sequences.append(self.sequences[index].fork())
        self.known.append(self.known[index][: self.sequences[-1].num_tokens])
        self.num_computed.append(self.num_computed[index])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.sequences) - 1))
        length = data.draw(st.integers(0, self.num_computed[index]))
        self.sequences[index].truncate(length)
        self.known[index] = self.known[index][:length]
        self.num_computed[index] = length

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.sequences) - 1))
        self.sequences.pop(index).release()
        self.known.pop(index)
        self.num_computed.pop(index)

    @invariant()
    def every_sequence_keeps_its_content(self) -> None:
        values = self.cache.storage.v(0).transpose(1, 2)
        for sequence, text, length in zip(self.sequences, self.known, self.num_computed, strict=True):
            assert (sequence.num_computed, sequence.num_tokens) == (length, len(text))
            assert values[sequence.blocks].flatten()[:length].tolist() == text[:length]
        self.cache.manager.validate()


PagedCacheMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
test_sequences_keep_their_content = PagedCacheMachine.TestCase
