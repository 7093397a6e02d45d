//! Room: evicting ahead of a call that would hold the mutex for too long.
//!
//! Evicting a block takes several cache misses, so a prompt of a thousand new blocks would keep every other thread out for a
//! fifth of a millisecond. [`BlockManager::call`] bounds that: a call that would evict more than [`MAX_VICTIMS`] blocks fails
//! before it has changed anything, the missing room is made in pieces with the mutex let go in between, and the call is made
//! again. Another thread may take the room meanwhile; then the call asks again, and each time round somebody has got blocks.
//!
//! The blocks that the call itself would reuse are moved to the young end first, so that making room does not evict them.

use crate::manager::Locked;
use crate::{BlockManager, Error};

/// Most blocks that [`BlockManager::call`] evicts without letting go of the mutex: some twenty microseconds.
pub const MAX_VICTIMS: u32 = 256;

impl BlockManager {
    /// Makes one call, with the mutex held for the eviction of at most [`MAX_VICTIMS`] blocks at a time.
    ///
    /// # Errors
    /// Those of the call, and [`Error::Poisoned`].
    ///
    /// # Examples
    /// ```
    /// use looseleaf_core::{Admit, BlockManager, Config};
    /// let manager = BlockManager::new(Config::new(8, 4, 2, 32)?.with_prefix_cache(0))?;
    /// let admission = manager.call(|locked| locked.admit(&Admit::new(&[1, 2, 3, 4, 5])))?;
    /// assert_eq!(admission.num_cached, 0);
    /// # Ok::<(), looseleaf_core::Error>(())
    /// ```
    pub fn call<'a, T>(
        &'a self,
        call: impl FnMut(&mut Locked<'a>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.call_with(|| self.lock(), call)
    }

    /// [`call`](Self::call) with a way of one's own to take the mutex.
    ///
    /// # Errors
    /// Those of `lock` and of the call.
    pub fn call_with<'a, T, E: From<Error>>(
        &'a self,
        mut lock: impl FnMut() -> Result<Locked<'a>, E>,
        mut call: impl FnMut(&mut Locked<'a>) -> Result<T, Error>,
    ) -> Result<T, E> {
        loop {
            let mut locked = lock()?;
            locked.max_victims = MAX_VICTIMS;
            let result = call(&mut locked);
            let Some(mut missing) = locked.crowded.take() else {
                return Ok(result?);
            };
            while missing > 0 {
                let evicted = locked.evict(missing.min(MAX_VICTIMS))?;
                // Nothing left to evict: the call will say so.
                missing = if evicted > 0 {
                    missing.saturating_sub(evicted)
                } else {
                    0
                };
                drop(locked);
                std::thread::yield_now();
                locked = lock()?;
            }
        }
    }

    /// Evicts as [`Locked::evict`] does, in pieces of [`MAX_VICTIMS`] with the mutex let go in between. Other threads may admit,
    /// release and evict meanwhile.
    ///
    /// # Errors
    /// [`Error::Poisoned`] and [`Error::Corrupt`] only.
    pub fn evict(&self, num_blocks: u32) -> Result<u32, Error> {
        let mut done = 0;
        while done < num_blocks {
            let evicted = self.lock()?.evict((num_blocks - done).min(MAX_VICTIMS))?;
            if evicted == 0 {
                break;
            }
            done += evicted;
        }
        Ok(done)
    }
}

impl Locked<'_> {
    /// Whether the call has failed for want of room only.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.is_some()
    }

    /// With the credits of `num_blocks` new blocks taken, and `num_others` further ones: whether the blocks can be had without
    /// evicting too many at once. If not, the credits are given back.
    pub(crate) fn check_room(&mut self, num_blocks: u32, num_others: u32) -> Result<(), Error> {
        let Some(cache) = &mut self.state.cache else {
            return Ok(());
        };
        if num_blocks <= self.max_victims {
            return Ok(());
        }
        // A release without the mutex pushes first and promises afterwards: there may be more on the stack, never less.
        let taken = num_blocks + num_others;
        let on_stack = (self.pool.num_free() + taken).saturating_sub(cache.idle.len());
        let num_victims = num_blocks.saturating_sub(on_stack);
        if num_victims <= self.max_victims {
            return Ok(());
        }
        self.crowded = Some(num_victims - self.max_victims);
        self.pool.add_credits(taken);
        Err(Error::OutOfBlocks {
            requested: taken,
            free: on_stack,
            evictable: cache.idle.len(),
        })
    }
}
