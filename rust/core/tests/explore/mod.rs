//! Runs a loom model through all its executions and collects what came out. Shared by the loom tests.
//!
//! Loom 0.7 remembers one last access per atomic, so the load of a compare-exchange loop in one thread hides an earlier load in
//! another, and the orders with that load later are left out. It does try every value that a late load may see. Hence a thread
//! whose decision may rest on a load alone is spawned last, the main thread only joins, and every test names the outcomes that
//! must have come up.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::cell::UnsafeCell;
use loom::thread;
use looseleaf_core::BlockId;

/// How many executions a model has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// Two threads: all executions.
    Small,
    /// Three threads, which may have millions: those in which a thread that could go on is interrupted 3 times at most, or as
    /// often as `LOOM_MAX_PREEMPTIONS` says.
    Large,
    /// Three threads with long calls: as `Large`, with one interruption less.
    #[allow(dead_code, reason = "not every target has such a model")]
    Huge,
}

/// Explores the executions of a model and returns the set of its outcomes.
pub(crate) fn explore<T>(
    name: &str,
    size: Size,
    model: impl Fn() -> T + Send + Sync + 'static,
) -> Vec<T>
where
    T: Ord + Clone + Send + 'static,
{
    let seen = Arc::new(Mutex::new((0_u64, BTreeSet::new())));
    let record = Arc::clone(&seen);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = match size {
        Size::Small => None,
        Size::Large => builder.preemption_bound.or(Some(3)),
        Size::Huge => builder.preemption_bound.map(|bound| bound - 1).or(Some(2)),
    };
    builder.check(move || {
        let outcome = model();
        let mut seen = record.lock().expect("no panic");
        seen.0 += 1;
        seen.1.insert(outcome);
    });
    let seen = seen.lock().expect("no panic");
    let (num_executions, outcomes) = &*seen;
    eprintln!(
        "{name}: {num_executions} executions, {} outcomes",
        outcomes.len()
    );
    outcomes.iter().cloned().collect()
}

pub(crate) fn join<T>(thread: thread::JoinHandle<T>) -> T {
    thread.join().expect("no panic")
}

/// Plain memory for each block, as kernels see it: loom fails the model when two accesses are not ordered.
pub(crate) struct Payloads(Vec<UnsafeCell<()>>);

// SAFETY: the cells hold nothing; sharing them is how loom learns who accesses them when.
unsafe impl Sync for Payloads {}
// SAFETY: as above.
unsafe impl Send for Payloads {}

impl Payloads {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self((0..=num_blocks).map(|_| UnsafeCell::new(())).collect())
    }

    /// Writes a block. Only for its one holder.
    pub(crate) fn write(&self, block: BlockId) {
        self.0[block.index()].with_mut(|_| ());
    }

    /// Reads a block. Only for a holder.
    pub(crate) fn read(&self, block: BlockId) {
        self.0[block.index()].with(|_| ());
    }
}
