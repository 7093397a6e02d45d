//! Allocate, retain and release blocks, from any thread, without a lock.
//!
//! # Credits
//!
//! One counter says how many blocks an allocation is sure to find. A credit is added only after its block stands on the free
//! stack, and taken, all that a call needs at once, before anything is popped. So an allocation is decided by one
//! compare-exchange of the counter, before it has touched the stack, and who holds credits finds blocks:
//!
//! * Take the last of the takers whose pops came before ours. All credits taken up to it had been added, so their blocks had
//!   been pushed, and the Acquire of its take has put those pushes before its pop.
//! * The same holds for our own take and our own walk. Hence at any head that we can read, the blocks pushed exceed the blocks
//!   popped by at least what we hold.
//!
//! A stack that is too short for a holder of credits is therefore a bug and is reported as such, not waited for. A manager with a
//! prefix cache also promises the blocks of its idle list; what the stack lacks then comes from there, under the mutex.
//!
//! The credits and the stack's head have cache lines of their own. An allocation or a release of any number of blocks writes
//! each of the two lines once.

use std::collections::HashSet;

use crate::block::{BlockWord, Claimed, Released, Retained, Settled, Snapshot};
use crate::config::require;
use crate::free_stack::Chain;
use crate::mutant;
use crate::push_list::{PushChain, PushList};
use crate::stats::Counters;
use crate::sync::{AtomicU32, Ordering, OwnLine};
use crate::{BlockId, Config, Error, FreeStack, PoolStats};

/// The blocks of a manager: who holds how many references, and which are free.
///
/// Every method takes `&self` and may be called from any thread. `allocate`, `retain` and `release` are lock-free, reserve no
/// memory and are O(number of blocks). The memory is reserved by [`new`](Self::new): 16 bytes per block.
///
/// # Examples
///
/// ```
/// use looseleaf_core::{BlockId, BlockPool, Error};
///
/// let pool = BlockPool::new(4)?;
/// let mut blocks = [BlockId::NULL; 3];
/// pool.allocate(&mut blocks)?;
/// assert_eq!(pool.num_free(), 1);
///
/// pool.retain(&blocks[..1])?; // a second holder
/// pool.release(&blocks)?;
/// assert_eq!((pool.count(blocks[0]), pool.num_free()), (1, 3));
///
/// let refused = pool.allocate(&mut [BlockId::NULL; 4]);
/// assert_eq!(refused, Err(Error::OutOfBlocks { requested: 4, free: 3, evictable: 0 }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct BlockPool {
    stack: FreeStack,
    /// Published blocks whose last holder let go without the mutex; entries are block ids.
    inbox: PushList,
    ledger: OwnLine<Ledger>,
    /// Indexed by block id; the null block's word stays 0.
    words: Box<[BlockWord]>,
    num_blocks: u32,
}

/// What every allocation and release counts.
#[derive(Debug)]
struct Ledger {
    credits: AtomicU32,
    counters: Counters,
}

impl BlockPool {
    /// A pool of the blocks `1..=num_blocks`, all free.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] unless `num_blocks` is in `1..=`[`Config::MAX_BLOCKS`].
    pub fn new(num_blocks: u32) -> Result<Self, Error> {
        require("num_blocks", num_blocks, 1..=Config::MAX_BLOCKS)?;
        Ok(Self {
            stack: FreeStack::new(num_blocks),
            inbox: PushList::new(num_blocks + 1),
            ledger: OwnLine(Ledger {
                credits: AtomicU32::new(num_blocks),
                counters: Counters::new(),
            }),
            words: (0..=num_blocks).map(|_| BlockWord::new()).collect(),
            num_blocks,
        })
    }

    /// Usable blocks, the null block not counted.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Blocks that an allocation would find now.
    #[must_use]
    pub fn num_free(&self) -> u32 {
        self.ledger.0.credits.load(Ordering::Relaxed) // a gauge: nothing is read through it
    }

    /// Holders of a block; 0 if it is free, null or outside the pool.
    ///
    /// Whoever holds a block and reads 1 is alone with it, and everything that former holders did with it has happened.
    #[must_use]
    pub fn count(&self, block: BlockId) -> u32 {
        self.word(block).map_or(0, |word| word.snapshot().count())
    }

    /// [`count`](Self::count), and whether the block is published.
    pub(crate) fn holders(&self, block: BlockId) -> (u32, bool) {
        self.word(block).map_or((0, false), |word| {
            let word = word.snapshot();
            (word.count(), word.is_published())
        })
    }

    /// Whether the block is published and nobody holds it. Under the mutex of whoever publishes, this stays true.
    pub(crate) fn is_idle(&self, block: BlockId) -> bool {
        self.word(block)
            .is_some_and(|word| word.snapshot().is_idle() && !mutant::is("hit without credit"))
    }

    /// How often a block has been allocated, modulo 2^32; 0 if it is null or outside the pool.
    #[must_use]
    pub fn generation(&self, block: BlockId) -> u32 {
        self.word(block)
            .map_or(0, |word| word.snapshot().generation())
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.ledger
            .0
            .counters
            .read(self.num_blocks, self.num_free())
    }

    /// Fills `out` with free blocks, each with one holder and a new generation.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBlocks`] if too few are free, [`Error::NeverFits`] if the pool has not so many. Nothing has changed then.
    /// [`Error::Corrupt`] if blocks went missing or were handed out twice, which no sequence of calls brings about.
    pub fn allocate(&self, out: &mut [BlockId]) -> Result<(), Error> {
        let never_fits = || Error::NeverFits {
            requested: out.len() as u64,
            capacity: self.num_blocks,
        };
        let requested = u32::try_from(out.len()).map_err(|_| never_fits())?;
        if requested > self.num_blocks {
            return Err(never_fits());
        }
        if requested == 0 {
            return Ok(());
        }
        let left = self.take_credits(requested)?;
        if !self.stack.pop(out) {
            let message = format!("the free stack has fewer blocks than the {requested} promised");
            return Err(Error::Corrupt { message });
        }
        self.claim(out)?;
        self.ledger
            .0
            .counters
            .count_allocated(requested, self.num_blocks - left);
        Ok(())
    }

    /// Adds one holder to each block. A block that stands twice gets two.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if one of the blocks is free, null or outside the pool; [`Error::InvalidArgument`] if it has 2^30 − 1
    /// holders. Nothing has changed then.
    pub fn retain(&self, blocks: &[BlockId]) -> Result<(), Error> {
        for (done, &block) in blocks.iter().enumerate() {
            let retained = self
                .word(block)
                .map_or(Retained::NotHeld, BlockWord::retain);
            let error = match retained {
                Retained::Done => continue,
                Retained::NotHeld => Error::NotHeld { block: block.get() },
                Retained::Full => {
                    let message =
                        format!("has {block} with {} holders, the most", Snapshot::MAX_COUNT);
                    Error::InvalidArgument {
                        argument: "blocks",
                        message,
                    }
                }
            };
            self.release(&blocks[..done])?; // the references just added
            return Err(error);
        }
        Ok(())
    }

    /// Takes one holder from each block, from each occurrence of a block that stands twice. Blocks without holders are free;
    /// the first of them is the next to be allocated.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if one of the blocks is free, null or outside the pool, or stands more often than it is held. Nothing
    /// has changed then. One exception: a call that names one block too often gives up, for an instant, the blocks behind it; if
    /// the last other holder of one of them lets go in that instant, then that block is released.
    pub fn release(&self, blocks: &[BlockId]) -> Result<(), Error> {
        for &block in blocks {
            if self.count(block) == 0 {
                return Err(Error::NotHeld { block: block.get() });
            }
        }
        let mut freed = Chain::default();
        let mut queued = PushChain::default();
        let mut result = Ok(());
        // The last block first: in the order of a block table that is the leaf, which is to be given up before its ancestors.
        for (at, &block) in blocks.iter().enumerate().rev() {
            match self.words[block.index()].release() {
                Released::StillHeld => {}
                Released::PushToStack => self.stack.prepend(&mut freed, block),
                Released::PushToInbox => self.inbox.append(&mut queued, block.get()),
                Released::NotHeld => {
                    self.take_back(&blocks[at + 1..], &freed);
                    freed = Chain::default();
                    result = Err(Error::NotHeld { block: block.get() });
                    break;
                }
            }
        }
        // Also where the call has failed: the duty to push came with QUEUED.
        self.inbox.push_chain(&queued);
        self.give_back(&freed);
        result
    }

    /// Puts blocks without holders on the stack, then promises them.
    pub(crate) fn give_back(&self, freed: &Chain) {
        if freed.len() > 0 {
            let is_early = mutant::is("early credit");
            if is_early {
                self.add_credits(freed.len());
            }
            self.stack.push_chain(freed);
            if !is_early {
                self.add_credits(freed.len());
            }
            self.ledger.0.counters.count_released(freed.len());
        }
    }

    /// Compares every count with `expected_counts`, which is indexed by block id and has `num_blocks + 1` entries, and checks
    /// that every block is in exactly one place. Only while no other call is running. O(`num_blocks`), allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] says what disagrees with what; [`Error::InvalidArgument`] if `expected_counts` has another length.
    pub fn validate(&self, expected_counts: &[u32]) -> Result<(), Error> {
        self.validate_with(expected_counts, &HashSet::new(), 0)
    }

    /// [`validate`](Self::validate) where `idle` blocks are kept in a list, and `num_evicted` ones were handed out from it.
    pub(crate) fn validate_with(
        &self,
        expected_counts: &[u32],
        idle: &HashSet<BlockId>,
        num_evicted: u64,
    ) -> Result<(), Error> {
        if expected_counts.len() != self.words.len() {
            let (was, allowed) = (expected_counts.len(), self.words.len());
            let message = format!("has {was} entries, must have {allowed}");
            return Err(Error::InvalidArgument {
                argument: "expected_counts",
                message,
            });
        }
        let corrupt = |message: String| Err(Error::Corrupt { message });
        let free_blocks = self.stack.blocks_at_rest()?;
        let mut is_free = vec![false; self.words.len()];
        for block in &free_blocks {
            is_free[block.index()] = true;
        }
        for (id, (word, &expected)) in self.words.iter().zip(expected_counts).enumerate() {
            let word = word.snapshot();
            if word.count() != expected {
                return corrupt(format!(
                    "block {id} has {word:?}, expected count {expected}"
                ));
            }
            let is_idle = u32::try_from(id)
                .ok()
                .and_then(BlockId::new)
                .is_some_and(|block| idle.contains(&block));
            if word.is_queued() || word.is_idle() != is_idle {
                return corrupt(format!(
                    "block {id} has {word:?} and is in the idle list: {is_idle}"
                ));
            }
            if id != 0 && is_free[id] != (word.count() == 0 && !is_idle) {
                let place = if is_free[id] {
                    "on the free stack"
                } else {
                    "in no place"
                };
                return corrupt(format!("block {id} has {word:?} and is {place}"));
            }
        }
        let stats = self.stats();
        if stats.num_free as usize != free_blocks.len() + idle.len() {
            return corrupt(format!(
                "{} credits for {} free and {} idle blocks",
                stats.num_free,
                free_blocks.len(),
                idle.len()
            ));
        }
        let popped = (self.num_blocks as usize - free_blocks.len()) as u64;
        if stats
            .num_allocated
            .checked_sub(num_evicted + stats.num_released)
            != Some(popped)
        {
            return corrupt(format!(
                "{popped} blocks are off the stack, but {stats:?}, {num_evicted} evicted"
            ));
        }
        Ok(())
    }

    /// Takes `requested` credits, all or nothing, and returns how many are left.
    pub(crate) fn take_credits(&self, requested: u32) -> Result<u32, Error> {
        let credits = &self.ledger.0.credits;
        let mut free = credits.load(Ordering::Relaxed); // only compared, here and on failure
        loop {
            let Some(left) = free.checked_sub(requested) else {
                return Err(Error::OutOfBlocks {
                    requested,
                    free,
                    evictable: 0,
                });
            };
            // Acquire: pairs with the Release in `add_credits`; the blocks promised stand on the stack for us.
            let acquire = mutant::ordering("take credits", Ordering::Acquire);
            match credits.compare_exchange_weak(free, left, acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(left),
                Err(newer) => free = newer,
            }
        }
    }

    /// Promises blocks that stand on the stack.
    pub(crate) fn add_credits(&self, num_blocks: u32) {
        // Release: pairs with the Acquire in `take_credits`. All changes are read-modify-write, so a take synchronizes with
        // every addition before it, not only with the last.
        self.ledger.0.credits.fetch_add(
            num_blocks,
            mutant::ordering("add credits", Ordering::Release),
        );
    }

    /// Undoes the releases of a call that failed, `freed` being the blocks that they brought to the way to the stack.
    fn take_back(&self, released: &[BlockId], freed: &Chain) {
        for &block in released {
            let word = &self.words[block.index()];
            let is_owned = word.snapshot().count() == 0 && self.stack.chain_contains(freed, block);
            // A block that is gone is the exception that `release` names.
            let _ = word.restore(is_owned);
        }
    }

    /// The stack, for who moves blocks to it whose credits stay or are added apart.
    pub(crate) fn stack(&self) -> &FreeStack {
        &self.stack
    }

    /// Takes the inbox, oldest first, and settles each block. Only under the mutex of whoever publishes.
    pub(crate) fn take_inbox(&self, mut receive: impl FnMut(BlockId, Settled)) {
        self.inbox.take(|id| {
            if let Some(block) = BlockId::new(id) {
                receive(block, self.words[block.index()].drain());
            }
        });
    }

    /// Pops and claims as many blocks as there are on the stack, up to `out.len()`. Their credits are taken already.
    pub(crate) fn pop_claimed(&self, out: &mut [BlockId]) -> Result<usize, Error> {
        let num_blocks = self.stack.pop_up_to(out);
        self.claim(&out[..num_blocks])?;
        self.count_allocated(u32::try_from(num_blocks).unwrap_or(u32::MAX));
        Ok(num_blocks)
    }

    /// Counts blocks handed out.
    pub(crate) fn count_allocated(&self, num_blocks: u32) {
        let in_use = self.num_blocks.saturating_sub(self.num_free());
        self.ledger.0.counters.count_allocated(num_blocks, in_use);
    }

    /// Counts blocks that came back.
    pub(crate) fn count_released(&self, num_blocks: u32) {
        self.ledger.0.counters.count_released(num_blocks);
    }

    fn claim(&self, blocks: &[BlockId]) -> Result<(), Error> {
        for &block in blocks {
            if let Claimed::NotFree(word) = self.words[block.index()].claim() {
                let message = format!("{block} was on the free stack with {word:?}");
                return Err(Error::Corrupt { message });
            }
        }
        Ok(())
    }

    /// The word of a block that is in the pool.
    pub(crate) fn checked_word(&self, block: BlockId) -> Result<&BlockWord, Error> {
        self.word(block).ok_or_else(|| not_in_pool(block))
    }

    /// The word of a usable block.
    pub(crate) fn word(&self, block: BlockId) -> Option<&BlockWord> {
        if block.is_null() {
            None
        } else {
            self.words.get(block.index())
        }
    }
}

#[cold]
fn not_in_pool(block: BlockId) -> Error {
    Error::Corrupt {
        message: format!("{block} is not in the pool"),
    }
}
