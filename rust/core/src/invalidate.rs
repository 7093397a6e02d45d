//! Dropping cached content on purpose: of one namespace, of all, or the oldest.

use crate::Error;
use crate::manager::Locked;

/// What an invalidation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Invalidated {
    /// Blocks whose content nobody can find any more.
    pub num_dropped: u32,
    /// Of these, blocks that sequences still hold: their data is untouched, and they are free once let go.
    pub num_held: u32,
}

impl Locked<'_> {
    /// Drops all cached content of a namespace. Sequences that live keep their blocks, and publish no more: what they compute is of
    /// the time before. O(blocks dropped).
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn invalidate(&mut self, namespace: &[u8]) -> Result<Invalidated, Error> {
        self.begin()?;
        let Some(cache) = &mut self.state.cache else {
            return Ok(Invalidated::default());
        };
        match cache.tree.find_root(namespace) {
            Some(root) => cache.invalidate(self.pool, root),
            None => Ok(Invalidated::default()),
        }
    }

    /// Drops all cached content, as [`invalidate`](Self::invalidate) does for each namespace.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn reset(&mut self) -> Result<Invalidated, Error> {
        self.begin()?;
        let mut sum = Invalidated::default();
        let Some(cache) = &mut self.state.cache else {
            return Ok(sum);
        };
        let roots: Vec<_> = cache.tree.roots().collect();
        for root in roots {
            let one = cache.invalidate(self.pool, root)?;
            sum.num_dropped += one.num_dropped;
            sum.num_held += one.num_held;
        }
        Ok(sum)
    }

    /// Drops the content of the oldest idle blocks, at most `num_blocks` and the idle ones behind them, which are free afterwards.
    /// Returns how many.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn evict(&mut self, num_blocks: u32) -> Result<u32, Error> {
        self.begin()?;
        let Some(cache) = &mut self.state.cache else {
            return Ok(0);
        };
        cache.drop_oldest(self.pool, num_blocks)
    }
}
