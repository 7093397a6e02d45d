//! One sequence: its three lengths and what the step path must know of its table, in one cache line.
//!
//! The lengths are stored, never inferred:
//! - **known**: tokens whose ids were given, by admit, reserve or commit;
//! - **reserved**: slots that may be written in the current step, `computed <= reserved`, at most what the blocks of the table hold;
//! - **computed**: tokens whose keys and values lie in the cache, as commit said.
//!
//! Blocks past the reserved slots (from admit or from a lookahead) are capacity, no more: never shared, never published.

use crate::plain::Plain;
use crate::{BlockId, SeqId};

/// The place of one sequence. A place is used again after its release, under the next generation.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Sequence {
    /// What a decode step compares with a handle, in place of most of what follows.
    pub(crate) plain: Plain,
    /// Number of the last call that named this sequence: finds one that stands twice.
    pub(crate) last_call: u64,
    /// A new number whenever a table cell that existed is changed or removed, of those that no other table of the manager ever
    /// had. While it stays the same, the table has only grown, so that a copy of it needs no more than the new cells.
    pub(crate) table_epoch: u64,
    /// Generation of the newest sequence in this place; 0 before the first.
    pub(crate) generation: u32,
    pub(crate) known: u32,
    pub(crate) reserved: u32,
    pub(crate) computed: u32,
    pub(crate) num_cached: u32,
    /// Blocks in the table.
    pub(crate) num_blocks: u32,
    /// The block that holds position `computed`: where a decode step writes. Null if the table does not reach so far.
    pub(crate) tail: BlockId,
    /// First position of that block.
    pub(crate) tail_start: u32,
    /// Leading blocks of the table that are in the prefix tree with this sequence's content.
    pub(crate) num_published: u32,
    pub(crate) is_alive: bool,
    /// Whether full blocks are published as they are computed.
    pub(crate) publishes: bool,
    /// Whether the block that holds position `computed` is known to be this sequence's alone, neither published nor with a copy
    /// into it pending, so that a step may write there without looking. Cleared by what may change that: a fork, a truncation,
    /// and a copy, until a commit acknowledges it.
    pub(crate) owns_tail: bool,
}

const _: () = assert!(size_of::<Sequence>() == 64, "one cache line");

/// A copy that the current step has to run before it writes: into the block in `column`, from `source`, which is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCopy {
    pub(crate) column: u32,
    pub(crate) source: BlockId,
}

impl Sequence {
    /// What [`plain`](Self#structfield.plain) has to be.
    pub(crate) fn recount_plain(&self, place: u32, longest: u32) -> Plain {
        let id = SeqId::new(place, self.generation).filter(|_| self.is_alive && self.owns_tail);
        let Some(handle) = id.map(SeqId::to_handle) else {
            return Plain::NEITHER;
        };
        match (self.known == self.reserved).then(|| self.reserved - self.computed) {
            Some(0) => Plain::before_step(handle, self.computed < longest),
            Some(1) => Plain::after_reserve(handle),
            _ => Plain::NEITHER,
        }
    }

    /// Notes that nobody else has the tail.
    pub(crate) fn own_tail(&mut self, place: u32, longest: u32) {
        self.owns_tail = true;
        self.plain = self.recount_plain(place, longest);
    }

    /// Known tokens that are not computed yet; at least one, since a decode step computes a token that is about to be given.
    pub(crate) fn pending_tokens(&self) -> u32 {
        self.known.saturating_sub(self.computed).max(1)
    }

    /// Positions below `end` whose token ids are not known yet.
    pub(crate) fn unknown_below(&self, end: u32) -> u32 {
        end.saturating_sub(self.known)
    }
}

/// What a caller may see of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens whose ids are known.
    pub known: u32,
    /// Slots that the current step may write, counted from position 0.
    pub reserved: u32,
    /// Tokens whose keys and values are in the cache.
    pub computed: u32,
    /// Tokens that were in the cache when the sequence began: the prefix hit of its admission, or its parent's computed tokens. At
    /// most the present length.
    pub cached: u32,
}
