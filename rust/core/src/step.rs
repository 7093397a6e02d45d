//! The two calls of an engine's step: `reserve` makes slots writable and fills the batch buffers, `commit` says what was computed.
//!
//! A step that fails between the two is simply repeated: `reserve` is absolute (slots from `computed` on), allocates only what is
//! missing, and emits a pending copy again until `commit` acknowledges it.

use crate::batch::{BatchBuffers, BatchState, BatchWriter};
use crate::holds::Hold;
use crate::manager::{Locked, State, check_tokens};
use crate::sequence::PendingCopy;
use crate::{BlockId, Error};

/// A number for each sequence of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts<'a> {
    /// For `reserve`: the known tokens that are not computed yet, at least one. For `commit`: all reserved slots.
    Default,
    /// The same for each.
    Same(u32),
    /// One value per handle.
    Each(&'a [u32]),
}

/// What a step computes.
#[derive(Clone, Copy, Debug)]
pub struct Reserve<'a> {
    /// The sequences, in the order of the batch's rows.
    pub handles: &'a [i64],
    /// New tokens of each sequence in this step; 0 is allowed and does nothing.
    pub num_new: Counts<'a>,
    /// Ids of those new tokens that are not known yet, in batch order; exactly that many, or none at all: then they stay unknown.
    pub tokens: Option<&'a [i32]>,
    /// Tokens beyond the step for which blocks are allocated already. Capacity only, capped at the longest sequence.
    pub lookahead: u32,
}

impl<'a> Reserve<'a> {
    /// All that is known and not computed, no lookahead.
    #[must_use]
    pub fn new(handles: &'a [i64]) -> Self {
        Self {
            handles,
            num_new: Counts::Default,
            tokens: None,
            lookahead: 0,
        }
    }
}

/// What `reserve` is about to do for one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    index: usize,
    /// Reserved slots afterwards.
    end: u32,
    num_blocks: usize,
    /// The block that needs a copy before it is written, and its hold before this call.
    copy: Option<(PendingCopy, Hold)>,
}

impl Locked<'_> {
    /// Makes the slots `computed .. computed + num_new` of each sequence writable, allocates what is missing, and writes the batch.
    /// Returns the number of sequences served.
    ///
    /// # Errors
    /// [`Error::StaleSequence`], [`Error::UnknownSequence`], [`Error::DuplicateSequence`], [`Error::SequenceTooLong`],
    /// [`Error::NeverFits`], [`Error::BatchTooSmall`], [`Error::InvalidArgument`] or [`Error::OutOfBlocks`]; nothing has changed
    /// then.
    pub fn reserve(
        &mut self,
        request: &Reserve<'_>,
        batch: Option<(&mut BatchState, BatchBuffers<'_>)>,
    ) -> Result<u32, Error> {
        self.begin()?;
        let (num_tokens, num_unknown) = self.plan_lengths(request)?;
        check_given(request.tokens, num_unknown)?;
        if let Some((state, buffers)) = &batch {
            state.check_fits(buffers, self.config, request.handles.len(), num_tokens)?;
        }
        self.plan_copies();
        if let Err(error) = self.allocate_planned() {
            self.undo_copies();
            return Err(error);
        }
        self.apply_plan(request.tokens.unwrap_or_default());
        if let Some((state, buffers)) = batch {
            let mut writer = BatchWriter::begin(state, buffers, self.block_size);
            for (&handle, planned) in request.handles.iter().zip(&self.state.plan) {
                writer.push(handle, &self.state.sequences[planned.index]);
            }
            writer.finish();
        }
        Ok(u32::try_from(request.handles.len()).unwrap_or(u32::MAX))
    }

    /// Notes that the first `num_computed` tokens of each sequence are computed and accepted (absolute, never less than before,
    /// at most the reserved slots), and that the copies of the step have run. `tokens` gives the ids below `num_computed` that are
    /// not known yet, in batch order; exactly that many, or none at all.
    ///
    /// # Errors
    /// [`Error::StaleSequence`], [`Error::UnknownSequence`], [`Error::DuplicateSequence`] or [`Error::InvalidArgument`]; nothing
    /// has changed then.
    pub fn commit(
        &mut self,
        handles: &[i64],
        num_computed: Counts<'_>,
        tokens: Option<&[i32]>,
    ) -> Result<(), Error> {
        self.begin()?;
        check_counts("num_computed", num_computed, handles.len())?;
        self.state.plan.clear();
        let mut num_unknown = 0;
        for (row, &handle) in handles.iter().enumerate() {
            let index = self.resolve(handle)?;
            self.mark(index, handle)?;
            let sequence = &self.state.sequences[index];
            let end = count_at(num_computed, row).unwrap_or(sequence.reserved);
            if end < sequence.computed || end > sequence.reserved {
                return Err(Error::InvalidArgument {
                    argument: "num_computed",
                    message: format!(
                        "is {end} for sequence handle {handle}, must be {} (computed) to {} (reserved)",
                        sequence.computed, sequence.reserved
                    ),
                });
            }
            num_unknown += u64::from(sequence.unknown_below(end));
            self.state.plan.push(Planned::commit(index, end));
        }
        check_given(tokens, num_unknown)?;
        let mut tokens = tokens.unwrap_or_default();
        let State {
            sequences,
            holds,
            plan,
            ..
        } = &mut *self.state;
        for planned in plan {
            let sequence = &mut sequences[planned.index];
            sequence.learn(&mut tokens, planned.end);
            sequence.computed = planned.end;
            if let Some(pending) = sequence.pending.take() {
                holds.remove(pending.source);
                self.pool.release(&[pending.source])?;
            }
        }
        Ok(())
    }

    /// Checks every sequence and plans its length and new blocks. Returns new tokens and, of those, tokens with unknown ids.
    fn plan_lengths(&mut self, request: &Reserve<'_>) -> Result<(u64, u64), Error> {
        check_counts("num_new", request.num_new, request.handles.len())?;
        self.state.plan.clear();
        let (mut num_tokens, mut num_unknown) = (0, 0);
        for (row, &handle) in request.handles.iter().enumerate() {
            let index = self.resolve(handle)?;
            self.mark(index, handle)?;
            let sequence = &self.state.sequences[index];
            let num_new =
                count_at(request.num_new, row).unwrap_or_else(|| sequence.pending_tokens());
            let end = u64::from(sequence.computed) + u64::from(num_new);
            self.check_length(end)?;
            if request.tokens.is_some() && num_new > 0 && sequence.known() < sequence.computed {
                return Err(Error::InvalidArgument {
                    argument: "tokens",
                    message: format!(
                        "sequence handle {handle} has {} computed tokens of which {} are known; give commit the ids between",
                        sequence.computed,
                        sequence.known()
                    ),
                });
            }
            // Fits: check_length has compared it with a u32.
            let end = u32::try_from(end).unwrap_or(u32::MAX);
            num_tokens += u64::from(num_new);
            num_unknown += u64::from(end.saturating_sub(sequence.known().max(sequence.computed)));
            let capacity = match num_new {
                0 => 0,
                _ => end
                    .saturating_add(request.lookahead)
                    .min(self.config.max_sequence_len()),
            };
            let num_blocks = self.block_size.blocks_for(capacity) as usize;
            let num_blocks = num_blocks.saturating_sub(sequence.table.len());
            self.state.plan.push(Planned {
                index,
                end,
                num_blocks,
                copy: None,
            });
        }
        Ok((num_tokens, num_unknown))
    }

    /// Finds the shared blocks that the step writes. Takes the holds right away, so that a later row of the same step sees that
    /// an earlier one has left the block.
    fn plan_copies(&mut self) {
        let block_size = self.block_size;
        let State {
            sequences,
            holds,
            plan,
            ..
        } = &mut *self.state;
        for planned in plan {
            let sequence = &sequences[planned.index];
            let (column, offset) = (
                block_size.column(sequence.computed) as usize,
                block_size.offset(sequence.computed),
            );
            // Only the block with the first new token can be shared: a fork shares no block past its computed tokens.
            if planned.end == sequence.computed || offset == 0 || sequence.pending.is_some() {
                continue;
            }
            let source = sequence.table.blocks()[column];
            if holds.write_needs_copy(self.pool, source, offset) {
                planned.copy = Some((PendingCopy { column, source }, holds.add(source, offset)));
            }
        }
    }

    fn undo_copies(&mut self) {
        let State { holds, plan, .. } = &mut *self.state;
        for (pending, before) in plan.iter().rev().filter_map(|planned| planned.copy) {
            holds.restore(pending.source, before);
        }
    }

    /// Allocates the blocks of the whole step at once.
    fn allocate_planned(&mut self) -> Result<(), Error> {
        let State { blocks, plan, .. } = &mut *self.state;
        let needed: usize = plan
            .iter()
            .map(|planned| planned.num_blocks + usize::from(planned.copy.is_some()))
            .sum();
        let num_blocks = self.pool.num_blocks();
        if needed > num_blocks as usize {
            // Each sequence fits the pool, together they do not: a smaller batch may.
            return Err(Error::OutOfBlocks {
                requested: u32::try_from(needed).unwrap_or(u32::MAX),
                free: self.pool.num_free(),
                evictable: 0,
            });
        }
        blocks.clear();
        blocks.resize(needed, BlockId::NULL);
        self.pool.allocate(blocks)
    }

    /// Gives each sequence its blocks and lengths. Nothing here can fail.
    fn apply_plan(&mut self, mut tokens: &[i32]) {
        let State {
            sequences,
            blocks,
            plan,
            num_copies,
            ..
        } = &mut *self.state;
        let mut blocks = blocks.as_slice();
        for planned in plan {
            let sequence = &mut sequences[planned.index];
            if let Some((pending, _)) = planned.copy {
                sequence.table.exchange(pending.column, blocks[0]);
                sequence.pending = Some(pending);
                blocks = &blocks[1..];
                *num_copies += 1;
            }
            let (own, rest) = blocks.split_at(planned.num_blocks);
            sequence.table.append(own);
            blocks = rest;
            sequence.reserved = planned.end;
            // Ids of computed tokens come with a commit, never here.
            if sequence.known() >= sequence.computed {
                sequence.learn(&mut tokens, planned.end);
            }
        }
    }
}

impl Planned {
    fn commit(index: usize, end: u32) -> Self {
        Self {
            index,
            end,
            num_blocks: 0,
            copy: None,
        }
    }
}

fn count_at(counts: Counts<'_>, row: usize) -> Option<u32> {
    match counts {
        Counts::Default => None,
        Counts::Same(count) => Some(count),
        Counts::Each(counts) => Some(counts[row]),
    }
}

fn check_counts(
    argument: &'static str,
    counts: Counts<'_>,
    num_sequences: usize,
) -> Result<(), Error> {
    match counts {
        Counts::Each(counts) if counts.len() != num_sequences => Err(Error::InvalidArgument {
            argument,
            message: format!("has {} values for {num_sequences} sequences", counts.len()),
        }),
        _ => Ok(()),
    }
}

fn check_given(tokens: Option<&[i32]>, num_unknown: u64) -> Result<(), Error> {
    let Some(tokens) = tokens else { return Ok(()) };
    if tokens.len() as u64 != num_unknown {
        return Err(Error::InvalidArgument {
            argument: "tokens",
            message: format!(
                "has {} values, {num_unknown} of these tokens are not known yet",
                tokens.len()
            ),
        });
    }
    check_tokens(tokens)
}
