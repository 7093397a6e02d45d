//! The step that an engine takes most: one new token for each sequence, each in a block that is the sequence's own.
//!
//! It does what [`reserve`](Locked::reserve) and [`commit`](Locked::commit) do, as far as both are plain. Whatever is not (a tail
//! that may be shared, ids that are late, a sequence at its limit, a bad handle, too few blocks) is left to the general way, before
//! anything has changed. Whether a sequence is plain, and stands once, is one comparison: see [`Plain`].
//!
//! Floor: one line of sequence state read and written, 28 bytes of batch buffers written, 8 + 4 bytes of arguments read: about
//! 3 ns a sequence on one core. The loops over all rows hold nothing that happens only at the edge of a block: such rows are
//! listed on the way and looked at afterwards.

use std::hint::black_box;

use crate::Error;
use crate::batch::{BatchBuffers, BatchState, BatchWriter};
use crate::manager::{Locked, are_tokens};
use crate::plain::Plain;
use crate::state::State;

impl Locked<'_> {
    /// Takes a plain decode step; `false` if it is not one, with nothing changed.
    pub(crate) fn reserve_decode(
        &mut self,
        handles: &[i64],
        tokens: &[i32],
        batch: (&mut BatchState, BatchBuffers<'_>),
    ) -> bool {
        let (state, buffers) = &batch;
        let fits = state.check_fits(buffers, self.config, handles.len(), tokens.len() as u64);
        if tokens.len() != handles.len() || fits.is_err() || !are_tokens(tokens) {
            return false;
        }
        let state = &mut *self.state;
        let num_starting = match state.take_decode(handles) {
            Ok(num_starting) => num_starting,
            Err(num_taken) => {
                state.give_back_decode(&handles[..num_taken]);
                return false;
            }
        };
        let num_blocks = state.count_full_tables(num_starting);
        if self.allocate(num_blocks).is_err() {
            self.state.give_back_decode(handles);
            return false;
        }
        self.state.start_blocks(num_starting);
        self.state.write_decode(handles, tokens, batch);
        true
    }

    /// Commits a plain decode step; `false` if it is not one, with nothing changed.
    pub(crate) fn commit_decode(&mut self, handles: &[i64]) -> Result<bool, Error> {
        let state = &mut *self.state;
        let num_full = match state.advance_decode(handles) {
            Ok(num_full) => num_full,
            Err(num_done) => {
                state.step_back_decode(&handles[..num_done]);
                return Ok(false);
            }
        };
        state.fetch_to_publish(self.pool, &state.edges[..num_full]);
        for index in 0..num_full {
            let place = state.edges[index] as usize;
            state.find_tail(place);
            if state.sequences[place].publishes {
                state.publish(self.pool, place)?;
            }
        }
        Ok(true)
    }
}

impl State {
    /// Reserves a plain step for each sequence that it may serve. Returns how many begin a block, their places being in the scratch;
    /// or, if it may not serve one of them, how many stand before that one.
    #[inline(never)] // the loops keep more of their values in registers in functions of their own
    fn take_decode(&mut self, handles: &[i64]) -> Result<usize, usize> {
        let (sequences, edges) = (&mut self.sequences[..], &mut self.edges[..]);
        let mut num_starting = 0;
        for (row, &handle) in handles.iter().enumerate() {
            let place = place_of(handle);
            let sequence = match sequences.get_mut(place as usize) {
                Some(sequence) if sequence.plain == Plain::before_step(handle, true) => sequence,
                _ => return Err(row),
            };
            let position = sequence.computed;
            sequence.plain = Plain::after_reserve(handle);
            sequence.known = position + 1;
            sequence.reserved = position + 1;
            // Written every time and counted where it is wanted: a branch would be mispredicted once a block.
            edges[num_starting] = place;
            num_starting += usize::from(position == sequence.tail_start);
        }
        Ok(num_starting)
    }

    /// Undoes [`take_decode`](Self::take_decode).
    fn give_back_decode(&mut self, handles: &[i64]) {
        for &handle in handles {
            let sequence = &mut self.sequences[place_of(handle) as usize];
            sequence.plain = Plain::before_step(handle, true);
            sequence.known = sequence.computed;
            sequence.reserved = sequence.computed;
        }
    }

    /// How many of the sequences in the scratch have no room for their token. Reads what [`start_blocks`](Self::start_blocks) will
    /// write and nobody has used for a block's time: the ends of their rows, pages apart. These reads overlap, where the writes
    /// would wait for memory one after the other.
    fn count_full_tables(&self, num_starting: usize) -> u64 {
        let mut num_full = 0;
        let mut sum = 0;
        for &place in &self.edges[..num_starting] {
            let sequence = &self.sequences[place as usize];
            num_full += u64::from(sequence.tail.is_null());
            sum ^= self.tokens.row_before(place as usize, sequence.computed);
        }
        black_box(sum);
        num_full
    }

    /// Empties the tails of the sequences in the scratch and gives those without room the blocks in the scratch, one each.
    fn start_blocks(&mut self, num_starting: usize) {
        let mut blocks = self.blocks.iter();
        for &place in &self.edges[..num_starting] {
            let place = place as usize;
            let sequence = &mut self.sequences[place];
            self.tokens.empty_tail(place, sequence.computed);
            if sequence.tail.is_null()
                && let Some(&block) = blocks.next()
            {
                self.tables.append(place, sequence.num_blocks, &[block]);
                sequence.num_blocks += 1;
                sequence.tail = block;
            }
        }
    }

    /// Writes tokens and batch.
    #[inline(never)]
    fn write_decode(
        &mut self,
        handles: &[i64],
        tokens: &[i32],
        batch: (&mut BatchState, BatchBuffers<'_>),
    ) {
        let (sequences, edges) = (&self.sequences[..], &mut self.edges[..]);
        let mut tails = self.tokens.tails();
        let size = i64::from(self.block_size.tokens());
        let mut writer = BatchWriter::begin(batch.0, batch.1, self.block_size);
        let mut num_stale = 0;
        for (row, (out, (&handle, &token))) in (0..).zip(
            writer
                .decode_rows(handles.len())
                .zip(handles.iter().zip(tokens)),
        ) {
            let place = place_of(handle) as usize;
            let sequence = &sequences[place];
            let offset = sequence.computed - sequence.tail_start;
            tails.push(place, offset, token);
            *out.slot = i64::from(sequence.tail.get()) * size + i64::from(offset);
            *out.seq_len = sequence.reserved.cast_signed();
            if !out.shown.is_of(sequence) {
                edges[num_stale] = row;
                num_stale += 1;
            }
        }
        for &row in &edges[..num_stale] {
            let place = place_of(handles[row as usize]) as usize;
            let sequence = &sequences[place];
            let cells = self.tables.cells(place, sequence.num_blocks);
            writer.write_table_row(row as usize, sequence, cells);
        }
        writer.finish_decode(tokens);
    }

    /// Counts the tokens of a plain step as computed. Returns how many sequences have filled their tail, their places being in the
    /// scratch; or, if one of them has no such step, how many stand before that one.
    #[inline(never)]
    fn advance_decode(&mut self, handles: &[i64]) -> Result<usize, usize> {
        let (sequences, edges) = (&mut self.sequences[..], &mut self.edges[..]);
        let (size, longest) = (self.block_size.tokens(), self.longest);
        let mut num_full = 0;
        for (row, &handle) in handles.iter().enumerate() {
            let place = place_of(handle);
            let sequence = match sequences.get_mut(place as usize) {
                Some(sequence) if sequence.plain == Plain::after_reserve(handle) => sequence,
                _ => return Err(row),
            };
            let computed = sequence.computed + 1;
            sequence.computed = computed;
            sequence.plain = Plain::before_step(handle, computed < longest);
            // As in `take_decode`.
            edges[num_full] = place;
            num_full += usize::from(computed - sequence.tail_start == size);
        }
        Ok(num_full)
    }

    /// Undoes [`advance_decode`](Self::advance_decode).
    fn step_back_decode(&mut self, handles: &[i64]) {
        for &handle in handles {
            let sequence = &mut self.sequences[place_of(handle) as usize];
            sequence.computed -= 1;
            sequence.plain = Plain::after_reserve(handle);
        }
    }
}

/// The place that a handle names.
#[inline]
fn place_of(handle: i64) -> u32 {
    // Fits: it is masked.
    u32::try_from(handle & i64::from(u32::MAX)).unwrap_or(u32::MAX)
}
