//! Namespaces: what must never share cached blocks, as canonical bytes.
//!
//! # Problem
//!
//! Equal tokens do not make equal KV: another adapter, newer weights or an image behind a placeholder token changes them, and
//! two tenants must not learn from each other's timing. So every prompt belongs to a namespace, and blocks are shared within
//! one only. Parts that are pasted together as text collide (`"ab" + "c"` is `"a" + "bc"`); parts without a tag let a salt pass
//! for an adapter.
//!
//! # Format, version 1
//!
//! A namespace is a set of parts. Its bytes are the version, then the parts in the order of their tags, named parts in the
//! order of their names (compared byte by byte):
//!
//! ```text
//! bytes = 01 part*
//! part  = tag field field*        the tag says how many fields
//! field = length (8 bytes, little-endian) content
//! ```
//!
//! | tag | part | fields |
//! |---|---|---|
//! | 1 | salt | salt |
//! | 2 | adapter | id, version |
//! | 3 | weight epoch | number (8 bytes, little-endian) |
//! | 4 | named part | name, value |
//!
//! Two sets of parts have the same bytes only if they are equal, and the order in which parts are given does not matter. An
//! empty part is not a missing part. The format is part of the contract: other processes may build these bytes themselves.

use std::fmt;

use crate::Error;

/// First byte of the canonical bytes.
const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Tag {
    Salt = 1,
    Adapter = 2,
    WeightEpoch = 3,
    Named = 4,
}

/// What a prompt's cached blocks may be shared with: prompts of the same namespace.
///
/// The default is the namespace without parts.
///
/// # Examples
///
/// ```
/// use looseleaf_core::prefix::Namespace;
///
/// let tenant = Namespace::builder().salt("tenant-7").adapter("sql", "3").build()?;
/// let same = Namespace::builder().adapter("sql", "3").salt("tenant-7").build()?;
/// assert_eq!(tenant, same);
/// assert_ne!(tenant, Namespace::builder().salt("tenant-7").build()?);
/// assert_eq!(Namespace::default().as_bytes(), [1]);
/// # Ok::<(), looseleaf_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    bytes: Box<[u8]>,
}

impl Namespace {
    /// A namespace to be put together from parts.
    pub fn builder() -> NamespaceBuilder {
        NamespaceBuilder::default()
    }

    /// The canonical bytes, in the format that the module describes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self {
            bytes: Box::new([VERSION]),
        }
    }
}

/// Shows the number of bytes only: a salt may be a secret.
impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({} bytes)", self.bytes.len())
    }
}

/// Parts of a [`Namespace`], in any order.
///
/// Text and bytes are the same: `"S"` equals `b"S"`.
#[derive(Clone, Default)]
#[must_use = "parts become a namespace by `build`"]
pub struct NamespaceBuilder {
    parts: Vec<Part>,
}

#[derive(Clone)]
struct Part {
    tag: Tag,
    fields: Vec<Vec<u8>>,
}

impl Part {
    /// Parts with the same key exclude each other, and parts stand in the order of their keys.
    fn key(&self) -> (Tag, &[u8]) {
        match self.tag {
            Tag::Named => (self.tag, &self.fields[0]),
            _ => (self.tag, &[]),
        }
    }
}

impl NamespaceBuilder {
    /// Separates tenants from each other.
    pub fn salt(self, salt: impl AsRef<[u8]>) -> Self {
        self.part(Tag::Salt, &[salt.as_ref()])
    }

    /// The adapter that computed the blocks. One that is loaded again with other weights needs another version.
    pub fn adapter(self, id: impl AsRef<[u8]>, version: impl AsRef<[u8]>) -> Self {
        self.part(Tag::Adapter, &[id.as_ref(), version.as_ref()])
    }

    /// Counts the updates of the model's weights, in training for example.
    pub fn weight_epoch(self, epoch: u64) -> Self {
        self.part(Tag::WeightEpoch, &[&epoch.to_le_bytes()])
    }

    /// Anything else that changes what a block holds, such as the digest of an image. Names are the caller's.
    pub fn named(self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.part(Tag::Named, &[name.as_ref(), value.as_ref()])
    }

    /// Puts the parts into canonical order.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a part was given twice, be it with the same content; named parts may repeat with different
    /// names.
    pub fn build(mut self) -> Result<Namespace, Error> {
        self.parts.sort_by(|a, b| a.key().cmp(&b.key()));
        for pair in self.parts.windows(2) {
            if pair[0].key() == pair[1].key() {
                return Err(Error::InvalidArgument {
                    argument: "namespace",
                    message: describe_repetition(&pair[0]),
                });
            }
        }
        let mut bytes = vec![VERSION];
        for part in &self.parts {
            bytes.push(part.tag as u8);
            for field in &part.fields {
                bytes.extend((field.len() as u64).to_le_bytes());
                bytes.extend(field);
            }
        }
        Ok(Namespace {
            bytes: bytes.into_boxed_slice(),
        })
    }

    fn part(mut self, tag: Tag, fields: &[&[u8]]) -> Self {
        let fields = fields.iter().map(|field| field.to_vec()).collect();
        self.parts.push(Part { tag, fields });
        self
    }
}

/// Shows the number of parts only: a salt may be a secret.
impl fmt::Debug for NamespaceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamespaceBuilder({} parts)", self.parts.len())
    }
}

fn describe_repetition(part: &Part) -> String {
    match part.tag {
        Tag::Salt => "has two salts".to_owned(),
        Tag::Adapter => "has two adapters".to_owned(),
        Tag::WeightEpoch => "has two weight epochs".to_owned(),
        Tag::Named => {
            let name = String::from_utf8_lossy(&part.fields[0]);
            format!("has two parts named {name:?}")
        }
    }
}
