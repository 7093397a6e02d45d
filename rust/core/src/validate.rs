//! A recount of everything the manager believes, from the tables up. Slow and complete: for tests, and for a caller in doubt.

use std::collections::HashSet;

use crate::manager::Locked;
use crate::prefix_cache::PrefixCache;
use crate::sequence::Sequence;
use crate::{BlockId, Error, SeqId};

impl Locked<'_> {
    /// Recounts the references of every block from tables and holds, walks the free stack, and checks the lengths of every
    /// sequence. No call may be releasing blocks meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first disagreement found.
    pub fn validate(&mut self) -> Result<(), Error> {
        self.validate_beside(&[])
    }

    /// [`validate`](Self::validate) while transfers hold these blocks
    /// ([`retain_blocks`](crate::BlockManager::retain_blocks)), once per occurrence.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first disagreement found, [`Error::InvalidArgument`] if a block is outside the pool.
    pub fn validate_beside(&mut self, held: &[BlockId]) -> Result<(), Error> {
        self.begin()?;
        let mut counts = vec![0; self.config.num_blocks() as usize + 1];
        for block in held {
            let count = counts.get_mut(block.index());
            *count.ok_or_else(|| Error::InvalidArgument {
                argument: "held",
                message: format!("has {block}, outside the pool"),
            })? += 1;
        }
        let held = counts.clone();
        let mut pending_copies = 0;
        for (place, (index, sequence)) in (0..).zip(self.state.sequences.iter().enumerate()) {
            if !sequence.is_alive {
                ensure(
                    sequence.num_blocks == 0 && self.state.pending[index].is_none(),
                    || format!("place {index} holds no sequence but blocks"),
                )?;
                self.check_plain(place, sequence)?;
                continue;
            }
            self.check_lengths(index, sequence)?;
            self.check_tail(index, sequence, &held)?;
            self.check_plain(place, sequence)?;
            for block in self.state.tables.blocks(index, sequence.num_blocks) {
                counts[block.index()] += 1;
            }
            if let Some(pending) = self.state.pending[index] {
                pending_copies += 1;
                counts[pending.source.index()] += 1;
                ensure(pending.column < sequence.num_blocks, || {
                    format!("the destination of a copy in place {index} is not in its table")
                })?;
                let destination = self.state.tables.block(index, pending.column);
                let is_private = self.pool.count(destination) == 1 + held[destination.index()];
                ensure(is_private, || {
                    format!("the destination of a copy in place {index} is not private")
                })?;
                ensure(!sequence.owns_tail, || {
                    format!("a step of place {index} would not emit its pending copy")
                })?;
                ensure(self.state.holds.get(pending.source).tally > 0, || {
                    format!("block {} is copied without a hold", pending.source.get())
                })?;
            }
        }
        let holds: u32 = self.state.holds.iter().map(|(_, hold)| hold.tally).sum();
        ensure(holds == pending_copies, || {
            format!("{holds} holds for {pending_copies} copies")
        })?;
        self.check_places()?;
        let Some(cache) = &self.state.cache else {
            return self.pool.validate(&counts);
        };
        self.check_published(cache)?;
        let idle: HashSet<BlockId> = cache.idle.oldest().collect();
        ensure(idle.len() == cache.idle.len() as usize, || {
            "the idle list miscounts".to_owned()
        })?;
        self.pool.validate_with(&counts, &idle, cache.num_evicted)
    }

    /// The tree and the words say the same, and every holder of a published block holds all its ancestors.
    fn check_published(&self, cache: &PrefixCache) -> Result<(), Error> {
        cache.tree.validate()?;
        let mut num_published = 0;
        for id in 1..=self.config.num_blocks() {
            let Some(block) = BlockId::new(id) else {
                continue;
            };
            let (_, is_published) = self.pool.holders(block);
            num_published += usize::from(is_published);
            ensure(is_published == cache.tree.is_published(block), || {
                format!(
                    "{block} is published: {is_published}, in the tree: {}",
                    !is_published
                )
            })?;
        }
        ensure(num_published == cache.tree.num_published(), || {
            "the prefix tree miscounts".to_owned()
        })?;
        for (index, sequence) in self.state.sequences.iter().enumerate() {
            let mut still = true;
            for block in self.state.tables.blocks(index, sequence.num_blocks) {
                let is_published = cache.tree.is_published(block);
                ensure(still || !is_published, || {
                    format!("place {index} holds published {block} without its ancestors")
                })?;
                still = is_published;
            }
        }
        Ok(())
    }

    fn check_lengths(&self, index: usize, sequence: &Sequence) -> Result<(), Error> {
        let capacity = u64::from(sequence.num_blocks) * u64::from(self.config.block_size());
        let is_ordered = sequence.num_cached <= sequence.computed
            && sequence.computed <= sequence.reserved
            && u64::from(sequence.reserved) <= capacity
            && sequence.known <= self.config.max_sequence_len();
        ensure(is_ordered, || {
            format!(
                "lengths of place {index}: cached {} <= computed {} <= reserved {} <= capacity {capacity} does not hold",
                sequence.num_cached, sequence.computed, sequence.reserved
            )
        })?;
        let mut blocks = self.state.tables.blocks(index, sequence.num_blocks);
        ensure(!blocks.any(BlockId::is_null), || {
            format!("place {index} has the null block in its table")
        })
    }

    /// A step writes into the tail without looking it up, and into one of its own without looking who else has it.
    fn check_tail(&self, index: usize, sequence: &Sequence, held: &[u32]) -> Result<(), Error> {
        let column = self.block_size.column(sequence.computed);
        let is_reached = column < sequence.num_blocks;
        let tail = if is_reached {
            self.state.tables.block(index, column)
        } else {
            BlockId::NULL
        };
        let tail_start = column * self.block_size.tokens();
        ensure(
            (sequence.tail, sequence.tail_start) == (tail, tail_start),
            || {
                format!(
                    "place {index} has its tail in {} from {}, must be {tail} from {tail_start}",
                    sequence.tail, sequence.tail_start
                )
            },
        )?;
        if !sequence.owns_tail || !is_reached {
            return Ok(());
        }
        let (count, is_published) = self.pool.holders(tail);
        ensure(count == 1 + held[tail.index()] && !is_published, || {
            format!(
                "place {index} takes its tail for its own, {count} hold it, published: {is_published}"
            )
        })
    }

    fn check_plain(&self, place: u32, sequence: &Sequence) -> Result<(), Error> {
        let plain = sequence.recount_plain(place, self.state.longest);
        ensure(sequence.plain == plain, || {
            format!(
                "place {place} has {:?}, must have {plain:?}",
                sequence.plain
            )
        })
    }

    /// Every place holds a sequence, is free, is on its way to be, or has seen its last generation.
    fn check_places(&self) -> Result<(), Error> {
        let mut is_free = vec![false; self.state.sequences.len()];
        for &place in &self.state.free_places {
            let first = is_free
                .get_mut(place as usize)
                .is_some_and(|is_free| !std::mem::replace(is_free, true));
            ensure(first, || {
                format!("place {place} is free twice, or there is none")
            })?;
        }
        let mut num_alive = 0;
        for (place, sequence) in (0..).zip(&self.state.sequences) {
            num_alive += u32::from(sequence.is_alive);
            let (generation, is_dropped) = self.graveyard.look(place);
            let is_right = match (is_free[place as usize], sequence.is_alive) {
                (true, true) => false,
                (true, false) => generation == 0,
                // It may be dropped at any time, also now.
                (false, true) => generation == sequence.generation,
                // Released by name after a drop, which the next call takes in; or used up.
                (false, false) => is_dropped || sequence.generation == SeqId::MAX_GENERATION,
            };
            ensure(is_right, || {
                format!(
                    "place {place} is free: {}, holds a sequence: {}, of generation {}; the graveyard has generation {generation}",
                    is_free[place as usize], sequence.is_alive, sequence.generation
                )
            })?;
        }
        ensure(num_alive == self.state.num_alive, || {
            format!("{num_alive} sequences, {} counted", self.state.num_alive)
        })
    }
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), Error> {
    if condition {
        Ok(())
    } else {
        Err(Error::Corrupt { message: message() })
    }
}

#[cfg(all(test, not(looseleaf_loom)))]
mod tests;
