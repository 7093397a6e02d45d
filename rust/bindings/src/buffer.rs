//! The one place with unsafe code: a writable array of the caller that Rust fills at every step.

use std::ops::Range;
use std::ptr::NonNull;

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;

use crate::arguments::has_native_order;
use crate::error::{invalid_argument, invalid_type};

/// A writable, C-contiguous array, kept alive and in place for as long as this value lives.
pub(crate) struct BoundBuffer<T: Element> {
    // Keeps its owner from freeing, moving or resizing the memory.
    exporter: PyBuffer<T>,
    elements: NonNull<[T]>,
}

#[expect(unsafe_code, reason = "the pointer moves with the buffer that owns it")]
// SAFETY: `elements` points into memory that belongs to `exporter`, which is `Send` and `Sync` itself; it is read and written
// through `&mut self` only (`as_mut_slice`), so that sharing `&BoundBuffer` between threads gives no access at all.
unsafe impl<T: Element + Send> Send for BoundBuffer<T> {}

impl<T: Element> BoundBuffer<T> {
    /// Takes hold of `array`, which the error messages call `argument`.
    pub(crate) fn new(array: &Bound<'_, PyAny>, argument: &str) -> PyResult<Self> {
        let untyped = PyUntypedBuffer::get(array)
            .map_err(|error| invalid_type(format!("{argument} must be an array: {error}")))?;
        let refused = |reason: &str| {
            let format = untyped.format().to_string_lossy();
            let bits = 8 * size_of::<T>();
            invalid_type(format!(
                "{argument} has array format {format:?}, must be int{bits} in native byte order{reason}"
            ))
        };
        if !has_native_order(untyped.format()) {
            return Err(refused(""));
        }
        if let Err(error) = untyped.as_typed::<T>() {
            return Err(refused(&format!(": {error}")));
        }
        let exporter = untyped.into_typed::<T>()?;
        if exporter.readonly() {
            return Err(invalid_argument(format!(
                "{argument} is read-only, must be writable"
            )));
        }
        let Some(elements) = exporter.as_slice_ptr() else {
            return Err(invalid_argument(format!("{argument} is not C-contiguous")));
        };
        Ok(Self { exporter, elements })
    }

    /// Elements along each dimension.
    pub(crate) fn shape(&self) -> &[usize] {
        self.exporter.shape()
    }

    /// Where it lies, under the name that messages call it.
    pub(crate) fn named_range(&self, argument: &'static str) -> NamedRange {
        let start = self.elements.cast::<T>().as_ptr().addr();
        (
            argument,
            start..start + self.elements.len() * size_of::<T>(),
        )
    }

    /// The elements, for writing.
    ///
    /// The token proves that the caller is attached to the interpreter: no Python code reads the array meanwhile.
    #[expect(
        unsafe_code,
        reason = "the array belongs to Python; this is the documented way to write into it"
    )]
    pub(crate) fn as_mut_slice<'a>(&'a mut self, _attached: Python<'a>) -> &'a mut [T] {
        // SAFETY:
        // - valid, aligned, initialized, of this length: `as_slice_ptr` returned it for a C-contiguous buffer whose format is
        //   `T`'s, and the exporter may neither move nor free it before `exporter` is dropped (buffer protocol);
        // - writable: checked in `new`;
        // - unaliased: `&mut self` excludes other Rust users of this value; `Batch::new` and the calls that take further arrays
        //   have checked that those of one call do not overlap; Python code and other bound buffers are used only when this
        //   thread detaches. The slices are made and dropped inside a call's closure, which holds the attached token and
        //   therefore is not `Send`: `Managed::call_attached` takes it, the calls that detach do not, and it waits detached
        //   only outside of the closure.
        unsafe { self.elements.as_mut() }
    }
}

/// First byte of an array and one past the last, with the name that messages call it.
pub(crate) type NamedRange = (&'static str, Range<usize>);

/// Refuses arrays of one call that overlap.
pub(crate) fn check_disjoint(arrays: &[NamedRange]) -> PyResult<()> {
    let mut arrays: Vec<&NamedRange> = arrays.iter().collect();
    arrays.sort_by_key(|(_, range)| range.start);
    for pair in arrays.windows(2) {
        if pair[0].1.end > pair[1].1.start {
            return Err(invalid_argument(format!(
                "{} and {} overlap in memory",
                pair[0].0, pair[1].0
            )));
        }
    }
    Ok(())
}
