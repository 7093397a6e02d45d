//! The one place that names std's or loom's types. Everything else imports from here.
//!
//! `--cfg looseleaf_loom` swaps in loom's, which run a model through its interleavings and the reorderings that the
//! orderings permit. Loom mirrors an older std, so the crate keeps to `compare_exchange_weak` and `fetch_*`.

#[cfg(looseleaf_loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(looseleaf_loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// Puts a value on cache lines of its own: 128 bytes, because x86 fetches lines in pairs and some ARM cores have lines of
/// this size.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct OwnLine<T>(pub(crate) T);
