//! Cached prompts: which blocks hold which tokens, and who may share them.

mod key;
mod namespace;

pub use key::{ContentKey, content_keys};
pub use namespace::{Namespace, NamespaceBuilder};
