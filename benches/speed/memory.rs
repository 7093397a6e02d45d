//! What a pool of a million blocks costs before anything runs: time, and memory as the system counts it.

use looseleaf_benches::clock::Lap;
use looseleaf_benches::engine::{BLOCK_SIZE, Engine};
use looseleaf_benches::random::Random;
use looseleaf_benches::table::{Row, Table};
use looseleaf_core::{BlockId, BlockManager, BlockPool, Config};

const NUM_BLOCKS: u32 = 1 << 20;

/// Memory of this process, in bytes.
fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u32>().ok());
    f64::from(pages.expect("a number")) * 4_096.0
}

fn config() -> Config {
    let config = Config::new(NUM_BLOCKS, BLOCK_SIZE, 1, 4_096).expect("valid sizes");
    config.with_prefix_cache(7)
}

/// To be called first: memory that was used before and given back would not be seen.
pub(crate) fn million_blocks(table: &mut Table) {
    let before = resident_bytes();
    let pool = BlockPool::new(NUM_BLOCKS).expect("valid size");
    let mut blocks = vec![BlockId::NULL; 4_096];
    for _ in 0..NUM_BLOCKS / 4_096 {
        pool.allocate(&mut blocks).expect("enough blocks");
        pool.release(&blocks).expect("held");
    }
    let hot_bytes = (resident_bytes() - before) / f64::from(NUM_BLOCKS);
    drop(pool);

    let before = resident_bytes();
    let mut engine = Engine::new(config(), 4_096);
    crate::fill(&mut engine, &mut Random::new(0x5eed));
    let all_bytes = (resident_bytes() - before) / f64::from(NUM_BLOCKS);
    drop(engine);

    let mut build = Lap::new();
    for _ in 0..7 {
        let manager = build.time(|| BlockManager::new(config()));
        assert_eq!(
            manager.expect("valid sizes").config().num_blocks(),
            NUM_BLOCKS
        );
    }
    // A link and a place are written; the rest is pages of zeros that nobody has touched.
    let num_bytes = f64::from(NUM_BLOCKS) * 8.0;
    let floor = num_bytes / table.machine().memory_bytes_per_ns / 1e6;
    table.add(
        Row::new(
            "build a manager of 1 M blocks, with prefix cache",
            "ms",
            build.median() / 1e6,
        )
        .goal(20.0)
        .floor("1 M x 8 B written to memory", floor),
    );
    table.add(
        Row::new(
            "memory with every block published, prompts of 4,096 tokens",
            "B per block",
            all_bytes,
        )
        .goal(110.0)
        .floor("64 B of tokens + 4 B of id + 12 B of the pool", 80.0)
        .note("resident pages"),
    );
    table.add(
        Row::new("of it the pool: words and links", "B per block", hot_bytes)
            .goal(16.0)
            .floor("8 word + 4 link", 12.0)
            .note("resident pages"),
    );
}
