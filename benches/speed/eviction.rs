//! Eviction in random order, and how long the mutex is held for it.

use looseleaf_benches::chained::Chained;
use looseleaf_benches::clock::{Lap, nanoseconds, running_time, thread_time};
use looseleaf_benches::engine::{BLOCK_SIZE, Engine};
use looseleaf_benches::random::Random;
use looseleaf_benches::table::{Row, Table};
use looseleaf_core::{Admit, BlockId, Config};

const NUM_BLOCKS: u32 = 1 << 20;
const BLOCKS_EACH: u32 = 16;
const NUM_SEQUENCES: u32 = NUM_BLOCKS / BLOCKS_EACH;

/// A pool whose blocks were all let go in random order, the last of a sequence first.
fn idle_in_random_order() -> Engine {
    let config = Config::new(NUM_BLOCKS, BLOCK_SIZE, NUM_SEQUENCES, 8_192)
        .expect("valid sizes")
        .with_prefix_cache(7);
    let mut engine = Engine::new(config, 8_192);
    let mut random = Random::new(0x5eed);
    let mut left: Vec<_> = (0..NUM_SEQUENCES)
        .map(|_| {
            let prompt = random.tokens((BLOCKS_EACH * BLOCK_SIZE) as usize);
            (engine.admit(&prompt), BLOCKS_EACH)
        })
        .collect();
    let mut locked = engine.manager.lock().expect("not poisoned");
    while !left.is_empty() {
        let place = random.below(left.len());
        let (handle, num_blocks) = &mut left[place];
        *num_blocks -= 1;
        locked
            .truncate(*handle, *num_blocks * BLOCK_SIZE)
            .expect("longer");
        if *num_blocks == 0 {
            locked.release(&[*handle]).expect("alive");
            left.swap_remove(place);
        }
    }
    assert_eq!(locked.stats().num_idle, NUM_BLOCKS);
    drop(locked);
    engine
}

pub(crate) fn evict(table: &mut Table) {
    const AT_ONCE: u32 = 256;
    let engine = idle_in_random_order();
    let mut lap = Lap::new();
    for _ in 0..NUM_BLOCKS / AT_ONCE {
        lap.time(|| {
            let mut locked = engine.manager.lock().expect("not poisoned");
            assert_eq!(locked.evict(AT_ONCE), Ok(AT_ONCE));
        });
    }
    let mut locked = engine.manager.lock().expect("not poisoned");
    assert_eq!(locked.stats().pool.num_free, NUM_BLOCKS);
    locked.validate().expect("consistent");
    drop(locked);
    // Place, home, node and word of each, link of the stack: five lines, side by side at best.
    let floor = 5.0 * table.machine().overlapped_miss_ns;
    table.add(
        Row::new(
            "evict, random order, 1 M blocks, 256 a call",
            "ns per block",
            lap.mean() / 256.0,
        )
        .goal(80.0)
        .floor("5 misses side by side", floor)
        .baseline("chained hash, remove alone", remove_chained())
        .note("mean; long calls are the point"),
    );
    table.add(hold(
        "a piece of an eviction, 256 blocks",
        &lap,
        256.0 * floor,
    ));
    let mut engine = idle_in_random_order();
    table.add(hold(
        "admission of 8,192 tokens, 512 blocks evicted for it",
        &admissions(&mut engine),
        256.0 * floor,
    ));
}

fn hold(what: &str, holds: &Lap, floor: f64) -> Row {
    Row::new(
        format!("mutex held longest: {what}"),
        "us",
        holds.median() / 1e3,
    )
    .goal(100.0)
    .floor("256 blocks, 5 misses side by side each", floor / 1e3)
    .note(format!(
        "median; the longest of all {:.0}, with what interrupted it",
        holds.longest() / 1e3
    ))
}

/// The longest stretch for which each of several admissions held the mutex.
fn admissions(engine: &mut Engine) -> Lap {
    let mut random = Random::new(1);
    let mut longest = Lap::new();
    for _ in 0..200 {
        let prompt = random.tokens(8_192);
        let manager = &engine.manager;
        // The mutex is taken again and again until there is room: a hold lasts from one time to the next.
        let mut taken = Vec::new();
        let lock = || {
            taken.push(thread_time());
            manager.lock()
        };
        let admission = manager.call_with(lock, |locked| locked.admit(&Admit::new(&prompt)));
        taken.push(thread_time());
        let handle = admission.expect("enough blocks").id.to_handle();
        assert!(taken.len() > 2, "it makes room in pieces");
        let holds = taken.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        longest.add(holds.max().unwrap_or_default());
        engine.compute(handle);
        engine.release(&[handle]);
    }
    longest
}

fn remove_chained() -> f64 {
    let mut random = Random::new(0x5eed);
    let mut chained = Chained::new(NUM_BLOCKS, BLOCK_SIZE as usize);
    let mut ids: Vec<_> = (1..=NUM_BLOCKS).filter_map(BlockId::new).collect();
    for blocks in ids.chunks(BLOCKS_EACH as usize) {
        chained.publish(
            None,
            &random.tokens((BLOCKS_EACH * BLOCK_SIZE) as usize),
            blocks,
        );
    }
    random.shuffle(&mut ids);
    let elapsed = running_time(|| {
        for &block in &ids {
            chained.remove(block);
        }
    });
    nanoseconds(elapsed) / f64::from(NUM_BLOCKS)
}
