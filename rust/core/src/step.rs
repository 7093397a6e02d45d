//! The two calls of an engine's step: `reserve` makes slots writable and fills the batch buffers, `commit` says what was computed.
//!
//! A step that fails between the two is simply repeated: `reserve` is absolute (slots from `computed` on), allocates only what is
//! missing, and emits a pending copy again until `commit` acknowledges it.

use crate::Error;
use crate::batch::{BatchBuffers, BatchState, BatchWriter};
use crate::holds::Hold;
use crate::manager::{Locked, check_tokens};
use crate::oom::Oom;
use crate::release::release_blocks;
use crate::sequence::{PendingCopy, Sequence};
use crate::state::State;
use crate::token_rows::TokenRows;

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
    /// New tokens of each sequence in this step. 0 is allowed: no slots, and a pending copy is emitted again.
    pub num_new: Counts<'a>,
    /// Ids of those new tokens that are not known yet, in batch order; exactly that many, or none at all: then they stay unknown.
    pub tokens: Option<&'a [i32]>,
    /// Tokens beyond the step for which blocks are allocated already. Capacity only, capped at the longest sequence.
    pub lookahead: u32,
    /// What happens where there are not enough blocks for all.
    pub oom: Oom,
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
            oom: Oom::Fail,
        }
    }
}

/// What a call is about to do for one sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planned {
    place: u32,
    /// Reserved or computed tokens afterwards.
    end: u32,
    /// New blocks, the destination of a copy not counted.
    pub(crate) num_blocks: u32,
}

/// A block that needs a copy before it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedCopy {
    /// Index in the plan.
    pub(crate) row: usize,
    pub(crate) copy: PendingCopy,
    /// The source's hold before this call.
    pub(crate) before: Hold,
}

impl Locked<'_> {
    /// Makes the slots `computed .. computed + num_new` of each sequence writable, allocates what is missing, and writes the batch.
    /// Returns the number of sequences served: all of them, or with [`Oom::Prefix`] as many of the first as there are blocks for.
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
        check_counts("num_new", request.num_new, request.handles.len())?;
        let mut batch = batch;
        if let (Counts::Same(1) | Counts::Default, 0, Some(tokens), Some((state, buffers))) = (
            request.num_new,
            request.lookahead,
            request.tokens,
            &mut batch,
        ) && self.reserve_decode(request.handles, tokens, (&mut **state, buffers.reborrow()))
        {
            return Ok(num_rows(request.handles));
        }
        let totals = match request.num_new {
            Counts::Default => self.plan_lengths(request, |_, sequence| sequence.pending_tokens()),
            Counts::Same(num_new) => self.plan_lengths(request, |_, _| num_new),
            Counts::Each(num_new) => self.plan_lengths(request, |row, _| num_new[row]),
        }?;
        check_given(request.tokens, totals.unknown)?;
        if let Some((state, buffers)) = &batch {
            state.check_fits(buffers, self.config, request.handles.len(), totals.tokens)?;
        }
        if totals.may_copy {
            self.plan_copies();
        }
        let needed = totals.blocks + self.state.planned_copies.len() as u64;
        if let Err(error) = self.allocate(needed) {
            self.shorten_plan(request.oom, error)?;
        }
        self.apply_plan(request.tokens.unwrap_or_default());
        let served = &request.handles[..self.state.plan.len()];
        if let Some((state, buffers)) = batch {
            self.write_batch(state, buffers);
        }
        Ok(num_rows(served))
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
        if num_computed == Counts::Default
            && tokens.is_none_or(<[i32]>::is_empty)
            && self.commit_decode(handles)?
        {
            return Ok(());
        }
        let num_unknown = match num_computed {
            Counts::Default => self.plan_commit(handles, |_, sequence| sequence.reserved),
            Counts::Same(end) => self.plan_commit(handles, |_, _| end),
            Counts::Each(ends) => self.plan_commit(handles, |row, _| ends[row]),
        }?;
        check_given(tokens, num_unknown)?;
        let mut tokens = tokens.unwrap_or_default();
        let state = &mut *self.state;
        for row in 0..state.plan.len() {
            let planned = state.plan[row];
            let place = planned.place as usize;
            let sequence = &mut state.sequences[place];
            learn(sequence, &mut state.tokens, place, &mut tokens, planned.end);
            let column = state.block_size.column(sequence.computed);
            sequence.computed = planned.end;
            if column != state.block_size.column(planned.end) {
                state.find_tail(place);
            }
            if let Some(pending) = state.pending[place].take() {
                state.holds.remove(pending.source);
                state.sequences[place].owns_tail = true;
                release_blocks(&mut state.cache, self.pool, &[pending.source])?;
            }
            if state.sequences[place].publishes {
                state.publish(self.pool, place)?;
            }
            state.note_plain(planned.place);
        }
        Ok(())
    }

    /// Checks every sequence of a commit. Returns how many of its tokens have unknown ids.
    fn plan_commit(
        &mut self,
        handles: &[i64],
        end: impl Fn(usize, &Sequence) -> u32,
    ) -> Result<u64, Error> {
        let State {
            sequences,
            plan,
            call,
            ..
        } = &mut *self.state;
        plan.clear();
        let mut num_unknown = 0;
        for (row, &handle) in handles.iter().enumerate() {
            let Some((place, sequence)) = find(sequences, handle, *call) else {
                return Err(self.refusal(handle));
            };
            let end = end(row, sequence);
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
            plan.push(Planned {
                place,
                end,
                num_blocks: 0,
            });
        }
        Ok(num_unknown)
    }

    /// Checks every sequence and plans its length and new blocks.
    fn plan_lengths(
        &mut self,
        request: &Reserve<'_>,
        num_new: impl Fn(usize, &Sequence) -> u32,
    ) -> Result<Totals, Error> {
        let State {
            sequences,
            plan,
            call,
            ..
        } = &mut *self.state;
        plan.clear();
        plan.resize(request.handles.len(), Planned::default());
        let mut totals = Totals::default();
        for (row, (&handle, planned)) in request.handles.iter().zip(plan).enumerate() {
            let Some((place, sequence)) = find(sequences, handle, *call) else {
                return Err(self.refusal(handle));
            };
            let num_new = num_new(row, sequence);
            let (known, computed) = (sequence.known, sequence.computed);
            let end = u64::from(computed) + u64::from(num_new);
            if end > self.longest {
                return Err(self.too_long(end));
            }
            // Fits: it is at most the longest sequence.
            let end = u32::try_from(end).unwrap_or(u32::MAX);
            if known < computed && num_new > 0 && request.tokens.is_some() {
                return Err(ids_missing(handle, sequence));
            }
            *planned = Planned {
                place,
                end,
                num_blocks: 0,
            };
            let capacity = (u64::from(end) + u64::from(request.lookahead)).min(self.longest);
            let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
            let num_blocks = self.block_size.blocks_for(capacity);
            if num_blocks > sequence.num_blocks && num_new > 0 {
                planned.num_blocks = num_blocks - sequence.num_blocks;
                totals.blocks += u64::from(planned.num_blocks);
            }
            totals.tokens += u64::from(num_new);
            totals.unknown += u64::from(end.saturating_sub(known.max(computed)));
            totals.may_copy |= !sequence.owns_tail;
        }
        self.state.planned_copies.clear();
        Ok(totals)
    }

    /// Finds the shared blocks that the step writes. Takes the holds right away, so that a later row of the same step sees that
    /// an earlier one has left the block.
    fn plan_copies(&mut self) {
        let block_size = self.block_size;
        let state = &mut *self.state;
        for (row, planned) in state.plan.iter().enumerate() {
            let place = planned.place as usize;
            let sequence = &mut state.sequences[place];
            if sequence.owns_tail
                || planned.end == sequence.computed
                || state.pending[place].is_some()
            {
                continue;
            }
            let offset = block_size.offset(sequence.computed);
            // Only the block with the first new token can be shared: a fork shares no block past its computed tokens.
            if offset == 0 {
                sequence.own_tail(planned.place, state.longest);
                continue;
            }
            let column = block_size.column(sequence.computed);
            let source = state.tables.block(place, column);
            if self.pool.holders(source) == (1, false) {
                sequence.own_tail(planned.place, state.longest);
            } else if state.holds.write_needs_copy(self.pool, source, offset) {
                state.planned_copies.push(PlannedCopy {
                    row,
                    copy: PendingCopy { column, source },
                    before: state.holds.add(source, offset),
                });
            }
        }
    }

    /// Gives each sequence its blocks and lengths. Nothing here can fail.
    fn apply_plan(&mut self, mut tokens: &[i32]) {
        let state = &mut *self.state;
        let num_copies = state.planned_copies.len();
        for index in 0..num_copies {
            let planned = state.planned_copies[index];
            let place = state.plan[planned.row].place as usize;
            state
                .tables
                .exchange(place, planned.copy.column, state.blocks[index]);
            state.pending[place] = Some(planned.copy);
            let sequence = &mut state.sequences[place];
            sequence.owns_tail = false; // until the copy is acknowledged: every step on the way must emit it
            sequence.tail = state.blocks[index];
            state.num_copies += 1;
            state.renew_table(place);
        }
        let mut next_block = num_copies;
        for row in 0..state.plan.len() {
            let planned = state.plan[row];
            let place = planned.place as usize;
            if planned.num_blocks > 0 {
                let first = next_block;
                next_block += planned.num_blocks as usize;
                state.append_blocks(place, first..next_block);
                state.find_tail(place);
            }
            let sequence = &mut state.sequences[place];
            sequence.reserved = planned.end;
            // Ids of computed tokens come with a commit, never here.
            if sequence.known >= sequence.computed {
                learn(sequence, &mut state.tokens, place, &mut tokens, planned.end);
            }
            state.note_plain(planned.place);
        }
    }

    fn write_batch(&self, batch: &mut BatchState, buffers: BatchBuffers<'_>) {
        let state = &*self.state;
        let mut writer = BatchWriter::begin(batch, buffers, self.block_size);
        for planned in &state.plan {
            let place = planned.place as usize;
            let sequence = &state.sequences[place];
            let &Sequence {
                known,
                computed,
                reserved,
                ..
            } = sequence;
            let cells = state.tables.cells(place, sequence.num_blocks);
            let ids = state
                .tokens
                .between(place, computed.min(known), reserved.min(known), known);
            writer.push(sequence, cells, ids);
            if let Some(pending) = state.pending[place] {
                writer.push_copy(pending.source, state.tables.block(place, pending.column));
            }
        }
        writer.finish();
    }

    /// Why a handle was refused, found again the slow way.
    fn refusal(&self, handle: i64) -> Error {
        match self.resolve(handle) {
            Ok(_) => Error::DuplicateSequence { handle },
            Err(error) => error,
        }
    }
}

/// What the sequences of a step need together.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    tokens: u64,
    unknown: u64,
    blocks: u64,
    may_copy: bool,
}

fn num_rows(handles: &[i64]) -> u32 {
    u32::try_from(handles.len()).unwrap_or(u32::MAX)
}

/// The living sequence with this handle, unless `call` has named it already; notes that it has now.
pub(crate) fn find(
    sequences: &mut [Sequence],
    handle: i64,
    call: u64,
) -> Option<(u32, &mut Sequence)> {
    let place = u32::try_from(handle & i64::from(u32::MAX)).ok()?;
    let sequence = sequences.get_mut(place as usize)?;
    if i64::from(sequence.generation) != handle >> 32
        || !sequence.is_alive
        || sequence.last_call == call
    {
        return None;
    }
    sequence.last_call = call;
    Some((place, sequence))
}

fn ids_missing(handle: i64, sequence: &Sequence) -> Error {
    Error::InvalidArgument {
        argument: "tokens",
        message: format!(
            "sequence handle {handle} has {} computed tokens of which {} are known; give commit the ids between",
            sequence.computed, sequence.known
        ),
    }
}

/// Takes the ids of the positions below `end` that are not known yet from the front of `tokens`, as far as there are any.
fn learn(
    sequence: &mut Sequence,
    rows: &mut TokenRows,
    place: usize,
    tokens: &mut &[i32],
    end: u32,
) {
    let num_new = sequence.unknown_below(end) as usize;
    if num_new == 1
        && let [token, rest @ ..] = tokens
    {
        rows.push(place, sequence.known, *token);
        sequence.known += 1;
        *tokens = rest;
    } else if num_new > 1 && !tokens.is_empty() {
        let (own, rest) = tokens.split_at(num_new);
        rows.append(place, sequence.known, own);
        sequence.known = end;
        *tokens = rest;
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
