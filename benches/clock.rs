//! Time that this thread ran: other work on the machine does not count.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread so far.
///
/// # Panics
/// Never: the system counts no negative time.
#[must_use]
pub fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("not negative")
}

/// How long this thread ran for `work`.
pub fn running_time(work: impl FnOnce()) -> Duration {
    let before = thread_time();
    work();
    thread_time().saturating_sub(before)
}

/// Median of nanoseconds; 0 of none.
#[must_use]
pub fn median(samples: Vec<f64>) -> f64 {
    quantile(samples, 2)
}

/// The number that one in `parts` stays below.
fn quantile(mut samples: Vec<f64>, parts: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / parts).copied().unwrap_or(0.0)
}

/// What two readings of the clock cost between them, to be taken off short times.
#[must_use]
pub fn reading_ns() -> f64 {
    median(
        (0..1_000)
            .map(|_| nanoseconds(running_time(|| {})))
            .collect(),
    )
}

/// A duration in nanoseconds.
#[must_use]
pub fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Times a part of each round: `round` calls its argument's [`Lap::time`] around that part.
pub struct Lap {
    reading: f64,
    samples: Vec<f64>,
}

impl Lap {
    /// No samples yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            reading: reading_ns(),
            samples: Vec::new(),
        }
    }

    /// Times one call, the clock's own cost taken off.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = thread_time();
        let result = work();
        self.add(thread_time().saturating_sub(before));
        result
    }

    /// Adds the time between two readings of the clock.
    pub fn add(&mut self, elapsed: Duration) {
        self.samples
            .push((nanoseconds(elapsed) - self.reading).max(0.0));
    }

    /// Median nanoseconds of a call.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(self.samples.clone())
    }

    /// Nanoseconds that one call in ten stays below: how fast it is where nothing else disturbs the caches.
    #[must_use]
    pub fn fastest_tenth(&self) -> f64 {
        quantile(self.samples.clone(), 10)
    }

    /// Mean nanoseconds of a call.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let count = u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
        self.samples.iter().sum::<f64>() / f64::from(count.max(1))
    }

    /// The longest call.
    #[must_use]
    pub fn longest(&self) -> f64 {
        self.samples.iter().copied().fold(0.0, f64::max)
    }
}

impl Default for Lap {
    fn default() -> Self {
        Self::new()
    }
}
