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
//! DROPPED is also what `PushList` asks of its pushers: the one who has set it pushes, nobody else.

use crate::SeqId;
use crate::push_list::PushList;
use crate::sync::{AtomicU64, Ordering};

const VACANT: u64 = 0;
const DROPPED: u64 = 1 << 32;

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
    dropped: PushList,
    /// See the table in the module's text.
    words: Box<[AtomicU64]>,
}

impl Graveyard {
    /// A graveyard for the slots `0..max_sequences`, all vacant.
    #[must_use]
    pub fn new(max_sequences: u32) -> Self {
        Self {
            dropped: PushList::new(max_sequences),
            words: (0..max_sequences).map(|_| AtomicU64::new(VACANT)).collect(),
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
            self.dropped.push(sequence.index());
        }
    }

    /// What the word of a slot says: the generation of the sequence that has it, 0 if it is vacant, and whether a drop waits.
    pub(crate) fn look(&self, index: u32) -> (u32, bool) {
        // Relaxed: only compared.
        let word = self.words[index as usize].load(Ordering::Relaxed);
        let generation = u32::try_from(word & !DROPPED).unwrap_or_default();
        (generation, word & DROPPED != 0)
    }

    /// Whether no sequence waits, so that a call may skip the drain. One that is being buried at this moment may be missed, and
    /// waits for the next call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dropped.is_empty()
    }

    /// Takes the whole list and hands out its sequences, first buried first. Each slot is vacant when it is handed out.
    pub fn drain(&self, mut receive: impl FnMut(SeqId)) {
        self.dropped.take(|index| {
            // Relaxed: the word of a slot in the list is written by its drain only.
            let word = self.words[index as usize].swap(VACANT, Ordering::Relaxed);
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
        });
    }

    /// Changes the word of a slot from one value to another; `false` if it is not the one.
    ///
    /// Relaxed: the word only decides who may go on. What the next one reads and writes is ordered elsewhere: `issue` comes
    /// before `bury` because the id has to get there, `bury` before the drain by the list, the drain before `issue` by the
    /// mutex.
    fn exchange(&self, sequence: SeqId, from: u64, to: u64) -> bool {
        let Some(word) = self.words.get(sequence.index() as usize) else {
            return false;
        };
        while word.load(Ordering::Relaxed) == from {
            let exchanged =
                word.compare_exchange_weak(from, to, Ordering::Relaxed, Ordering::Relaxed);
            if exchanged.is_ok() {
                return true;
            }
        }
        false
    }
}
