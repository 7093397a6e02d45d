//! Which situations a call met.

use looseleaf_core::Error;

use super::Machine;
use crate::oracle::PlannedRow;

impl Machine {
    pub(super) fn note_ends(&mut self, ends: &[(i64, u32)]) {
        for &(handle, end) in ends {
            let sequence = &self.oracle.live[&handle];
            let is_partial = (sequence.computed + 1..sequence.reserved).contains(&end);
            let is_unknown = end > sequence.known();
            self.coverage.note_if(is_partial, "a partial commit");
            self.coverage
                .note_if(is_unknown, "a commit of unknown tokens");
        }
    }

    pub(super) fn note_rows(&mut self, planned: &[PlannedRow]) {
        for row in planned {
            let sequence = &self.oracle.live[&row.handle];
            let is_new = row.end > sequence.computed;
            let offset = sequence.computed % self.oracle.config.block_size();
            let column = sequence.computed / self.oracle.config.block_size();
            let is_decode = row.end == sequence.computed + 1;
            let is_late = sequence.pending.is_some() && sequence.known() <= sequence.computed;
            self.coverage.note_if(row.must_copy, "a copy on write");
            self.coverage.note_if(
                is_decode && is_late,
                "one new token before a pending copy has run",
            );
            self.coverage
                .note_if(sequence.pending.is_some(), "a copy emitted again");
            if is_new && let Some(&block) = sequence.blocks.get(column as usize) {
                let held = self.oracle.held_slots(block);
                let is_alone = self.oracle.num_sharers(block) == 1;
                self.coverage
                    .note_if(held > offset && is_alone, "a write below a hold");
                self.coverage.note_if(
                    held > 0 && held <= offset && is_alone,
                    "a write above a hold",
                );
                let sharers = planned.iter().filter(|other| {
                    let other = &self.oracle.live[&other.handle];
                    other.blocks.get(column as usize) == Some(&block)
                });
                self.coverage
                    .note_if(sharers.count() > 1 && offset > 0, "two sharers in a step");
            }
        }
    }

    pub(super) fn note_error<T>(&mut self, answer: &Result<T, Error>) {
        self.coverage.note(match answer {
            Ok(_) => "a call that succeeds",
            Err(Error::OutOfBlocks { .. }) => "OutOfBlocks",
            Err(Error::NeverFits { .. }) => "NeverFits",
            Err(Error::EmptyPrompt) => "EmptyPrompt",
            Err(Error::SequenceTooLong { .. }) => "SequenceTooLong",
            Err(Error::TooManySequences { .. }) => "TooManySequences",
            Err(Error::StaleSequence { .. }) => "StaleSequence",
            Err(Error::UnknownSequence { .. }) => "UnknownSequence",
            Err(Error::DuplicateSequence { .. }) => "DuplicateSequence",
            Err(Error::BatchTooSmall { .. }) => "BatchTooSmall",
            Err(Error::InvalidArgument { argument, .. }) => argument,
            Err(error) => panic!("{error}"),
        });
    }
}
