//! The ways back: truncation, release, and what a dropped handle leaves.
//!
//! Copy holds are given up after the cells they stand for were read, and cells from the last one on, so that of a sequence's
//! cached blocks the leaf is always older than its ancestors.

use crate::manager::Locked;
use crate::plain::Plain;
use crate::prefix_cache::PrefixCache;
use crate::state::State;
use crate::{BlockId, BlockPool, Error, SeqId};

impl Locked<'_> {
    /// Rolls a sequence back to its first `length` tokens and gives up the blocks past them.
    ///
    /// # Errors
    /// [`Error::StaleSequence`], [`Error::UnknownSequence`], or [`Error::InvalidArgument`] if the sequence is shorter; nothing
    /// has changed then.
    pub fn truncate(&mut self, handle: i64, length: u32) -> Result<(), Error> {
        self.begin()?;
        let index = self.resolve(handle)?;
        let State {
            sequences, tokens, ..
        } = &mut *self.state;
        let sequence = &mut sequences[index];
        let longest = sequence.known.max(sequence.reserved);
        if length > longest {
            return Err(Error::InvalidArgument {
                argument: "length",
                message: format!("is {length}, the sequence has {longest} tokens"),
            });
        }
        if length < sequence.known {
            tokens.truncate(index, sequence.known, length);
            sequence.known = length;
        }
        sequence.reserved = sequence.reserved.min(length);
        if length < sequence.computed {
            sequence.computed = length;
            sequence.owns_tail = false;
        }
        sequence.num_cached = sequence.num_cached.min(length);
        // A block that is cut is still published, but no longer this sequence's content.
        sequence.num_published = sequence.num_published.min(self.block_size.column(length));
        self.give_up_blocks(index, self.block_size.blocks_for(length))?;
        self.state.find_tail(index);
        // Fits: it is a place.
        self.state
            .note_plain(u32::try_from(index).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Ends sequences and gives up their blocks. A released handle is passed over.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`] or [`Error::DuplicateSequence`]; nothing has changed then.
    pub fn release(&mut self, handles: &[i64]) -> Result<(), Error> {
        self.release_with(handles, true)
    }

    /// As [`release`](Self::release); with `cache` false, what nobody else holds of their cached content is dropped, from the first
    /// block on that was not a whole hit of the admission, and what is cached behind it.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`] or [`Error::DuplicateSequence`]; nothing has changed then.
    pub fn release_with(&mut self, handles: &[i64], cache: bool) -> Result<(), Error> {
        self.begin()?;
        for &handle in handles {
            match self.resolve(handle) {
                Ok(index) => self.mark(index, handle)?,
                Err(Error::StaleSequence { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for &handle in handles {
            if self.resolve(handle).is_ok()
                && let Some(id) = SeqId::from_handle(handle)
            {
                self.end(id.index() as usize, cache)?;
                // Where a drop came first, the next drain frees the place.
                if self.graveyard.close(id) {
                    self.vacate(id);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn end(&mut self, index: usize, cache: bool) -> Result<(), Error> {
        self.state.num_alive -= 1;
        let sequence = &mut self.state.sequences[index];
        sequence.is_alive = false;
        sequence.plain = Plain::NEITHER;
        if !cache {
            let kept = self.state.sequences[index].num_cached;
            self.forget_blocks(index, self.block_size.column(kept))?;
        }
        self.give_up_blocks(index, 0)?;
        let state = &mut *self.state;
        if let (Some(cache), Some(root)) = (&mut state.cache, state.roots[index].take()) {
            cache.tree.release_root(root);
        }
        Ok(())
    }

    /// Gives up the blocks from column `keep` on, and the copy into one of them: the hold first, then the cells.
    fn give_up_blocks(&mut self, index: usize, keep: u32) -> Result<(), Error> {
        let source = self.state.cut(index, keep);
        let State { cache, blocks, .. } = &mut *self.state;
        release_blocks(cache, self.pool, source.as_slice())?;
        release_blocks(cache, self.pool, blocks)
    }

    /// Gives up the blocks from column `keep` on and drops what nobody else holds of their content.
    fn forget_blocks(&mut self, index: usize, keep: u32) -> Result<(), Error> {
        let source = self.state.cut(index, keep);
        let State { cache, blocks, .. } = &mut *self.state;
        release_blocks(cache, self.pool, source.as_slice())?;
        match cache {
            Some(cache) => cache.release_and_forget(self.pool, blocks),
            None => self.pool.release(blocks),
        }
    }
}

impl State {
    /// Takes the blocks from column `keep` on out of a table, into the scratch. Returns the source of the copy into one of them,
    /// whose hold has ended; its reference is the caller's to release.
    fn cut(&mut self, index: usize, keep: u32) -> Option<BlockId> {
        let sequence = &mut self.sequences[index];
        self.blocks.clear();
        if keep < sequence.num_blocks {
            let blocks = self.tables.blocks_from(index, keep, sequence.num_blocks);
            self.blocks.extend(blocks);
            sequence.num_blocks = keep;
            self.renew_table(index);
        }
        let pending = self.pending[index].take_if(|pending| pending.column >= keep)?;
        self.holds.remove(pending.source);
        Some(pending.source)
    }
}

/// Takes one holder from each block: by way of the cache where there is one.
pub(crate) fn release_blocks(
    cache: &mut Option<PrefixCache>,
    pool: &BlockPool,
    blocks: &[BlockId],
) -> Result<(), Error> {
    match cache {
        Some(cache) => cache.release(pool, blocks),
        None => pool.release(blocks),
    }
}
