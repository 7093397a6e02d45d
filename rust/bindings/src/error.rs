//! Core errors as the exceptions of `looseleaf.errors`.

use std::any::Any;

use looseleaf_core::Error;
use pyo3::PyErr;
use pyo3::import_exception;

import_exception!(looseleaf.errors, BatchTooSmall);
import_exception!(looseleaf.errors, CorruptState);
import_exception!(looseleaf.errors, DuplicateSequence);
import_exception!(looseleaf.errors, EmptyPrompt);
import_exception!(looseleaf.errors, ForkedProcess);
import_exception!(looseleaf.errors, InvalidArgument);
import_exception!(looseleaf.errors, InvalidType);
import_exception!(looseleaf.errors, NeverFits);
import_exception!(looseleaf.errors, OutOfBlocks);
import_exception!(looseleaf.errors, OutOfMemory);
import_exception!(looseleaf.errors, SequenceTooLong);
import_exception!(looseleaf.errors, StaleSequence);
import_exception!(looseleaf.errors, TooManySequences);
import_exception!(looseleaf.errors, UnknownSequence);

/// An argument whose value is not allowed.
pub(crate) fn invalid_argument(message: String) -> PyErr {
    InvalidArgument::new_err(message)
}

/// An argument whose type is not allowed.
pub(crate) fn invalid_type(message: String) -> PyErr {
    InvalidType::new_err(message)
}

/// A manager of another process was used.
pub(crate) fn forked_process(process: u32) -> PyErr {
    ForkedProcess::new_err(process)
}

/// A call has panicked.
pub(crate) fn panicked(payload: &(dyn Any + Send)) -> PyErr {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    CorruptState::new_err(format!(
        "a call panicked inside the manager ({}); build a new one",
        text.unwrap_or("no text")
    ))
}

/// The exception for a core error.
pub(crate) fn to_python(error: Error) -> PyErr {
    match error {
        Error::OutOfBlocks {
            requested,
            free,
            evictable,
        } => OutOfBlocks::new_err((requested, free, evictable)),
        Error::NeverFits {
            requested,
            capacity,
        } => NeverFits::new_err((requested, capacity)),
        Error::EmptyPrompt => EmptyPrompt::new_err(()),
        Error::SequenceTooLong {
            requested,
            max_sequence_len,
        } => SequenceTooLong::new_err((requested, max_sequence_len)),
        Error::TooManySequences { max_sequences } => TooManySequences::new_err(max_sequences),
        Error::StaleSequence { handle } => StaleSequence::new_err(handle),
        Error::UnknownSequence { handle } => UnknownSequence::new_err(handle),
        Error::DuplicateSequence { handle } => DuplicateSequence::new_err(handle),
        Error::BatchTooSmall {
            what,
            requested,
            limit,
        } => BatchTooSmall::new_err((what, requested, limit)),
        Error::InvalidArgument { .. } => InvalidArgument::new_err(error.to_string()),
        Error::OutOfMemory { requested_bytes } => OutOfMemory::new_err((requested_bytes, 0, "cpu")),
        // NotHeld, Corrupt, Poisoned: the allocator's own state is wrong, whatever the caller passed.
        error => CorruptState::new_err(error.to_string()),
    }
}
