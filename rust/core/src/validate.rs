//! A recount of everything the manager believes, from the tables up. Slow and complete: for tests, and for a caller in doubt.

use crate::manager::Locked;
use crate::sequence::Sequence;
use crate::{BlockId, Error};

impl Locked<'_> {
    /// Recounts the references of every block from tables and holds, walks the free stack, and checks the lengths of every
    /// sequence. No call may be releasing blocks meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first disagreement found.
    pub fn validate(&mut self) -> Result<(), Error> {
        self.begin()?;
        let mut counts = vec![0; self.config.num_blocks() as usize + 1];
        let mut pending_copies = 0;
        for (index, sequence) in self.state.sequences.iter().enumerate() {
            if !sequence.is_alive {
                ensure(
                    sequence.table.is_empty() && sequence.pending.is_none(),
                    || format!("place {index} holds no sequence but blocks"),
                )?;
                continue;
            }
            self.check_lengths(index, sequence)?;
            for block in sequence.table.blocks() {
                counts[block.index()] += 1;
            }
            if let Some(pending) = sequence.pending {
                pending_copies += 1;
                counts[pending.source.index()] += 1;
                let destination = sequence.table.blocks().get(pending.column);
                ensure(
                    destination.is_some_and(|&block| self.pool.count(block) == 1),
                    || format!("the destination of a copy in place {index} is not private"),
                )?;
                ensure(self.state.holds.get(pending.source).tally > 0, || {
                    format!("block {} is copied without a hold", pending.source.get())
                })?;
            }
        }
        let holds: u32 = self.state.holds.iter().map(|(_, hold)| hold.tally).sum();
        ensure(holds == pending_copies, || {
            format!("{holds} holds for {pending_copies} copies")
        })?;
        self.check_places()?;
        self.pool.validate(&counts)
    }

    fn check_lengths(&self, index: usize, sequence: &Sequence) -> Result<(), Error> {
        let capacity = sequence.table.len() as u64 * u64::from(self.config.block_size());
        let is_ordered = sequence.num_cached <= sequence.computed
            && sequence.computed <= sequence.reserved
            && u64::from(sequence.reserved) <= capacity
            && sequence.known() <= self.config.max_sequence_len();
        ensure(is_ordered, || {
            format!(
                "lengths of place {index}: cached {} <= computed {} <= reserved {} <= capacity {capacity} does not hold",
                sequence.num_cached, sequence.computed, sequence.reserved
            )
        })?;
        let has_null = sequence.table.blocks().contains(&BlockId::NULL);
        ensure(!has_null, || {
            format!("place {index} has the null block in its table")
        })
    }

    fn check_places(&self) -> Result<(), Error> {
        let mut is_free = vec![false; self.state.sequences.len()];
        for &place in &self.state.free_places {
            let first = !std::mem::replace(&mut is_free[place as usize], true);
            ensure(first, || format!("place {place} is free twice"))?;
        }
        for (index, sequence) in self.state.sequences.iter().enumerate() {
            ensure(!(is_free[index] && sequence.is_alive), || {
                format!("place {index} is free and holds a sequence")
            })?;
        }
        Ok(())
    }
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), Error> {
    if condition {
        Ok(())
    } else {
        Err(Error::Corrupt { message: message() })
    }
}
