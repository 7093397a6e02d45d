//! The block manager.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use looseleaf_core::{Admit, BlockManager as CoreManager, Config, Locked, Reserve};
use pyo3::prelude::*;

use crate::arguments::{OwnedCounts, count, handles, optional_tokens, size, tokens};
use crate::batch::Batch;
use crate::error::to_python;
use crate::namespace::Namespace;
use crate::sequence::Sequence;
use crate::stats::Stats;

/// The manager's mutex, taken while attached. Waits detached, so that whoever holds it can finish.
pub(crate) fn locked<'a>(py: Python<'_>, manager: &'a CoreManager) -> PyResult<Locked<'a>> {
    loop {
        if let Some(locked) = manager.try_lock().map_err(to_python)? {
            return Ok(locked);
        }
        py.detach(|| manager.lock().map(drop)).map_err(to_python)?;
    }
}

/// Sequences over a pool of blocks. `looseleaf.BlockManager` documents it.
#[pyclass(frozen, module = "looseleaf._core")]
pub(crate) struct BlockManager {
    core: Arc<CoreManager>,
}

impl BlockManager {
    pub(crate) fn core(&self) -> &Arc<CoreManager> {
        &self.core
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
        prefix_caching: bool,
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
        let core = config.and_then(CoreManager::new).map_err(to_python)?;
        Ok(Self {
            core: Arc::new(core),
        })
    }

    #[getter]
    fn num_blocks(&self) -> u32 {
        self.core.config().num_blocks()
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.core.config().block_size()
    }

    #[getter]
    fn max_sequences(&self) -> u32 {
        self.core.config().max_sequences()
    }

    #[getter]
    fn max_sequence_len(&self) -> u32 {
        self.core.config().max_sequence_len()
    }

    #[getter]
    fn max_blocks_per_sequence(&self) -> u32 {
        self.core.config().max_blocks_per_sequence()
    }

    #[pyo3(signature = (tokens, reserve=None, namespace=None, cache=true))]
    fn admit(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        reserve: Option<&Bound<'_, PyAny>>,
        namespace: Option<&Bound<'_, Namespace>>,
        cache: bool,
    ) -> PyResult<Sequence> {
        let tokens = self::tokens(tokens)?;
        let request = admission(&tokens, reserve, namespace, cache)?;
        let admission = locked(py, &self.core)?.admit(&request).map_err(to_python)?;
        Ok(Sequence::new(Arc::clone(&self.core), admission))
    }

    fn can_admit(&self, py: Python<'_>, num_tokens: &Bound<'_, PyAny>) -> PyResult<bool> {
        let num_tokens = count(num_tokens, "num_tokens")?;
        locked(py, &self.core)?
            .can_admit(num_tokens)
            .map_err(to_python)
    }

    #[pyo3(signature = (tokens, reserve=None, namespace=None, cache=true))]
    fn can_admit_prompt(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        reserve: Option<&Bound<'_, PyAny>>,
        namespace: Option<&Bound<'_, Namespace>>,
        cache: bool,
    ) -> PyResult<bool> {
        let tokens = self::tokens(tokens)?;
        let request = admission(&tokens, reserve, namespace, cache)?;
        locked(py, &self.core)?
            .can_admit_prompt(&request)
            .map_err(to_python)
    }

    #[pyo3(signature = (tokens, namespace=None))]
    fn lookup(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        namespace: Option<&Bound<'_, Namespace>>,
    ) -> PyResult<(u32, &'static str)> {
        let tokens = self::tokens(tokens)?;
        let found = locked(py, &self.core)?.lookup(&prompt(&tokens, namespace));
        let (num_tokens, reason) = found.map_err(to_python)?;
        Ok((num_tokens, reason.as_str()))
    }

    #[pyo3(signature = (sequences, num_new=None, tokens=None, lookahead=None, batch=None))]
    fn reserve(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        num_new: Option<&Bound<'_, PyAny>>,
        tokens: Option<&Bound<'_, PyAny>>,
        lookahead: Option<&Bound<'_, PyAny>>,
        batch: Option<&Bound<'_, Batch>>,
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
            oom: looseleaf_core::Oom::Fail,
        };
        let batch = batch.map(Bound::get);
        if let Some(batch) = batch {
            batch.check_owner(&self.core)?;
        }
        // The manager first: it may wait detached, which nobody may do who holds a batch.
        let mut locked = locked(py, &self.core)?;
        let mut bound = batch.map(Batch::lock);
        let buffers = bound.as_mut().map(|bound| bound.parts(py));
        locked.reserve(&request, buffers).map_err(to_python)
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
        locked(py, &self.core)?
            .commit(&handles, num_computed.as_counts(), tokens.as_deref())
            .map_err(to_python)
    }

    #[pyo3(signature = (sequences, cache=true))]
    fn release(&self, py: Python<'_>, sequences: &Bound<'_, PyAny>, cache: bool) -> PyResult<()> {
        let handles = handles(sequences)?;
        locked(py, &self.core)?
            .release_with(&handles, cache)
            .map_err(to_python)
    }

    /// (dropped, still held)
    #[pyo3(signature = (namespace=None))]
    fn invalidate(
        &self,
        py: Python<'_>,
        namespace: Option<&Bound<'_, Namespace>>,
    ) -> PyResult<(u32, u32)> {
        let namespace = prompt(&[], namespace).namespace;
        let invalidated = locked(py, &self.core)?
            .invalidate(namespace)
            .map_err(to_python)?;
        Ok((invalidated.num_dropped, invalidated.num_held))
    }

    /// (dropped, still held)
    fn reset(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        let invalidated = locked(py, &self.core)?.reset().map_err(to_python)?;
        Ok((invalidated.num_dropped, invalidated.num_held))
    }

    fn evict(&self, py: Python<'_>, num_blocks: &Bound<'_, PyAny>) -> PyResult<u32> {
        let num_blocks = count(num_blocks, "num_blocks")?;
        locked(py, &self.core)?.evict(num_blocks).map_err(to_python)
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        Ok(Stats::new(&locked(py, &self.core)?.stats()))
    }

    fn validate(&self, py: Python<'_>) -> PyResult<()> {
        locked(py, &self.core)?.validate().map_err(to_python)
    }
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
