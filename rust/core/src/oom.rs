//! A step that needs more blocks than there are: refused as a whole, or served as far as they go.

use crate::Error;
use crate::manager::Locked;
use crate::state::State;

/// What `reserve` does where there are not enough blocks for all its sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oom {
    /// Fails with [`Error::OutOfBlocks`], and nothing has changed.
    #[default]
    Fail,
    /// Serves the first sequences, as many as there are blocks for, in the order of the call, and leaves the others as they are.
    /// An engine that lists its sequences by priority then knows whom to preempt.
    Prefix,
}

impl Locked<'_> {
    /// After an allocation for the whole plan has failed: allocates for as much of the plan as `oom` allows, or takes the plan
    /// back and returns the error.
    pub(crate) fn shorten_plan(&mut self, oom: Oom, error: Error) -> Result<(), Error> {
        let is_short = matches!(error, Error::OutOfBlocks { .. } | Error::NeverFits { .. });
        if oom == Oom::Fail || !is_short || self.is_crowded() {
            self.state.undo_copies(0);
            return Err(error);
        }
        let needed = self.state.keep_affordable(self.pool.num_free());
        // Under the mutex credits are only ever added.
        self.allocate(needed)
    }
}

impl State {
    /// Cuts the plan down to the first sequences that `available` blocks are enough for. Returns how many blocks they need.
    fn keep_affordable(&mut self, available: u32) -> u64 {
        let mut needed = 0;
        let mut num_rows = 0;
        let mut num_copies = 0;
        for (row, planned) in self.plan.iter().enumerate() {
            let next_copy = self.planned_copies.get(num_copies);
            let copies = usize::from(next_copy.is_some_and(|copy| copy.row == row));
            let more = u64::from(planned.num_blocks) + copies as u64;
            if needed + more > u64::from(available) {
                break;
            }
            needed += more;
            num_rows += 1;
            num_copies += copies;
        }
        self.plan.truncate(num_rows);
        self.undo_copies(num_copies);
        needed
    }

    /// Gives up the holds of the planned copies from `first` on.
    pub(crate) fn undo_copies(&mut self, first: usize) {
        for planned in self.planned_copies.drain(first..).rev() {
            self.holds.restore(planned.copy.source, planned.before);
        }
    }
}
