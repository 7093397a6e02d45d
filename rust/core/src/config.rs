//! The sizes of a manager, checked once.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::Error;

/// Sizes of a manager. A value of this type is valid.
///
/// # Examples
///
/// ```
/// use looseleaf_core::Config;
///
/// let config = Config::new(1024, 16, 256, 100)?;
/// assert_eq!(config.max_blocks_per_sequence(), 7);
/// assert!(Config::new(0, 16, 256, 100).is_err());
/// # Ok::<(), looseleaf_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    num_blocks: u32,
    block_size: u32,
    max_sequences: u32,
    max_sequence_len: u32,
    prefix_seed: Option<u64>,
}

impl Config {
    /// Largest `num_blocks`: storage has one block more, the null block, and its size fits int32.
    pub const MAX_BLOCKS: u32 = i32::MAX.cast_unsigned() - 1;

    /// Largest `block_size`: with it, a slot number stays below 2^47.
    pub const MAX_BLOCK_SIZE: u32 = 1 << 16;

    /// Checks the sizes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] names the size that is out of range, what it was and what is allowed.
    pub fn new(
        num_blocks: u32,
        block_size: u32,
        max_sequences: u32,
        max_sequence_len: u32,
    ) -> Result<Self, Error> {
        const LARGEST: u32 = i32::MAX.cast_unsigned();
        require("num_blocks", num_blocks, 1..=Self::MAX_BLOCKS)?;
        require("block_size", block_size, 1..=Self::MAX_BLOCK_SIZE)?;
        require("max_sequences", max_sequences, 1..=LARGEST)?;
        require("max_sequence_len", max_sequence_len, 1..=LARGEST)?;
        Ok(Self {
            num_blocks,
            block_size,
            max_sequences,
            max_sequence_len,
            prefix_seed: None,
        })
    }

    /// The same sizes, with a prefix cache. The seed changes how long a search takes, never what it finds; where prompts come
    /// from strangers it should be a random number.
    #[must_use]
    pub const fn with_prefix_cache(self, seed: u64) -> Self {
        Self {
            prefix_seed: Some(seed),
            ..self
        }
    }

    /// The seed of the prefix cache; `None` without one.
    #[must_use]
    pub const fn prefix_seed(&self) -> Option<u64> {
        self.prefix_seed
    }

    /// Usable blocks, the null block not counted.
    #[must_use]
    pub const fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Token slots per block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Sequences that can be alive at once.
    #[must_use]
    pub const fn max_sequences(&self) -> u32 {
        self.max_sequences
    }

    /// Tokens that a sequence may hold.
    #[must_use]
    pub const fn max_sequence_len(&self) -> u32 {
        self.max_sequence_len
    }

    /// Cells in a block table row: blocks that `max_sequence_len` tokens need.
    #[must_use]
    pub const fn max_blocks_per_sequence(&self) -> u32 {
        self.max_sequence_len.div_ceil(self.block_size)
    }
}

/// Checks that an argument lies in a range.
pub(crate) fn require<T: PartialOrd + Display + Copy>(
    argument: &'static str,
    value: T,
    allowed: RangeInclusive<T>,
) -> Result<(), Error> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let message = format!(
        "is {value}, must be in {}..={}",
        allowed.start(),
        allowed.end()
    );
    Err(Error::InvalidArgument { argument, message })
}
