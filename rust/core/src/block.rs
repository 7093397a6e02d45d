//! The life of a block: one atomic word, and every transition of it.
//!
//! # The word
//!
//! ```text
//! 63                32   31          30       29            0
//! [ generation        | PUBLISHED | QUEUED | reference count ]
//! ```
//!
//! * **count**: holders of the block. A holder is a table cell, or a copy in flight that still reads the block.
//! * **PUBLISHED**: the prefix tree leads to the block. Set and cleared under the manager's mutex only.
//! * **QUEUED**: the block stands in the inbox, or its last holder is about to put it there. Set by the release that takes
//!   the count of a published block to 0, cleared by the drain.
//! * **generation**: bumped at every allocation, wraps. Who kept an id can tell whether the block is still the same content's.
//!
//! # States and places
//!
//! A block is in exactly one place.
//!
//! | state | word | place |
//! |---|---|---|
//! | free | count 0 | free stack |
//! | private | count ≥ 1 | tables only |
//! | published, referenced | count ≥ 1, PUBLISHED | tables and tree |
//! | queued | PUBLISHED, QUEUED | inbox; the count may be above 0 again |
//! | idle | count 0, PUBLISHED, not QUEUED | idle list and tree |
//!
//! The prefix tree, the inbox and the idle list are not built yet; until they are, a block is free or private, and both flags
//! stay clear. The word has room for them and [`Released`] has room for their duties, so that they add transitions and leave
//! these states as they are.
//!
//! Between two places a block is in the hands of one thread: popped and not yet claimed, or released to 0 and not yet pushed.
//! Its count is then 0, and nobody else may change its word.
//!
//! # Transitions
//!
//! | transition | from | to | who |
//! |---|---|---|---|
//! | [`claim`](BlockWord::claim) | free, popped by the caller | count 1, generation + 1 | any thread |
//! | [`retain`](BlockWord::retain) | count ≥ 1 | count + 1 | any thread that holds a reference |
//! | [`release`](BlockWord::release) | count ≥ 1 | count − 1 | any thread that holds a reference |
//! | [`restore`](BlockWord::restore) | count 0, brought there by the caller | count 1 | the same thread |
//!
//! # Rules
//!
//! 1. The release that takes the count to 0 decides in the same compare-exchange where the block goes, and the answer is the
//!    duty of that one thread. Two steps (count down, then look at the flags) let two threads enqueue the block, or none.
//! 2. Every transition is one compare-exchange on the word, so the transitions of a block have one order.
//! 3. Count 0 is left only by the thread that owns the block. A retain of a block with count 0 fails: the id is stale.
//!
//! # Orderings
//!
//! As in `Arc`: a retain is Relaxed, because the caller's own reference already keeps the block. A release is `AcqRel`: its
//! Release half pairs with the Acquire half of the release that reaches 0, so that everything that former holders did with the
//! block's memory comes before the block is pushed, popped and written by its next owner.

use crate::sync::{AtomicU64, Ordering};

const COUNT_MASK: u64 = (1 << 30) - 1;
const QUEUED: u64 = 1 << 30;
const PUBLISHED: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;

const _: () = assert!(COUNT_MASK & (QUEUED | PUBLISHED) == 0 && QUEUED != PUBLISHED);
const _: () = assert!((COUNT_MASK | QUEUED | PUBLISHED) >> GENERATION_SHIFT == 0);

/// What a block's word said at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot(u64);

impl Snapshot {
    /// Most holders that a block can have.
    pub(crate) const MAX_COUNT: u32 = (1 << 30) - 1;

    /// Number of holders.
    pub(crate) fn count(self) -> u32 {
        u32::try_from(self.0 & COUNT_MASK).unwrap_or(Self::MAX_COUNT)
    }

    /// How often the block has been allocated, modulo 2^32.
    pub(crate) fn generation(self) -> u32 {
        u32::try_from(self.0 >> GENERATION_SHIFT).unwrap_or(u32::MAX)
    }

    /// Whether the prefix tree leads to the block.
    pub(crate) fn is_published(self) -> bool {
        self.0 & PUBLISHED != 0
    }

    /// Whether the block stands in the inbox or is about to.
    pub(crate) fn is_queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    /// Whether the block may stand on the free stack.
    fn is_free(self) -> bool {
        self.0 & (COUNT_MASK | PUBLISHED | QUEUED) == 0
    }

    fn with_one_holder_more(self) -> Self {
        Self(self.0 + 1)
    }

    fn with_one_holder_less(self) -> Self {
        Self(self.0 - 1)
    }

    fn with_next_generation(self) -> Self {
        Self(self.0.wrapping_add(1 << GENERATION_SHIFT))
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "count {}, generation {}",
            self.count(),
            self.generation()
        )?;
        f.write_str(if self.is_published() {
            ", published"
        } else {
            ""
        })?;
        f.write_str(if self.is_queued() { ", queued" } else { "" })
    }
}

/// Answer of [`BlockWord::claim`].
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The caller is the one holder.
    Done,
    /// The block was not free: it was handed out twice, or pushed while held.
    NotFree(Snapshot),
}

/// Answer of [`BlockWord::retain`].
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retained {
    /// One holder more.
    Done,
    /// Nobody holds the block.
    NotHeld,
    /// The count is at its limit.
    Full,
}

/// Answer of [`BlockWord::release`]: what the caller must do next.
///
/// The prefix tree will add that a published block goes to the inbox, and that a queued one is somebody else's duty.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// Others hold the block: nothing.
    StillHeld,
    /// The caller owns the block and must push it to the free stack.
    PushToStack,
    /// Nobody held the block: nothing was changed.
    NotHeld,
}

/// The word of one block.
pub(crate) struct BlockWord(AtomicU64);

impl BlockWord {
    /// A free block that was never allocated.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The word now. Acquire, so that a count of 1 means what it says: whoever else held the block has finished with it (pairs
    /// with the Release half of [`release`](Self::release)). Copy-on-write relies on it.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.load(Ordering::Acquire))
    }

    /// Free → private. Only for the thread that popped the block.
    pub(crate) fn claim(&self) -> Claimed {
        // Relaxed: the Acquire of the pop has ordered everything before, and the block reaches others through its holder.
        self.transition(Ordering::Relaxed, |now| {
            if now.is_free() {
                (
                    Claimed::Done,
                    Some(now.with_next_generation().with_one_holder_more()),
                )
            } else {
                (Claimed::NotFree(now), None)
            }
        })
    }

    /// One holder more. Only for who holds the block already.
    pub(crate) fn retain(&self) -> Retained {
        // Relaxed: as in `Arc`, see the module's text.
        self.transition(Ordering::Relaxed, |now| match now.count() {
            0 => (Retained::NotHeld, None),
            Snapshot::MAX_COUNT => (Retained::Full, None),
            _ => (Retained::Done, Some(now.with_one_holder_more())),
        })
    }

    /// One holder less, and who must do what if that was the last.
    pub(crate) fn release(&self) -> Released {
        // AcqRel: pairs with the releases of the other holders and with `snapshot`, see the module's text.
        self.transition(Ordering::AcqRel, |now| match now.count() {
            0 => (Released::NotHeld, None),
            1 => (Released::PushToStack, Some(now.with_one_holder_less())),
            _ => (Released::StillHeld, Some(now.with_one_holder_less())),
        })
    }

    /// Takes back a release that answered [`Released::PushToStack`], before the push. Only for the thread that got the answer.
    pub(crate) fn restore(&self) {
        // Relaxed: the caller has owned the block all the time.
        let was_owned = self.transition(Ordering::Relaxed, |now| {
            (
                now.count() == 0,
                (now.count() == 0).then(|| now.with_one_holder_more()),
            )
        });
        debug_assert!(
            was_owned,
            "somebody changed the word of a block that another thread owned"
        );
    }

    /// Applies one transition: the closure says what follows from the word as it is, and what to answer.
    fn transition<T>(
        &self,
        success: Ordering,
        mut apply: impl FnMut(Snapshot) -> (T, Option<Snapshot>),
    ) -> T {
        // Relaxed, here and on failure: a value that leads to no change only says "not held", and carries no data.
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let (answer, next) = apply(Snapshot(now));
            let Some(Snapshot(next)) = next else {
                return answer;
            };
            match self
                .0
                .compare_exchange_weak(now, next, success, Ordering::Relaxed)
            {
                Ok(_) => return answer,
                Err(newer) => now = newer,
            }
        }
    }
}

impl std::fmt::Debug for BlockWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[cfg(all(test, not(looseleaf_loom)))]
mod tests {
    use super::*;

    fn word(bits: u64) -> BlockWord {
        BlockWord(AtomicU64::new(bits))
    }

    #[test]
    fn a_block_is_claimed_shared_and_released() {
        let word = BlockWord::new();
        assert_eq!(word.claim(), Claimed::Done);
        assert_eq!(
            (word.snapshot().count(), word.snapshot().generation()),
            (1, 1)
        );
        assert_eq!(word.retain(), Retained::Done);
        assert_eq!(word.release(), Released::StillHeld);
        assert_eq!(word.release(), Released::PushToStack);
        assert_eq!(word.claim(), Claimed::Done);
        assert_eq!(
            (word.snapshot().count(), word.snapshot().generation()),
            (1, 2)
        );
    }

    #[test]
    fn a_free_block_is_neither_retained_nor_released() {
        let word = BlockWord::new();
        assert_eq!(word.retain(), Retained::NotHeld);
        assert_eq!(word.release(), Released::NotHeld);
        assert_eq!(word.snapshot(), Snapshot(0));
    }

    #[test]
    fn a_block_that_is_held_or_flagged_is_not_claimed() {
        for bits in [1, QUEUED, PUBLISHED, PUBLISHED | QUEUED | 1] {
            assert_eq!(word(bits).claim(), Claimed::NotFree(Snapshot(bits)));
        }
    }

    #[test]
    fn a_full_count_stays_out_of_the_flags() {
        let word = word(COUNT_MASK - 1);
        assert_eq!(word.retain(), Retained::Done);
        assert_eq!(word.retain(), Retained::Full);
        assert_eq!(word.snapshot(), Snapshot(COUNT_MASK));
        assert_eq!(word.snapshot().count(), Snapshot::MAX_COUNT);
    }

    #[test]
    fn the_generation_wraps_and_leaves_the_rest() {
        let word = word(u64::MAX << GENERATION_SHIFT);
        assert_eq!(word.claim(), Claimed::Done);
        assert_eq!(word.snapshot(), Snapshot(1));
    }

    #[test]
    fn a_restored_block_has_its_one_holder_back() {
        let word = BlockWord::new();
        assert_eq!(word.claim(), Claimed::Done);
        let held = word.snapshot();
        assert_eq!(word.release(), Released::PushToStack);
        word.restore();
        assert_eq!(word.snapshot(), held);
    }
}
