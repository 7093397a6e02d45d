//! The calls that name one sequence, or end some.

use looseleaf_core::SeqId;

use super::Machine;
use crate::engine::admission;
use crate::operation::{Fault, Rows};

impl Machine {
    pub(super) fn admit(&mut self, num_tokens: u8, reserve: Option<u8>, is_negative: bool) {
        let mut tokens = self.new_tokens(usize::from(num_tokens));
        if is_negative && let Some(token) = tokens.last_mut() {
            *token = -1;
        }
        let reserve = reserve.map(u32::from);
        let expected = self.oracle.expect_admit(&tokens, reserve);
        let answer = self.lock().admit(&admission(&tokens, reserve));
        expected.check(&answer);
        self.note_error(&answer);
        if let Ok(admission) = answer {
            assert_eq!(admission.num_cached, 0);
            let handle = admission.id.to_handle();
            let table = self.table(handle);
            assert_eq!(table.len(), *expected.num_blocks.start() as usize);
            self.oracle.admitted(handle, &tokens, &table);
        }
    }

    pub(super) fn can_admit(&mut self, num_tokens: u32) {
        let expected = self.oracle.can_admit(num_tokens);
        assert_eq!(self.lock().can_admit(num_tokens), Ok(expected));
    }

    pub(super) fn fork(&mut self, rows: Rows) {
        let Some(&parent) = self.pick(rows).first() else {
            return;
        };
        let expected = self.oracle.expect_fork(parent);
        let answer = self.lock().fork(parent);
        expected.check(&answer);
        self.note_error(&answer);
        if let Ok(admission) = answer {
            let sequence = &self.oracle.live[&parent];
            assert_eq!(admission.num_cached, sequence.computed);
            let is_pending = sequence.pending.is_some();
            let is_in_step = sequence.reserved > sequence.computed;
            self.coverage
                .note_if(is_pending, "fork with a pending copy");
            self.coverage.note_if(is_in_step, "fork within a step");
            self.oracle.forked(parent, admission.id.to_handle());
        }
    }

    pub(super) fn truncate(&mut self, rows: Rows, length: u32) {
        let Some(&handle) = self.pick(rows).first() else {
            return;
        };
        let sequence = self.oracle.live.get(&handle);
        let before = sequence.map_or(0, |row| row.known().max(row.reserved));
        let length = length % (before + 2); // one past the end now and then
        let expected = self.oracle.expect_truncate(handle, length);
        let was_pending = sequence.is_some_and(|row| row.pending.is_some());
        let answer = self.lock().truncate(handle, length);
        expected.check(&answer);
        self.note_error(&answer);
        if answer.is_ok() {
            self.oracle.truncated(handle, length);
            let is_pending = self.oracle.live[&handle].pending.is_some();
            self.coverage
                .note_if(is_pending, "truncate into a pending copy");
            self.coverage
                .note_if(was_pending && !is_pending, "truncate below a pending copy");
        }
    }

    pub(super) fn release(&mut self, rows: Rows) {
        let handles = self.pick(rows);
        let expected = self.oracle.expect_release(&handles);
        let answer = self.lock().release(&handles);
        expected.check(&answer);
        self.note_error(&answer);
        if answer.is_ok() {
            for handle in handles {
                self.oracle.ended(handle);
            }
        }
    }

    pub(super) fn bury(&mut self, rows: Rows) {
        for handle in self.pick(rows) {
            if let Some(id) = SeqId::from_handle(handle) {
                self.manager.bury(id);
                let is_live = self.oracle.live.contains_key(&handle);
                self.coverage.note_if(is_live, "a dropped handle");
                self.coverage.note_if(!is_live, "a handle dropped late");
                self.oracle.ended(handle);
            }
        }
    }

    /// The handles that a call names.
    pub(super) fn pick(&self, rows: Rows) -> Vec<i64> {
        let live = self.oracle.live.keys().enumerate();
        let mut handles: Vec<i64> = live
            .filter(|(place, _)| rows.mask >> place & 1 == 1)
            .map(|(_, &handle)| handle)
            .collect();
        let rotation = usize::from(rows.rotation);
        if !handles.is_empty() {
            let middle = rotation % handles.len();
            handles.rotate_left(middle);
        }
        let wrong = match rows.fault {
            Fault::None => None,
            Fault::Duplicate => handles.first().copied(),
            Fault::Ended => self.oracle.ended.iter().rev().nth(rotation).copied(),
            Fault::Unknown(number) => Some(self.unknown_handle(u32::from(number))),
        };
        if let Some(handle) = wrong {
            handles.insert(rotation % (handles.len() + 1), handle);
        }
        handles
    }

    fn unknown_handle(&self, number: u32) -> i64 {
        let max_sequences = self.oracle.config.max_sequences();
        let index = number % max_sequences;
        let issued = self.oracle.live.keys().chain(&self.oracle.ended);
        let newest = issued
            .filter_map(|&handle| SeqId::from_handle(handle))
            .filter(|id| id.index() == index)
            .map(SeqId::generation)
            .max()
            .unwrap_or(0);
        let handle = |index, generation| SeqId::new(index, generation).expect("small").to_handle();
        match number % 6 {
            0 => handle(index, newest + 1),
            1 => handle(max_sequences, 1),
            2 => 0,
            3 => -1,
            4 => i64::MIN,
            _ => i64::MAX,
        }
    }

    pub(super) fn new_tokens(&mut self, count: usize) -> Vec<i32> {
        let next = |_| {
            self.last_token += 1;
            self.last_token
        };
        (0..count).map(next).collect()
    }
}
