//! Batch buffers bound to a manager.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use looseleaf_core::{BatchBuffers, BatchShape, BatchState};
use pyo3::prelude::*;

use crate::arguments::size;
use crate::buffer::{BoundBuffer, NamedRange, check_disjoint};
use crate::call::Managed;
use crate::error::{invalid_argument, to_python};
use crate::manager::BlockManager;

struct Arrays {
    block_table: BoundBuffer<i32>,
    seq_lens: BoundBuffer<i32>,
    query_lens: BoundBuffer<i32>,
    cu_query_lens: BoundBuffer<i32>,
    slot_mapping: BoundBuffer<i64>,
    positions: BoundBuffer<i64>,
    token_ids: BoundBuffer<i64>,
    copies: BoundBuffer<i32>,
}

impl Arrays {
    fn as_buffers<'a>(&'a mut self, py: Python<'a>) -> BatchBuffers<'a> {
        BatchBuffers {
            block_table: self.block_table.as_mut_slice(py),
            seq_lens: self.seq_lens.as_mut_slice(py),
            query_lens: self.query_lens.as_mut_slice(py),
            cu_query_lens: self.cu_query_lens.as_mut_slice(py),
            slot_mapping: self.slot_mapping.as_mut_slice(py),
            positions: self.positions.as_mut_slice(py),
            token_ids: self.token_ids.as_mut_slice(py),
            copies: self.copies.as_mut_slice(py),
        }
    }

    fn ranges(&self) -> Arc<[NamedRange]> {
        Arc::new([
            self.block_table.named_range("block_table"),
            self.seq_lens.named_range("seq_lens"),
            self.query_lens.named_range("query_lens"),
            self.cu_query_lens.named_range("cu_query_lens"),
            self.slot_mapping.named_range("slot_mapping"),
            self.positions.named_range("positions"),
            self.token_ids.named_range("token_ids"),
            self.copies.named_range("copies"),
        ])
    }
}

pub(crate) struct BoundBatch {
    arrays: Arrays,
    state: BatchState,
}

impl BoundBatch {
    pub(crate) fn parts<'a>(
        &'a mut self,
        py: Python<'a>,
    ) -> (&'a mut BatchState, BatchBuffers<'a>) {
        (&mut self.state, self.arrays.as_buffers(py))
    }
}

/// The buffers of one batch. `looseleaf.allocator.Batch` allocates them and documents their shapes.
#[pyclass(frozen, module = "looseleaf._core")]
pub(crate) struct Batch {
    manager: Arc<Managed>,
    /// Its manager knows of them as long as this lives.
    _ranges: Arc<[NamedRange]>,
    bound: Mutex<BoundBatch>,
}

impl Batch {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BoundBatch> {
        // A panic half-way leaves a batch with a mixture of two steps; the next step writes it anew.
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_owner(&self, manager: &Arc<Managed>) -> PyResult<()> {
        if Arc::ptr_eq(&self.manager, manager) {
            Ok(())
        } else {
            Err(invalid_argument(
                "batch was bound by another manager".to_owned(),
            ))
        }
    }
}

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(signature = (manager, max_batch_tokens, *, block_table, seq_lens, query_lens, cu_query_lens, slot_mapping, positions, token_ids, copies))]
    #[expect(clippy::too_many_arguments, reason = "one per buffer, keyword-only")]
    fn new(
        py: Python<'_>,
        manager: &BlockManager,
        max_batch_tokens: &Bound<'_, PyAny>,
        block_table: &Bound<'_, PyAny>,
        seq_lens: &Bound<'_, PyAny>,
        query_lens: &Bound<'_, PyAny>,
        cu_query_lens: &Bound<'_, PyAny>,
        slot_mapping: &Bound<'_, PyAny>,
        positions: &Bound<'_, PyAny>,
        token_ids: &Bound<'_, PyAny>,
        copies: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let manager = Arc::clone(manager.managed());
        let max_batch_tokens = size(
            max_batch_tokens,
            "max_batch_tokens",
            1..=i32::MAX.cast_unsigned(),
        )?;
        let shape = BatchShape::new(manager.core.config(), max_batch_tokens).map_err(to_python)?;
        let mut arrays = Arrays {
            block_table: BoundBuffer::new(block_table, "block_table")?,
            seq_lens: BoundBuffer::new(seq_lens, "seq_lens")?,
            query_lens: BoundBuffer::new(query_lens, "query_lens")?,
            cu_query_lens: BoundBuffer::new(cu_query_lens, "cu_query_lens")?,
            slot_mapping: BoundBuffer::new(slot_mapping, "slot_mapping")?,
            positions: BoundBuffer::new(positions, "positions")?,
            token_ids: BoundBuffer::new(token_ids, "token_ids")?,
            copies: BoundBuffer::new(copies, "copies")?,
        };
        let ranges = arrays.ranges();
        check_disjoint(&ranges)?;
        manager.check_outside_batches(&ranges)?;
        let state = BatchState::new(shape, &mut arrays.as_buffers(py)).map_err(to_python)?;
        manager.note_batch(&ranges);
        Ok(Self {
            manager,
            _ranges: ranges,
            bound: Mutex::new(BoundBatch { arrays, state }),
        })
    }

    /// (sequences, tokens, copies, `max_query_len`, `max_seq_len`) of the newest step.
    fn sizes(&self) -> (usize, usize, usize, u32, u32) {
        let state = &self.lock().state;
        (
            state.num_sequences(),
            state.num_tokens(),
            state.num_copies(),
            state.max_query_len(),
            state.max_seq_len(),
        )
    }
}
