//! The work whose instructions are counted: one workload a run, named by the argument. Prints how many units it did.
//!
//! What is counted runs inside [`counted_by_callgrind`] and nothing else does: callgrind starts and stops collecting there
//! (`run.py`), so the set-up costs nothing. Everything here is the same in every run: no clock, no thread, seeds fixed.

use std::hint::black_box;

use looseleaf_benches::engine::{BLOCK_SIZE, Engine, staggered_len};
use looseleaf_benches::random::Random;
use looseleaf_core::{Admit, Config};

const NUM_SEQUENCES: u32 = 256;
/// Every sequence crosses into a new block twice.
const NUM_STEPS: u32 = 2 * BLOCK_SIZE;
const NUM_PROMPTS: u32 = 8;
const PROMPT_LEN: usize = 8_192;
const NUM_HITS: u32 = 511;

#[inline(never)]
fn counted_by_callgrind<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

#[derive(Clone, Copy, PartialEq)]
enum Counted {
    Reserve,
    Commit,
}

/// Sequences times steps of a decode step.
fn decode(counted: Counted, prefix_cache: bool) -> u32 {
    let num_blocks = NUM_SEQUENCES * 80;
    let config = Config::new(num_blocks, BLOCK_SIZE, NUM_SEQUENCES, 2_048).expect("valid sizes");
    let config = if prefix_cache {
        config.with_prefix_cache(7)
    } else {
        config
    };
    let mut engine = Engine::new(config, NUM_SEQUENCES);
    let mut random = Random::new(0x5eed);
    for row in 0..NUM_SEQUENCES as usize {
        let handle = engine.admit(&random.tokens(staggered_len(row) as usize));
        engine.handles.push(handle);
    }
    // The first step writes whole rows, and scratch is allocated.
    for step in 0..=NUM_STEPS {
        let tokens = random.tokens(NUM_SEQUENCES as usize);
        let is_counted = |which| step > 0 && counted == which;
        if is_counted(Counted::Reserve) {
            counted_by_callgrind(|| engine.reserve(&tokens));
        } else {
            engine.reserve(&tokens);
        }
        if is_counted(Counted::Commit) {
            counted_by_callgrind(|| engine.commit());
        } else {
            engine.commit();
        }
    }
    NUM_SEQUENCES * NUM_STEPS
}

fn cached_prompts() -> (Engine, Vec<Vec<i32>>, Vec<i64>) {
    let config = Config::new(NUM_PROMPTS * 512 + 512, BLOCK_SIZE, NUM_PROMPTS + 1, 8_192)
        .expect("valid sizes")
        .with_prefix_cache(7);
    let mut engine = Engine::new(config, 8_192);
    let mut random = Random::new(0x5eed);
    let prompts: Vec<_> = (0..NUM_PROMPTS)
        .map(|_| random.tokens(PROMPT_LEN))
        .collect();
    let holders = prompts.iter().map(|prompt| engine.admit(prompt)).collect();
    (engine, prompts, holders)
}

/// Blocks of prompts that are found and adopted.
fn admit(held: bool) -> u32 {
    let (mut engine, prompts, holders) = cached_prompts();
    if !held {
        engine.release(&holders);
    }
    for prompt in &prompts {
        let mut locked = engine.manager.lock().expect("not poisoned");
        let admission = counted_by_callgrind(|| locked.admit(&Admit::new(prompt)));
        let admission = admission.expect("enough blocks");
        assert_eq!(admission.num_cached, NUM_HITS * BLOCK_SIZE);
        locked.release(&[admission.id.to_handle()]).expect("alive");
    }
    NUM_PROMPTS * NUM_HITS
}

/// Cached blocks that are given up.
fn evict() -> u32 {
    const NUM_EVICTED: u32 = 2_048;
    let (mut engine, _, holders) = cached_prompts();
    engine.release(&holders);
    let mut locked = engine.manager.lock().expect("not poisoned");
    let num_evicted = counted_by_callgrind(|| locked.evict(NUM_EVICTED));
    assert_eq!(num_evicted, Ok(NUM_EVICTED));
    NUM_EVICTED
}

#[expect(clippy::print_stdout, reason = "the caller divides by it")]
fn main() {
    // Not while compiling: a debug build of the workspace includes this program.
    let is_release = !cfg!(debug_assertions);
    assert!(is_release, "instructions are counted in a release build");
    let workload = std::env::args().nth(1).unwrap_or_default();
    let num_units = match workload.as_str() {
        "reserve" => decode(Counted::Reserve, false),
        "commit" => decode(Counted::Commit, false),
        "publishing-commit" => decode(Counted::Commit, true),
        "admit-held" => admit(true),
        "admit-idle" => admit(false),
        "evict" => evict(),
        _ => panic!("{workload:?} is not a workload"),
    };
    println!("{num_units}");
}
