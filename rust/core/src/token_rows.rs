//! Token ids of all sequences.
//!
//! A row holds the whole blocks of a sequence's known tokens, its **tail** the rest, fewer than a block. A decode step adds one
//! token to each sequence of a batch: the tails lie side by side, so that it writes them in one stream, where rows lie pages
//! apart. How many tokens of a sequence are known is the sequence's to say.

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

    /// The tokens in `from..to`, all of them known: first those in whole blocks, then those in the tail.
    pub(crate) fn between(&self, place: usize, from: u32, to: u32, known: u32) -> (&[i32], &[i32]) {
        let whole = known - self.block_size.offset(known);
        let split = whole.clamp(from, to);
        let tail = self.tail(place);
        (
            &self.rows[place][from as usize..split as usize],
            &tail[(split - whole.min(split)) as usize..(to - whole.min(to)) as usize],
        )
    }

    /// Adds one token behind the first `known`.
    pub(crate) fn push(&mut self, place: usize, known: u32, token: i32) {
        let offset = self.block_size.offset(known) as usize;
        let size = self.block_size.tokens() as usize;
        let tail = &mut self.tails[place * size..(place + 1) * size];
        tail[offset] = token;
        if offset + 1 == size {
            self.rows[place][known as usize - offset..=known as usize].copy_from_slice(tail);
        }
    }

    /// Adds tokens behind the first `known`.
    pub(crate) fn append(&mut self, place: usize, known: u32, tokens: &[i32]) {
        let size = self.block_size.tokens() as usize;
        let offset = self.block_size.offset(known) as usize;
        let start = known as usize - offset;
        let end = known as usize + tokens.len();
        let whole = end - end % size;
        let (tail, row) = (
            &mut self.tails[place * size..(place + 1) * size],
            &mut self.rows[place],
        );
        if whole > start {
            row[start..known as usize].copy_from_slice(&tail[..offset]);
            let in_row = whole - known as usize;
            row[known as usize..whole].copy_from_slice(&tokens[..in_row]);
            tail[..end - whole].copy_from_slice(&tokens[in_row..]);
        } else {
            tail[offset..offset + tokens.len()].copy_from_slice(tokens);
        }
    }

    /// Forgets the tokens from `length` on.
    pub(crate) fn truncate(&mut self, place: usize, known: u32, length: u32) {
        let start = (length - self.block_size.offset(length)) as usize;
        // A shorter tail of the same block is there already.
        if start < (known - self.block_size.offset(known)) as usize {
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
        let whole = (known - self.block_size.offset(known)) as usize;
        let source = std::mem::take(&mut self.rows[from]);
        self.rows[place][..whole].copy_from_slice(&source[..whole]);
        self.rows[from] = source;
    }

    fn tail(&self, place: usize) -> &[i32] {
        let size = self.block_size.tokens() as usize;
        &self.tails[place * size..(place + 1) * size]
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
