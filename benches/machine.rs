//! What the figures were measured on, and what of it the floors are made of.

use std::hint::black_box;

use crate::clock::{median, nanoseconds, running_time};
use crate::random::Random;

/// The machine, and its costs as measured at the start of the run.
pub struct Machine {
    /// Processor, cores, version, load.
    pub description: Vec<(&'static str, String)>,
    /// Bytes read and written per nanosecond, from and to the L2 cache.
    pub cache_bytes_per_ns: f64,
    /// The same, from and to memory.
    pub memory_bytes_per_ns: f64,
    /// Nanoseconds of a load from memory that nothing overlaps.
    pub miss_ns: f64,
    /// Nanoseconds of such a load where many are under way at once.
    pub overlapped_miss_ns: f64,
}

impl Machine {
    /// Looks and measures.
    #[must_use]
    pub fn measure() -> Self {
        let cache_bytes_per_ns = copied_bytes_per_ns(128 << 10, 2_000);
        let memory_bytes_per_ns = copied_bytes_per_ns(128 << 20, 2);
        let (miss_ns, overlapped_miss_ns) = misses();
        let mut machine = Self {
            description: description(),
            cache_bytes_per_ns,
            memory_bytes_per_ns,
            miss_ns,
            overlapped_miss_ns,
        };
        machine.description.push((
            "copies, read + written",
            format!("{cache_bytes_per_ns:.0} B/ns in the L2 cache, {memory_bytes_per_ns:.1} B/ns in memory"),
        ));
        machine.description.push((
            "load from memory",
            format!("{miss_ns:.0} ns alone, {overlapped_miss_ns:.1} ns side by side"),
        ));
        machine
    }
}

fn description() -> Vec<(&'static str, String)> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    vec![
        ("processor", model.unwrap_or("unknown").to_owned()),
        ("cores", cores.to_string()),
        ("looseleaf", env!("CARGO_PKG_VERSION").to_owned()),
        ("load average", read("/proc/loadavg").trim().to_owned()),
    ]
}

fn copied_bytes_per_ns(num_bytes: usize, calls: u32) -> f64 {
    let source = vec![1_u8; num_bytes];
    let mut target = vec![0_u8; num_bytes];
    let sample = |target: &mut [u8]| {
        nanoseconds(running_time(|| {
            for _ in 0..calls {
                black_box(&mut *target).copy_from_slice(black_box(&source));
            }
        }))
    };
    let each = median((0..5).map(|_| sample(&mut target)).collect()) / f64::from(calls);
    let num_bytes = u32::try_from(2 * num_bytes).unwrap_or(u32::MAX);
    f64::from(num_bytes) / each
}

/// Walks 64 MiB in random order: once along a chain, once with the order known beforehand.
fn misses() -> (f64, f64) {
    const LINES: usize = 1 << 20;
    const WALK: u32 = 1 << 18;
    let mut order: Vec<usize> = (0..LINES).collect();
    Random::new(1).shuffle(&mut order);
    let mut lines = vec![[0_usize; 8]; LINES];
    for (place, &line) in order.iter().enumerate() {
        lines[line][0] = order[(place + 1) % LINES];
    }
    let alone = running_time(|| {
        let mut line = 0;
        for _ in 0..WALK {
            line = lines[line][0];
        }
        black_box(line);
    });
    let overlapped = running_time(|| {
        let walk = order.iter().rev().take(WALK as usize);
        black_box(walk.fold(0, |sum, &line| sum ^ lines[line][0]));
    });
    let each = |time| nanoseconds(time) / f64::from(WALK);
    (each(alone), each(overlapped))
}
