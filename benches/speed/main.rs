//! The speed table: what the design promises of the block manager, measured, with the goal, the floor and a baseline beside it.
//!
//! Times are CPU time of the thread, so that other work on the machine lengthens them by what it takes from the caches and
//! not by waiting; the clock's own cost is taken off. Medians, where a row does not say otherwise. Every workload checks what
//! it measures. A goal that is missed is printed as missed; the exit code says nothing about it.
//!
//! Floors are made of what the machine was measured to do at the start of the run: bytes per nanosecond of a copy (read and
//! written) in the L2 cache and in memory, and loads from memory alone and side by side.
//!
//! Run: `cargo bench -p looseleaf-benches --bench speed [-- --json FILE]`

mod admission;
mod decode;
mod eviction;
mod memory;
mod plain_tables;
mod stack;

use std::path::PathBuf;

use looseleaf_benches::engine::Engine;
use looseleaf_benches::random::Random;
use looseleaf_benches::table::Table;

/// Serves prompts of 4,096 tokens that share nothing until every block of the pool is cached.
fn fill(engine: &mut Engine, random: &mut Random) {
    while engine
        .manager
        .lock()
        .expect("not poisoned")
        .stats()
        .pool
        .num_free
        > 0
    {
        engine.serve(&random.tokens(4_096));
    }
}

fn main() -> std::io::Result<()> {
    const { assert!(!cfg!(debug_assertions), "benchmarks need a release build") };
    let mut arguments = std::env::args().skip(1);
    let mut json_path = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {} // from cargo
            "--json" => json_path = arguments.next().map(PathBuf::from),
            other => panic!("{other} is not --json FILE"),
        }
    }
    let mut table = Table::new("block manager, CPU time of the thread, medians");
    memory::million_blocks(&mut table);
    decode::without_prefix_cache(&mut table);
    decode::with_prefix_cache(&mut table);
    decode::tables(&mut table);
    admission::cached(&mut table);
    admission::computed(&mut table);
    eviction::evict(&mut table);
    stack::contended(&mut table);
    stack::stalls(&mut table);
    table.finish(json_path.as_deref())
}
