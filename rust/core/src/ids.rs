//! Newtypes for every index, with checked conversions.
//!
//! A block id crosses the boundary as int32 and a sequence handle as int64, so both types hold only what fits there: a
//! conversion outwards never fails, a conversion inwards returns an `Option`.

use std::fmt;

const _: () = assert!(usize::BITS >= u32::BITS, "an id indexes an array");

/// A block of the pool, or the null block.
///
/// Usable blocks have the ids `1..=num_blocks`. Block 0 is the null block: it is never allocated and is what padded table
/// cells point to.
///
/// # Examples
///
/// ```
/// use looseleaf_core::BlockId;
///
/// let block = BlockId::new(7).expect("7 fits int32");
/// assert_eq!(block.as_i32(), 7);
/// assert_eq!(BlockId::new(1 << 31), None);
/// assert_eq!(BlockId::default(), BlockId::NULL);
/// ```
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockId(u32);

impl BlockId {
    /// The null block.
    pub const NULL: Self = Self(0);

    /// The largest id, `i32::MAX`.
    pub const MAX: Self = Self(i32::MAX.cast_unsigned());

    /// The block with this id; `None` if it does not fit int32.
    #[must_use]
    pub const fn new(id: u32) -> Option<Self> {
        if id <= Self::MAX.0 {
            Some(Self(id))
        } else {
            None
        }
    }

    /// The id as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The id as an index into an array of `num_blocks + 1` entries.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The id as kernels read it.
    #[must_use]
    pub const fn as_i32(self) -> i32 {
        self.0.cast_signed() // never negative: `new` admits no id above i32::MAX
    }

    /// The block that a table cell holds. Cells are written from ids, so a negative one cannot be; it would read as null.
    pub(crate) const fn from_cell(cell: i32) -> Self {
        if cell < 0 {
            Self::NULL
        } else {
            Self(cell.cast_unsigned())
        }
    }

    /// Whether this is the null block.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A sequence: its slot in the manager, and how many sequences had the slot up to this one.
///
/// The generation makes a handle unique: a handle that was kept past its sequence's release never names the slot's next
/// sequence.
///
/// # Examples
///
/// ```
/// use looseleaf_core::SeqId;
///
/// let sequence = SeqId::new(5, 1).expect("generations start at 1");
/// assert_eq!(sequence.to_handle(), (1 << 32) + 5);
/// assert_eq!(SeqId::from_handle(sequence.to_handle()), Some(sequence));
/// assert_eq!(SeqId::from_handle(5), None); // generation 0 was never issued
/// assert_eq!(SeqId::from_handle(-1), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    index: u32,
    generation: u32,
}

impl SeqId {
    /// The largest generation, `i32::MAX`: a handle is never negative.
    pub const MAX_GENERATION: u32 = i32::MAX.cast_unsigned();

    /// The sequence of this generation in slot `index`; `None` unless the generation is in `1..=i32::MAX`.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Option<Self> {
        if generation >= 1 && generation <= Self::MAX_GENERATION {
            Some(Self { index, generation })
        } else {
            None
        }
    }

    /// The slot in the manager.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Which of the slot's sequences this is, counted from 1.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// The handle that stands for this sequence outside: `generation << 32 | index`, always positive.
    #[must_use]
    pub fn to_handle(self) -> i64 {
        i64::from(self.generation) << 32 | i64::from(self.index)
    }

    /// The sequence that a handle stands for; `None` if no sequence can have this handle.
    #[must_use]
    pub fn from_handle(handle: i64) -> Option<Self> {
        let generation = u32::try_from(handle >> 32).ok()?;
        let index = u32::try_from(handle & i64::from(u32::MAX)).ok()?;
        Self::new(index, generation)
    }
}

impl fmt::Debug for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}.{}", self.index, self.generation)
    }
}
