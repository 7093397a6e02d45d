//! Counters and gauges of a pool.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What a pool has done and has, read one number after the other: while other threads allocate or release, the numbers are of
/// slightly different moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Usable blocks, the null block not counted.
    pub num_blocks: u32,
    /// Blocks that an allocation is sure to find.
    pub num_free: u32,
    /// Most blocks that were in use at once, ever.
    pub peak_in_use: u32,
    /// Blocks handed out, ever.
    pub num_allocated: u64,
    /// Blocks that came back, ever.
    pub num_released: u64,
}

/// What a manager has done and has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Of its pool; here `num_free` counts the blocks on the free stack only.
    pub pool: PoolStats,
    /// Blocks that are cached and have no holder; not in `pool.num_free`.
    pub num_idle: u32,
    /// Idle blocks whose content gave way to an allocation, ever.
    pub num_evicted: u64,
    /// Tokens of admitted prompts that were in the cache, ever.
    pub num_hit_tokens: u64,
    /// Tokens of the prompts that were looked up at admission, ever.
    pub num_looked_up: u64,
    /// Sequences alive.
    pub num_sequences: u32,
    /// Blocks copied on write, ever.
    pub num_copies: u64,
}

/// The counters behind [`PoolStats`].
///
/// They stand on the cache line of the credits: whoever changes them has that line already. Relaxed throughout: each is a
/// number of its own that nothing is read through, and an atomic addition loses none.
#[derive(Debug)]
pub(crate) struct Counters {
    peak_in_use: AtomicU32,
    num_allocated: AtomicU64,
    num_released: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            peak_in_use: AtomicU32::new(0),
            num_allocated: AtomicU64::new(0),
            num_released: AtomicU64::new(0),
        }
    }

    /// Counts blocks handed out, with which `in_use` were in use.
    pub(crate) fn count_allocated(&self, num_blocks: u32, in_use: u32) {
        self.num_allocated
            .fetch_add(u64::from(num_blocks), Ordering::Relaxed);
        // The peak only rises, so a stale one is too low and `fetch_max` decides; mostly the load is the end of it.
        if self.peak_in_use.load(Ordering::Relaxed) < in_use {
            self.peak_in_use.fetch_max(in_use, Ordering::Relaxed);
        }
    }

    /// Counts blocks that came back.
    pub(crate) fn count_released(&self, num_blocks: u32) {
        self.num_released
            .fetch_add(u64::from(num_blocks), Ordering::Relaxed);
    }

    /// The counters, beside the gauges that the pool has.
    pub(crate) fn read(&self, num_blocks: u32, num_free: u32) -> PoolStats {
        PoolStats {
            num_blocks,
            num_free,
            peak_in_use: self.peak_in_use.load(Ordering::Relaxed),
            num_allocated: self.num_allocated.load(Ordering::Relaxed),
            num_released: self.num_released.load(Ordering::Relaxed),
        }
    }
}
