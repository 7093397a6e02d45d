//! The Python object that owns a sequence.

use std::sync::Arc;

use looseleaf_core::{Admission, SeqId};
use pyo3::prelude::*;

use crate::arguments::{cache, count};
use crate::call::Managed;

/// Owns one sequence: it ends when this object is collected, if not before.
#[pyclass(frozen, module = "looseleaf._core")]
pub(crate) struct Sequence {
    manager: Arc<Managed>,
    id: SeqId,
    num_cached: u32,
}

impl Sequence {
    pub(crate) fn new(manager: Arc<Managed>, admission: Admission) -> Self {
        Self {
            manager,
            id: admission.id,
            num_cached: admission.num_cached,
        }
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // The collector may run inside one of our own calls: never a lock here.
        self.manager.core.bury(self.id);
    }
}

#[pymethods]
impl Sequence {
    #[getter]
    fn handle(&self) -> i64 {
        self.id.to_handle()
    }

    #[getter]
    fn num_cached_tokens(&self) -> u32 {
        self.num_cached
    }

    /// (known, reserved, computed)
    fn lengths(&self, py: Python<'_>) -> PyResult<(u32, u32, u32)> {
        let handle = self.handle();
        let lengths = self.manager.call(py, |locked| locked.lengths(handle))?;
        Ok((lengths.known, lengths.reserved, lengths.computed))
    }

    fn blocks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let handle = self.handle();
        let blocks = self.manager.call(py, |locked| locked.blocks(handle))?;
        Ok(blocks.iter().map(|block| block.get()).collect())
    }

    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        let handle = self.handle();
        let admission = self.manager.call(py, |locked| locked.fork(handle))?;
        Ok(Self::new(Arc::clone(&self.manager), admission))
    }

    fn truncate(&self, py: Python<'_>, length: &Bound<'_, PyAny>) -> PyResult<()> {
        let length = count(length, "length")?;
        let handle = self.handle();
        self.manager
            .call(py, |locked| locked.truncate(handle, length))
    }

    #[pyo3(signature = (cache=true))]
    fn release(&self, py: Python<'_>, #[pyo3(from_py_with = cache)] cache: bool) -> PyResult<()> {
        let handle = self.handle();
        self.manager
            .call(py, |locked| locked.release_with(&[handle], cache))
    }
}
