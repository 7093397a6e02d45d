//! Block table of one sequence: which block holds which run of its tokens.
//!
//! Column `i` holds tokens `i * block_size .. (i + 1) * block_size`. The table only says where tokens lie; who holds a block is
//! counted by the [pool](crate::BlockPool), so every change here is paired with a retain or a release there, by the manager.

use crate::BlockId;

/// The block table of one sequence, in token order.
///
/// # Examples
/// The worked example of the README: block size 4, seven tokens in blocks 5 and 2.
/// ```
/// use looseleaf_core::{BlockId, BlockTable};
/// let id = |index| BlockId::new(index).unwrap();
/// let mut table = BlockTable::with_capacity(4);
/// table.append(&[id(5), id(2)]);
/// assert_eq!(table.slot(6, 4), 2 * 4 + 2); // token 6: block 2, offset 2
/// assert_eq!(table.slot(7, 4), 2 * 4 + 3); // token 7: block 2, offset 3
/// table.append(&[id(9)]); // token 8 takes a new block
/// assert_eq!(table.slot(8, 4), 9 * 4);
/// ```
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    epoch: u64,
}

impl BlockTable {
    /// An empty table with room for `max_blocks`; it does not allocate again up to that length.
    #[must_use]
    pub fn with_capacity(max_blocks: usize) -> Self {
        Self {
            blocks: Vec::with_capacity(max_blocks),
            epoch: 0,
        }
    }

    /// The blocks in token order.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the table has no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Changes whenever a cell that existed is changed or removed. While it stays the same, the table has only grown, so that a
    /// copy of it needs no more than the new cells.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The slot of the token at `position`: block id × block size + offset.
    ///
    /// # Panics
    /// If the table is too short for `position`.
    #[must_use]
    pub fn slot(&self, position: u32, block_size: u32) -> i64 {
        let block = self.blocks[(position / block_size) as usize];
        i64::from(block.get()) * i64::from(block_size) + i64::from(position % block_size)
    }

    /// Adds blocks at the end.
    pub fn append(&mut self, blocks: &[BlockId]) {
        self.blocks.extend_from_slice(blocks);
    }

    /// Keeps the first `num_blocks` and moves the rest, in token order, to the end of `removed`.
    pub fn truncate(&mut self, num_blocks: usize, removed: &mut Vec<BlockId>) {
        if num_blocks < self.blocks.len() {
            removed.extend_from_slice(&self.blocks[num_blocks..]);
            self.blocks.truncate(num_blocks);
            self.epoch += 1;
        }
    }

    /// Makes this table a fork of the first `num_blocks` of `parent`.
    ///
    /// # Panics
    /// If `parent` has fewer blocks.
    pub fn fork_from(&mut self, parent: &Self, num_blocks: usize) {
        self.blocks.clear();
        self.blocks.extend_from_slice(&parent.blocks[..num_blocks]);
        self.epoch += 1;
    }

    /// Puts `block` into `column` and returns the block that stood there.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn exchange(&mut self, column: usize, block: BlockId) -> BlockId {
        self.epoch += 1;
        std::mem::replace(&mut self.blocks[column], block)
    }
}
