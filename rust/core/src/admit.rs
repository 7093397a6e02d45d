//! Admission: what of a prompt is in the cache, and blocks for the rest, all or nothing.
//!
//! An admission needs a credit for every new block, and one for every idle block that it hits: such a block could otherwise have
//! been given to somebody else. A block that somebody holds costs nothing. So capacity is checked once, and a prompt that is
//! cached but idle does not count as room for its own rest.

use crate::manager::{Locked, check_tokens};
use crate::prefix::Root;
use crate::state::State;
use crate::{BlockId, Error, SeqId};

/// A prompt that wants to become a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Admit<'a> {
    /// Token ids of the whole prompt.
    pub tokens: &'a [i32],
    /// Canonical bytes of the namespace ([`Namespace::as_bytes`](crate::prefix::Namespace::as_bytes)).
    pub namespace: &'a [u8],
    /// Tokens to allocate blocks for; `None`: the whole prompt.
    pub reserve: Option<u32>,
    /// Whether the sequence and its forks take part in the prefix cache.
    pub cache: bool,
}

impl<'a> Admit<'a> {
    /// A prompt in the namespace without parts, with blocks for all of it, taking part in the prefix cache.
    #[must_use]
    pub fn new(tokens: &'a [i32]) -> Self {
        Self {
            tokens,
            namespace: &[1],
            reserve: None,
            cache: true,
        }
    }
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
    /// This manager caches no prefixes, or the admission wants none.
    Disabled,
    /// Nothing is cached in this namespace, and no living sequence may publish there.
    Namespace,
    /// The next block of the prompt is not cached.
    NoEntry,
    /// All that may be reused is: one token at least is left to compute, and only whole blocks are shared.
    Capped,
}

impl LookupReason {
    /// The reason as callers of other languages see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Namespace => "namespace",
            Self::NoEntry => "no entry",
            Self::Capped => "capped",
        }
    }
}

/// What an admission would take.
struct Needs {
    known: u32,
    /// New blocks, behind the hits.
    num_new: u32,
    num_idle_hits: u32,
}

impl Locked<'_> {
    /// Begins a sequence: adopts the longest cached prefix of its prompt, at most all tokens but one, and allocates blocks for the
    /// rest.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::InvalidArgument`] (a negative token), [`Error::SequenceTooLong`], [`Error::NeverFits`],
    /// [`Error::TooManySequences`] or [`Error::OutOfBlocks`]; nothing has changed then.
    pub fn admit(&mut self, request: &Admit<'_>) -> Result<Admission, Error> {
        self.begin()?;
        self.check(request)?;
        let id = self.next_place()?;
        let needs = self.needs(request);
        self.take_credits(needs.num_new + needs.num_idle_hits)?;
        if let Err(error) = self.check_room(needs.num_new, needs.num_idle_hits) {
            self.state.keep_hits_young();
            return Err(error);
        }
        let block_size = self.block_size.tokens();
        let state = &mut *self.state;
        if let Some(cache) = &mut state.cache {
            cache.hit(self.pool, &state.hits)?;
        }
        state.blocks.clear();
        state.blocks.extend_from_slice(&state.hits);
        let num_hits = state.hits.len();
        state
            .blocks
            .resize(num_hits + needs.num_new as usize, BlockId::NULL);
        state.allocate(self.pool, num_hits..num_hits + needs.num_new as usize)?;
        self.open(id);
        let place = id.index() as usize;
        let state = &mut *self.state;
        if let Some(cache) = state.cache.as_mut().filter(|_| request.cache) {
            state.roots[place] = Some(cache.tree.open_root(request.namespace));
            state.num_looked_up += u64::from(needs.known);
        }
        let num_hits = u32::try_from(num_hits).unwrap_or(u32::MAX);
        let num_cached = num_hits * block_size;
        state.num_hit_tokens += u64::from(num_cached);
        let sequence = &mut state.sequences[place];
        sequence.known = needs.known;
        sequence.num_cached = num_cached;
        sequence.computed = num_cached;
        sequence.reserved = num_cached;
        sequence.num_published = num_hits;
        sequence.publishes = state.roots[place].is_some();
        state.tokens.append(place, 0, request.tokens);
        state.append_blocks(place, 0..state.blocks.len());
        state.find_tail(place);
        state.note_plain(id.index());
        Ok(Admission { id, num_cached })
    }

    /// Whether an admission of `num_tokens` tokens of which none are cached would succeed if it came next.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn can_admit(&mut self, num_tokens: u32) -> Result<bool, Error> {
        self.begin()?;
        let fits = num_tokens > 0
            && u64::from(num_tokens) <= self.longest
            && self.block_size.blocks_for(num_tokens) <= self.pool.num_free();
        Ok(fits && self.next_place().is_ok())
    }

    /// Whether this admission would succeed if it came next, and leave `num_spare` blocks available.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn can_admit_prompt(&mut self, request: &Admit<'_>, num_spare: u32) -> Result<bool, Error> {
        self.begin()?;
        if self.check(request).is_err() || self.next_place().is_err() {
            return Ok(false);
        }
        let needs = self.needs(request);
        let num_taken = needs.num_new + needs.num_idle_hits;
        Ok(num_taken.saturating_add(num_spare) <= self.pool.num_free())
    }

    /// How many tokens of a prompt an admission would find in the cache, and why no more. Adopts nothing.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] or [`Error::InvalidArgument`] (a negative token).
    pub fn lookup(&mut self, request: &Admit<'_>) -> Result<(u32, LookupReason), Error> {
        self.begin()?;
        check_prompt(request.tokens)?;
        let limit = self.find_hits(request);
        let Some(limit) = limit else {
            return Ok((0, LookupReason::Disabled));
        };
        let num_hits = u32::try_from(self.state.hits.len()).unwrap_or(u32::MAX);
        let is_known = self.find_root(request).is_some();
        let reason = match num_hits {
            hits if hits == limit => LookupReason::Capped,
            0 if !is_known => LookupReason::Namespace,
            _ => LookupReason::NoEntry,
        };
        Ok((num_hits * self.block_size.tokens(), reason))
    }

    fn check(&self, request: &Admit<'_>) -> Result<(), Error> {
        check_prompt(request.tokens)?;
        let reserve = request.reserve.map_or(0, u64::from);
        self.check_length(reserve.max(request.tokens.len() as u64))
    }

    fn find_root(&self, request: &Admit<'_>) -> Option<Root> {
        self.state.cache.as_ref()?.tree.find_root(request.namespace)
    }

    /// Finds the cached blocks of a prompt. Returns how many it may have at most; `None` where it may not look.
    fn find_hits(&mut self, request: &Admit<'_>) -> Option<u32> {
        let root = self.find_root(request);
        let State { cache, hits, .. } = &mut *self.state;
        hits.clear();
        let cache = cache.as_ref().filter(|_| request.cache)?;
        // One token is left to compute, so that there are logits to go on from.
        let reusable = u32::try_from(request.tokens.len() - 1).unwrap_or(u32::MAX);
        let limit = self.block_size.column(reusable);
        if let Some(root) = root {
            let tokens = &request.tokens[..(limit * self.block_size.tokens()) as usize];
            cache.tree.find(root, tokens, hits);
        }
        Some(limit)
    }

    /// What an admission takes; its hits are in the scratch. The request was checked.
    fn needs(&mut self, request: &Admit<'_>) -> Needs {
        self.find_hits(request);
        let hits = &self.state.hits;
        let num_hits = u32::try_from(hits.len()).unwrap_or(u32::MAX);
        // The words say it, and are fetched here all at once: the hits would wait for them one after the other.
        let idle_hits = hits.iter().filter(|&&block| self.pool.is_idle(block));
        let num_idle_hits = idle_hits.count();
        let known = u32::try_from(request.tokens.len()).unwrap_or(u32::MAX);
        let num_blocks = self.block_size.blocks_for(request.reserve.unwrap_or(known));
        Needs {
            known,
            num_new: num_blocks.saturating_sub(num_hits),
            num_idle_hits: u32::try_from(num_idle_hits).unwrap_or(u32::MAX),
        }
    }

    /// Allocates so many blocks into the scratch, all or nothing.
    pub(crate) fn allocate(&mut self, num_blocks: u64) -> Result<(), Error> {
        // More than a u32 is more than any pool has, and refused as such.
        let requested = u32::try_from(num_blocks).unwrap_or(u32::MAX);
        self.take_credits(requested)?;
        self.check_room(requested, 0)?;
        let state = &mut *self.state;
        state.blocks.clear();
        state.blocks.resize(requested as usize, BlockId::NULL);
        state.allocate(self.pool, 0..requested as usize)
    }

    /// Takes credits, all or nothing.
    fn take_credits(&self, requested: u32) -> Result<(), Error> {
        let evictable = self
            .state
            .cache
            .as_ref()
            .map_or(0, |cache| cache.idle.len());
        match self.pool.take_credits(requested) {
            Ok(_) => Ok(()),
            Err(Error::OutOfBlocks {
                requested, free, ..
            }) => Err(Error::OutOfBlocks {
                requested,
                free: free.saturating_sub(evictable),
                evictable,
            }),
            Err(error) => Err(error),
        }
    }
}

impl State {
    /// Moves the idle hits of the scratch to the young end, the leaf first, as a release of them would.
    fn keep_hits_young(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        for &block in self.hits.iter().rev() {
            if cache.idle.remove(block) {
                cache.idle.push(block);
            }
        }
    }
}

fn check_prompt(tokens: &[i32]) -> Result<(), Error> {
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    check_tokens(tokens)
}
