//! The Python object that owns a sequence.

use std::sync::Arc;

use looseleaf_core::{Admission, BlockManager as CoreManager, SeqId};
use pyo3::prelude::*;

use crate::arguments::count;
use crate::error::to_python;
use crate::manager::locked;

/// Owns one sequence: it ends when this object is collected, if not before.
#[pyclass(frozen, module = "looseleaf._core")]
pub(crate) struct Sequence {
    manager: Arc<CoreManager>,
    id: SeqId,
    num_cached: u32,
}

impl Sequence {
    pub(crate) fn new(manager: Arc<CoreManager>, admission: Admission) -> Self {
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
        self.manager.bury(self.id);
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
        let lengths = locked(py, &self.manager)?
            .lengths(self.handle())
            .map_err(to_python)?;
        Ok((lengths.known, lengths.reserved, lengths.computed))
    }

    fn blocks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let locked = locked(py, &self.manager)?;
        let blocks = locked.blocks(self.handle()).map_err(to_python)?;
        Ok(blocks.iter().map(|block| block.get()).collect())
    }

    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        let admission = locked(py, &self.manager)?
            .fork(self.handle())
            .map_err(to_python)?;
        Ok(Self::new(Arc::clone(&self.manager), admission))
    }

    fn truncate(&self, py: Python<'_>, length: &Bound<'_, PyAny>) -> PyResult<()> {
        let length = count(length, "length")?;
        locked(py, &self.manager)?
            .truncate(self.handle(), length)
            .map_err(to_python)
    }

    #[pyo3(signature = (cache=true))]
    fn release(&self, py: Python<'_>, cache: bool) -> PyResult<()> {
        locked(py, &self.manager)?
            .release_with(&[self.handle()], cache)
            .map_err(to_python)
    }
}
