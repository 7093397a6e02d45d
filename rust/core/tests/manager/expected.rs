//! Which answer the oracle expects of a call, before the call.

use std::ops::RangeInclusive;

use looseleaf_core::{Counts, Error, Reserve};

use crate::oracle::{Oracle, PlannedRow};

/// The errors that apply to a call, and the blocks that it needs. A call to which several errors apply may answer any of them.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) errors: Vec<Error>,
    pub(crate) num_blocks: RangeInclusive<u32>,
    num_free: u32,
}

impl Expected {
    fn new(oracle: &Oracle, errors: Vec<Error>, num_blocks: RangeInclusive<u32>) -> Self {
        Self {
            errors,
            num_blocks,
            num_free: oracle.num_free(),
        }
    }

    /// Compares with what the call answered.
    pub(crate) fn check<T: std::fmt::Debug>(&self, answer: &Result<T, Error>) {
        let is_right = match answer {
            Ok(_) => self.errors.is_empty() && *self.num_blocks.start() <= self.num_free,
            Err(Error::OutOfBlocks {
                requested,
                free,
                evictable: 0,
            }) => {
                self.errors.is_empty()
                    && self.num_blocks.contains(requested)
                    && *free == self.num_free
                    && requested > free
            }
            Err(error) => self
                .errors
                .iter()
                .any(|expected| is_same_kind(expected, error)),
        };
        assert!(is_right, "answered {answer:?}, expected {self:?}");
    }
}

/// Whether two errors are equal; of an `InvalidArgument`, the text may differ.
fn is_same_kind(expected: &Error, error: &Error) -> bool {
    match (expected, error) {
        (
            Error::InvalidArgument { argument: left, .. },
            Error::InvalidArgument {
                argument: right,
                message,
            },
        ) => left == right && !message.is_empty(),
        _ => expected == error,
    }
}

pub(crate) fn invalid(argument: &'static str) -> Error {
    Error::InvalidArgument {
        argument,
        message: String::new(),
    }
}

impl Oracle {
    pub(crate) fn expect_admit(&self, tokens: &[i32], reserve: Option<u32>) -> Expected {
        let mut errors = self.full().into_iter().collect::<Vec<_>>();
        if tokens.is_empty() {
            errors.push(Error::EmptyPrompt);
        }
        if tokens.iter().any(|&token| token < 0) {
            errors.push(invalid("tokens"));
        }
        let num_tokens = u32::try_from(tokens.len()).expect("short prompts");
        errors.extend(self.too_long(num_tokens.max(reserve.unwrap_or(0))));
        let num_blocks = self.blocks_for(reserve.unwrap_or(num_tokens));
        Expected::new(self, errors, num_blocks..=num_blocks)
    }

    pub(crate) fn can_admit(&self, num_tokens: u32) -> bool {
        num_tokens > 0
            && self.full().is_none()
            && self.too_long(num_tokens).is_empty()
            && self.blocks_for(num_tokens) <= self.num_free()
    }

    pub(crate) fn expect_fork(&self, parent: i64) -> Expected {
        let mut errors = self.full().into_iter().collect::<Vec<_>>();
        errors.extend(self.resolve(parent).err());
        Expected::new(self, errors, 0..=0)
    }

    pub(crate) fn expect_truncate(&self, handle: i64, length: u32) -> Expected {
        let error = match self.resolve(handle) {
            Err(error) => Some(error),
            Ok(sequence) if length > sequence.known().max(sequence.reserved) => {
                Some(invalid("length"))
            }
            Ok(_) => None,
        };
        Expected::new(self, error.into_iter().collect(), 0..=0)
    }

    /// A handle that has ended is passed over, also when it stands twice.
    pub(crate) fn expect_release(&self, handles: &[i64]) -> Expected {
        let mut errors = self.misnamed(handles);
        errors.retain(|error| match error {
            Error::StaleSequence { .. } => false,
            Error::DuplicateSequence { handle } => self.live.contains_key(handle),
            _ => true,
        });
        Expected::new(self, errors, 0..=0)
    }

    /// `max_batch_tokens` is that of the batch, if there is one.
    pub(crate) fn expect_reserve(
        &self,
        request: &Reserve<'_>,
        max_batch_tokens: Option<u32>,
    ) -> (Expected, Vec<PlannedRow>) {
        let mut errors = self.misnamed(request.handles);
        if !has_length(request.num_new, request.handles.len()) {
            errors.push(invalid("num_new"));
            return (Expected::new(self, errors, 0..=0), Vec::new());
        }
        let mut rows: Vec<PlannedRow> = Vec::new();
        let (mut num_tokens, mut num_unknown, mut least, mut most) = (0, 0, 0, 0);
        for (place, &handle) in request.handles.iter().enumerate() {
            let Some(sequence) = self.live.get(&handle) else {
                continue;
            };
            let num_new = number_at(request.num_new, place)
                .unwrap_or_else(|| sequence.known().saturating_sub(sequence.computed).max(1));
            let end = sequence.computed + num_new;
            errors.extend(self.too_long(end));
            if request.tokens.is_some() && num_new > 0 && sequence.known() < sequence.computed {
                errors.push(invalid("tokens"));
            }
            num_tokens += num_new;
            num_unknown += end - end.min(sequence.known().max(sequence.computed));
            let row = self.plan_row(handle, end, request.lookahead, &rows);
            let num_new_blocks = row.num_blocks - self.blocks_of(handle);
            least += num_new_blocks + u32::from(row.must_copy);
            most += num_new_blocks + u32::from(row.may_copy);
            rows.push(row);
        }
        errors.extend(misgiven(request.tokens, num_unknown));
        if let Some(limit) = max_batch_tokens
            && num_tokens > limit
        {
            errors.push(Error::BatchTooSmall {
                what: "max_batch_tokens",
                requested: u64::from(num_tokens),
                limit: u64::from(limit),
            });
        }
        (Expected::new(self, errors, least..=most), rows)
    }

    /// Also returns where each sequence ends up.
    pub(crate) fn expect_commit(
        &self,
        handles: &[i64],
        num_computed: Counts<'_>,
        tokens: Option<&[i32]>,
    ) -> (Expected, Vec<(i64, u32)>) {
        let mut errors = self.misnamed(handles);
        if !has_length(num_computed, handles.len()) {
            errors.push(invalid("num_computed"));
            return (Expected::new(self, errors, 0..=0), Vec::new());
        }
        let (mut ends, mut num_unknown) = (Vec::new(), 0);
        for (place, &handle) in handles.iter().enumerate() {
            let Some(sequence) = self.live.get(&handle) else {
                continue;
            };
            let end = number_at(num_computed, place).unwrap_or(sequence.reserved);
            if !(sequence.computed..=sequence.reserved).contains(&end) {
                errors.push(invalid("num_computed"));
            }
            num_unknown += end.saturating_sub(sequence.known());
            ends.push((handle, end));
        }
        errors.extend(misgiven(tokens, num_unknown));
        (Expected::new(self, errors, 0..=0), ends)
    }

    fn plan_row(
        &self,
        handle: i64,
        end: u32,
        lookahead: u32,
        earlier: &[PlannedRow],
    ) -> PlannedRow {
        let sequence = &self.live[&handle];
        let block_size = self.config.block_size();
        let capacity = end
            .saturating_add(lookahead)
            .min(self.config.max_sequence_len())
            .min(self.config.num_blocks() * block_size);
        let capacity = if end == sequence.computed {
            0
        } else {
            capacity
        };
        let first = sequence.computed / block_size;
        let offset = sequence.computed % block_size;
        let written = first..self.blocks_for(end).min(self.blocks_of(handle));
        let (mut must_copy, mut may_copy) = (false, false);
        if end > sequence.computed && sequence.pending.is_none() {
            for column in written {
                let block = sequence.blocks[column as usize];
                let left = earlier
                    .iter()
                    .filter(|row| row.may_copy && self.first_written(row.handle) == Some(block));
                let held = left
                    .clone()
                    .map(|row| self.live[&row.handle].computed % block_size);
                let held = held.max().unwrap_or(0).max(self.held_slots(block));
                let is_shared = self.num_sharers(block) - left.count() > 1;
                let offset = if column == first { offset } else { 0 };
                let must = is_shared || held > offset;
                let may = must || self.hold_mark(block) > offset;
                assert!(
                    column == first || !may,
                    "column {column} of sequence {handle} lies past its computed tokens and is shared"
                );
                (must_copy, may_copy) = (must_copy || must, may_copy || may);
            }
        }
        PlannedRow {
            handle,
            end,
            num_blocks: self.blocks_for(capacity).max(self.blocks_of(handle)),
            must_copy,
            may_copy,
        }
    }

    /// The block in which the next computed token of a sequence comes to lie, if its table is that long.
    fn first_written(&self, handle: i64) -> Option<u32> {
        let sequence = &self.live[&handle];
        let column = sequence.computed / self.config.block_size();
        sequence.blocks.get(column as usize).copied()
    }

    fn blocks_of(&self, handle: i64) -> u32 {
        u32::try_from(self.live[&handle].blocks.len()).expect("short tables")
    }

    fn full(&self) -> Option<Error> {
        let max_sequences = self.config.max_sequences();
        (self.live.len() >= max_sequences as usize)
            .then_some(Error::TooManySequences { max_sequences })
    }

    fn too_long(&self, num_tokens: u32) -> Vec<Error> {
        let (max_sequence_len, capacity) =
            (self.config.max_sequence_len(), self.config.num_blocks());
        let mut errors = Vec::new();
        if num_tokens > max_sequence_len {
            errors.push(Error::SequenceTooLong {
                requested: u64::from(num_tokens),
                max_sequence_len,
            });
        }
        if self.blocks_for(num_tokens) > capacity {
            errors.push(Error::NeverFits {
                requested: u64::from(self.blocks_for(num_tokens)),
                capacity,
            });
        }
        errors
    }

    /// Handles that have ended, were never issued or stand twice.
    fn misnamed(&self, handles: &[i64]) -> Vec<Error> {
        let mut errors: Vec<Error> = handles
            .iter()
            .filter_map(|&handle| self.resolve(handle).err())
            .collect();
        for (place, &handle) in handles.iter().enumerate() {
            if handles[..place].contains(&handle) {
                errors.push(Error::DuplicateSequence { handle });
            }
        }
        errors
    }
}

fn has_length(numbers: Counts<'_>, expected: usize) -> bool {
    !matches!(numbers, Counts::Each(values) if values.len() != expected)
}

fn number_at(numbers: Counts<'_>, place: usize) -> Option<u32> {
    match numbers {
        Counts::Default => None,
        Counts::Same(number) => Some(number),
        Counts::Each(numbers) => Some(numbers[place]),
    }
}

fn misgiven(tokens: Option<&[i32]>, num_unknown: u32) -> Option<Error> {
    let tokens = tokens?;
    let is_right = tokens.len() == num_unknown as usize && tokens.iter().all(|&token| token >= 0);
    (!is_right).then(|| invalid("tokens"))
}
