//! Faults that can be put into the code, one at a time, to see that the tests find them.
//!
//! Without `--cfg looseleaf_mutants` nothing of this is left: [`is`] is the constant `false`, [`ordering`] returns what it was given.
//! With it, the environment variable `LOOSELEAF_MUTANT` names the fault; `make mutants` runs through all of them.

use crate::sync::Ordering;

/// Whether the fault of this name is on.
#[cfg(not(looseleaf_mutants))]
pub(crate) const fn is(_name: &str) -> bool {
    false
}

/// The ordering of this site, unless a fault weakens it: `"site: no Acquire"` and `"site: no Release"` do.
#[cfg(not(looseleaf_mutants))]
pub(crate) const fn ordering(_site: &str, ordering: Ordering) -> Ordering {
    ordering
}

#[cfg(looseleaf_mutants)]
fn chosen() -> Option<&'static str> {
    static CHOSEN: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("LOOSELEAF_MUTANT").ok());
    CHOSEN.as_deref()
}

#[cfg(looseleaf_mutants)]
pub(crate) fn is(name: &str) -> bool {
    chosen() == Some(name)
}

#[cfg(looseleaf_mutants)]
pub(crate) fn ordering(site: &str, ordering: Ordering) -> Ordering {
    let dropped = chosen()
        .and_then(|name| name.strip_prefix(site))
        .and_then(|rest| rest.strip_prefix(": no "));
    match (dropped, ordering) {
        (Some("Acquire"), Ordering::Acquire) | (Some("Release"), Ordering::Release) => {
            Ordering::Relaxed
        }
        (Some("Acquire"), Ordering::AcqRel) => Ordering::Release,
        (Some("Release"), Ordering::AcqRel) => Ordering::Acquire,
        _ => ordering,
    }
}
