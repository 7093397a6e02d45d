//! Counters and gauges as a value.

use looseleaf_core::Stats as CoreStats;
use pyo3::prelude::*;

/// A snapshot. `looseleaf.BlockManager.stats` documents the fields.
#[pyclass(frozen, eq, get_all, module = "looseleaf._core")]
#[derive(PartialEq, Eq)]
pub(crate) struct Stats {
    num_blocks: u32,
    num_free: u32,
    num_idle: u32,
    num_available: u32,
    num_in_use: u32,
    peak_in_use: u32,
    num_sequences: u32,
    num_allocated: u64,
    num_released: u64,
    num_copies: u64,
    num_evicted: u64,
    num_hit_tokens: u64,
    num_looked_up: u64,
}

impl Stats {
    pub(crate) fn new(stats: &CoreStats) -> Self {
        let pool = &stats.pool;
        Self {
            num_blocks: pool.num_blocks,
            num_free: pool.num_free,
            num_idle: stats.num_idle,
            num_available: pool.num_free + stats.num_idle,
            num_in_use: pool.num_blocks - pool.num_free - stats.num_idle,
            peak_in_use: pool.peak_in_use,
            num_sequences: stats.num_sequences,
            num_allocated: pool.num_allocated,
            num_released: pool.num_released,
            num_copies: stats.num_copies,
            num_evicted: stats.num_evicted,
            num_hit_tokens: stats.num_hit_tokens,
            num_looked_up: stats.num_looked_up,
        }
    }
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        format!(
            "Stats(num_blocks={}, num_free={}, num_idle={}, num_available={}, num_in_use={}, peak_in_use={}, num_sequences={}, \
             num_allocated={}, num_released={}, num_copies={}, \
             num_evicted={}, num_hit_tokens={}, num_looked_up={})",
            self.num_blocks,
            self.num_free,
            self.num_idle,
            self.num_available,
            self.num_in_use,
            self.peak_in_use,
            self.num_sequences,
            self.num_allocated,
            self.num_released,
            self.num_copies,
            self.num_evicted,
            self.num_hit_tokens,
            self.num_looked_up
        )
    }
}
