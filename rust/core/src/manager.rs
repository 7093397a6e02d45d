//! `BlockManager`: sequences and their block tables over one pool of blocks.
//!
//! Every call locks the manager's one mutex once ([`BlockManager::lock`]) and works on the [`Locked`] guard. Only
//! [`BlockManager::bury`] (a dropped handle) and the statistics of the pool need no lock. Each call checks first and changes
//! afterwards, so that a call that fails has changed nothing.
//!
//! Memory: the sequence places are made once; the table and token rows of a place are reserved at its first admission, at their
//! largest size, and kept. The step path allocates nothing after the first steps of a given size.

use crate::block_size::BlockSize;
use crate::graveyard::Graveyard;
use crate::holds::Holds;
use crate::sequence::{Lengths, PendingCopy, Sequence};
use crate::step::{Planned, PlannedCopy};
use crate::sync::{Mutex, MutexGuard};
use crate::token_rows::TokenRows;
use crate::{BlockId, BlockPool, BlockTables, Config, Error, SeqId, Stats};

/// Sequences over a pool of blocks: admit, reserve, commit, fork, truncate, release.
///
/// # Examples
/// ```
/// use looseleaf_core::{BlockManager, Config, Counts, Reserve};
/// let manager = BlockManager::new(Config::new(8, 4, 2, 32)?)?;
/// let mut locked = manager.lock()?;
/// let sequence = locked.admit(&[1, 2, 3, 4, 5], None)?.id.to_handle();
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

/// What the mutex guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) block_size: BlockSize,
    /// By place, as are the next three.
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) tables: BlockTables,
    pub(crate) tokens: TokenRows,
    pub(crate) pending: Vec<Option<PendingCopy>>,
    pub(crate) free_places: Vec<u32>,
    pub(crate) holds: Holds,
    /// Number of the current call, for [`Sequence::last_call`].
    pub(crate) call: u64,
    pub(crate) num_copies: u64,
    pub(crate) num_alive: u32,
    /// Scratch of one call.
    pub(crate) plan: Vec<Planned>,
    /// Scratch of one call.
    pub(crate) places: Vec<u32>,
    /// Scratch of one call.
    pub(crate) planned_copies: Vec<PlannedCopy>,
    /// Scratch of one call.
    pub(crate) blocks: Vec<BlockId>,
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
}

/// A new sequence and how many tokens of its prompt were in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The sequence.
    pub id: SeqId,
    /// Tokens that need no computing.
    pub num_cached: u32,
}

/// Why a lookup stopped where it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupReason {
    /// This manager caches no prefixes.
    Disabled,
}

impl LookupReason {
    /// The reason as callers of other languages see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
        }
    }
}

impl BlockManager {
    /// A manager whose blocks are all free.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the pool cannot have so many blocks.
    pub fn new(config: Config) -> Result<Self, Error> {
        let max_sequences = config.max_sequences();
        let num_places = max_sequences as usize;
        let block_size = BlockSize::new(config.block_size());
        let longest = u64::from(config.max_sequence_len())
            .min(u64::from(config.num_blocks()) * u64::from(config.block_size()));
        // Fits: it is at most max_sequence_len.
        let row_len = u32::try_from(longest).unwrap_or(u32::MAX);
        let mut sequences = Vec::new();
        sequences.resize_with(num_places, Sequence::default);
        Ok(Self {
            pool: BlockPool::new(config.num_blocks())?,
            graveyard: Graveyard::new(max_sequences),
            state: Mutex::new(State {
                block_size,
                sequences,
                tables: BlockTables::new(num_places, block_size.blocks_for(row_len) as usize),
                tokens: TokenRows::new(num_places, row_len, block_size),
                pending: vec![None; num_places],
                free_places: (0..max_sequences).rev().collect(),
                holds: Holds::default(),
                call: 0,
                num_copies: 0,
                num_alive: 0,
                plan: Vec::new(),
                places: Vec::new(),
                planned_copies: Vec::new(),
                blocks: Vec::new(),
            }),
            block_size,
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

    /// The guard, with nothing left of the handles that were dropped before.
    fn locked<'a>(&'a self, state: MutexGuard<'a, State>) -> Result<Locked<'a>, Error> {
        let mut locked = Locked {
            config: &self.config,
            block_size: self.block_size,
            longest: self.longest,
            pool: &self.pool,
            graveyard: &self.graveyard,
            state,
        };
        locked.drain()?;
        Ok(locked)
    }
}

impl Locked<'_> {
    /// Begins a sequence with the tokens of its prompt and allocates blocks for all of them, or for `reserve` tokens.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::InvalidArgument`] (a negative token), [`Error::SequenceTooLong`], [`Error::NeverFits`],
    /// [`Error::TooManySequences`] or [`Error::OutOfBlocks`]; nothing has changed then.
    pub fn admit(&mut self, tokens: &[i32], reserve: Option<u32>) -> Result<Admission, Error> {
        self.begin()?;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        check_tokens(tokens)?;
        let num_tokens = tokens.len() as u64;
        self.check_length(num_tokens.max(reserve.map_or(0, u64::from)))?;
        // Fits: check_length has compared it with a u32.
        let known = u32::try_from(num_tokens).unwrap_or(u32::MAX);
        let reserve = reserve.unwrap_or(known);
        let id = self.next_place()?;
        let num_blocks = self.block_size.blocks_for(reserve);
        let State { blocks, .. } = &mut *self.state;
        blocks.clear();
        blocks.resize(num_blocks as usize, BlockId::NULL);
        self.pool.allocate(blocks)?;
        self.open(id);
        let place = id.index() as usize;
        let state = &mut *self.state;
        state.sequences[place].known = known;
        state.tokens.append(place, 0, tokens);
        state.append_blocks(place, 0..num_blocks as usize);
        state.find_tail(place);
        Ok(Admission { id, num_cached: 0 })
    }

    /// Whether an admission of `num_tokens` tokens would succeed if it came next.
    ///
    /// # Errors
    /// [`Error::Poisoned`] or [`Error::Corrupt`] only.
    pub fn can_admit(&mut self, num_tokens: u32) -> Result<bool, Error> {
        self.begin()?;
        let fits = num_tokens > 0
            && num_tokens <= self.config.max_sequence_len()
            && self.block_size.blocks_for(num_tokens) <= self.pool.num_free();
        Ok(fits && !self.state.free_places.is_empty())
    }

    /// How many tokens of a prompt an admission would find in the cache, and why no more.
    pub fn lookup(&mut self, _tokens: &[i32]) -> (u32, LookupReason) {
        (0, LookupReason::Disabled)
    }

    /// Begins a sequence that shares all computed tokens of another. Copies nothing: the first write into a shared block does.
    ///
    /// # Errors
    /// [`Error::StaleSequence`], [`Error::UnknownSequence`] or [`Error::TooManySequences`]; nothing has changed then.
    pub fn fork(&mut self, handle: i64) -> Result<Admission, Error> {
        self.begin()?;
        let parent = self.resolve(handle)?;
        let id = self.next_place()?;
        let State {
            sequences,
            tables,
            pending,
            blocks,
            ..
        } = &mut *self.state;
        let &Sequence {
            known, computed, ..
        } = &sequences[parent];
        let num_shared = self.block_size.blocks_for(computed);
        blocks.clear();
        blocks.extend(tables.blocks(parent, num_shared));
        // What the parent has computed lies in the source until its copy has run: share that, not the destination.
        if let Some(pending) = pending[parent]
            && pending.column < num_shared
        {
            blocks[pending.column as usize] = pending.source;
        }
        self.pool.retain(blocks)?;
        self.open(id);
        let child = id.index() as usize;
        let state = &mut *self.state;
        state.sequences[parent].owns_tail = false;
        let sequence = &mut state.sequences[child];
        sequence.known = known;
        sequence.num_cached = computed;
        sequence.computed = computed;
        sequence.reserved = computed;
        sequence.owns_tail = false;
        state.tokens.copy(parent, child, known);
        state.append_blocks(child, 0..num_shared as usize);
        state.find_tail(child);
        Ok(Admission {
            id,
            num_cached: computed,
        })
    }

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
        self.give_up_blocks(index, self.block_size.blocks_for(length))?;
        self.state.find_tail(index);
        Ok(())
    }

    /// Ends sequences and gives up their blocks. A released handle is passed over.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`] or [`Error::DuplicateSequence`]; nothing has changed then.
    pub fn release(&mut self, handles: &[i64]) -> Result<(), Error> {
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
                self.end(id.index() as usize)?;
                // Where a drop came first, the next drain frees the place.
                if self.graveyard.close(id) {
                    self.vacate(id);
                }
            }
        }
        Ok(())
    }

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
        Stats {
            pool: self.pool.stats(),
            num_sequences: self.state.num_alive,
            num_copies: self.state.num_copies,
        }
    }
}

/// Token ids are never negative: -1 marks an unknown one in the batch buffers.
pub(crate) fn check_tokens(tokens: &[i32]) -> Result<(), Error> {
    match tokens.iter().find(|&&token| token < 0) {
        None => Ok(()),
        Some(token) => Err(Error::InvalidArgument {
            argument: "tokens",
            message: format!("has {token}, token ids must not be negative"),
        }),
    }
}
