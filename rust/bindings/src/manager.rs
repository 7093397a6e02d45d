//! The block manager.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use looseleaf_core::{Admit, Config, Locked, Oom, PageTable, Reserve};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{OwnedCounts, cache, count, flag, handles, optional_tokens, size, tokens};
use crate::batch::Batch;
use crate::buffer::{BoundBuffer, check_disjoint};
use crate::call::Managed;
use crate::error::{invalid_argument, to_python};
use crate::namespace::Namespace;
use crate::sequence::Sequence;
use crate::stats::Stats;

/// Sequences over a pool of blocks. `looseleaf.BlockManager` documents it.
#[pyclass(frozen, module = "looseleaf._core")]
pub(crate) struct BlockManager {
    managed: Arc<Managed>,
}

impl BlockManager {
    pub(crate) fn managed(&self) -> &Arc<Managed> {
        &self.managed
    }
}

#[pymethods]
impl BlockManager {
    #[new]
    #[pyo3(signature = (num_blocks, block_size, max_sequences, max_sequence_len, prefix_caching=true))]
    fn new(
        num_blocks: &Bound<'_, PyAny>,
        block_size: &Bound<'_, PyAny>,
        max_sequences: &Bound<'_, PyAny>,
        max_sequence_len: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = prefix_caching)] prefix_caching: bool,
    ) -> PyResult<Self> {
        const LARGEST: u32 = i32::MAX.cast_unsigned();
        let config = Config::new(
            size(num_blocks, "num_blocks", 1..=Config::MAX_BLOCKS)?,
            size(block_size, "block_size", 1..=Config::MAX_BLOCK_SIZE)?,
            size(max_sequences, "max_sequences", 1..=LARGEST)?,
            size(max_sequence_len, "max_sequence_len", 1..=LARGEST)?,
        );
        // A seed that strangers cannot know: it only decides how long a search takes.
        let seed = RandomState::new().hash_one(0_u64);
        let config = config.map(|config| {
            if prefix_caching {
                config.with_prefix_cache(seed)
            } else {
                config
            }
        });
        let managed = config.and_then(Managed::new).map_err(to_python)?;
        Ok(Self { managed })
    }

    #[getter]
    fn num_blocks(&self) -> u32 {
        self.managed.core.config().num_blocks()
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.managed.core.config().block_size()
    }

    #[getter]
    fn max_sequences(&self) -> u32 {
        self.managed.core.config().max_sequences()
    }

    #[getter]
    fn max_sequence_len(&self) -> u32 {
        self.managed.core.config().max_sequence_len()
    }

    #[getter]
    fn max_blocks_per_sequence(&self) -> u32 {
        self.managed.core.config().max_blocks_per_sequence()
    }

    #[pyo3(signature = (tokens, reserve=None, namespace=None, cache=true))]
    fn admit(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        reserve: Option<&Bound<'_, PyAny>>,
        namespace: Option<&Bound<'_, Namespace>>,
        #[pyo3(from_py_with = cache)] cache: bool,
    ) -> PyResult<Sequence> {
        let tokens = self::tokens(tokens)?;
        let request = admission(&tokens, reserve, namespace, cache)?;
        let admission = self.managed.call(py, |locked| locked.admit(&request))?;
        Ok(Sequence::new(Arc::clone(&self.managed), admission))
    }

    fn can_admit(&self, py: Python<'_>, num_tokens: &Bound<'_, PyAny>) -> PyResult<bool> {
        let num_tokens = count(num_tokens, "num_tokens")?;
        self.managed.call(py, |locked| locked.can_admit(num_tokens))
    }

    #[pyo3(signature = (tokens, reserve=None, namespace=None, cache=true, num_spare=None))]
    fn can_admit_prompt(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        reserve: Option<&Bound<'_, PyAny>>,
        namespace: Option<&Bound<'_, Namespace>>,
        #[pyo3(from_py_with = cache)] cache: bool,
        num_spare: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let tokens = self::tokens(tokens)?;
        let request = admission(&tokens, reserve, namespace, cache)?;
        let num_spare = num_spare.map_or(Ok(0), |number| count(number, "num_spare"))?;
        self.managed
            .call(py, |locked| locked.can_admit_prompt(&request, num_spare))
    }

    #[pyo3(signature = (tokens, namespace=None))]
    fn lookup(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        namespace: Option<&Bound<'_, Namespace>>,
    ) -> PyResult<(u32, &'static str)> {
        let tokens = self::tokens(tokens)?;
        let request = prompt(&tokens, namespace);
        let (num_tokens, reason) = self.managed.call(py, |locked| locked.lookup(&request))?;
        Ok((num_tokens, reason.as_str()))
    }

    #[pyo3(signature = (sequences, num_new=None, tokens=None, lookahead=None, batch=None, prefix_on_oom=false))]
    #[expect(clippy::too_many_arguments, reason = "one per choice of the caller")]
    fn reserve(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        num_new: Option<&Bound<'_, PyAny>>,
        tokens: Option<&Bound<'_, PyAny>>,
        lookahead: Option<&Bound<'_, PyAny>>,
        batch: Option<&Bound<'_, Batch>>,
        prefix_on_oom: bool,
    ) -> PyResult<u32> {
        let handles = handles(sequences)?;
        let num_new = OwnedCounts::new(num_new, "num_new")?;
        let tokens = optional_tokens(tokens)?;
        let lookahead = lookahead.map(|lookahead| count(lookahead, "lookahead"));
        let request = Reserve {
            handles: &handles,
            num_new: num_new.as_counts(),
            tokens: tokens.as_deref(),
            lookahead: lookahead.transpose()?.unwrap_or(0),
            oom: if prefix_on_oom {
                Oom::Prefix
            } else {
                Oom::Fail
            },
        };
        let Some(batch) = batch else {
            return self
                .managed
                .call(py, |locked| locked.reserve(&request, None));
        };
        let batch = batch.get();
        batch.check_owner(&self.managed)?;
        self.managed.call_attached(py, |locked| {
            // The manager first: it may be waited for detached, which nobody may do who holds a batch.
            locked.reserve(&request, Some(batch.lock().parts(py)))
        })
    }

    #[pyo3(signature = (sequences, num_computed=None, tokens=None))]
    fn commit(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        num_computed: Option<&Bound<'_, PyAny>>,
        tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let handles = handles(sequences)?;
        let num_computed = OwnedCounts::new(num_computed, "num_computed")?;
        let tokens = optional_tokens(tokens)?;
        self.managed.call(py, |locked| {
            locked.commit(&handles, num_computed.as_counts(), tokens.as_deref())
        })
    }

    #[pyo3(signature = (sequences, cache=true))]
    fn release(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = cache)] cache: bool,
    ) -> PyResult<()> {
        let handles = handles(sequences)?;
        self.managed
            .call(py, |locked| locked.release_with(&handles, cache))
    }

    /// (dropped, still held)
    #[pyo3(signature = (namespace=None))]
    fn invalidate(
        &self,
        py: Python<'_>,
        namespace: Option<&Bound<'_, Namespace>>,
    ) -> PyResult<(u32, u32)> {
        let namespace = prompt(&[], namespace).namespace;
        let invalidated = self
            .managed
            .call_detached(py, |locked| locked.invalidate(namespace))?;
        Ok((invalidated.num_dropped, invalidated.num_held))
    }

    /// (dropped, still held)
    fn reset(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        let invalidated = self.managed.call_detached(py, Locked::reset)?;
        Ok((invalidated.num_dropped, invalidated.num_held))
    }

    fn evict(&self, py: Python<'_>, num_blocks: &Bound<'_, PyAny>) -> PyResult<u32> {
        let num_blocks = count(num_blocks, "num_blocks")?;
        self.managed.run_detached(py, |core| core.evict(num_blocks))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        let stats = self.managed.call(py, |locked| Ok(locked.stats()))?;
        Ok(Stats::new(&stats))
    }

    fn validate(&self, py: Python<'_>) -> PyResult<()> {
        self.managed.call_detached(py, Locked::validate)
    }

    /// 32 bytes
    fn digest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let digest = self.managed.call_detached(py, Locked::digest)?;
        Ok(PyBytes::new(py, &digest))
    }

    fn gather_rows(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        table: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let handles = handles(sequences)?;
        let mut table = BoundBuffer::<i32>::new(table, "table")?;
        let columns = match *table.shape() {
            [rows, columns] if rows == handles.len() => columns,
            ref shape => {
                return Err(invalid_argument(format!(
                    "table has shape {shape:?}, must be [{}, columns]",
                    handles.len()
                )));
            }
        };
        self.managed
            .check_outside_batches(&[table.named_range("table")])?;
        self.managed.call_attached(py, |locked| {
            locked.gather_rows(&handles, table.as_mut_slice(py), columns)
        })
    }

    fn csr(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        indptr: &Bound<'_, PyAny>,
        indices: &Bound<'_, PyAny>,
        last_page_len: &Bound<'_, PyAny>,
    ) -> PyResult<u32> {
        let handles = handles(sequences)?;
        let mut indptr = BoundBuffer::<i32>::new(indptr, "indptr")?;
        let mut indices = BoundBuffer::<i32>::new(indices, "indices")?;
        let mut last_page_len = BoundBuffer::<i32>::new(last_page_len, "last_page_len")?;
        let ranges = [
            indptr.named_range("indptr"),
            indices.named_range("indices"),
            last_page_len.named_range("last_page_len"),
        ];
        check_disjoint(&ranges)?;
        self.managed.check_outside_batches(&ranges)?;
        self.managed.call_attached(py, |locked| {
            let mut table = PageTable {
                indptr: indptr.as_mut_slice(py),
                indices: indices.as_mut_slice(py),
                last_page_len: last_page_len.as_mut_slice(py),
            };
            locked.csr(&handles, &mut table)
        })
    }

    /// For tests: short calls detach from here on, so that threads meet under the mutex.
    fn _detach_always(&self) {
        self.managed.detach_always();
    }

    /// For tests: a panic under the mutex.
    fn _panic(&self, py: Python<'_>) -> PyResult<()> {
        self.managed.call(py, |_| panic!("asked to"))
    }
}

fn prefix_caching(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    flag(value, "prefix_caching")
}

/// A prompt in a namespace, by default the one without parts.
fn prompt<'a>(tokens: &'a [i32], namespace: Option<&'a Bound<'_, Namespace>>) -> Admit<'a> {
    let plain = Admit::new(tokens);
    Admit {
        namespace: namespace.map_or(plain.namespace, |namespace| namespace.get().as_bytes()),
        ..plain
    }
}

/// A prompt that wants to become a sequence, with all its wishes.
fn admission<'a>(
    tokens: &'a [i32],
    reserve: Option<&Bound<'_, PyAny>>,
    namespace: Option<&'a Bound<'_, Namespace>>,
    cache: bool,
) -> PyResult<Admit<'a>> {
    let reserve = reserve.map(|reserve| count(reserve, "reserve"));
    Ok(Admit {
        reserve: reserve.transpose()?,
        cache,
        ..prompt(tokens, namespace)
    })
}
