//! The free stack alone: two threads at once, and how long it keeps a thread waiting when eight share the cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use looseleaf_benches::clock::{median, nanoseconds, thread_time};
use looseleaf_benches::table::{Row, Table};
use looseleaf_core::{BlockId, BlockPool, FreeStack};

const NUM_BLOCKS: u32 = 65_536;
const BATCH: usize = 64;
const NUM_BURSTS: usize = 1_500;

trait Stack: Sync {
    fn pop_and_push(&self, blocks: &mut [BlockId]);
}

impl Stack for FreeStack {
    fn pop_and_push(&self, blocks: &mut [BlockId]) {
        assert!(self.pop(blocks));
        self.push(blocks);
    }
}

/// With credits and a word per block.
impl Stack for BlockPool {
    fn pop_and_push(&self, blocks: &mut [BlockId]) {
        self.allocate(blocks).expect("enough blocks");
        self.release(blocks).expect("held");
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

/// When a thread's burst began and ended, and how long it ran.
struct Burst {
    start: Instant,
    end: Instant,
    ran: Duration,
}

fn burst(stack: &dyn Stack, waiting: &AtomicU32, num_calls: u32) -> Burst {
    let mut blocks = vec![BlockId::NULL; BATCH];
    // Relaxed: the threads only wait for each other to be running.
    waiting.fetch_sub(1, Ordering::Relaxed);
    while waiting.load(Ordering::Relaxed) > 0 {
        std::hint::spin_loop();
    }
    let (start, before) = (Instant::now(), thread_time());
    for _ in 0..num_calls {
        stack.pop_and_push(&mut blocks);
    }
    let ran = thread_time().saturating_sub(before);
    Burst {
        start,
        end: Instant::now(),
        ran,
    }
}

/// Nanoseconds per block, popped and pushed, of bursts in which both threads ran side by side, and how many of them were seen.
fn two_threads(stack: &dyn Stack) -> (f64, usize) {
    const NUM_CALLS: u32 = 500;
    let mut samples = Vec::new();
    for _ in 0..NUM_BURSTS {
        let waiting = AtomicU32::new(2);
        let (a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| burst(stack, &waiting, NUM_CALLS));
            let own = burst(stack, &waiting, NUM_CALLS);
            (own, other.join().expect("no panic"))
        });
        let together = a
            .end
            .min(b.end)
            .saturating_duration_since(a.start.max(b.start));
        let longest = (a.end - a.start).max(b.end - b.start);
        let undisturbed = [&a, &b]
            .iter()
            .all(|burst| burst.ran.as_secs_f64() > 0.97 * (burst.end - burst.start).as_secs_f64());
        // Both ran for nine tenths of the longer one: neither waited for a core, nor was long alone.
        if undisturbed && together.as_secs_f64() > 0.9 * longest.as_secs_f64() {
            let each = nanoseconds(a.ran + b.ran) / 2.0;
            samples.push(each / f64::from(NUM_CALLS) / 64.0);
        }
    }
    let num_samples = samples.len();
    if num_samples == 0 {
        return (f64::NAN, 0);
    }
    (median(samples), num_samples)
}

pub(crate) fn contended(table: &mut Table) {
    let mutex = mutex_vec();
    let (baseline, _) = two_threads(&mutex);
    let stack = FreeStack::new(NUM_BLOCKS);
    let pool = BlockPool::new(NUM_BLOCKS).expect("valid size");
    let stacks: [(&str, &dyn Stack, f64); 2] = [
        ("free stack alone", &stack, 7.0),
        ("pool: stack, credits and words", &pool, 24.0),
    ];
    for (what, stack, goal) in stacks {
        let (measured, num_bursts) = two_threads(stack);
        let row = Row::new(
            format!("{what}, 2 threads, batches of 64, pop + push"),
            "ns per block",
            measured,
        );
        // Two exchanges of a line that the other core has, and a dependent load per block from its cache.
        let row = row.floor(
            "2 x 60 ns line transfer (assumed) / 64 + 2 ns dependent load (assumed)",
            2.0 * 60.0 / 64.0 + 2.0,
        );
        let row = row.note(format!(
            "{num_bursts} of {NUM_BURSTS} bursts ran side by side"
        ));
        let row = row.baseline("mutex vec", baseline);
        // Without such bursts there is no figure, and no goal to compare it with.
        table.add(if num_bursts >= 5 { row.goal(goal) } else { row });
    }
}

/// How often the system took the core from this thread.
fn num_preemptions() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("nonvoluntary_ctxt_switches"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// The longest call that was not long because this thread had lost its core, and all time in calls over 20 us of that kind.
fn worst_stall(stack: &dyn Stack, stop: &AtomicBool) -> (Duration, Duration) {
    let mut blocks = vec![BlockId::NULL; BATCH];
    let (mut longest, mut sum) = (Duration::ZERO, Duration::ZERO);
    let mut preempted = num_preemptions();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        stack.pop_and_push(&mut blocks);
        let elapsed = start.elapsed();
        if elapsed > Duration::from_micros(20) {
            let now = num_preemptions();
            if now == preempted {
                longest = longest.max(elapsed);
                sum += elapsed;
            }
            preempted = now;
        }
    }
    (longest, sum)
}

fn eight_threads(stack: &dyn Stack) -> (Duration, Duration) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| worst_stall(stack, &stop)))
            .collect();
        std::thread::sleep(Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
        let stalls = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        stalls.fold(
            Default::default(),
            |(longest, sum): (Duration, Duration), stall| (longest.max(stall.0), sum + stall.1),
        )
    })
}

pub(crate) fn stalls(table: &mut Table) {
    let (baseline, baseline_sum) = eight_threads(&mutex_vec());
    let (longest, sum) = eight_threads(&FreeStack::new(NUM_BLOCKS));
    table.add(
        Row::new(
            "free stack, 8 threads, 3 s, batches of 64: worst stall",
            "ms",
            nanoseconds(longest) / 1e6,
        )
        .goal(2.0)
        .floor("one call", 0.0)
        .baseline("mutex vec", nanoseconds(baseline) / 1e6)
        .note(format!(
            "wall time, preemptions of the thread itself left out; stalls over 20 us in sum {:.1} ms, mutex {:.1} ms",
            nanoseconds(sum) / 1e6,
            nanoseconds(baseline_sum) / 1e6
        )),
    );
}
