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
//! Between two places a block is in the hands of one thread: popped and not yet claimed, or released to 0 and not yet pushed.
//! Its count is then 0, and nobody else may change its word.
//!
//! # Transitions
//!
//! | transition | from | to | who |
//! |---|---|---|---|
//! | [`claim`](BlockWord::claim) | free, popped by the caller | count 1, generation + 1 | any thread |
//! | [`retain`](BlockWord::retain) | count ≥ 1 | count + 1 | any thread that holds a reference |
//! | [`release`](BlockWord::release) | count ≥ 1 | count − 1; with the last holder of a published block QUEUED | any thread that holds a reference |
//! | [`restore`](BlockWord::restore) | just released by the caller | count + 1 | the same thread |
//! | [`release_locked`](BlockWord::release_locked) | count ≥ 1 | count − 1; never QUEUED | the mutex, with a reference |
//! | [`hit`](BlockWord::hit) | PUBLISHED | count + 1 | the mutex; an idle block needs its credit |
//! | [`publish`](BlockWord::publish) | count ≥ 1 | PUBLISHED | the mutex, with a reference |
//! | [`unpublish`](BlockWord::unpublish) | PUBLISHED | not PUBLISHED | the mutex |
//! | [`drain`](BlockWord::drain) | QUEUED | not QUEUED | the mutex, who took it from the inbox |
//! | [`evict`](BlockWord::evict) | idle | count 1, not PUBLISHED, generation + 1 | the mutex, with a credit |
//!
//! # Rules
//!
//! 1. The release that takes the count to 0 decides in the same compare-exchange where the block goes, and the answer is the
//!    duty of that one thread. Two steps (count down, then look at the flags) let two threads enqueue the block, or none.
//! 2. Every transition of a word that others may change is one compare-exchange, so the transitions of a block have one order.
//!    A word with count 0 that nobody else may change is read and then stored: of a block that was popped and not yet claimed,
//!    and of an idle block under the mutex.
//! 3. Count 0 is left only by the thread that owns the block, or under the mutex where the block is published. A retain of a block
//!    with count 0 fails: the id is stale.
//! 4. QUEUED is one duty at a time: whoever sets it pushes the block to the inbox, once; nobody else touches the block's place
//!    until the drain has cleared it. So a block that is hit and released again while it waits is not pushed twice.
//! 5. An idle block becomes anything else under the mutex only. A block that is held, or queued, does not become idle while
//!    somebody holds the mutex. So a look at the words under the mutex stays true until its owner acts on it.
//!
//! # Orderings
//!
//! As in `Arc`: a retain is Relaxed, because the caller's own reference already keeps the block. A release is `AcqRel`: its
//! Release half pairs with the Acquire half of the release that reaches 0, so that everything that former holders did with the
//! block's memory comes before the block is pushed, popped and written by its next owner.

use crate::mutant;
use crate::sync::{AtomicU64, Ordering};

#[cfg(looseleaf_mutants)]
mod mutants;

const COUNT_MASK: u64 = (1 << 30) - 1;
const QUEUED: u64 = 1 << 30;
const PUBLISHED: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;

const _: () = assert!(COUNT_MASK & (QUEUED | PUBLISHED) == 0 && QUEUED != PUBLISHED);
const _: () = assert!((COUNT_MASK | QUEUED | PUBLISHED) >> GENERATION_SHIFT == 0);

/// What a block's word said at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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

    /// Whether the block stands in the idle list.
    pub(crate) fn is_idle(self) -> bool {
        self.0 & (COUNT_MASK | PUBLISHED | QUEUED) == PUBLISHED
    }

    fn with_one_holder_more(self) -> Self {
        Self(self.0 + 1)
    }

    fn with_one_holder_less(self) -> Self {
        Self(self.0.wrapping_sub(1)) // not used where the count is 0
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
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// Others hold the block: nothing.
    StillHeld,
    /// The caller owns the block and must push it to the free stack.
    PushToStack,
    /// The caller has set QUEUED and must push the block to the inbox.
    PushToInbox,
    /// Nobody held the block: nothing was changed.
    NotHeld,
}

/// Answer of [`BlockWord::release_locked`] and of [`BlockWord::drain`]: where the block is at home now.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Somebody holds it, or it waits in the inbox: nothing.
    Elsewhere,
    /// Free: the caller must push it to the free stack and add a credit.
    Free,
    /// Idle: the caller must add it to the idle list and add a credit.
    Idle,
    /// It was not in the state that the transition starts from; nothing was changed.
    Refused(Snapshot),
}

/// Answer of [`BlockWord::hit`].
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hit {
    /// One holder more of a block that was held, or waits in the inbox.
    Shared,
    /// The block was idle: the caller must take it out of the idle list.
    WasIdle,
    /// Nothing was changed: not published, or the count is at its limit.
    Refused(Snapshot),
}

/// Answer of [`BlockWord::unpublish`].
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpublished {
    /// Others hold it or it waits in the inbox: it follows to the stack when they let go.
    Held,
    /// It was idle: the caller must move it from the idle list to the free stack. Its credit stays.
    WasIdle,
    /// It was not published.
    Refused(Snapshot),
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
        Snapshot(self.0.load(mutant::ordering("snapshot", Ordering::Acquire)))
    }

    /// Free → private. Only for the thread that popped the block.
    pub(crate) fn claim(&self) -> Claimed {
        // Relaxed: the Acquire of the pop has ordered everything before, and the block reaches others through its holder.
        let now = Snapshot(self.0.load(Ordering::Relaxed));
        if !now.is_free() {
            return Claimed::NotFree(now);
        }
        self.store(now.with_next_generation().with_one_holder_more());
        Claimed::Done
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
        #[cfg(looseleaf_mutants)]
        if mutant::is("two-step release") {
            return self.release_in_two_steps();
        }
        // AcqRel: pairs with the releases of the other holders and with `snapshot`, see the module's text.
        self.transition(mutant::ordering("release", Ordering::AcqRel), |now| {
            let less = now.with_one_holder_less();
            match now.count() {
                0 => (Released::NotHeld, None),
                1 if now.is_queued() && !mutant::is("requeue") => (Released::StillHeld, Some(less)),
                1 if now.is_published() => (Released::PushToInbox, Some(Snapshot(less.0 | QUEUED))),
                1 => (Released::PushToStack, Some(less)),
                _ => (Released::StillHeld, Some(less)),
            }
        })
    }

    /// One holder less, by who holds the mutex: a published block is idle at once, without the way through the inbox.
    pub(crate) fn release_locked(&self) -> Settled {
        // AcqRel: as for `release`.
        self.transition(mutant::ordering("locked", Ordering::AcqRel), |now| {
            let less = now.with_one_holder_less();
            match now.count() {
                0 => (Settled::Refused(now), None),
                1 if now.is_queued() => (Settled::Elsewhere, Some(less)),
                1 if now.is_published() => (Settled::Idle, Some(less)),
                1 => (Settled::Free, Some(less)),
                _ => (Settled::Elsewhere, Some(less)),
            }
        })
    }

    /// One holder more of a published block.
    pub(crate) fn hit(&self) -> Hit {
        // Acquire: pairs with the Release half of `release`: what former holders did with the block comes before what the new
        // one does. The mutex orders it against the publication.
        let now = self.snapshot();
        if now.is_idle() {
            self.store(now.with_one_holder_more());
            return Hit::WasIdle;
        }
        self.transition(Ordering::Acquire, |now| {
            if !now.is_published() || now.count() == Snapshot::MAX_COUNT {
                (Hit::Refused(now), None)
            } else {
                (Hit::Shared, Some(now.with_one_holder_more()))
            }
        })
    }

    /// Lets the prefix tree lead to the block; `false` if nobody holds it or it is published already.
    #[must_use]
    pub(crate) fn publish(&self) -> bool {
        // Relaxed: only holders of the mutex follow the tree.
        self.transition(Ordering::Relaxed, |now| {
            let may = now.count() > 0 && !now.is_published();
            (may, may.then_some(Snapshot(now.0 | PUBLISHED)))
        })
    }

    /// Takes the block out of the tree's sight.
    pub(crate) fn unpublish(&self) -> Unpublished {
        // Acquire: an idle block goes on to the free stack, after all that its holders did (pairs with `release`).
        let now = self.snapshot();
        if now.is_idle() {
            self.store(Snapshot(now.0 & !PUBLISHED));
            return Unpublished::WasIdle;
        }
        self.transition(Ordering::Acquire, |now| {
            if now.is_published() {
                (Unpublished::Held, Some(Snapshot(now.0 & !PUBLISHED)))
            } else {
                (Unpublished::Refused(now), None)
            }
        })
    }

    /// Settles a block that was taken from the inbox, by what its word says at that very moment.
    pub(crate) fn drain(&self) -> Settled {
        #[cfg(looseleaf_mutants)]
        if mutant::is("two-step drain") {
            return self.drain_in_two_steps();
        }
        // Acquire: pairs with the Release half of `release`; a block without holders goes on to the stack or the idle list.
        self.transition(mutant::ordering("drain", Ordering::Acquire), |now| {
            let without = Snapshot(now.0 & !QUEUED);
            if !now.is_queued() {
                (Settled::Refused(now), None)
            } else if now.count() > 0 {
                (Settled::Elsewhere, Some(without))
            } else if now.is_published() || mutant::is("drain ignores unpublished") {
                (Settled::Idle, Some(without))
            } else {
                (Settled::Free, Some(without))
            }
        })
    }

    /// Idle → private, for who has taken its credit and will take it out of list and tree.
    pub(crate) fn evict(&self) -> Claimed {
        // The snapshot's Acquire pairs with the Release half of `release`; the new owner writes after all former readers.
        let now = self.snapshot();
        if !now.is_idle() {
            return Claimed::NotFree(now);
        }
        let without = Snapshot(now.0 & !PUBLISHED);
        self.store(without.with_next_generation().with_one_holder_more());
        Claimed::Done
    }

    /// Takes back a release; `false` if the block went on meanwhile. `is_owned` says that the release answered
    /// [`Released::PushToStack`] and the caller has not pushed the block. Of a queued block QUEUED stays, so that the push to the
    /// inbox is still due.
    #[must_use]
    pub(crate) fn restore(&self, is_owned: bool) -> bool {
        // Relaxed: the caller had a reference all the time.
        self.transition(Ordering::Relaxed, |now| {
            let may = now.count() > 0 || now.is_queued() || is_owned;
            (may, may.then(|| now.with_one_holder_more()))
        })
    }

    /// Leaves a word with count 0 that only the caller may change (rules 3 and 5): nobody else can have changed it since it was
    /// read. A locked instruction would wait until all earlier stores are done, once per block of an allocation.
    fn store(&self, next: Snapshot) {
        // Relaxed: as a successful compare-exchange of such a word would be.
        self.0.store(next.0, Ordering::Relaxed);
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
mod tests;
