//! Copy-on-write: which blocks may be written in place, and which are held as the source of a copy that is still to run.
//!
//! A write into a block that others share goes to a fresh block; the step's batch then carries a (source, destination) pair, and
//! the source must stay as it is until the copy has run. Such a **hold** is one more reference on the source (so that it cannot be
//! freed) and an entry here (so that it is not mistaken for a sharer). It remembers how many slots of the source the copy needs:
//! the source's last user may go on writing above them, never below.

use std::collections::HashMap;

use crate::{BlockId, BlockPool};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Copies that still need this block.
    pub(crate) tally: u32,
    /// Slots from the start of the block that some of these copies need.
    pub(crate) slots: u32,
}

/// The holds of one manager, by source block. Sparse: most steps copy nothing.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    by_source: HashMap<BlockId, Hold>,
}

impl Holds {
    /// Whether a write into `block` from `offset` on must go to a copy.
    pub(crate) fn write_needs_copy(&self, pool: &BlockPool, block: BlockId, offset: u32) -> bool {
        let (count, is_published) = pool.holders(block);
        let hold = self.get(block);
        is_published || count - hold.tally > 1 || (hold.tally > 0 && offset < hold.slots)
    }

    pub(crate) fn get(&self, block: BlockId) -> Hold {
        self.by_source.get(&block).copied().unwrap_or_default()
    }

    /// Records one more copy that needs the first `slots` slots of `block`; returns what stood before, for [`Holds::restore`].
    pub(crate) fn add(&mut self, block: BlockId, slots: u32) -> Hold {
        let hold = self.by_source.entry(block).or_default();
        let before = *hold;
        hold.tally += 1;
        hold.slots = hold.slots.max(slots);
        before
    }

    /// Takes back an [`Holds::add`] that turned out not to happen. Newest first, if there were several.
    pub(crate) fn restore(&mut self, block: BlockId, before: Hold) {
        if before.tally == 0 {
            self.by_source.remove(&block);
        } else {
            self.by_source.insert(block, before);
        }
    }

    /// One copy from `block` was acknowledged or given up. The caller releases the reference.
    pub(crate) fn remove(&mut self, block: BlockId) {
        if let Some(hold) = self.by_source.get_mut(&block) {
            hold.tally -= 1;
            if hold.tally == 0 {
                self.by_source.remove(&block);
            }
        } else {
            debug_assert!(false, "block {} has no hold", block.get());
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, Hold)> + '_ {
        self.by_source.iter().map(|(&block, &hold)| (block, hold))
    }
}
