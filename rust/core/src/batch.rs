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

/// Which table a row of the buffer holds, up to which cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    handle: i64,
    epoch: u64,
    cells: u32,
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
    pub(crate) fn push(
        &mut self,
        handle: i64,
        sequence: &Sequence,
        cells: &[i32],
        ids: (&[i32], &[i32]),
    ) {
        let query_len = sequence.reserved - sequence.computed;
        if !self.shows(self.row, handle, sequence) {
            self.write_table_row(self.row, handle, sequence.table_epoch, cells);
        }
        self.push_tokens(sequence, cells, ids);
        self.buffers.seq_lens[self.row] = sequence.reserved.cast_signed();
        self.write_query_len(query_len);
        self.max_query_len = self.max_query_len.max(query_len);
        self.max_seq_len = self.max_seq_len.max(sequence.reserved);
        self.row += 1;
    }

    /// Whether the row of the block table is as this sequence's.
    pub(crate) fn shows(&self, row: usize, handle: i64, sequence: &Sequence) -> bool {
        let shown = &self.state.rows[row];
        shown.handle == handle
            && shown.epoch == sequence.table_epoch
            && shown.cells == sequence.num_blocks
    }

    /// Writes what a decode step has of one sequence, its row of the block table excepted.
    pub(crate) fn write_decode_row(&mut self, row: usize, sequence: &Sequence, token: i32) {
        let position = sequence.computed;
        let offset = self.block_size.offset(position);
        self.buffers.slot_mapping[row] = i64::from(sequence.tail.get())
            * i64::from(self.block_size.tokens())
            + i64::from(offset);
        self.buffers.positions[row] = i64::from(position);
        self.buffers.token_ids[row] = i64::from(token);
        self.buffers.seq_lens[row] = sequence.reserved.cast_signed();
        self.max_seq_len = self.max_seq_len.max(sequence.reserved);
    }

    /// Ends a decode step of so many rows, each with one new token.
    pub(crate) fn finish_decode(mut self, num_rows: usize) {
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

    /// Brings the row of the block table up to date.
    pub(crate) fn write_table_row(&mut self, row: usize, handle: i64, epoch: u64, cells: &[i32]) {
        let columns = self.state.shape.columns;
        let buffer = &mut self.buffers.block_table[row * columns..][..columns];
        let shown = &mut self.state.rows[row];
        let is_same = shown.handle == handle && shown.epoch == epoch;
        let unchanged = if is_same { shown.cells as usize } else { 0 };
        buffer[unchanged..cells.len()].copy_from_slice(&cells[unchanged..]);
        if shown.cells as usize > cells.len() {
            buffer[cells.len()..shown.cells as usize].fill(0);
        }
        *shown = Row {
            handle,
            epoch,
            cells: u32::try_from(cells.len()).unwrap_or(u32::MAX),
        };
    }

    fn push_tokens(&mut self, sequence: &Sequence, cells: &[i32], ids: (&[i32], &[i32])) {
        let size = self.block_size.tokens();
        let first = self.token;
        let mut position = sequence.computed;
        while position < sequence.reserved {
            // One block at a time: slots are consecutive within it.
            let start = self.block_size.offset(position);
            let block = cells[self.block_size.column(position) as usize];
            let first_slot = i64::from(block) * i64::from(size) + i64::from(start);
            let in_block = (size - start).min(sequence.reserved - position);
            let slots = &mut self.buffers.slot_mapping[self.token..][..in_block as usize];
            let positions = &mut self.buffers.positions[self.token..][..in_block as usize];
            for (offset, (slot, at)) in (0..).zip(slots.iter_mut().zip(positions)) {
                *slot = first_slot + offset;
                *at = i64::from(position) + offset;
            }
            self.token += in_block as usize;
            position += in_block;
        }
        let known = ids.0.iter().chain(ids.1).map(|&id| i64::from(id));
        for (id, known) in self.buffers.token_ids[first..self.token]
            .iter_mut()
            .zip(known.chain(std::iter::repeat(-1)))
        {
            *id = known;
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
