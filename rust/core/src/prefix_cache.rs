//! What a manager does with blocks under its mutex, where the prefix tree, the idle list and the pool meet.
//!
//! | | |
//! |---|---|
//! | settle | a block lost its last holder: to the free stack, or to the idle list if it is published |
//! | hit | an idle or held block gets one holder more |
//! | publish, adopt | computed content becomes findable, or gives way to the same content that is findable already |
//! | evict | the oldest idle blocks lose their content and are handed out |
//! | unpublish | content is dropped at once; who holds it keeps it |
//!
//! A credit stands for one block on the stack or in the idle list. It is added after the block is there and taken before it is.

use std::hint::black_box;

use crate::block::{Claimed, Hit, Settled, Unpublished};
use crate::free_stack::Chain;
use crate::idle::IdleOrder;
use crate::prefix::{PrefixTree, Root};
use crate::{BlockId, BlockPool, Error, Invalidated};

/// Victims that are looked at together, so that the memory they stand in is fetched at once.
const VICTIMS: usize = 64;

/// The published blocks of a manager and the order of those without holders.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    pub(crate) tree: PrefixTree,
    pub(crate) idle: IdleOrder,
    victims: Vec<BlockId>,
    below: Vec<BlockId>,
    pub(crate) num_evicted: u64,
}

impl PrefixCache {
    pub(crate) fn new(num_blocks: u32, block_size: u32, seed: u64) -> Self {
        Self {
            tree: PrefixTree::new(num_blocks, block_size, seed),
            idle: IdleOrder::new(num_blocks),
            victims: Vec::new(),
            below: Vec::new(),
            num_evicted: 0,
        }
    }

    /// Settles what releases without the mutex have left in the inbox, oldest first.
    pub(crate) fn drain(&mut self, pool: &BlockPool) -> Result<(), Error> {
        let mut result = Ok(());
        let mut freed = Chain::default();
        let mut num_idle = 0;
        pool.take_inbox(|block, settled| match settled {
            Settled::Elsewhere => {}
            Settled::Free => pool.stack().append(&mut freed, block),
            Settled::Idle => {
                self.idle.push(block);
                num_idle += 1;
            }
            Settled::Refused(word) => result = Err(corrupt(block, "in the inbox", word)),
        });
        pool.add_credits(num_idle);
        pool.give_back(&freed);
        result
    }

    /// Takes one holder from each block, the last one first, so that a sequence's leaf is older than its ancestors.
    pub(crate) fn release(&mut self, pool: &BlockPool, blocks: &[BlockId]) -> Result<(), Error> {
        let mut freed = Chain::default();
        let mut result = Ok(());
        let mut num_idle = 0;
        for &block in blocks.iter().rev() {
            match pool.checked_word(block)?.release_locked() {
                Settled::Elsewhere => {}
                Settled::Free => pool.stack().prepend(&mut freed, block),
                Settled::Idle => {
                    self.idle.push(block);
                    num_idle += 1;
                }
                Settled::Refused(word) => {
                    result = Err(corrupt(block, "released", word));
                    break;
                }
            }
        }
        // Also where the call has failed: what was settled is promised.
        pool.add_credits(num_idle);
        pool.give_back(&freed);
        result
    }

    /// Takes one holder from each block, as [`release`](Self::release) does, and drops the content of those without holders.
    pub(crate) fn release_and_forget(
        &mut self,
        pool: &BlockPool,
        blocks: &[BlockId],
    ) -> Result<(), Error> {
        self.release(pool, blocks)?;
        for &block in blocks.iter().rev() {
            if self.idle.contains(block) {
                self.unpublish(pool, block)?;
            }
        }
        Ok(())
    }

    /// One holder more for each block. The credits of the idle ones are taken already.
    pub(crate) fn hit(&mut self, pool: &BlockPool, blocks: &[BlockId]) -> Result<(), Error> {
        for &block in blocks {
            match pool.checked_word(block)?.hit() {
                Hit::Shared => {}
                Hit::WasIdle if self.idle.remove(block) => {}
                Hit::WasIdle => return Err(corrupt(block, "not in the list", Hit::WasIdle)),
                Hit::Refused(word) => return Err(corrupt(block, "hit", word)),
            }
        }
        Ok(())
    }

    /// Hands out `out.len()` blocks whose credits are taken: from the stack, then the oldest idle ones.
    pub(crate) fn allocate(&mut self, pool: &BlockPool, out: &mut [BlockId]) -> Result<(), Error> {
        let mut done = pool.pop_claimed(out)?;
        while done < out.len() {
            self.victims.clear();
            self.victims
                .extend(self.idle.oldest().take((out.len() - done).min(VICTIMS)));
            if self.victims.is_empty() {
                // Evictions may have moved descendants to the stack.
                let popped = pool.pop_claimed(&mut out[done..])?;
                done += popped;
                if popped == 0 {
                    return Err(Error::Corrupt {
                        message: format!("{} blocks promised, none to be found", out.len() - done),
                    });
                }
                continue;
            }
            let victims = std::mem::take(&mut self.victims);
            self.fetch(pool, &victims);
            for &block in &victims {
                // A descendant of a former victim is gone already.
                if self.idle.contains(block) {
                    self.evict(pool, block)?;
                    out[done] = block;
                    done += 1;
                }
            }
            self.victims = victims;
        }
        Ok(())
    }

    /// Reads what giving up these blocks will read, so that the reads overlap.
    fn fetch(&self, pool: &BlockPool, victims: &[BlockId]) {
        // In loops of their own: no read waits for what another one finds.
        black_box(victims.iter().filter(|&&block| pool.is_idle(block)).count());
        let places = victims.iter().filter(|&&block| self.idle.contains(block));
        black_box(places.count());
        self.tree.prefetch(victims);
    }

    /// Drops the content of the oldest idle blocks, at most `num_blocks` and the idle ones behind them. Returns how many.
    pub(crate) fn drop_oldest(&mut self, pool: &BlockPool, num_blocks: u32) -> Result<u32, Error> {
        let before = self.idle.len();
        loop {
            let done = before - self.idle.len();
            let wanted = (num_blocks.saturating_sub(done) as usize).min(VICTIMS);
            let mut victims = std::mem::take(&mut self.victims);
            victims.clear();
            victims.extend(self.idle.oldest().take(wanted));
            self.fetch(pool, &victims);
            // Written here: behind each of these writes, the next block's word would wait for memory.
            pool.stack().fetch_links(&victims);
            let mut freed = Chain::default();
            for &block in &victims {
                // A descendant of a former victim is gone already.
                if before - self.idle.len() < num_blocks && self.idle.contains(block) {
                    self.remove_with_descendants(pool, block)?;
                    self.unpublish_word(pool, block, &mut freed)?;
                }
            }
            keep_credits(pool, &freed);
            let is_done = victims.is_empty();
            self.victims = victims;
            if is_done {
                return Ok(before - self.idle.len());
            }
        }
    }

    /// Drops the content of an idle block and makes the caller its holder.
    fn evict(&mut self, pool: &BlockPool, block: BlockId) -> Result<(), Error> {
        self.remove_with_descendants(pool, block)?;
        self.idle.remove(block);
        self.num_evicted += 1;
        match pool.checked_word(block)?.evict() {
            Claimed::Done => {
                pool.count_allocated(1);
                Ok(())
            }
            Claimed::NotFree(word) => Err(corrupt(block, "evicted", word)),
        }
    }

    /// Drops the content of a block and of all that stands behind it.
    pub(crate) fn unpublish(&mut self, pool: &BlockPool, block: BlockId) -> Result<(), Error> {
        self.remove_with_descendants(pool, block)?;
        let mut freed = Chain::default();
        self.unpublish_word(pool, block, &mut freed)?;
        keep_credits(pool, &freed);
        Ok(())
    }

    /// Takes a block out of the tree, and drops the content behind it.
    fn remove_with_descendants(&mut self, pool: &BlockPool, block: BlockId) -> Result<(), Error> {
        if self.tree.remove(block).is_ok() {
            return Ok(());
        }
        let mut below = std::mem::take(&mut self.below);
        below.clear();
        self.tree.descendants(block, &mut below);
        let mut freed = Chain::default();
        for &descendant in &below {
            self.remove_from_tree(descendant)?;
            self.unpublish_word(pool, descendant, &mut freed)?;
        }
        keep_credits(pool, &freed);
        self.below = below;
        self.remove_from_tree(block)
    }

    /// The word of a block that has left the tree. Returns whether somebody holds it; if not, it is in `freed` now.
    fn unpublish_word(
        &mut self,
        pool: &BlockPool,
        block: BlockId,
        freed: &mut Chain,
    ) -> Result<bool, Error> {
        match pool.checked_word(block)?.unpublish() {
            Unpublished::Held => Ok(true),
            Unpublished::WasIdle => {
                self.idle.remove(block);
                pool.stack().prepend(freed, block);
                Ok(false)
            }
            Unpublished::Refused(word) => Err(corrupt(block, "unpublished", word)),
        }
    }

    fn remove_from_tree(&mut self, block: BlockId) -> Result<(), Error> {
        self.tree.remove(block).map_err(|error| Error::Corrupt {
            message: format!("{block} does not leave the tree: {error}"),
        })
    }

    /// Drops all content below a root.
    pub(crate) fn invalidate(
        &mut self,
        pool: &BlockPool,
        root: Root,
    ) -> Result<Invalidated, Error> {
        let mut below = std::mem::take(&mut self.below);
        below.clear();
        self.tree.blocks_of(root, &mut below);
        let mut num_held = 0;
        let mut freed = Chain::default();
        for &block in &below {
            self.remove_from_tree(block)?;
            num_held += u32::from(self.unpublish_word(pool, block, &mut freed)?);
        }
        keep_credits(pool, &freed);
        let num_dropped = u32::try_from(below.len()).unwrap_or(u32::MAX);
        self.below = below;
        // A root that nobody held has gone with its last block.
        let _ = self.tree.forget(root);
        Ok(Invalidated {
            num_dropped,
            num_held,
        })
    }
}

/// Puts blocks that were idle on the stack, where the next allocation looks first. Their credits stay.
fn keep_credits(pool: &BlockPool, freed: &Chain) {
    if freed.len() > 0 {
        pool.stack().push_chain(freed);
        pool.count_released(freed.len());
    }
}

#[cold]
fn corrupt(block: BlockId, done: &str, word: impl std::fmt::Debug) -> Error {
    Error::Corrupt {
        message: format!("{block} was {done} with {word:?}"),
    }
}
