//! Namespaces: what must never share cached blocks.

use looseleaf_core::Config;
use looseleaf_core::prefix::{ContentKey, Namespace as CoreNamespace, content_keys};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::arguments::{size, tokens};
use crate::error::{invalid_argument, invalid_type, to_python};

/// Canonical bytes of a set of parts. `looseleaf.Namespace` documents it.
#[pyclass(frozen, eq, hash, module = "looseleaf._core")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Namespace(CoreNamespace);

impl Namespace {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Text or bytes; text stands for its UTF-8.
fn content(value: &Bound<'_, PyAny>, argument: &str) -> PyResult<Vec<u8>> {
    if let Ok(text) = value.cast::<PyString>() {
        let text = text
            .to_cow()
            .map_err(|error| invalid_argument(format!("{argument} has no UTF-8 form: {error}")))?;
        return Ok(text.as_bytes().to_vec());
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    let name = value.get_type().name()?;
    Err(invalid_type(format!(
        "{argument} has type {name}, must be str or bytes"
    )))
}

#[pymethods]
impl Namespace {
    #[new]
    fn new(
        salt: Option<&Bound<'_, PyAny>>,
        adapter: Option<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        weight_epoch: Option<u64>,
        parts: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let mut builder = CoreNamespace::builder();
        if let Some(salt) = salt {
            builder = builder.salt(content(salt, "salt")?);
        }
        if let Some((id, version)) = adapter {
            builder = builder.adapter(content(&id, "adapter")?, content(&version, "adapter")?);
        }
        if let Some(epoch) = weight_epoch {
            builder = builder.weight_epoch(epoch);
        }
        for (name, value) in parts {
            builder = builder.named(content(&name, "parts")?, content(&value, "parts")?);
        }
        builder.build().map(Self).map_err(to_python)
    }

    /// 32 bytes for each whole block
    fn content_keys<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        block_size: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let tokens = self::tokens(tokens)?;
        let block_size = size(block_size, "block_size", 1..=Config::MAX_BLOCK_SIZE)?;
        if let Some(token) = tokens.iter().find(|&&token| token < 0) {
            return Err(invalid_argument(format!(
                "tokens has {token}, must be 0 to 2147483647"
            )));
        }
        let root = ContentKey::of_root(&self.0, block_size);
        let keys = content_keys(&root, &tokens, block_size);
        Ok(keys.map(|key| PyBytes::new(py, key.as_bytes())).collect())
    }

    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.as_bytes())
    }
}
