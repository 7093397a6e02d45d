"""The sequences of a batch as transformers sees them: rows of equally many columns, padded on the left."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from looseleaf.errors import EmptyPrompt, InvalidArgument, NeverFits, PromptMismatch
from looseleaf.integrations.transformers.columns import left_padding
from looseleaf.sizing import blocks_for_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence as PySequence

    from numpy.typing import NDArray

    from looseleaf.allocator import Sequence
    from looseleaf.cache import PagedKVCache, Step
    from looseleaf.integrations.transformers.columns import Columns

__all__ = ["BatchRows"]


class BatchRows:
    """One sequence of the pool for each row of a batch, and where its tokens stand.

    A row has padding in its first columns and tokens in all others. Only the tokens have slots in the pool.

    Attributes:
        pool: where the sequences live.
        length: columns that are computed, padding included; the same for every row.
    """

    __slots__ = ("_handles", "_is_shared", "_padding", "_plan", "_sequences", "_token_ids", "length", "pool")

    def __init__(self, pool: PagedKVCache) -> None:
        """Begin without rows: the first forward pass decides how many there are."""
        self.pool = pool
        self._plan: _Plan | None = None
        self._clear()

    def _clear(self) -> None:
        self.length = 0
        self._token_ids: NDArray[np.int64] | None = None  # int64 [rows, length or more]; None: not known
        self._is_shared = True  # whether the manager may know the ids, and let other prompts find the blocks by them
        self._padding = np.zeros(0, np.int64)
        self._keep([])

    def _keep(self, sequences: list[Sequence]) -> None:
        self._sequences = sequences
        self._handles = np.array([sequence.handle for sequence in sequences], np.int64)

    def __len__(self) -> int:
        return len(self._sequences)

    def check_idle(self) -> None:
        """Refuse what must not come in the middle of a forward pass, whose tokens the sequences hold already.

        Raises:
            InvalidArgument: a step is prepared, and neither committed nor rolled back.
        """
        if self._plan is not None:
            raise InvalidArgument("a forward pass of the cache runs; wait until it has ended")

    def fork(self) -> BatchRows:
        """Rows that share all computed tokens with these. Copies nothing until one of them writes.

        Raises:
            TooManySequences: no place for as many sequences again.
            InvalidArgument: a forward pass runs.
        """
        self.check_idle()
        other = BatchRows(self.pool)
        other._keep(_forks(self._sequences))
        other.length, other._padding = self.length, self._padding
        other._token_ids = None if self._token_ids is None else self._token_ids[:, : self.length].copy()
        other._is_shared = self._is_shared
        return other

    def select(self, indices: PySequence[int]) -> None:
        """Make row `indices[i]` the new row `i`. A row may be taken more than once: it is forked.

        Raises:
            TooManySequences: no place for the forks.
            InvalidArgument: there is no such row, no row would be left, or a forward pass runs.
        """
        self.check_idle()
        if not indices:
            raise InvalidArgument(f"no row of {len(self)} would be left; reset() empties the cache")
        wrong = [index for index in indices if not 0 <= index < len(self)]
        if wrong:
            raise InvalidArgument(f"the cache has {len(self)} rows, there is no row {wrong[0]}")
        taken: set[int] = set()
        again = []
        for index in indices:
            if index in taken:
                again.append(self._sequences[index])
            taken.add(index)
        forks = iter(_forks(again))
        first = set(taken)
        chosen = []
        for index in indices:
            chosen.append(self._sequences[index] if index in first else next(forks))
            first.discard(index)
        for index, sequence in enumerate(self._sequences):
            if index not in taken:
                sequence.release()
        self._keep(chosen)
        places = np.array(indices, np.int64)
        self._padding = self._padding[places]
        if self._token_ids is not None:
            self._token_ids = self._token_ids[places]

    def crop(self, length: int) -> None:
        """Keep the first `length` columns.

        Raises:
            InvalidArgument: a forward pass runs.
        """
        self.check_idle()
        padding = np.minimum(self._padding, length)
        for sequence, num_tokens in zip(self._sequences, (length - padding).tolist(), strict=True):
            sequence.truncate(num_tokens)
        self.length, self._padding = length, padding

    def release(self) -> None:
        """Give up all rows. What they computed stays in the pool's prefix cache until its blocks are needed.

        Raises:
            InvalidArgument: a forward pass runs.
        """
        self.check_idle()
        for sequence in self._sequences:
            sequence.release()
        self._clear()

    def begin(self, token_ids: NDArray[np.int64], mask: NDArray[np.bool_] | None) -> None:
        """Let go of all rows, and begin those of a prompt with what the pool has cached of it.

        Every row is computed up to the same column, so the row that has least in the cache decides.

        Args:
            token_ids: [rows, columns].
            mask: [rows, columns], False where there is padding; None: nowhere.

        Raises:
            EmptyPrompt: a row has no token.
            InvalidArgument: padding elsewhere than on the left, an id that cannot be, or a forward pass runs.
            OutOfBlocks, TooManySequences: the new rows do not fit beside the old ones. Nothing has changed.
        """
        self.check_idle()
        padding = left_padding(mask, token_ids.shape[0], token_ids.shape[1])
        if not token_ids.size or (padding == token_ids.shape[1]).any():
            raise EmptyPrompt
        sequences: list[Sequence] = []
        try:
            for row, first in zip(token_ids, padding.tolist(), strict=True):
                sequences.append(self.pool.admit(row[first:], reserve=1))
            cached = padding + np.array([sequence.num_cached_tokens for sequence in sequences])
            length = int(cached.min())
            for sequence, num_tokens in zip(sequences, np.maximum(length - padding, 0).tolist(), strict=True):
                sequence.truncate(num_tokens)
        except BaseException:
            for sequence in sequences:
                sequence.release()
            raise
        self.release()
        self._keep(sequences)
        self.length, self._padding = length, np.minimum(padding, length)
        self._token_ids = token_ids[:, :length].copy()

    def check_prompt(
        self, token_ids: NDArray[np.int64] | None, *, num_rows: int, num_columns: int, is_whole: bool
    ) -> None:
        """Check that a prompt goes on from what is computed.

        Args:
            token_ids: [num_rows, num_columns]; None: not known.
            num_rows: of the prompt; a batch that is still to be expanded has fewer rows.
            num_columns: of the prompt.
            is_whole: the prompt has all columns from the first on; False: only new ones.

        Raises:
            PromptMismatch: it does not.
            InvalidArgument: the rows cannot belong to each other, or ids are not known.
        """
        if not num_rows or len(self) % num_rows:
            raise InvalidArgument(
                f"the prompt has {num_rows} rows, the cache {len(self)}; batch_repeat_interleave() makes more of them, "
                "reset() empties the cache"
            )
        if token_ids is None:
            raise InvalidArgument(
                f"the prompt comes as inputs_embeds, but the cache has computed {self.length} columns, of which nobody "
                "can tell whether it begins with them; reset() empties the cache"
            )
        if not is_whole:
            return
        if self._token_ids is None:
            raise InvalidArgument(
                f"the {self.length} columns that the cache has computed came as inputs_embeds: nobody can tell whether "
                "the prompt begins with them; reset() empties the cache"
            )
        given = token_ids.repeat(len(self) // num_rows, axis=0)[:, : self.length]
        columns = np.arange(given.shape[1])
        differs = (given != self._token_ids[:, : given.shape[1]]) & (columns >= self._padding[:, None])
        if differs.any():
            row, column = (int(place) for place in np.argwhere(differs)[0])
            raise PromptMismatch(row, column, int(given[row, column]), int(self._token_ids[row, column]))
        if num_columns <= self.length:
            raise InvalidArgument(
                f"the prompt has {num_columns} columns, the cache has computed {self.length} and needs a new one; "
                "begin() goes back to what it shares with a prompt"
            )

    def prepare(self, columns: Columns) -> Step:
        """Prepare the step of a forward pass while none is prepared; `commit` or `roll_back` ends it.

        Args:
            columns: the new ones.

        Raises:
            InvalidArgument: another number of rows than before, padding elsewhere than on the left, or another padding
                than before.
            OutOfBlocks, NeverFits, TooManySequences, SequenceTooLong: they do not fit. Nothing has changed.
        """
        num_rows, length = columns.num_rows, self.length + columns.num_columns
        if self and len(self) != num_rows:
            raise InvalidArgument(
                f"the batch has {num_rows} rows, the cache {len(self)}; batch_repeat_interleave() makes more of them, "
                "reset() empties the cache"
            )
        padding = left_padding(columns.mask, num_rows, length)
        if self and (np.minimum(padding, self.length) != self._padding).any():
            raise InvalidArgument(
                f"attention_mask pads the first {padding.tolist()} columns of each row, the cache holds rows with "
                f"{self._padding.tolist()}"
            )
        num_new = length - np.maximum(padding, self.length)
        total, storage = int(num_new.sum()), self.pool.storage
        if total > storage.num_blocks * storage.block_size:
            raise NeverFits(blocks_for_tokens(total, storage.block_size), storage.num_blocks)
        is_token = None if total == num_rows * columns.num_columns else self._is_token(length, padding)
        token_ids = columns.token_ids if not self or self._token_ids is not None else None
        is_shared = self._is_shared and token_ids is not None and self._follows_from_ids(columns, padding, is_token)
        tokens = None
        if token_ids is not None and is_shared:
            tokens = token_ids.reshape(-1) if is_token is None else token_ids[is_token]
        is_first = not self
        if is_first:
            self._keep(_empty_sequences(self.pool, num_rows, cache=is_shared))
        try:
            step = self.pool.step(self._handles, num_new=num_new, tokens=tokens)
        except BaseException:
            if is_first:
                self.release()
            raise
        packed = None if is_token is None else np.flatnonzero(is_token)
        self._plan = _Plan(step, length, padding, token_ids, packed, is_shared, is_first)
        return step

    @property
    def packed(self) -> NDArray[np.int64] | None:
        """The places of the prepared step's tokens in the flattened new columns: int64 [tokens]; None: all of them."""
        return None if self._plan is None else self._plan.packed

    def _is_token(self, length: int, padding: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the new columns up to `length` hold tokens: bool [rows, columns]."""
        return np.arange(self.length, length) >= padding[:, None]

    def _follows_from_ids(
        self, columns: Columns, padding: NDArray[np.int64], is_token: NDArray[np.bool_] | None
    ) -> bool:
        """Whether keys and values follow from the ids before them alone, so that other prompts may share them.

        They do where each token's position is its place in its row and nothing else went in.
        """
        if not columns.follows_from_ids:
            return False
        if columns.positions is None:
            return not padding.any()  # models count columns then
        places = np.arange(self.length, self.length + columns.num_columns) - padding[:, None]
        if columns.positions.ndim != places.ndim or columns.positions.shape[-1] != columns.num_columns:
            return False
        is_same = columns.positions == places
        return bool(is_same.all() if is_token is None else (is_same | ~is_token).all())

    def commit(self) -> None:
        """Note that the prepared step is computed."""
        plan = self._plan
        if plan is None:
            return
        plan.step.commit()
        self._plan = None
        if plan.token_ids is None:
            self._token_ids = None
        else:
            self._token_ids = _with_room(self._token_ids, self.length, plan.token_ids.shape)
            self._token_ids[:, self.length : plan.length] = plan.token_ids
        self.length, self._padding, self._is_shared = plan.length, plan.padding, plan.is_shared

    def roll_back(self) -> None:
        """Forget the prepared step, as if it had never been."""
        plan, self._plan = self._plan, None
        if plan is not None and plan.is_first:
            self.release()
        elif plan is not None:
            self.crop(self.length)


class _Plan(NamedTuple):
    """A step that is prepared and not yet computed, and what the rows will be after it."""

    step: Step
    length: int
    padding: NDArray[np.int64]
    token_ids: NDArray[np.int64] | None  # of the new columns
    packed: NDArray[np.int64] | None
    is_shared: bool
    is_first: bool


def _with_room(token_ids: NDArray[np.int64] | None, length: int, new: tuple[int, ...]) -> NDArray[np.int64]:
    """The ids of `length` columns with place for `new`, [rows, columns], behind them: doubled where there is none."""
    num_rows, num_columns = new
    capacity = 0 if token_ids is None else token_ids.shape[1]
    if token_ids is not None and length + num_columns <= capacity:
        return token_ids
    wider = np.empty((num_rows, max(length + num_columns, 2 * capacity)), np.int64)
    if token_ids is not None:
        wider[:, :length] = token_ids[:, :length]
    return wider


def _empty_sequences(pool: PagedKVCache, count: int, *, cache: bool) -> list[Sequence]:
    """Sequences without tokens: each is admitted with one, which no cached prefix can match, then dropped."""
    sequences: list[Sequence] = []
    try:
        for _ in range(count):
            sequences.append(pool.admit([0], reserve=1, cache=cache))
            sequences[-1].truncate(0)
    except BaseException:
        for sequence in sequences:
            sequence.release()
        raise
    return sequences


def _forks(sequences: list[Sequence]) -> list[Sequence]:
    forks: list[Sequence] = []
    try:
        for sequence in sequences:
            forks.append(sequence.fork())  # noqa: PERF401 - kept when one raises
    except BaseException:
        for fork in forks:
            fork.release()
        raise
    return forks
