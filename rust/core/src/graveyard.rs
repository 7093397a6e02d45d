//! Handles that were dropped, waiting for somebody who holds the manager's mutex.
//!
//! The collector may drop a handle at any time, in any thread, even inside a call into this crate, so a drop must not wait:
//! it pushes the sequence's slot to a lock-free list and returns. Every call that takes the mutex drains the list first.
//!
//! # The life of a slot
//!
//! | word | meaning | next |
//! |---|---|---|
//! | 0 | vacant | [`issue`](Graveyard::issue), under the mutex |
//! | generation | a sequence has the slot | [`close`](Graveyard::close), under the mutex, or [`bury`](Graveyard::bury), by anybody: one of them wins |
//! | generation, DROPPED | in the list | [`drain`](Graveyard::drain), under the mutex, makes it vacant |
//!
//! The generation in the word is what makes a late drop harmless: a list of bare slot numbers would let an old handle kill the
//! slot's next sequence. DROPPED is what makes a second drop harmless: a slot is in the list at most once, so its one link is
//! enough.
//!
//! The list is pushed to one by one and taken as a whole, with one swap. Neither reads a link before it has changed the head, so
//! a head that goes and comes back does no harm, and the list needs no tag.

use crate::SeqId;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const VACANT: u64 = 0;
const DROPPED: u64 = 1 << 32;

/// End of the list. Slots are listed as their index + 1.
const NIL: u32 = 0;

/// Dropped sequences, by slot.
///
/// # Examples
///
/// ```
/// use looseleaf_core::{Graveyard, SeqId};
///
/// let graveyard = Graveyard::new(2);
/// let sequence = SeqId::new(0, 1).expect("generations start at 1");
/// graveyard.issue(sequence);
/// graveyard.bury(sequence);
/// graveyard.bury(sequence); // does nothing more
///
/// let mut buried = Vec::new();
/// graveyard.drain(|sequence| buried.push(sequence));
/// assert_eq!(buried, [sequence]);
/// assert!(graveyard.is_empty());
/// ```
#[derive(Debug)]
pub struct Graveyard {
    head: AtomicU32,
    slots: Box<[Slot]>,
}

/// One slot.
#[derive(Debug)]
struct Slot {
    /// See the table in the module's text.
    word: AtomicU64,
    /// The slot that was buried before this one, or [`NIL`].
    link: AtomicU32,
}

impl Graveyard {
    /// A graveyard for the slots `0..max_sequences`, all vacant.
    #[must_use]
    pub fn new(max_sequences: u32) -> Self {
        let slot = |_| Slot {
            word: AtomicU64::new(VACANT),
            link: AtomicU32::new(NIL),
        };
        Self {
            head: AtomicU32::new(NIL),
            slots: (0..max_sequences).map(slot).collect(),
        }
    }

    /// Gives a vacant slot to a new sequence, which may be buried from now on. A slot that is not vacant stays as it is.
    pub fn issue(&self, sequence: SeqId) {
        let alive = u64::from(sequence.generation());
        let is_issued = self.exchange(sequence, VACANT, alive);
        debug_assert!(is_issued, "the slot of {sequence:?} is not vacant");
    }

    /// Ends a sequence by name and makes its slot vacant; `false` if a drop came first, then the drain will make it vacant.
    #[must_use]
    pub fn close(&self, sequence: SeqId) -> bool {
        let alive = u64::from(sequence.generation());
        self.exchange(sequence, alive, VACANT)
    }

    /// Puts a sequence into the list. Does nothing if it is there, or has ended: a second drop, or one of a handle whose slot
    /// is vacant or has gone to another sequence. Lock-free, from any thread that the id has reached by synchronization.
    pub fn bury(&self, sequence: SeqId) {
        let alive = u64::from(sequence.generation());
        if self.exchange(sequence, alive, alive | DROPPED) {
            self.push(sequence.index());
        }
    }

    /// Whether no sequence waits, so that a call may skip the drain.
    ///
    /// Relaxed is enough: nothing is read through the answer. A bury that this thread has seen, or that came before an event it
    /// has seen, is never missed; one that runs at this moment may be, and waits for the next call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == NIL
    }

    /// Takes the whole list and hands out its sequences, first buried first. Each slot is vacant when it is handed out.
    pub fn drain(&self, mut receive: impl FnMut(SeqId)) {
        if self.is_empty() {
            return;
        }
        // Acquire: pairs with the Release in `push`.
        let mut cursor = self.reverse(self.head.swap(NIL, Ordering::Acquire));
        while let Some((index, slot)) = self.entry(cursor) {
            cursor = slot.link.load(Ordering::Relaxed); // before the slot can be issued and buried again
            // Relaxed: the word of a slot in the list is written by its drain only.
            let word = slot.word.swap(VACANT, Ordering::Relaxed);
            let sequence = u32::try_from(word & !DROPPED)
                .ok()
                .and_then(|generation| SeqId::new(index, generation));
            debug_assert!(
                word & DROPPED != 0,
                "slot {index} was in the list with word {word:#x}"
            );
            if let Some(sequence) = sequence {
                receive(sequence);
            }
        }
    }

    /// Links a slot in front. Only for who has set its DROPPED.
    fn push(&self, index: u32) {
        let link = &self.slots[index as usize].link;
        let mut head = self.head.load(Ordering::Relaxed); // only copied, here and on failure
        loop {
            link.store(head, Ordering::Relaxed); // published by the Release below
            // Release: pairs with the Acquire in `drain`; publishes the link, the word and what the sequence's user did.
            match self.head.compare_exchange_weak(
                head,
                index + 1,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(newer) => head = newer,
            }
        }
    }

    /// Turns a list that was taken, newest first, into one with the oldest first. Relaxed: no other thread touches the links.
    fn reverse(&self, mut cursor: u32) -> u32 {
        let mut reversed = NIL;
        while let Some((_, slot)) = self.entry(cursor) {
            let next = slot.link.load(Ordering::Relaxed);
            slot.link.store(reversed, Ordering::Relaxed);
            reversed = cursor;
            cursor = next;
        }
        reversed
    }

    /// The slot that a link leads to.
    fn entry(&self, link: u32) -> Option<(u32, &Slot)> {
        let index = link.checked_sub(1)?;
        Some((index, self.slots.get(index as usize)?))
    }

    /// Changes the word of a slot from one value to another; `false` if it is not the one.
    ///
    /// Relaxed: the word only decides who may go on. What the next one reads and writes is ordered elsewhere: `issue` comes
    /// before `bury` because the id has to get there, `bury` before the drain by the list, the drain before `issue` by the
    /// mutex.
    fn exchange(&self, sequence: SeqId, from: u64, to: u64) -> bool {
        let Some(slot) = self.slots.get(sequence.index() as usize) else {
            return false;
        };
        while slot.word.load(Ordering::Relaxed) == from {
            let exchanged =
                slot.word
                    .compare_exchange_weak(from, to, Ordering::Relaxed, Ordering::Relaxed);
            if exchanged.is_ok() {
                return true;
            }
        }
        false
    }
}
