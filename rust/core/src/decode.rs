//! The step that an engine takes most: one new token for each sequence, each in a block that is the sequence's own.
//!
//! It does what [`reserve`](Locked::reserve) does, in two passes over the cache lines of the sequences. Whatever is not plain
//! (a tail that may be shared, ids that are late, a sequence at its limit, a bad handle) is left to the general way, before
//! anything has changed.
//!
//! Floor: one line of sequence state read and written, 28 bytes of batch buffers written, 8 + 4 bytes of arguments read: about
//! 3 ns a sequence on one core.

use crate::Error;
use crate::batch::{BatchBuffers, BatchState, BatchWriter};
use crate::manager::Locked;
use crate::oom::Oom;
use crate::state::State;
use crate::step::{Reserve, find};

impl Locked<'_> {
    /// Takes a plain decode step; `None` if it is not one, with nothing changed but the marks of this call.
    pub(crate) fn decode_step(
        &mut self,
        request: &Reserve<'_>,
        tokens: &[i32],
        batch: (&mut BatchState, BatchBuffers<'_>),
    ) -> Option<Result<(), Error>> {
        let handles = request.handles;
        let (state, buffers) = &batch;
        let fits = state.check_fits(buffers, self.config, handles.len(), tokens.len() as u64);
        if tokens.len() != handles.len() || fits.is_err() {
            return None;
        }
        // All at once: an early exit would keep the loop from being vectorized.
        if tokens.iter().fold(0, |signs, token| signs | token) < 0 {
            return None;
        }
        let num_blocks = self.plan_decode(handles)?;
        if let Err(error) = self.allocate(num_blocks) {
            return (request.oom == Oom::Fail).then_some(Err(error));
        }
        self.state.apply_decode(handles, tokens, batch);
        Some(Ok(()))
    }

    /// Places and new blocks of a plain step.
    fn plan_decode(&mut self, handles: &[i64]) -> Option<u64> {
        let State {
            sequences,
            places,
            call,
            ..
        } = &mut *self.state;
        places.resize(handles.len(), 0);
        let mut num_blocks = 0;
        for (&handle, slot) in handles.iter().zip(places) {
            let (place, sequence) = find(sequences, handle, *call)?;
            let is_plain = sequence.owns_tail
                && sequence.known == sequence.computed
                && u64::from(sequence.computed) < self.longest;
            if !is_plain {
                return None;
            }
            num_blocks += u64::from(sequence.computed == sequence.capacity);
            *slot = place;
        }
        Some(num_blocks)
    }
}

impl State {
    fn apply_decode(
        &mut self,
        handles: &[i64],
        tokens: &[i32],
        batch: (&mut BatchState, BatchBuffers<'_>),
    ) {
        let mut writer = BatchWriter::begin(batch.0, batch.1, self.block_size);
        let mut next_block = 0;
        for (row, ((&handle, &token), &place)) in
            handles.iter().zip(tokens).zip(&self.places).enumerate()
        {
            let place = place as usize;
            let sequence = &mut self.sequences[place];
            let position = sequence.computed;
            if position == sequence.capacity {
                let block = self.blocks[next_block];
                next_block += 1;
                self.tables.append(place, sequence.num_blocks, &[block]);
                sequence.num_blocks += 1;
                sequence.capacity += self.block_size.tokens();
                sequence.tail = block;
            }
            sequence.reserved = position + 1;
            sequence.known = position + 1;
            self.tokens.push(place, position, token);
            writer.write_decode_row(row, sequence, token);
            if !writer.shows(row, handle, sequence) {
                writer.write_table_row(
                    row,
                    handle,
                    sequence.table_epoch,
                    self.tables.cells(place, sequence.num_blocks),
                );
            }
        }
        writer.finish_decode(handles.len());
    }
}
