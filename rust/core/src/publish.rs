//! Publishing: computed blocks become findable, or give way to blocks with the same content that are findable already.
//!
//! Only full, computed blocks whose tokens are known are published, in order, each behind its published predecessor. Where the
//! content is there already, the sequence adopts the canonical block and gives up its own copy: so duplicates die at commit, and
//! every holder of a published block holds all its ancestors. A sequence that cannot adopt, because a fork shares its own block,
//! stops publishing, and so do its forks from then on.

use std::hint::black_box;

use crate::holds::Holds;
use crate::prefix_cache::PrefixCache;
use crate::release::release_blocks;
use crate::sequence::Sequence;
use crate::state::State;
use crate::{BlockId, BlockPool, Error};

impl State {
    /// Publishes what a sequence has computed since the last time.
    pub(crate) fn publish(&mut self, pool: &BlockPool, place: usize) -> Result<(), Error> {
        let Sequence {
            computed, known, ..
        } = self.sequences[place];
        let num_full = self.block_size.column(computed.min(known));
        while self.sequences[place].publishes && self.sequences[place].num_published < num_full {
            let num_published = self.publish_some(pool, place, num_full)?;
            let sequence = &mut self.sequences[place];
            sequence.num_published += num_published;
            sequence.publishes = num_published > 0;
        }
        Ok(())
    }

    /// Reads what [`publish`](Self::publish) will, one block each, of sequences that have filled their tails: the words, homes and
    /// nodes lie wherever their blocks do, and were not used for a block's time. These reads overlap, where each publication would
    /// wait for its own.
    pub(crate) fn fetch_to_publish(&self, pool: &BlockPool, places: &[u32]) {
        let Some(cache) = &self.cache else { return };
        let mut sum = 0;
        for &place in places {
            let sequence = &self.sequences[place as usize];
            sum ^= pool.count(sequence.tail);
            sum ^= u32::from(cache.tree.is_published(sequence.tail));
            if let Some(column) = sequence.num_published.checked_sub(1) {
                let predecessor = self.tables.block(place as usize, column);
                sum ^= cache.tree.fetch_end(predecessor);
            }
        }
        black_box(sum);
    }

    /// Publishes or adopts at least one block; 0 if the sequence has to stop.
    fn publish_some(
        &mut self,
        pool: &BlockPool,
        place: usize,
        num_full: u32,
    ) -> Result<u32, Error> {
        let (Some(cache), Some(root)) = (&mut self.cache, self.roots[place]) else {
            return Ok(0);
        };
        let sequence = &mut self.sequences[place];
        let first = sequence.num_published;
        let predecessor = first
            .checked_sub(1)
            .map(|column| self.tables.block(place, column));
        let is_published = |block| cache.tree.is_published(block);
        if !cache.tree.is_current(root) || !predecessor.is_none_or(is_published) {
            return Ok(0);
        }
        let size = self.block_size.tokens();
        // What stands in the row goes first, in one piece, then what stands in the tail.
        let (in_row, in_tail) =
            self.tokens
                .between(place, first * size, num_full * size, sequence.known);
        let tokens = if in_row.is_empty() { in_tail } else { in_row };
        let own = self.tables.block(place, first);
        if is_published(own) {
            // A fork has published the block that both have.
            let is_same = cache.tree.tokens_of(own) == Some(&tokens[..size as usize]);
            return Ok(u32::from(is_same));
        }
        self.blocks.clear();
        let blocks = self.tables.blocks_from(place, first, num_full);
        let blocks = blocks.take(tokens.len() / size as usize);
        self.blocks
            .extend(blocks.take_while(|&block| !is_published(block)));
        let num_new = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        let tokens = &tokens[..(num_new * size) as usize];
        let published = cache
            .tree
            .publish(root, predecessor, tokens, &self.blocks)
            .map_err(|error| Error::Corrupt {
                message: format!("place {place} does not publish: {error}"),
            })?;
        let Some(canonical) = published.existing else {
            for &block in &self.blocks {
                if !pool.checked_word(block)?.publish() {
                    return Err(Error::Corrupt {
                        message: format!("{block} was published while nobody held it"),
                    });
                }
            }
            return Ok(num_new);
        };
        if !adopt(cache, pool, &self.holds, own, canonical)? {
            return Ok(0);
        }
        self.tables.exchange(place, first, canonical);
        self.renew_table(place);
        release_blocks(&mut self.cache, pool, &[own])?;
        Ok(1)
    }
}

/// Takes a reference on the canonical block in place of the own one; `false` if that may not be.
fn adopt(
    cache: &mut PrefixCache,
    pool: &BlockPool,
    holds: &Holds,
    own: BlockId,
    canonical: BlockId,
) -> Result<bool, Error> {
    if pool.count(own) - holds.get(own).tally > 1 {
        return Ok(false);
    }
    if pool.is_idle(canonical) {
        // Its own credit, which nobody else takes under the mutex.
        pool.take_credits(1)?;
    }
    cache.hit(pool, &[canonical])?;
    Ok(true)
}
