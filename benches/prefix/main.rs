//! The prefix tree: find, publish and remove, against two other structures that compare tokens as well.
//!
//! Floors, block size 16 (64 bytes of tokens per block):
//! - find: both copies of the tokens are read once. From the L2 cache (64 bytes per cycle at best, shared by two streams) about
//!   1 ns a block; from memory, at 10 GB/s, 13 ns. The result is 4 bytes a block.
//! - publish: tokens read and written, 4 bytes of id and 8 of home written: about 3 ns a block from the L2 cache, one miss for
//!   the home where blocks are scattered.
//! - remove, in random order: the block's home and its node are two misses, one after the other (about 100 ns each); with many
//!   under way at once about 10 to 20 ns each.
//!
//! Baselines, in the same run: a hash table over chained hashes (what most engines have, here staged so that its misses overlap),
//! and a tree with a node per block. Both compare tokens, so that all three give the same answers, which is checked first.
//!
//! Removing takes long enough to be interrupted: it is timed by how long the thread ran.
//! The bytes per block that are printed count all that the structures keep, the allocator's own bytes aside.

mod node_per_block;
mod structure;
mod workload;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use looseleaf_benches::clock::running_time;
use looseleaf_core::BlockId;

use structure::{Structure, structures};
use workload::{Conversations, Segment, id, long_prompts};

const NUM_BLOCKS: u32 = 1 << 20;
const BLOCK_SIZE: usize = 16;
const PROMPT_BLOCKS: usize = 512;
const PUBLISH_BLOCKS: usize = 256;

fn build(structure: &mut dyn Structure, segments: &[Segment]) {
    for segment in segments {
        structure.publish(segment.predecessor, &segment.tokens, &segment.blocks);
    }
}

fn find(criterion: &mut Criterion) {
    let prompts = long_prompts(NUM_BLOCKS, PROMPT_BLOCKS, BLOCK_SIZE);
    let queries: Vec<Vec<i32>> = prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
    let built: Vec<_> = structures(NUM_BLOCKS, BLOCK_SIZE)
        .into_iter()
        .map(|(name, mut structure)| {
            build(&mut *structure, &prompts);
            (name, structure)
        })
        .collect();
    let mut found = Vec::with_capacity(PROMPT_BLOCKS);
    for (_, structure) in &built {
        for (prompt, query) in prompts.iter().zip(&queries) {
            found.clear();
            structure.find(query, &mut found);
            assert_eq!(found, prompt.blocks);
        }
    }
    for (temperature, num_queries) in [
        ("one prompt, warm", 1),
        ("prompts in turn, cold", queries.len()),
    ] {
        let mut group = criterion.benchmark_group(format!("find 512 blocks: {temperature}"));
        group.throughput(Throughput::Elements(PROMPT_BLOCKS as u64));
        for (name, structure) in &built {
            let mut next = 0;
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter(|| {
                    found.clear();
                    next = (next + 7919) % num_queries; // a prime: no order that a prefetcher knows
                    structure.find(black_box(&queries[next]), &mut found);
                    black_box(found.len())
                });
            });
        }
        group.finish();
    }
}

fn publish(criterion: &mut Criterion) {
    for (how, step) in [("at once", PUBLISH_BLOCKS), ("one by one", 1)] {
        let mut group = criterion.benchmark_group(format!("publish 256 blocks: {how}"));
        group.throughput(Throughput::Elements(PUBLISH_BLOCKS as u64));
        for (name, mut structure) in structures(NUM_BLOCKS, BLOCK_SIZE) {
            let mut prompts = long_prompts(NUM_BLOCKS, PUBLISH_BLOCKS, BLOCK_SIZE);
            let (ours, others) = prompts.split_at_mut(64);
            build(&mut *structure, others);
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter_custom(|iterations| {
                    let mut total = Duration::ZERO;
                    let mut left = iterations;
                    while left > 0 {
                        let num_now = left.min(ours.len() as u64);
                        let now = &ours[..usize::try_from(num_now).expect("few prompts")];
                        left -= num_now;
                        let started = Instant::now();
                        for prompt in now {
                            publish_stepwise(&mut *structure, prompt, step);
                        }
                        total += started.elapsed();
                        for prompt in now {
                            remove_backwards(&mut *structure, &prompt.blocks);
                        }
                    }
                    total
                });
            });
        }
        group.finish();
    }
}

fn publish_stepwise(structure: &mut dyn Structure, prompt: &Segment, step: usize) {
    let mut predecessor = None;
    let tokens = prompt.tokens.chunks(step * BLOCK_SIZE);
    for (blocks, tokens) in prompt.blocks.chunks(step).zip(tokens) {
        structure.publish(predecessor, tokens, blocks);
        predecessor = blocks.last().copied();
    }
}

fn remove_backwards(structure: &mut dyn Structure, blocks: &[BlockId]) {
    for &block in blocks.iter().rev() {
        structure.remove(block);
    }
}

fn remove(criterion: &mut Criterion) {
    let mut conversations = Conversations::new(NUM_BLOCKS, BLOCK_SIZE);
    let orders = [
        ("sequence by sequence", conversations.released_by_sequence()),
        ("block by block", conversations.released_by_block()),
    ];
    let num_blocks = orders[0].1.len();
    for (name, mut structure) in structures(NUM_BLOCKS, BLOCK_SIZE) {
        build(&mut *structure, &conversations.segments);
        let bytes = structure.memory_bytes() / (num_blocks / 10);
        eprintln!(
            "memory: {name}: {}.{} bytes per block",
            bytes / 10,
            bytes % 10
        );
        for (order_name, order) in &orders {
            let mut group = criterion.benchmark_group(format!("remove 1 M blocks: {order_name}"));
            group.sample_size(10);
            group.throughput(Throughput::Elements(num_blocks as u64));
            for (how, chunk) in [("", 1), (", prefetched by 256", 256)] {
                if chunk > 1 && !structure.can_prefetch() {
                    continue;
                }
                group.bench_function(
                    BenchmarkId::from_parameter(format!("{name}{how}")),
                    |bencher| {
                        bencher.iter_custom(|iterations| {
                            let mut total = Duration::ZERO;
                            for _ in 0..iterations {
                                total +=
                                    running_time(|| remove_in_order(&mut *structure, order, chunk));
                                build(&mut *structure, &conversations.segments);
                            }
                            total
                        });
                    },
                );
            }
            group.finish();
        }
    }
}

fn remove_in_order(structure: &mut dyn Structure, order: &[BlockId], chunk: usize) {
    for victims in order.chunks(chunk) {
        if chunk > 1 {
            structure.prefetch(victims);
        }
        for &block in victims {
            structure.remove(block);
        }
    }
}

fn check(_: &mut Criterion) {
    const { assert!(!cfg!(debug_assertions), "benchmarks need a release build") };
    // The structures agree after publishing, forking and removing half.
    let mut conversations = Conversations::new(1 << 12, BLOCK_SIZE);
    let order = conversations.released_by_block();
    let gone = &order[..order.len() / 2];
    let mut answers = Vec::new();
    for (_, mut structure) in structures(1 << 12, BLOCK_SIZE) {
        build(&mut *structure, &conversations.segments);
        for &block in gone {
            structure.remove(block);
        }
        let mut found = vec![id(0)];
        for segment in &conversations.segments {
            if segment.predecessor.is_none() {
                structure.find(&segment.tokens, &mut found);
            }
        }
        answers.push(found);
    }
    assert!(answers[0].len() > 1, "something is left to be found");
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = short();
    targets = check, find, publish, remove
}
criterion_main!(benches);
