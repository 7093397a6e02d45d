//! Block tables on request, for callers that bring their own buffers: dense rows, and the compressed rows that `FlashInfer` reads.
//!
//! A step's own tables stand in its [batch](crate::BatchBuffers) already. These are for everybody else: an engine with a layout
//! of its own, or a kernel that takes `paged_kv_indptr`, `paged_kv_indices` and `paged_kv_last_page_len`.
//!
//! Floor: the ids read once and written once; 50,000 ids are 0.4 MB, 20 to 40 microseconds from and to a second-level cache.

use crate::Error;
use crate::manager::Locked;

/// The arrays of a compressed table, `FlashInfer`'s names and meaning; a "page" is a block. Whole buffers, padded by the call.
#[derive(Debug)]
pub struct PageTable<'a> {
    /// Prefix sums of the pages of each sequence: its pages are `indices[indptr[i]..indptr[i + 1]]`. One longer than there are
    /// sequences, or more; padded with the last value.
    pub indptr: &'a mut [i32],
    /// Block ids. What is past the last one used stays as it was.
    pub indices: &'a mut [i32],
    /// Tokens in the last page, 1 to the block size; 0 for a sequence without tokens. Padded with 0.
    pub last_page_len: &'a mut [i32],
}

impl Locked<'_> {
    /// Writes the block table of each sequence into a row of `columns` cells, padded with 0, the null block.
    ///
    /// # Errors
    /// [`Error::StaleSequence`], [`Error::UnknownSequence`], [`Error::DuplicateSequence`]; [`Error::InvalidArgument`] unless
    /// `table` has `handles.len() * columns` cells; [`Error::BatchTooSmall`] if a table has more blocks than `columns`. Nothing
    /// is written then.
    pub fn gather_rows(
        &mut self,
        handles: &[i64],
        table: &mut [i32],
        columns: usize,
    ) -> Result<(), Error> {
        let num_cells = handles.len().saturating_mul(columns);
        if table.len() != num_cells {
            return Err(Error::InvalidArgument {
                argument: "table",
                message: format!(
                    "has {} cells, must have {num_cells} for {} sequences of {columns} columns",
                    table.len(),
                    handles.len()
                ),
            });
        }
        self.name_rows(handles)?;
        let state = &*self.state;
        let num_blocks = |&place: &u32| state.sequences[place as usize].num_blocks;
        let longest = state.places.iter().map(num_blocks).max().unwrap_or(0);
        check_fits("columns", u64::from(longest), columns)?;
        if columns == 0 {
            return Ok(());
        }
        for (&place, row) in state.places.iter().zip(table.chunks_exact_mut(columns)) {
            let place = place as usize;
            let cells = state.tables.cells(place, state.sequences[place].num_blocks);
            let (used, unused) = row.split_at_mut(cells.len());
            used.copy_from_slice(cells);
            unused.fill(0);
        }
        Ok(())
    }

    /// Writes the blocks that hold the reserved tokens of each sequence (those computed, and those of the current step) as a
    /// compressed table. Returns their number.
    ///
    /// # Errors
    /// [`Error::StaleSequence`], [`Error::UnknownSequence`], [`Error::DuplicateSequence`], or [`Error::BatchTooSmall`] naming the
    /// array that is too short. Nothing is written then.
    pub fn csr(&mut self, handles: &[i64], table: &mut PageTable<'_>) -> Result<u32, Error> {
        self.name_rows(handles)?;
        let (state, block_size) = (&*self.state, self.block_size);
        let reserved = |&place: &u32| state.sequences[place as usize].reserved;
        let num_pages = |place| u64::from(block_size.blocks_for(reserved(place)));
        let total = state.places.iter().map(num_pages).sum();
        check_fits("indptr", handles.len() as u64 + 1, table.indptr.len())?;
        check_fits("indices", total, table.indices.len())?;
        check_fits(
            "last_page_len",
            handles.len() as u64,
            table.last_page_len.len(),
        )?;
        let mut end = 0;
        table.indptr[0] = 0;
        for (row, place) in state.places.iter().enumerate() {
            let (reserved, start) = (reserved(place), end);
            let cells = state
                .tables
                .cells(*place as usize, block_size.blocks_for(reserved));
            end += cells.len();
            table.indices[start..end].copy_from_slice(cells);
            // Fits: blocks have int32 ids, and a block stands in a table as often as it has holders.
            table.indptr[row + 1] = i32::try_from(end).unwrap_or(i32::MAX);
            let last = reserved.checked_sub(1);
            table.last_page_len[row] =
                last.map_or(0, |last| block_size.offset(last).cast_signed() + 1);
        }
        let last = table.indptr[handles.len()];
        table.indptr[handles.len() + 1..].fill(last);
        table.last_page_len[handles.len()..].fill(0);
        Ok(last.cast_unsigned())
    }

    /// Finds the places of these sequences, into the scratch.
    fn name_rows(&mut self, handles: &[i64]) -> Result<(), Error> {
        self.begin()?;
        self.state.places.clear();
        for &handle in handles {
            let index = self.resolve(handle)?;
            self.mark(index, handle)?;
            // Fits: it is at most max_sequences.
            let place = u32::try_from(index).unwrap_or(u32::MAX);
            self.state.places.push(place);
        }
        Ok(())
    }
}

fn check_fits(what: &'static str, requested: u64, limit: usize) -> Result<(), Error> {
    let limit = limit as u64;
    if requested <= limit && i32::try_from(requested).is_ok() {
        return Ok(());
    }
    Err(Error::BatchTooSmall {
        what,
        requested,
        limit,
    })
}
