//! Cached prompts: which blocks hold which tokens, and who may share them.

mod namespace;

pub use namespace::{Namespace, NamespaceBuilder};
