//! One call on a manager: which process may make it, how it gets the mutex, and what becomes of a panic.
//!
//! A call that is short keeps the interpreter attached and takes the mutex if it is free; otherwise it waits detached, so that
//! whoever holds it can finish. A call that is long runs detached. Either way nobody waits for the interpreter who holds the
//! mutex: what a call does under it is Rust alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use looseleaf_core::{BlockManager as CoreManager, Config, Error, Locked};
use pyo3::prelude::*;

use crate::buffer::NamedRange;
use crate::error::{forked_process, invalid_argument, panicked, to_python};

/// How often a process was forked on the way to this one. Relaxed: it changes only in a child that has one thread yet.
static NUM_FORKS: AtomicU64 = AtomicU64::new(0);

/// Notes that this process is a child. The interpreter calls it, see [`watch_forks`].
#[pyfunction]
fn note_fork() {
    NUM_FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Has the interpreter tell of forks, on systems that have them.
pub(crate) fn watch_forks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let os = module.py().import("os")?;
    if let Some(register) = os.getattr_opt("register_at_fork")? {
        let arguments = pyo3::types::PyDict::new(module.py());
        arguments.set_item("after_in_child", wrap_pyfunction!(note_fork, module)?)?;
        register.call((), Some(&arguments))?;
    }
    Ok(())
}

/// A manager, with the process that it belongs to. What a child inherits is a copy: its blocks are the parent's, and a thread
/// that held the mutex is not there to let it go.
pub(crate) struct Managed {
    pub(crate) core: CoreManager,
    num_forks: u64,
    process: u32,
    /// Where the arrays of each batch bound to it lie.
    batches: Mutex<Vec<Weak<[NamedRange]>>>,
    /// For tests: whether short calls detach, too.
    detaches: AtomicBool,
}

impl Managed {
    pub(crate) fn new(config: Config) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            core: CoreManager::new(config)?,
            num_forks: NUM_FORKS.load(Ordering::Relaxed),
            process: std::process::id(),
            batches: Mutex::default(),
            detaches: AtomicBool::new(false),
        }))
    }

    /// Makes a short call.
    pub(crate) fn call<'a, T: Send>(
        &'a self,
        py: Python<'_>,
        call: impl FnMut(&mut Locked<'a>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        if self.detaches.load(Ordering::Relaxed) {
            self.call_detached(py, call)
        } else {
            self.call_attached(py, call)
        }
    }

    /// Makes a short call that needs the interpreter: it fills buffers that belong to Python.
    pub(crate) fn call_attached<'a, T>(
        &'a self,
        py: Python<'_>,
        call: impl FnMut(&mut Locked<'a>) -> Result<T, Error>,
    ) -> PyResult<T> {
        self.check_process()?;
        let lock = || loop {
            if let Some(locked) = self.core.try_lock()? {
                return Ok(locked);
            }
            py.detach(|| self.core.lock().map(drop))?;
        };
        answer(|| self.core.call_with(lock, call))
    }

    /// Makes a long call. Other Python threads run meanwhile.
    pub(crate) fn call_detached<'a, T: Send>(
        &'a self,
        py: Python<'_>,
        call: impl FnMut(&mut Locked<'a>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.run_detached(py, |core| core.call(call))
    }

    /// Does something long with the manager that takes the mutex itself.
    pub(crate) fn run_detached<'a, T: Send>(
        &'a self,
        py: Python<'_>,
        run: impl FnOnce(&'a CoreManager) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.check_process()?;
        answer(|| py.detach(|| run(&self.core)))
    }

    /// Notes the arrays of a batch, for as long as it lives.
    pub(crate) fn note_batch(&self, arrays: &Arc<[NamedRange]>) {
        let mut batches = self.batches();
        batches.retain(|batch| batch.strong_count() > 0);
        batches.push(Arc::downgrade(arrays));
    }

    /// Refuses arrays that are parts of a batch: a step writes only what differs from the step before, and would leave what
    /// another call has written there.
    pub(crate) fn check_outside_batches(&self, arrays: &[NamedRange]) -> PyResult<()> {
        for batch in self.batches().iter().filter_map(Weak::upgrade) {
            for (bound, theirs) in batch.iter() {
                let overlaps =
                    |(_, ours): &&NamedRange| ours.start < theirs.end && theirs.start < ours.end;
                if let Some((name, _)) = arrays.iter().find(overlaps) {
                    return Err(invalid_argument(format!(
                        "{name} overlaps the {bound} of a bound batch, which only a step may write"
                    )));
                }
            }
        }
        Ok(())
    }

    fn batches(&self) -> MutexGuard<'_, Vec<Weak<[NamedRange]>>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For tests: short calls detach from here on, so that threads meet under the mutex.
    pub(crate) fn detach_always(&self) {
        self.detaches.store(true, Ordering::Relaxed);
    }

    fn check_process(&self) -> PyResult<()> {
        if self.num_forks == NUM_FORKS.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(forked_process(self.process))
        }
    }
}

/// Makes a panic an exception. It has poisoned the mutex on its way here, if it was held, so that no other call sees what was
/// left half done.
fn answer<T>(run: impl FnOnce() -> Result<T, Error>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(to_python),
        Err(payload) => Err(panicked(payload.as_ref())),
    }
}
