//! Content keys: names of cached blocks that are the same in every process and on every machine.
//!
//! # Problem
//!
//! Inside a process a block is found by its tokens. A router, a second engine or a store on disk needs a short name for "these
//! tokens, after exactly these, in this namespace", computed without asking anybody.
//!
//! # Format, version 1
//!
//! A chain of SHA-256, so that a key stands for its whole prefix:
//!
//! ```text
//! root    = SHA-256("looseleaf content key 1" 00 | block size (4 bytes) | bytes of the namespace)
//! key     = SHA-256(key of the predecessor, or root | tokens (4 bytes each))      integers little-endian, tokens signed
//! ```
//!
//! SHA-256 because a key is believed without its tokens, across tenants, so it must not collide, and because every language has
//! it: in Python a key is one call of `hashlib.sha256`. A block of 16 tokens takes two of its rounds.

use std::fmt;

use sha2::{Digest, Sha256};

use super::Namespace;

/// Keeps keys apart from other uses of SHA-256 and from other versions. No key starts with these 24 bytes.
const DOMAIN: &[u8; 24] = b"looseleaf content key 1\0";

/// Name of a block's content and all that stands before it, or of the start of a namespace.
///
/// # Examples
///
/// ```
/// use looseleaf_core::prefix::{ContentKey, Namespace, content_keys};
///
/// let root = ContentKey::of_root(&Namespace::default(), 4);
/// let first = root.child(&[1, 2, 3, 4]);
/// let keys: Vec<_> = content_keys(&root, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 4).collect();
/// assert_eq!(keys, [first, first.child(&[5, 6, 7, 8])]); // token 9 fills no block
/// assert_eq!(first.low64(), 693_080_320_297_914_267);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentKey([u8; 32]);

impl ContentKey {
    /// What the first block of a prompt follows. Keys of different block sizes have nothing in common.
    #[must_use]
    pub fn of_root(namespace: &Namespace, block_size: u32) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(DOMAIN);
        hasher.update(block_size.to_le_bytes());
        hasher.update(namespace.as_bytes());
        Self(hasher.finalize().into())
    }

    /// The key of a block with these tokens whose predecessor has this key.
    #[must_use]
    pub fn child(&self, tokens: &[i32]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        for token in tokens {
            hasher.update(token.to_le_bytes());
        }
        Self(hasher.finalize().into())
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The low 64 bits of the key as a big-endian number: the last 16 hexadecimal digits of its display. For events, where a
    /// collision costs a wrong guess at most.
    #[must_use]
    pub fn low64(&self) -> u64 {
        let low = self.0[24..].iter();
        low.fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

/// As 64 hexadecimal digits.
impl fmt::Display for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentKey({self})")
    }
}

/// The keys of the whole blocks in `tokens`, in order, where `predecessor` is the key of what stands before them.
///
/// # Panics
///
/// If `block_size` is 0.
#[must_use]
pub fn content_keys(
    predecessor: &ContentKey,
    tokens: &[i32],
    block_size: u32,
) -> impl ExactSizeIterator<Item = ContentKey> {
    let mut key = *predecessor;
    tokens.chunks_exact(block_size as usize).map(move |block| {
        key = key.child(block);
        key
    })
}
