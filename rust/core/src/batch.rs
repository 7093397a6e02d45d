//! Batch buffers: what one step of an engine feeds to the model and to the kernels, written into slices that the caller owns.
//!
//! The buffers are allocated once and keep their addresses (a captured CUDA graph reads them again and again), so a step writes
//! only what differs from the step before: a row whose sequence stayed in place gets its new table cells, and padding is
//! restored only where the step before had left values. That makes the buffers write-only for everybody else's readers: a caller
//! that writes into them itself gets stale cells.
//!
//! | buffer | shape, dtype | padding |
//! |---|---|---|
//! | `block_table` | i32 \[rows, columns\] | 0, the null block |
//! | `seq_lens` | i32 \[rows\], tokens in the cache, the step's new ones included | 0 |
//! | `query_lens` | i32 \[rows\], the step's new tokens | 0 |
//! | `cu_query_lens` | i32 \[rows + 1\], prefix sums of `query_lens` | its last value |
//! | `slot_mapping` | i64 \[tokens\] | -1 |
//! | `positions`, `token_ids` | i64 \[tokens\] | 0; the id of a live token that is not known yet is -1 |
//! | `copies` | i32 \[rows, 2\], (source, destination) | -1 |

use crate::block_size::BlockSize;
use crate::sequence::Sequence;
use crate::{BlockId, Config, Error};

/// Sizes of a batch's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Sequences of a step.
    pub rows: usize,
    /// Blocks of a sequence.
    pub columns: usize,
    /// New tokens of a step, over all sequences.
    pub tokens: usize,
}

impl BatchShape {
    /// The shape that holds any step of a manager with this configuration and at most `max_batch_tokens` new tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `max_batch_tokens` is 0 or does not fit an `i32`.
    pub fn new(config: &Config, max_batch_tokens: u32) -> Result<Self, Error> {
        if max_batch_tokens == 0 || i32::try_from(max_batch_tokens).is_err() {
            return Err(Error::InvalidArgument {
                argument: "max_batch_tokens",
                message: format!("is {max_batch_tokens}, must be 1 to {}", i32::MAX),
            });
        }
        Ok(Self {
            rows: config.max_sequences() as usize,
            columns: config.max_blocks_per_sequence() as usize,
            tokens: max_batch_tokens as usize,
        })
    }
}

/// The caller's buffers, whole. The module's table gives shapes and meaning.
#[expect(missing_docs, reason = "the module's table names each field")]
#[derive(Debug)]
pub struct BatchBuffers<'a> {
    pub block_table: &'a mut [i32],
    pub seq_lens: &'a mut [i32],
    pub query_lens: &'a mut [i32],
    pub cu_query_lens: &'a mut [i32],
    pub slot_mapping: &'a mut [i64],
    pub positions: &'a mut [i64],
    pub token_ids: &'a mut [i64],
    pub copies: &'a mut [i32],
}

impl BatchBuffers<'_> {
    /// The same buffers, for a shorter while.
    pub(crate) fn reborrow(&mut self) -> BatchBuffers<'_> {
        BatchBuffers {
            block_table: self.block_table,
            seq_lens: self.seq_lens,
            query_lens: self.query_lens,
            cu_query_lens: self.cu_query_lens,
            slot_mapping: self.slot_mapping,
            positions: self.positions,
            token_ids: self.token_ids,
            copies: self.copies,
        }
    }
}

/// Which table a row of the buffer holds, up to which cell. No two tables have the same epoch, and none has 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    epoch: u64,
    cells: u32,
}

impl Row {
    /// The whole table of a sequence.
    #[inline]
    fn of(sequence: &Sequence) -> Self {
        Self {
            epoch: sequence.table_epoch,
            cells: sequence.num_blocks,
        }
    }

    /// Whether the row is as this sequence's table.
    #[inline]
    pub(crate) fn is_of(&self, sequence: &Sequence) -> bool {
        *self == Self::of(sequence)
    }
}

/// What the buffers of one batch hold, so that the next step writes the difference.
#[derive(Debug)]
pub struct BatchState {
    shape: BatchShape,
    rows: Vec<Row>,
    num_sequences: usize,
    num_tokens: usize,
    num_copies: usize,
    max_query_len: u32,
    max_seq_len: u32,
    /// Leading rows whose query length is 1: a decode step finds `query_lens` and `cu_query_lens` as it would write them.
    num_single: usize,
}

impl BatchState {
    /// Takes over buffers that have never been written: pads them all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the buffer whose length is not what `shape` asks for.
    pub fn new(shape: BatchShape, buffers: &mut BatchBuffers<'_>) -> Result<Self, Error> {
        Self::check_lengths(shape, buffers)?;
        buffers.block_table.fill(0);
        buffers.seq_lens.fill(0);
        buffers.query_lens.fill(0);
        buffers.cu_query_lens.fill(0);
        buffers.slot_mapping.fill(-1);
        buffers.positions.fill(0);
        buffers.token_ids.fill(0);
        buffers.copies.fill(-1);
        Ok(Self {
            shape,
            rows: vec![Row::default(); shape.rows],
            num_sequences: 0,
            num_tokens: 0,
            num_copies: 0,
            max_query_len: 0,
            max_seq_len: 0,
            num_single: 0,
        })
    }

    /// Sequences of the newest step.
    #[must_use]
    pub fn num_sequences(&self) -> usize {
        self.num_sequences
    }

    /// New tokens of the newest step.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Copies of the newest step.
    #[must_use]
    pub fn num_copies(&self) -> usize {
        self.num_copies
    }

    /// Most new tokens of one sequence in the newest step.
    #[must_use]
    pub fn max_query_len(&self) -> u32 {
        self.max_query_len
    }

    /// Longest sequence of the newest step, its new tokens included.
    #[must_use]
    pub fn max_seq_len(&self) -> u32 {
        self.max_seq_len
    }

    /// Sizes of the buffers.
    #[must_use]
    pub fn shape(&self) -> BatchShape {
        self.shape
    }

    /// Whether a step of this size fits, and the buffers are as long as those that the batch was bound with.
    pub(crate) fn check_fits(
        &self,
        buffers: &BatchBuffers<'_>,
        config: &Config,
        num_sequences: usize,
        num_tokens: u64,
    ) -> Result<(), Error> {
        let BatchShape {
            rows,
            columns,
            tokens,
        } = self.shape;
        let sizes = [
            ("max_sequences", num_sequences as u64, rows),
            (
                "max_blocks_per_sequence",
                u64::from(config.max_blocks_per_sequence()),
                columns,
            ),
            ("max_batch_tokens", num_tokens, tokens),
        ];
        for (what, requested, limit) in sizes {
            let limit = limit as u64;
            if requested > limit {
                return Err(Error::BatchTooSmall {
                    what,
                    requested,
                    limit,
                });
            }
        }
        Self::check_lengths(self.shape, buffers)
    }

    fn check_lengths(shape: BatchShape, buffers: &BatchBuffers<'_>) -> Result<(), Error> {
        let lengths = [
            (
                "block_table",
                buffers.block_table.len(),
                shape.rows * shape.columns,
            ),
            ("seq_lens", buffers.seq_lens.len(), shape.rows),
            ("query_lens", buffers.query_lens.len(), shape.rows),
            ("cu_query_lens", buffers.cu_query_lens.len(), shape.rows + 1),
            ("slot_mapping", buffers.slot_mapping.len(), shape.tokens),
            ("positions", buffers.positions.len(), shape.tokens),
            ("token_ids", buffers.token_ids.len(), shape.tokens),
            ("copies", buffers.copies.len(), 2 * shape.rows),
        ];
        for (argument, len, expected) in lengths {
            if len != expected {
                return Err(Error::InvalidArgument {
                    argument,
                    message: format!("has {len} elements, must have {expected}"),
                });
            }
        }
        Ok(())
    }
}

/// Writes one step, row by row. The step must fit ([`BatchState::check_fits`]): from here on nothing fails.
pub(crate) struct BatchWriter<'s, 'b> {
    state: &'s mut BatchState,
    buffers: BatchBuffers<'b>,
    block_size: BlockSize,
    row: usize,
    token: usize,
    copy: usize,
    /// Of the rows written so far.
    max_query_len: u32,
    max_seq_len: u32,
}

impl<'s, 'b> BatchWriter<'s, 'b> {
    pub(crate) fn begin(
        state: &'s mut BatchState,
        buffers: BatchBuffers<'b>,
        block_size: BlockSize,
    ) -> Self {
        Self {
            state,
            buffers,
            block_size,
            row: 0,
            token: 0,
            copy: 0,
            max_query_len: 0,
            max_seq_len: 0,
        }
    }

    /// Adds the row of a sequence, whose reserved slots are this step's. `cells` is its table, as kernels read it; `ids` are the
    /// known ones of its new tokens, in two parts.
    pub(crate) fn push(&mut self, sequence: &Sequence, cells: &[i32], ids: (&[i32], &[i32])) {
        let query_len = sequence.reserved - sequence.computed;
        if !self.state.rows[self.row].is_of(sequence) {
            self.write_table_row(self.row, sequence, cells);
        }
        self.push_tokens(sequence, cells, ids);
        self.buffers.seq_lens[self.row] = sequence.reserved.cast_signed();
        self.write_query_len(query_len);
        self.max_query_len = self.max_query_len.max(query_len);
        self.max_seq_len = self.max_seq_len.max(sequence.reserved);
        self.row += 1;
    }

    /// Where a decode step of so many rows writes what differs from row to row. Cut to that length once, so that a loop over them
    /// checks no bounds.
    pub(crate) fn decode_rows(&mut self, num_rows: usize) -> impl Iterator<Item = DecodeRow<'_>> {
        let shown = self.state.rows[..num_rows].iter();
        let slots = self.buffers.slot_mapping[..num_rows].iter_mut();
        let seq_lens = self.buffers.seq_lens[..num_rows].iter_mut();
        let rows = shown.zip(slots).zip(seq_lens);
        rows.map(|((shown, slot), seq_len)| DecodeRow {
            shown,
            slot,
            seq_len,
        })
    }

    /// Ends a decode step, whose rows have one new token each: writes what follows from the tokens and the lengths. In loops of
    /// their own, which are vectorized.
    pub(crate) fn finish_decode(mut self, tokens: &[i32]) {
        let num_rows = tokens.len();
        let seq_lens = &self.buffers.seq_lens[..num_rows];
        for (id, &token) in self.buffers.token_ids[..num_rows].iter_mut().zip(tokens) {
            *id = i64::from(token);
        }
        for (position, &seq_len) in self.buffers.positions.iter_mut().zip(seq_lens) {
            *position = i64::from(seq_len - 1);
        }
        let max_seq_len = seq_lens.iter().fold(0, |max, &seq_len| seq_len.max(max));
        self.max_seq_len = max_seq_len.cast_unsigned();
        for row in self.state.num_single..num_rows {
            self.row = row;
            self.write_query_len(1);
        }
        self.row = num_rows;
        self.token = num_rows;
        self.max_query_len = u32::from(num_rows > 0);
        self.finish();
    }

    /// Adds a copy that must run before the step writes.
    pub(crate) fn push_copy(&mut self, source: BlockId, destination: BlockId) {
        self.buffers.copies[2 * self.copy..2 * self.copy + 2]
            .copy_from_slice(&[source.as_i32(), destination.as_i32()]);
        self.copy += 1;
    }

    fn write_query_len(&mut self, query_len: u32) {
        self.buffers.query_lens[self.row] = query_len.cast_signed();
        self.buffers.cu_query_lens[self.row + 1] =
            self.buffers.cu_query_lens[self.row] + query_len.cast_signed();
        if query_len != 1 {
            self.state.num_single = self.state.num_single.min(self.row);
        } else if self.state.num_single == self.row {
            self.state.num_single += 1;
        }
    }

    /// Brings a row of the block table up to date.
    pub(crate) fn write_table_row(&mut self, row: usize, sequence: &Sequence, cells: &[i32]) {
        let columns = self.state.shape.columns;
        let buffer = &mut self.buffers.block_table[row * columns..][..columns];
        let now = Row::of(sequence);
        let shown = std::mem::replace(&mut self.state.rows[row], now);
        let num_shown = shown.cells as usize;
        let is_same = shown.epoch == now.epoch;
        if is_same && num_shown + 1 == cells.len() {
            // What a decode step needs, without a call to copy one cell.
            buffer[num_shown] = cells[num_shown];
            return;
        }
        let unchanged = if is_same { num_shown } else { 0 };
        buffer[unchanged..cells.len()].copy_from_slice(&cells[unchanged..]);
        if num_shown > cells.len() {
            buffer[cells.len()..num_shown].fill(0);
        }
    }

    /// Writes slots, positions and ids, each in a loop of its own, which is vectorized.
    fn push_tokens(&mut self, sequence: &Sequence, cells: &[i32], ids: (&[i32], &[i32])) {
        let num_new = (sequence.reserved - sequence.computed) as usize;
        let new = self.token..self.token + num_new;
        self.token = new.end;
        let first = i64::from(sequence.computed);
        for (position, at) in (first..).zip(&mut self.buffers.positions[new.clone()]) {
            *at = position;
        }
        let (known, unknown) =
            self.buffers.token_ids[new.clone()].split_at_mut(ids.0.len() + ids.1.len());
        let (in_row, in_tail) = known.split_at_mut(ids.0.len());
        for (part, ids) in [(in_row, ids.0), (in_tail, ids.1)] {
            for (id, &known) in part.iter_mut().zip(ids) {
                *id = i64::from(known);
            }
        }
        unknown.fill(-1);
        // One block at a time: slots are consecutive within it.
        let size = self.block_size.tokens();
        let mut slots = &mut self.buffers.slot_mapping[new];
        let mut offset = self.block_size.offset(sequence.computed);
        for &block in &cells[self.block_size.column(sequence.computed) as usize..] {
            let in_block = slots.len().min((size - offset) as usize);
            if in_block == 0 {
                break;
            }
            let (these, rest) = slots.split_at_mut(in_block);
            let first = i64::from(block) * i64::from(size) + i64::from(offset);
            for (slot, at) in (first..).zip(these) {
                *at = slot;
            }
            slots = rest;
            offset = 0;
        }
    }

    /// Pads what the step before had used and this one does not.
    pub(crate) fn finish(self) {
        let Self { state, buffers, .. } = self;
        let (row, token, copy) = (self.row, self.token, self.copy);
        for stale in row..state.num_sequences {
            let start = stale * state.shape.columns;
            buffers.block_table[start..start + state.rows[stale].cells as usize].fill(0);
            state.rows[stale] = Row::default();
            buffers.seq_lens[stale] = 0;
            buffers.query_lens[stale] = 0;
        }
        if row != state.num_sequences || token != state.num_tokens {
            let total = buffers.cu_query_lens[row];
            buffers.cu_query_lens[row + 1..].fill(total);
        }
        if token < state.num_tokens {
            buffers.slot_mapping[token..state.num_tokens].fill(-1);
            buffers.positions[token..state.num_tokens].fill(0);
            buffers.token_ids[token..state.num_tokens].fill(0);
        }
        if copy < state.num_copies {
            buffers.copies[2 * copy..2 * state.num_copies].fill(-1);
        }
        state.num_single = state.num_single.min(row);
        state.num_sequences = row;
        state.num_tokens = token;
        state.num_copies = copy;
        state.max_query_len = self.max_query_len;
        state.max_seq_len = self.max_seq_len;
    }
}

/// What a decode step writes of one sequence, one by one.
pub(crate) struct DecodeRow<'b> {
    /// What the row of the block table holds.
    pub(crate) shown: &'b Row,
    pub(crate) slot: &'b mut i64,
    /// The new token included.
    pub(crate) seq_len: &'b mut i32,
}
