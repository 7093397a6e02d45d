//! What the tree refuses. A call that is refused has changed nothing.

use crate::BlockId;

/// Why a [`PrefixTree`](super::PrefixTree) refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The root was forgotten or dropped since.
    #[error("the root was forgotten or dropped")]
    StaleRoot,

    /// The root still has published blocks.
    #[error("the root has published blocks")]
    RootNotEmpty,

    /// The block is not in the tree.
    #[error("{0} is not published")]
    NotPublished(BlockId),

    /// The block is in the tree already, or stands twice in the call.
    #[error("{0} is published already")]
    AlreadyPublished(BlockId),

    /// The block has published descendants: they have to go first.
    #[error("{0} has published descendants")]
    NotATail(BlockId),

    /// The tree has no block of that id.
    #[error("{0} is outside the pool")]
    OutsidePool(BlockId),

    /// The tokens do not fill the blocks exactly.
    #[error("{num_tokens} tokens do not fill {num_blocks} blocks of {block_size}")]
    WrongLength {
        /// Tokens that were given.
        num_tokens: usize,
        /// Blocks that were given.
        num_blocks: usize,
        /// Tokens of a block.
        block_size: usize,
    },
}
