//! Token ids of all sequences.
//!
//! A sequence's **tail** holds the block of its newest token, its **row** the blocks before. A decode step adds one token to each
//! sequence of a batch: the tails lie side by side, so that it writes them in one stream, where rows lie pages apart. A tail that
//! is full goes to the row with the next token, not before: what has just been filled is what is published next. How many tokens
//! of a sequence are known is the sequence's to say.

use crate::block_size::BlockSize;

#[derive(Debug)]
pub(crate) struct TokenRows {
    /// Made at a place's first admission, at their largest size, and kept; the system gives them memory as tokens reach them.
    rows: Vec<Box<[i32]>>,
    tails: Vec<i32>,
    block_size: BlockSize,
    row_len: usize,
}

impl TokenRows {
    pub(crate) fn new(num_rows: usize, row_len: u32, block_size: BlockSize) -> Self {
        Self {
            rows: vec![Box::default(); num_rows],
            tails: vec![0; num_rows * block_size.tokens() as usize],
            block_size,
            row_len: row_len as usize,
        }
    }

    pub(crate) fn open(&mut self, place: usize) {
        if self.rows[place].is_empty() {
            self.rows[place] = vec![0; self.row_len].into_boxed_slice();
        }
    }

    /// The tokens in `from..to`, all of them known: first those in the row, then those in the tail.
    pub(crate) fn between(&self, place: usize, from: u32, to: u32, known: u32) -> (&[i32], &[i32]) {
        let start = self.tail_start(known);
        let split = start.clamp(from, to);
        let tail = self.tail(place);
        (
            &self.rows[place][from as usize..split as usize],
            &tail[(split - start.min(split)) as usize..(to - start.min(to)) as usize],
        )
    }

    /// Adds one token behind the first `known`.
    pub(crate) fn push(&mut self, place: usize, known: u32, token: i32) {
        let offset = self.block_size.offset(known);
        if offset == 0 {
            self.empty_tail(place, known);
        }
        self.tails().push(place, offset, token);
    }

    /// The tails alone, for a loop that pushes to many. [`empty_tail`](Self::empty_tail) comes before a push with offset 0.
    pub(crate) fn tails(&mut self) -> Tails<'_> {
        Tails {
            tokens: &mut self.tails,
            size: self.block_size.tokens() as usize,
        }
    }

    /// Copies a full tail, which ends with the first `known` tokens, to the row.
    pub(crate) fn empty_tail(&mut self, place: usize, known: u32) {
        let size = self.block_size.tokens() as usize;
        let Some(start) = (known as usize).checked_sub(size) else {
            return;
        };
        let tail = &self.tails[place * size..(place + 1) * size];
        self.rows[place][start..known as usize].copy_from_slice(tail);
    }

    /// Reads where [`empty_tail`](Self::empty_tail) will write.
    pub(crate) fn row_before(&self, place: usize, known: u32) -> i32 {
        self.rows[place][known.saturating_sub(1) as usize]
    }

    /// Adds tokens behind the first `known`.
    pub(crate) fn append(&mut self, place: usize, known: u32, tokens: &[i32]) {
        let size = self.block_size.tokens() as usize;
        // Fits: a sequence has no more.
        let num_new = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let start = self.tail_start(known) as usize;
        let end = self.tail_start(known + num_new) as usize;
        let known = known as usize;
        let (tail, row) = (
            &mut self.tails[place * size..(place + 1) * size],
            &mut self.rows[place],
        );
        if end > start {
            let (whole, rest) = tokens.split_at(end - known);
            row[start..known].copy_from_slice(&tail[..known - start]);
            row[known..end].copy_from_slice(whole);
            tail[..rest.len()].copy_from_slice(rest);
        } else {
            tail[known - start..][..tokens.len()].copy_from_slice(tokens);
        }
    }

    /// Forgets the tokens from `length` on.
    pub(crate) fn truncate(&mut self, place: usize, known: u32, length: u32) {
        let start = self.tail_start(length) as usize;
        // A shorter tail of the same block is there already.
        if start < self.tail_start(known) as usize {
            let size = self.block_size.tokens() as usize;
            let kept = length as usize - start;
            self.tails[place * size..][..kept]
                .copy_from_slice(&self.rows[place][start..start + kept]);
        }
    }

    /// Gives `place` the first `known` tokens of `from`.
    pub(crate) fn copy(&mut self, from: usize, place: usize, known: u32) {
        let size = self.block_size.tokens() as usize;
        self.tails
            .copy_within(from * size..(from + 1) * size, place * size);
        let in_row = self.tail_start(known) as usize;
        let source = std::mem::take(&mut self.rows[from]);
        self.rows[place][..in_row].copy_from_slice(&source[..in_row]);
        self.rows[from] = source;
    }

    /// Where the tail of `known` tokens begins.
    fn tail_start(&self, known: u32) -> u32 {
        let newest = known.saturating_sub(1);
        newest - self.block_size.offset(newest)
    }

    fn tail(&self, place: usize) -> &[i32] {
        let size = self.block_size.tokens() as usize;
        &self.tails[place * size..(place + 1) * size]
    }
}

/// The tails of all sequences.
pub(crate) struct Tails<'a> {
    tokens: &'a mut [i32],
    size: usize,
}

impl Tails<'_> {
    /// Adds a token behind the first `offset` of a tail.
    #[inline]
    pub(crate) fn push(&mut self, place: usize, offset: u32, token: i32) {
        self.tokens[place * self.size + offset as usize] = token;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rows: &TokenRows, place: usize, known: u32) -> Vec<i32> {
        let (whole, tail) = rows.between(place, 0, known, known);
        [whole, tail].concat()
    }

    #[test]
    fn tokens_come_back_however_they_came() {
        for size in [1, 2, 3, 4, 16] {
            for first in 0..10_u32 {
                for second in 0..10_u32 {
                    let tokens: Vec<i32> = (100..).take((first + second) as usize).collect();
                    let mut rows = TokenRows::new(2, 32, BlockSize::new(size));
                    rows.open(0);
                    rows.open(1);
                    rows.append(0, 0, &tokens[..first as usize]);
                    rows.append(0, first, &tokens[first as usize..]);
                    let known = first + second;
                    assert_eq!(all(&rows, 0, known), tokens);
                    for (position, &token) in (0..).zip(&tokens) {
                        rows.push(1, position, token);
                    }
                    assert_eq!(all(&rows, 1, known), tokens);
                    for from in 0..=known {
                        for to in from..=known {
                            let (whole, tail) = rows.between(1, from, to, known);
                            assert_eq!([whole, tail].concat(), tokens[from as usize..to as usize]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_truncated_row_goes_on_from_there() {
        for length in 0..=11_u32 {
            let mut rows = TokenRows::new(2, 32, BlockSize::new(4));
            rows.open(0);
            rows.open(1);
            let tokens: Vec<i32> = (0..11).collect();
            rows.append(0, 0, &tokens);
            rows.truncate(0, 11, length);
            assert_eq!(all(&rows, 0, length), tokens[..length as usize]);
            rows.append(0, length, &[77, 78]);
            let expected = [&tokens[..length as usize], &[77, 78]].concat();
            assert_eq!(all(&rows, 0, length + 2), expected);
            rows.copy(0, 1, length + 2);
            assert_eq!(all(&rows, 1, length + 2), expected);
        }
    }
}
