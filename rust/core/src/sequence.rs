//! One sequence: its tokens, its three lengths, its block table and its pending copy.
//!
//! The lengths are stored, never inferred:
//! - **known**: tokens whose ids were given, by admit, reserve or commit;
//! - **reserved**: slots that may be written in the current step, `computed <= reserved <= capacity`;
//! - **computed**: tokens whose keys and values lie in the cache, as commit said.
//!
//! Blocks past the reserved slots (from admit or from a lookahead) are capacity, no more: never shared, never published.

use crate::{BlockId, BlockTable, SeqId};

/// A copy that the current step has to run before it writes: into the block in `column`, from `source`, which is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCopy {
    pub(crate) column: usize,
    pub(crate) source: BlockId,
}

/// The place of one sequence. A place is used again after its release, under the next generation.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// The newest sequence in this place; `None` before the first.
    pub(crate) id: Option<SeqId>,
    pub(crate) is_alive: bool,
    /// Number of the last call that named this sequence: finds one that stands twice.
    pub(crate) last_call: u64,
    pub(crate) tokens: Vec<i32>,
    pub(crate) num_cached: u32,
    pub(crate) reserved: u32,
    pub(crate) computed: u32,
    pub(crate) table: BlockTable,
    pub(crate) pending: Option<PendingCopy>,
}

impl Sequence {
    /// Number of known tokens.
    pub(crate) fn known(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Known tokens that are not computed yet; at least one, since a decode step computes a token that is about to be given.
    pub(crate) fn pending_tokens(&self) -> u32 {
        self.known().saturating_sub(self.computed).max(1)
    }

    /// Takes the ids of the positions below `end` that are not known yet from the front of `tokens`, as far as there are any.
    pub(crate) fn learn(&mut self, tokens: &mut &[i32], end: u32) {
        let (own, rest) = tokens.split_at((self.unknown_below(end) as usize).min(tokens.len()));
        self.tokens.extend_from_slice(own);
        *tokens = rest;
    }

    /// Positions below `end` whose token ids are not known yet.
    pub(crate) fn unknown_below(&self, end: u32) -> u32 {
        end.saturating_sub(self.known())
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
    /// Tokens that were in the cache when the sequence began: the prefix hit of its admission, or its parent's computed tokens.
    pub cached: u32,
}
