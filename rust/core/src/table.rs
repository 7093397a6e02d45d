//! Block tables: which block holds which run of a sequence's tokens.
//!
//! Column `i` of a row holds tokens `i * block_size .. (i + 1) * block_size`. The rows of all sequences are one array, so that a
//! step finds a row by arithmetic. The tables only say where tokens lie; who holds a block is counted by the
//! [pool](crate::BlockPool), so every change here is paired with a retain or a release there, by the manager.
//!
//! The array is made at its largest size: `max_sequences` rows of 4 bytes per block that a sequence may get. Cells that no
//! sequence has reached are never touched, so the system gives them no memory.

use crate::BlockId;

/// The block tables of all sequences, a row each, in token order.
///
/// # Examples
/// The worked example of the README: block size 4, seven tokens in blocks 5 and 2.
/// ```
/// use looseleaf_core::{BlockId, BlockTables};
/// let id = |index| BlockId::new(index).unwrap();
/// let mut tables = BlockTables::new(1, 4);
/// tables.append(0, 0, &[id(5), id(2)]);
/// assert_eq!(tables.slot(0, 6, 4), 2 * 4 + 2); // token 6: block 2, offset 2
/// assert_eq!(tables.slot(0, 7, 4), 2 * 4 + 3); // token 7: block 2, offset 3
/// tables.append(0, 2, &[id(9)]); // token 8 takes a new block
/// assert_eq!(tables.slot(0, 8, 4), 9 * 4);
/// ```
#[derive(Debug)]
pub struct BlockTables {
    /// As kernels read them: a row is copied into a batch as it is.
    cells: Vec<i32>,
    columns: usize,
}

impl BlockTables {
    /// Rows for `num_rows` sequences of at most `columns` blocks.
    #[must_use]
    pub fn new(num_rows: usize, columns: usize) -> Self {
        Self {
            cells: vec![0; num_rows * columns],
            columns,
        }
    }

    /// The first `num_blocks` cells of a row, as kernels read them.
    ///
    /// # Panics
    /// If there is no such row, or it has fewer columns.
    #[must_use]
    pub fn cells(&self, row: usize, num_blocks: u32) -> &[i32] {
        &self.cells[row * self.columns..][..num_blocks as usize]
    }

    /// The blocks in the first `num_blocks` cells of a row.
    ///
    /// # Panics
    /// If there is no such row, or it has fewer columns.
    #[must_use]
    pub fn blocks(
        &self,
        row: usize,
        num_blocks: u32,
    ) -> impl DoubleEndedIterator<Item = BlockId> + ExactSizeIterator + '_ {
        self.cells(row, num_blocks)
            .iter()
            .map(|&cell| BlockId::from_cell(cell))
    }

    /// The blocks in the cells of a row from `first` on, up to the first `num_blocks`.
    pub(crate) fn blocks_from(
        &self,
        row: usize,
        first: u32,
        num_blocks: u32,
    ) -> impl Iterator<Item = BlockId> + '_ {
        // Cut, not skipped: a mapped iterator would walk over what it skips.
        self.cells(row, num_blocks)[first as usize..]
            .iter()
            .map(|&cell| BlockId::from_cell(cell))
    }

    /// One cell of a row.
    ///
    /// # Panics
    /// If there is no such cell.
    #[must_use]
    pub fn block(&self, row: usize, column: u32) -> BlockId {
        BlockId::from_cell(self.cells[row * self.columns + column as usize])
    }

    /// The slot of the token at `position`: block id × block size + offset.
    ///
    /// # Panics
    /// If there is no such cell.
    #[must_use]
    pub fn slot(&self, row: usize, position: u32, block_size: u32) -> i64 {
        let block = self.block(row, position / block_size);
        i64::from(block.get()) * i64::from(block_size) + i64::from(position % block_size)
    }

    /// Writes blocks behind the first `num_blocks` cells of a row.
    ///
    /// # Panics
    /// If the row has too few columns.
    pub fn append(&mut self, row: usize, num_blocks: u32, blocks: &[BlockId]) {
        let cells = &mut self.cells[row * self.columns..(row + 1) * self.columns];
        for (cell, block) in cells[num_blocks as usize..][..blocks.len()]
            .iter_mut()
            .zip(blocks)
        {
            *cell = block.as_i32();
        }
    }

    /// Puts `block` into a cell and returns the block that stood there.
    ///
    /// # Panics
    /// If there is no such cell.
    pub fn exchange(&mut self, row: usize, column: u32, block: BlockId) -> BlockId {
        let cell = &mut self.cells[row * self.columns + column as usize];
        BlockId::from_cell(std::mem::replace(cell, block.as_i32()))
    }
}
