//! Admissions: prompts that are cached, and prompts that have to be computed.

use std::hint::black_box;

use looseleaf_benches::chained::Chained;
use looseleaf_benches::clock::{Lap, median, nanoseconds, running_time};
use looseleaf_benches::engine::{BLOCK_SIZE, Engine};
use looseleaf_benches::random::Random;
use looseleaf_benches::table::{Row, Table};
use looseleaf_core::{Admit, BlockId, Config};

const PROMPT_LEN: usize = 8_192;
const NUM_HITS: usize = 511;

/// Admits the prompts in turn, each with 511 cached blocks. Returns median nanoseconds of an admission.
fn admit_cached(engine: &Engine, prompts: &[Vec<i32>], num_calls: usize) -> f64 {
    let mut lap = Lap::new();
    for call in 0..num_calls {
        // A prime: no order that a prefetcher knows.
        let prompt = &prompts[call * 7_919 % prompts.len()];
        let mut locked = engine.manager.lock().expect("not poisoned");
        let admission = lap.time(|| locked.admit(&Admit::new(black_box(prompt))));
        let admission = admission.expect("enough blocks");
        assert_eq!(
            admission.num_cached as usize,
            NUM_HITS * BLOCK_SIZE as usize
        );
        locked.release(&[admission.id.to_handle()]).expect("alive");
    }
    lap.median()
}

/// The same prompts in a hash table over chained hashes: found, and no more.
fn find_chained(prompts: &[Vec<i32>], num_calls: usize) -> f64 {
    let num_blocks = u32::try_from(prompts.len() * NUM_HITS).unwrap_or(u32::MAX);
    let mut chained = Chained::new(num_blocks, BLOCK_SIZE as usize);
    let ids: Vec<_> = (1..=num_blocks).filter_map(BlockId::new).collect();
    let cached_len = NUM_HITS * BLOCK_SIZE as usize;
    for (prompt, blocks) in prompts.iter().zip(ids.chunks(NUM_HITS)) {
        chained.publish(None, &prompt[..cached_len], blocks);
    }
    let mut found = Vec::new();
    let mut lap = Lap::new();
    for call in 0..num_calls {
        let prompt = &prompts[call * 7_919 % prompts.len()];
        found.clear();
        lap.time(|| chained.find(black_box(&prompt[..cached_len]), &mut found));
        assert_eq!(found.len(), NUM_HITS);
    }
    lap.median()
}

pub(crate) fn cached(table: &mut Table) {
    for (what, num_prompts) in [("one prompt", 1_u32), ("1,000 prompts in turn", 1_000)] {
        let config = Config::new(num_prompts * 512 + 512, BLOCK_SIZE, num_prompts + 1, 8_192)
            .expect("valid sizes")
            .with_prefix_cache(7);
        let mut engine = Engine::new(config, 8_192);
        let mut random = Random::new(0x5eed);
        let prompts: Vec<_> = (0..num_prompts)
            .map(|_| random.tokens(PROMPT_LEN))
            .collect();
        let holders: Vec<_> = prompts.iter().map(|prompt| engine.admit(prompt)).collect();
        let num_calls = 1_500;
        let baseline = find_chained(&prompts, num_calls) / 1e3;
        let held = admit_cached(&engine, &prompts, num_calls);
        engine.release(&holders);
        let idle = admit_cached(&engine, &prompts, num_calls);
        engine
            .manager
            .lock()
            .expect("not poisoned")
            .validate()
            .expect("consistent");
        let machine = table.machine();
        let rate = if num_prompts > 1 {
            machine.memory_bytes_per_ns
        } else {
            machine.cache_bytes_per_ns
        };
        // Both copies of the tokens read; id, word and table cell of each block, twice 16 bytes.
        let floor = (2.0 * 64.0 + 32.0) * 511.0 / rate / 1e3;
        for (how, measured, goal) in [("held", held, 6.0), ("idle", idle, 10.0)] {
            table.add(
                Row::new(
                    format!("admit of 8,192 tokens, 511 blocks cached, {how}; {what}"),
                    "us",
                    measured / 1e3,
                )
                .goal(goal)
                .floor(format!("511 x 160 B / {rate:.0} B/ns"), floor)
                .baseline("chained hash, find alone", baseline),
            );
        }
    }
}

/// Prompts of 4,096 tokens from admission to release, in a pool of a million blocks that is full of cached ones.
pub(crate) fn computed(table: &mut Table) {
    const NUM_BLOCKS: u32 = 1 << 20;
    const LEN: usize = 4_096;
    const NUM_PROMPTS: usize = 400;
    let config = Config::new(NUM_BLOCKS, BLOCK_SIZE, 8, 4_096)
        .expect("valid sizes")
        .with_prefix_cache(7);
    let mut engine = Engine::new(config, 4_096);
    let mut random = Random::new(0x5eed);
    crate::fill(&mut engine, &mut random);
    for (what, num_cached) in [("nothing cached", 0), ("the first half cached", LEN / 2)] {
        let before = engine.manager.lock().expect("not poisoned").stats();
        let mut lap = Lap::new();
        for _ in 0..NUM_PROMPTS {
            let mut prompt = random.tokens(LEN);
            if num_cached > 0 {
                engine.serve(&prompt);
                prompt.truncate(num_cached);
                prompt.extend(random.tokens(LEN - num_cached));
            }
            lap.time(|| engine.serve(&prompt));
        }
        let mut locked = engine.manager.lock().expect("not poisoned");
        let after = locked.stats();
        let num_hits = after.num_hit_tokens - before.num_hit_tokens;
        assert_eq!(num_hits, (NUM_PROMPTS * num_cached) as u64);
        assert!(after.num_evicted - before.num_evicted >= (NUM_PROMPTS * 128) as u64);
        locked.validate().expect("consistent");
        drop(locked);
        let machine = table.machine();
        // Of a new block: tokens read and written; slots, positions and ids; home, node and word of the victim.
        let floor = 128.0 / machine.memory_bytes_per_ns
            + 24.0 * 16.0 / machine.cache_bytes_per_ns
            + 3.0 * machine.overlapped_miss_ns;
        let floor = if num_cached > 0 { floor / 2.0 } else { floor };
        table.add(
            Row::new(
                format!("admit + reserve + commit + release of 4,096 tokens, cache full, {what}"),
                "ns per block",
                lap.median() / 256.0,
            )
            .goal(80.0)
            .floor(
                "per new block 128 B from memory + 384 B in the L2 cache + 3 misses side by side",
                floor,
            )
            .baseline(
                "chained hash, publish + remove alone",
                publish_chained(num_cached),
            ),
        );
    }
}

/// Nanoseconds per block of a prompt: what is new of it published, and as many old blocks removed.
fn publish_chained(num_cached: usize) -> f64 {
    const NUM_BLOCKS: u32 = 1 << 20;
    let mut random = Random::new(0x5eed);
    let mut chained = Chained::new(NUM_BLOCKS, BLOCK_SIZE as usize);
    let ids: Vec<_> = (1..=NUM_BLOCKS).filter_map(BlockId::new).collect();
    for blocks in ids.chunks(256) {
        chained.publish(None, &random.tokens(4_096), blocks);
    }
    let num_new = 256 - num_cached / BLOCK_SIZE as usize;
    let samples = ids.chunks(256).take(400).map(|blocks| {
        let tokens = random.tokens(num_new * BLOCK_SIZE as usize);
        let blocks = &blocks[256 - num_new..];
        nanoseconds(running_time(|| {
            for &block in blocks.iter().rev() {
                chained.remove(block);
            }
            chained.publish(None, &tokens, blocks);
        })) / 256.0
    });
    median(samples.collect())
}
