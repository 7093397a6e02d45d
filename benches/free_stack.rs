//! The free stack: pop n blocks and push them again, alone and against a second thread.
//!
//! Floor, uncontended: two compare-exchanges (about 2 ns each) per batch and one dependent load per block.
//! Baseline: `Mutex<Vec<u32>>` in the same run. The stack is there for progress (a descheduled holder stalls nobody), not to be
//! faster than a mutex when nobody contends.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use looseleaf_core::{BlockId, FreeStack};

const NUM_BLOCKS: u32 = 65_536;
const BATCHES: [usize; 5] = [1, 4, 16, 64, 256];

trait Stack: Sync {
    fn pop_and_push(&self, blocks: &mut [BlockId]);
}

impl Stack for FreeStack {
    fn pop_and_push(&self, blocks: &mut [BlockId]) {
        assert!(self.pop(blocks));
        self.push(blocks);
    }
}

impl Stack for Mutex<Vec<BlockId>> {
    fn pop_and_push(&self, blocks: &mut [BlockId]) {
        {
            let mut free = self.lock().expect("no panic under the lock");
            let rest = free.len() - blocks.len();
            blocks.copy_from_slice(&free[rest..]);
            free.truncate(rest);
        }
        let mut free = self.lock().expect("no panic under the lock");
        free.extend_from_slice(blocks);
    }
}

fn mutex_vec() -> Mutex<Vec<BlockId>> {
    Mutex::new((1..=NUM_BLOCKS).rev().filter_map(BlockId::new).collect())
}

fn alone(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pop and push, one thread");
    for batch in BATCHES {
        group.throughput(Throughput::Elements(batch as u64));
        let mut blocks = vec![BlockId::NULL; batch];
        let stacks: [(&str, &dyn Stack); 2] = [
            ("mutex vec (baseline)", &mutex_vec()),
            ("free stack", &FreeStack::new(NUM_BLOCKS)),
        ];
        for (name, stack) in stacks {
            group.bench_function(BenchmarkId::new(name, batch), |bencher| {
                bencher.iter(|| stack.pop_and_push(black_box(&mut blocks)));
            });
        }
    }
    group.finish();
}

/// Time for `iterations` in this thread while another does the same without a pause.
fn contended_time(stack: &dyn Stack, batch: usize, iterations: u64) -> Duration {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut blocks = vec![BlockId::NULL; batch];
            while !stop.load(Ordering::Relaxed) {
                stack.pop_and_push(&mut blocks);
            }
        });
        let mut blocks = vec![BlockId::NULL; batch];
        let start = Instant::now();
        for _ in 0..iterations {
            stack.pop_and_push(black_box(&mut blocks));
        }
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        elapsed
    })
}

fn contended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pop and push, two threads");
    for batch in BATCHES {
        group.throughput(Throughput::Elements(batch as u64));
        let stacks: [(&str, &dyn Stack); 2] = [
            ("mutex vec (baseline)", &mutex_vec()),
            ("free stack", &FreeStack::new(NUM_BLOCKS)),
        ];
        for (name, stack) in stacks {
            group.bench_function(BenchmarkId::new(name, batch), |bencher| {
                bencher.iter_custom(|iterations| contended_time(stack, batch, iterations));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, alone, contended);
criterion_main!(benches);
