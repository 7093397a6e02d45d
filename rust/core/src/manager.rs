//! `BlockManager`: sequences and their block tables over one pool of blocks.
//!
//! Every call locks the manager's one mutex once ([`BlockManager::lock`]) and works on the [`Locked`] guard. Only
//! [`BlockManager::bury`], [`BlockManager::retain_blocks`] and [`BlockManager::release_blocks`] need no lock. Each call checks first and changes
//! afterwards, so that a call that fails has changed nothing.
//!
//! Memory: the sequence places and the tables are made once, the token row of a place at its first admission, all at their largest
//! size; what no sequence has reached takes no memory of the system. The step path allocates nothing after the first steps of a
//! given size.

use crate::block_size::BlockSize;
use crate::graveyard::Graveyard;
use crate::sequence::Lengths;
use crate::state::State;
use crate::sync::{Mutex, MutexGuard};
use crate::{BlockId, BlockPool, Config, Error, SeqId, Stats};

/// Sequences over a pool of blocks: admit, reserve, commit, fork, truncate, release.
///
/// # Examples
/// ```
/// use looseleaf_core::{Admit, BlockManager, Config, Counts, Reserve};
/// let manager = BlockManager::new(Config::new(8, 4, 2, 32)?)?;
/// let mut locked = manager.lock()?;
/// let sequence = locked.admit(&Admit::new(&[1, 2, 3, 4, 5]))?.id.to_handle();
/// locked.reserve(&Reserve::new(&[sequence]), None)?; // the five tokens of the prompt
/// locked.commit(&[sequence], Counts::Default, None)?;
/// assert_eq!(locked.blocks(sequence)?.len(), 2);
/// locked.release(&[sequence])?;
/// assert_eq!(locked.stats().pool.num_free, 8);
/// # Ok::<(), looseleaf_core::Error>(())
/// ```
#[derive(Debug)]
pub struct BlockManager {
    config: Config,
    block_size: BlockSize,
    /// Most tokens of a sequence: what its table row and the whole pool can hold.
    longest: u64,
    pool: BlockPool,
    graveyard: Graveyard,
    state: Mutex<State>,
}

/// The manager with its mutex held.
#[derive(Debug)]
pub struct Locked<'a> {
    pub(crate) config: &'a Config,
    pub(crate) block_size: BlockSize,
    pub(crate) longest: u64,
    pub(crate) pool: &'a BlockPool,
    pub(crate) graveyard: &'a Graveyard,
    pub(crate) state: MutexGuard<'a, State>,
    /// Most blocks that a call may evict, and by how many more the last call would have.
    pub(crate) max_victims: u32,
    pub(crate) crowded: Option<u32>,
}

impl BlockManager {
    /// A manager whose blocks are all free.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the pool cannot have so many blocks, [`Error::OutOfMemory`] if the system refuses the memory.
    pub fn new(config: Config) -> Result<Self, Error> {
        check_memory(&config)?;
        let max_sequences = config.max_sequences();
        let longest = u64::from(config.max_sequence_len())
            .min(u64::from(config.num_blocks()) * u64::from(config.block_size()));
        Ok(Self {
            pool: BlockPool::new(config.num_blocks())?,
            graveyard: Graveyard::new(max_sequences),
            state: Mutex::new(State::new(&config, longest)),
            block_size: BlockSize::new(config.block_size()),
            longest,
            config,
        })
    }

    /// The sizes it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Waits for the mutex.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if a call panicked while it held the mutex: the state cannot be trusted any more.
    pub fn lock(&self) -> Result<Locked<'_>, Error> {
        let state = self.state.lock().map_err(|_| Error::Poisoned)?;
        self.locked(state)
    }

    /// Takes the mutex if nobody holds it.
    ///
    /// # Errors
    /// [`Error::Poisoned`], as for [`BlockManager::lock`].
    pub fn try_lock(&self) -> Result<Option<Locked<'_>>, Error> {
        match self.state.try_lock() {
            Ok(state) => self.locked(state).map(Some),
            Err(std::sync::TryLockError::WouldBlock) => Ok(None),
            Err(std::sync::TryLockError::Poisoned(_)) => Err(Error::Poisoned),
        }
    }

    /// Gives up a sequence whose handle was dropped: lock-free, from any thread, also while the mutex is held. Its blocks come
    /// back with the next call that locks.
    pub fn bury(&self, id: SeqId) {
        self.graveyard.bury(id);
    }

    /// Adds a holder to blocks that the caller knows to be held: a transfer that reads them while sequences come and go.
    /// Lock-free, from any thread.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if one of them is free; nothing has changed then.
    pub fn retain_blocks(&self, blocks: &[BlockId]) -> Result<(), Error> {
        self.pool.retain(blocks)
    }

    /// Takes the holders of [`retain_blocks`](Self::retain_blocks) back. Lock-free, from any thread, also while the mutex is held:
    /// a published block is idle with the next call that locks.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if one of them has no such holder; nothing has changed then.
    pub fn release_blocks(&self, blocks: &[BlockId]) -> Result<(), Error> {
        self.pool.release(blocks)
    }

    /// The guard, with nothing left of the handles that were dropped before.
    fn locked<'a>(&'a self, state: MutexGuard<'a, State>) -> Result<Locked<'a>, Error> {
        let mut locked = Locked {
            config: &self.config,
            block_size: self.block_size,
            longest: self.longest,
            pool: &self.pool,
            graveyard: &self.graveyard,
            state,
            max_victims: u32::MAX,
            crowded: None,
        };
        locked.drain()?;
        Ok(locked)
    }
}

impl Locked<'_> {
    /// The lengths of a sequence.
    ///
    /// # Errors
    /// [`Error::StaleSequence`] or [`Error::UnknownSequence`].
    pub fn lengths(&self, handle: i64) -> Result<Lengths, Error> {
        let sequence = &self.state.sequences[self.resolve(handle)?];
        Ok(Lengths {
            known: sequence.known,
            reserved: sequence.reserved,
            computed: sequence.computed,
            cached: sequence.num_cached,
        })
    }

    /// The block table of a sequence, in token order.
    ///
    /// # Errors
    /// [`Error::StaleSequence`] or [`Error::UnknownSequence`].
    pub fn blocks(&self, handle: i64) -> Result<Vec<BlockId>, Error> {
        let index = self.resolve(handle)?;
        let num_blocks = self.state.sequences[index].num_blocks;
        Ok(self.state.tables.blocks(index, num_blocks).collect())
    }

    /// Counters and gauges. A sequence whose handle was dropped after the mutex was taken counts until the next call.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (num_idle, num_evicted) = self
            .state
            .cache
            .as_ref()
            .map_or((0, 0), |cache| (cache.idle.len(), cache.num_evicted));
        let mut pool = self.pool.stats();
        pool.num_free -= num_idle;
        Stats {
            pool,
            num_idle,
            num_evicted,
            num_hit_tokens: self.state.num_hit_tokens,
            num_looked_up: self.state.num_looked_up,
            num_sequences: self.state.num_alive,
            num_copies: self.state.num_copies,
        }
    }
}

/// Token ids are never negative: -1 marks an unknown one in the batch buffers.
pub(crate) fn check_tokens(tokens: &[i32]) -> Result<(), Error> {
    if are_tokens(tokens) {
        return Ok(());
    }
    let negative = tokens.iter().find(|&&token| token < 0);
    Err(Error::InvalidArgument {
        argument: "tokens",
        message: format!(
            "has {}, token ids must not be negative",
            negative.copied().unwrap_or_default()
        ),
    })
}

/// Whether no id is negative. Looks at all of them: an early exit would keep the loop from being vectorized.
pub(crate) fn are_tokens(tokens: &[i32]) -> bool {
    tokens.iter().fold(0, |signs, token| signs | token) >= 0
}

/// Refuses sizes that the system refuses: the arrays themselves would end the process. Reserves the sum of them and gives it back.
fn check_memory(config: &Config) -> Result<(), Error> {
    // Word, two links; home and place in the idle order.
    let per_block = if config.prefix_seed().is_some() {
        16 + 12
    } else {
        16
    };
    // The line of a sequence, what stands beside it, its table row and the tail of its tokens.
    let columns = config.max_blocks_per_sequence().min(config.num_blocks());
    let per_sequence = 128 + 4 * u64::from(columns) + 4 * u64::from(config.block_size());
    let requested_bytes = u64::from(config.num_blocks())
        .saturating_mul(per_block)
        .saturating_add(u64::from(config.max_sequences()).saturating_mul(per_sequence));
    let refused = Error::OutOfMemory { requested_bytes };
    let len = usize::try_from(requested_bytes).map_err(|_| refused.clone())?;
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| refused)
}
