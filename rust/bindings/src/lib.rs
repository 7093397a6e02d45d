//! `looseleaf._core`: the block manager for Python. Thin: no logic, only conversion of arguments, buffers and errors.
//!
//! Every class is frozen; state lives behind the core's own mutex, which [`call`] takes. No Python code runs under it and nobody
//! waits for the interpreter under it, so that it cannot be in a lock cycle with the interpreter's.

#![deny(unsafe_code)]

mod arguments;
mod batch;
mod buffer;
mod call;
mod error;
mod manager;
mod namespace;
mod sequence;
mod stats;

/// The Rust core of Looseleaf.
#[pyo3::pymodule(gil_used = true)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::manager::BlockManager;
    #[pymodule_export]
    use crate::namespace::Namespace;
    #[pymodule_export]
    use crate::sequence::Sequence;
    #[pymodule_export]
    use crate::stats::Stats;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::call::watch_forks(module)
    }

    /// Version of the package, the same for all crates of the workspace.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
