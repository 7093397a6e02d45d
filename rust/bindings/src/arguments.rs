//! Integers from Python: lists at the edges, arrays on the step path.

use std::ffi::CStr;
use std::ops::RangeInclusive;

use looseleaf_core::Counts;
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use crate::error::{invalid_argument, invalid_type};

/// The values of a one-dimensional int32 or int64 array, or of a sequence of integers.
fn integers(value: &Bound<'_, PyAny>, argument: &str) -> PyResult<Vec<i64>> {
    let py = value.py();
    if let Ok(buffer) = PyUntypedBuffer::get(value) {
        if buffer.dimensions() != 1 {
            return Err(invalid_argument(format!(
                "{argument} has {} dimensions, must have 1",
                buffer.dimensions()
            )));
        }
        if has_native_order(buffer.format()) {
            if let Ok(typed) = buffer.as_typed::<i64>() {
                return typed.to_vec(py);
            }
            if let Ok(typed) = buffer.as_typed::<i32>() {
                return Ok(typed.to_vec(py)?.into_iter().map(i64::from).collect());
            }
        }
        let format = buffer.format().to_string_lossy();
        let allowed = "must be int32 or int64 in native byte order";
        if !is_native_integer(buffer.format()) {
            return Err(invalid_type(format!(
                "{argument} has array format {format:?}, {allowed}"
            )));
        }
        // One that pyo3 does not read, such as one that is not aligned: number by number.
        return value.extract().map_err(|error: PyErr| {
            invalid_type(format!(
                "{argument} has array format {format:?}, {allowed}: {error}"
            ))
        });
    }
    value.extract::<Vec<i64>>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(py) {
            invalid_argument(format!("{argument} has a value that does not fit int64"))
        } else if error.is_instance_of::<PyTypeError>(py) {
            invalid_type(format!(
                "{argument} must be an int32 or int64 array or a sequence of int: {error}"
            ))
        } else {
            // Code of the caller's, which was asked for an element.
            error
        }
    })
}

/// Whether elements of this format are signed integers with the machine's byte order, said in one way or another.
fn is_native_integer(format: &CStr) -> bool {
    let kind = match format.to_bytes() {
        [kind] | [b'@' | b'=' | b'<' | b'>', kind] => *kind,
        _ => return false,
    };
    has_native_order(format) && b"ilq".contains(&kind)
}

fn narrowed<T: TryFrom<i64>>(values: Vec<i64>, argument: &str, allowed: &str) -> PyResult<Vec<T>> {
    let narrow = |value: i64| {
        T::try_from(value)
            .map_err(|_| invalid_argument(format!("{argument} has {value}, must be {allowed}")))
    };
    values.into_iter().map(narrow).collect()
}

/// Token ids, not negative and below 2^31.
pub(crate) fn tokens(value: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    if let Ok(buffer) = PyBuffer::<i32>::get(value)
        && has_native_order(buffer.format())
        && buffer.dimensions() == 1
    {
        return buffer.to_vec(value.py());
    }
    narrowed(integers(value, "tokens")?, "tokens", "0 to 2147483647")
}

/// Token ids that may be left out.
pub(crate) fn optional_tokens(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<i32>>> {
    value.map(tokens).transpose()
}

/// Sequence handles.
pub(crate) fn handles(value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    integers(value, "sequences")
}

/// Whether elements of this format have the machine's byte order. pyo3 takes `>` for native on every machine, and would read
/// the bytes of each element backwards.
pub(crate) fn has_native_order(format: &CStr) -> bool {
    let foreign: &[u8] = if cfg!(target_endian = "little") {
        b">!"
    } else {
        b"<"
    };
    format
        .to_bytes()
        .first()
        .is_none_or(|order| !foreign.contains(order))
}

/// The wish to take part in the prefix cache.
pub(crate) fn cache(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    flag(value, "cache")
}

/// True or False, and nothing that only counts as one of them.
pub(crate) fn flag(value: &Bound<'_, PyAny>, argument: &str) -> PyResult<bool> {
    let flag = value.extract();
    flag.map_err(|_| wrong_type(value, argument, "a bool"))
}

fn wrong_type(value: &Bound<'_, PyAny>, argument: &str, allowed: &str) -> PyErr {
    match value.get_type().name() {
        Ok(name) => invalid_type(format!("{argument} has type {name}, must be {allowed}")),
        Err(error) => error,
    }
}

/// A whole number from 0 on that fits a `u32`.
pub(crate) fn count(value: &Bound<'_, PyAny>, argument: &str) -> PyResult<u32> {
    size(value, argument, 0..=u32::MAX)
}

/// A whole number within a range.
pub(crate) fn size(
    value: &Bound<'_, PyAny>,
    argument: &str,
    allowed: RangeInclusive<u32>,
) -> PyResult<u32> {
    let number = match value.extract::<i64>() {
        Ok(number) => u32::try_from(number).ok(),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => None,
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            return Err(wrong_type(value, argument, "an int"));
        }
        Err(error) => return Err(error),
    };
    number
        .filter(|number| allowed.contains(number))
        .ok_or_else(|| {
            invalid_argument(format!(
                "{argument} is {value}, must be {} to {}",
                allowed.start(),
                allowed.end()
            ))
        })
}

/// One number for all sequences, one for each, or the call's default.
pub(crate) enum OwnedCounts {
    Default,
    Same(u32),
    Each(Vec<u32>),
}

impl OwnedCounts {
    pub(crate) fn new(value: Option<&Bound<'_, PyAny>>, argument: &str) -> PyResult<Self> {
        let Some(value) = value else {
            return Ok(Self::Default);
        };
        match value.extract::<i64>() {
            Ok(_) => return Ok(Self::Same(count(value, argument)?)),
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
                return Ok(Self::Same(count(value, argument)?));
            }
            Err(error) if !error.is_instance_of::<PyTypeError>(value.py()) => return Err(error),
            Err(_) => {}
        }
        narrowed(integers(value, argument)?, argument, "0 to 4294967295").map(Self::Each)
    }

    pub(crate) fn as_counts(&self) -> Counts<'_> {
        match self {
            Self::Default => Counts::Default,
            Self::Same(count) => Counts::Same(*count),
            Self::Each(counts) => Counts::Each(counts),
        }
    }
}
