//! Tokens per block, as a divisor.

/// A block size that divides fast: by a shift where it is a power of two, which it nearly always is. The step path divides
/// several times per sequence, and a division by a number that the compiler does not know costs as much as a cache hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSize {
    tokens: u32,
    shift: Option<u32>,
}

impl BlockSize {
    /// `tokens` must not be 0; a [`Config`](crate::Config) has made sure of that.
    pub(crate) fn new(tokens: u32) -> Self {
        let shift = tokens.is_power_of_two().then(|| tokens.trailing_zeros());
        Self { tokens, shift }
    }

    pub(crate) fn tokens(self) -> u32 {
        self.tokens
    }

    /// The table column that holds a position.
    pub(crate) fn column(self, position: u32) -> u32 {
        match self.shift {
            Some(shift) => position >> shift,
            None => position / self.tokens,
        }
    }

    /// Where in its block a position lies.
    pub(crate) fn offset(self, position: u32) -> u32 {
        match self.shift {
            Some(_) => position & (self.tokens - 1),
            None => position % self.tokens,
        }
    }

    /// Blocks that hold so many tokens.
    pub(crate) fn blocks_for(self, num_tokens: u32) -> u32 {
        self.column(num_tokens) + u32::from(self.offset(num_tokens) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::BlockSize;

    #[test]
    fn shifting_and_dividing_agree() {
        for tokens in [1, 2, 3, 5, 7, 8, 16, 24, 256, 1 << 16] {
            let block_size = BlockSize::new(tokens);
            for position in [
                0,
                1,
                tokens - 1,
                tokens,
                tokens + 1,
                8191,
                u32::MAX - 1,
                u32::MAX,
            ] {
                assert_eq!(block_size.column(position), position / tokens);
                assert_eq!(block_size.offset(position), position % tokens);
                assert_eq!(block_size.blocks_for(position), position.div_ceil(tokens));
            }
        }
    }
}
