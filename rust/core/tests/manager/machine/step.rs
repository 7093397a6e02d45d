//! The two calls of a step, as an engine makes them.

use looseleaf_core::{Oom, Reserve};

use super::Machine;
use crate::memory::{Step, Work};
use crate::operation::{Given, Numbers, OwnedCounts, Rows};
use crate::oracle::{InStep, PlannedRow};

impl Machine {
    pub(super) fn reserve(
        &mut self,
        rows: Rows,
        num_new: &Numbers,
        tokens: Given,
        lookahead: u8,
        batch: Option<bool>,
    ) {
        let handles = self.pick(rows);
        let numbers = OwnedCounts::new(num_new, handles.len(), |_, number| number % 8);
        let mut request = Reserve {
            handles: &handles,
            num_new: numbers.as_counts(),
            tokens: None,
            lookahead: u32::from(lookahead),
            oom: Oom::Fail,
        };
        let unknown = |row: &PlannedRow| {
            let sequence = &self.oracle.live[&row.handle];
            row.end
                .saturating_sub(sequence.known().max(sequence.computed))
        };
        let num_unknown = self
            .oracle
            .expect_reserve(&request, None)
            .1
            .iter()
            .map(unknown)
            .sum();
        let tokens = self.give(tokens, num_unknown);
        request.tokens = tokens.as_deref();

        let mut bound = batch.map(|second| &mut self.batches[usize::from(second)]);
        let limit = bound.as_ref().map(|bound| bound.state.shape().tokens);
        let limit = limit.map(|tokens| u32::try_from(tokens).expect("small batches"));
        let (expected, planned) = self.oracle.expect_reserve(&request, limit);
        let mut locked = self.manager.lock().expect("no call has panicked");
        let answer = locked.reserve(&request, bound.as_mut().map(|bound| bound.parts()));
        drop(locked);
        expected.check(&answer);
        self.note_error(&answer);
        if answer.is_ok() {
            assert_eq!(
                answer,
                Ok(u32::try_from(handles.len()).expect("few sequences"))
            );
            let tables: Vec<Vec<u32>> = handles.iter().map(|&handle| self.table(handle)).collect();
            self.note_rows(&planned);
            self.oracle
                .reserved(&planned, &tables, request.tokens.unwrap_or_default());
            self.begin_step(&handles, batch);
        }
    }

    /// Checks the batch that was just filled, and queues its step.
    fn begin_step(&mut self, handles: &[i64], batch: Option<bool>) {
        self.num_steps += 1;
        let number = self.num_steps;
        for handle in handles {
            let sequence = self.oracle.live.get_mut(handle).expect("checked");
            let num_new = u64::from(sequence.reserved - sequence.computed);
            let contents = (1..=num_new).map(|step| self.last_content + step).collect();
            self.last_content += num_new;
            // Without a batch nobody knows what to write: a step that does not run.
            sequence.in_step = batch.map(|_| InStep { number, contents });
        }
        let Some(second) = batch else {
            return;
        };
        let bound = &mut self.batches[usize::from(second)];
        let rows: Vec<_> = handles
            .iter()
            .map(|handle| &self.oracle.live[handle])
            .collect();
        let block_size = self.oracle.config.block_size();
        bound.check_step(block_size, &rows);

        // From here on as an engine: from the buffers alone.
        let block_size = block_size as usize;
        let columns = bound.state.shape().columns;
        let mut step = Step {
            number,
            handles: handles.to_vec(),
            copies: bound.buffers.copy_pairs(),
            writes: Vec::new(),
            reads: Vec::new(),
            is_committed: false,
        };
        let contents = rows
            .iter()
            .filter_map(|row| row.in_step.as_ref())
            .flat_map(|step| &step.contents);
        let slots = bound
            .buffers
            .slot_mapping
            .iter()
            .take_while(|&&slot| slot != -1);
        for (&slot, &content) in slots.zip(contents) {
            step.writes
                .push((usize::try_from(slot).expect("a slot"), content));
        }
        for (row, sequence) in rows.iter().enumerate() {
            let cells = &bound.buffers.block_table[row * columns..(row + 1) * columns];
            let new = sequence.in_step.iter().flat_map(|step| &step.contents);
            for (position, &content) in sequence.contents.iter().chain(new).enumerate() {
                let block = usize::try_from(cells[position / block_size]).expect("a block");
                step.reads
                    .push((block * block_size + position % block_size, content));
            }
        }
        self.check_step(&step);
        self.queue.push_back(Work::Step(step));
    }

    fn check_step(&mut self, step: &Step) {
        let destinations: Vec<usize> = step.copies.iter().map(|pair| pair.1).collect();
        for (place, &(source, destination)) in step.copies.iter().enumerate() {
            assert!(source != 0 && destination != 0, "a copy of the null block");
            assert!(
                !destinations.contains(&source),
                "block {source} is copied from and to"
            );
            assert!(
                !destinations[..place].contains(&destination),
                "two copies to block {destination}"
            );
        }
        let mut slots: Vec<usize> = step.writes.iter().map(|write| write.0).collect();
        let num_slots = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), num_slots, "two rows write the same slot");
        let block_size = self.oracle.config.block_size() as usize;
        assert!(
            slots.first().is_none_or(|&slot| slot >= block_size),
            "a write into the null block"
        );
        self.coverage
            .note_if(step.copies.len() > 1, "several copies in a step");
    }

    pub(super) fn commit(&mut self, rows: Rows, num_computed: &Numbers, tokens: Given) {
        let mut handles = self.pick(rows);
        // An engine commits steps that ran; the rows of one that failed, it reserves again.
        handles.retain(|handle| {
            self.oracle
                .live
                .get(handle)
                .is_none_or(|row| row.in_step.is_some())
        });
        let numbers = OwnedCounts::new(num_computed, handles.len(), |row, number| {
            let Some(sequence) = self.oracle.live.get(&handles[row]) else {
                return number;
            };
            match number {
                0 => sequence.reserved + 1,
                1 => sequence.computed.saturating_sub(1), // 0 is right for a sequence without computed tokens
                _ => sequence.computed + number % (sequence.reserved - sequence.computed + 1),
            }
        });
        let (_, ends) = self
            .oracle
            .expect_commit(&handles, numbers.as_counts(), None);
        let unknown =
            |&(handle, end): &(i64, u32)| end.saturating_sub(self.oracle.live[&handle].known());
        let num_unknown = ends.iter().map(unknown).sum();
        let tokens = self.give(tokens, num_unknown);

        let (expected, ends) =
            self.oracle
                .expect_commit(&handles, numbers.as_counts(), tokens.as_deref());
        let answer = self
            .lock()
            .commit(&handles, numbers.as_counts(), tokens.as_deref());
        expected.check(&answer);
        self.note_error(&answer);
        if answer.is_ok() {
            self.note_ends(&ends);
            self.mark_committed(&ends);
            self.oracle.committed(&ends, &tokens.unwrap_or_default());
        }
    }

    /// The steps of these sequences can no longer fail.
    fn mark_committed(&mut self, ends: &[(i64, u32)]) {
        let in_step = |&(handle, _): &(i64, u32)| self.oracle.live[&handle].in_step.as_ref();
        let numbers: Vec<u64> = ends
            .iter()
            .filter_map(in_step)
            .map(|step| step.number)
            .collect();
        for work in &mut self.queue {
            if let Work::Step(step) = work {
                step.is_committed |= numbers.contains(&step.number);
            }
        }
    }

    fn give(&mut self, given: Given, num_unknown: u32) -> Option<Vec<i32>> {
        let num_unknown = num_unknown as usize;
        match given {
            Given::Nothing => None,
            Given::Exactly => Some(self.new_tokens(num_unknown)),
            Given::OneMore => Some(self.new_tokens(num_unknown + 1)),
            Given::OneLess => Some(self.new_tokens(num_unknown.saturating_sub(1))),
            Given::Negative => {
                let mut tokens = self.new_tokens(num_unknown);
                if let Some(token) = tokens.first_mut() {
                    *token = i32::MIN;
                }
                Some(tokens)
            }
        }
    }
}
