//! A lock-free list that anybody pushes to and one thread takes as a whole.
//!
//! Entries leave only all together, with one swap of the head. So the list needs no tag: a head that was read before and is
//! there again leads to the same entries. An entry may be pushed again once it was handed out; until then it has one link only,
//! so its pusher has to make sure that it is not in the list already (see [`Graveyard`](crate::Graveyard) and
//! the inbox of [`BlockPool`](crate::BlockPool), whose words do).

use crate::mutant;
use crate::sync::{AtomicU32, Ordering};

/// End of the list. Entries are listed as their index + 1.
const NIL: u32 = 0;

#[derive(Debug)]
pub(crate) struct PushList {
    head: AtomicU32,
    /// The entry that was pushed before this one, or [`NIL`].
    links: Box<[AtomicU32]>,
}

impl PushList {
    /// An empty list for the entries `0..num_entries`.
    pub(crate) fn new(num_entries: u32) -> Self {
        Self {
            head: AtomicU32::new(NIL),
            links: (0..num_entries).map(|_| AtomicU32::new(NIL)).collect(),
        }
    }

    /// Whether nothing waits, so that a call may skip the taking.
    ///
    /// Relaxed is enough: nothing is read through the answer. A push that this thread has seen, or that came before an event it
    /// has seen, is never missed; one that runs at this moment may be, and waits for the next call.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == NIL
    }

    /// Puts an entry in front. Only for who has made sure that it is not in the list.
    pub(crate) fn push(&self, index: u32) {
        let mut chain = PushChain::default();
        self.append(&mut chain, index);
        self.push_chain(&chain);
    }

    /// Hangs an entry in front of a chain that the caller owns; the first one appended is the first one handed out.
    pub(crate) fn append(&self, chain: &mut PushChain, index: u32) {
        // Relaxed: published by the Release in `push_chain`.
        self.links[index as usize].store(chain.newest, Ordering::Relaxed);
        chain.newest = index + 1;
        if chain.oldest == NIL {
            chain.oldest = index + 1;
        }
    }

    /// Puts a chain in front, with one compare-exchange.
    pub(crate) fn push_chain(&self, chain: &PushChain) {
        let Some((_, last)) = self.entry(chain.oldest) else {
            return;
        };
        let mut head = self.head.load(Ordering::Relaxed); // only copied, here and on failure
        loop {
            last.store(head, Ordering::Relaxed); // published by the Release below
            // Release: pairs with the Acquire in `take`; publishes the links and what the pusher did before.
            match self.head.compare_exchange_weak(
                head,
                chain.newest,
                mutant::ordering("list push", Ordering::Release),
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(newer) => head = newer,
            }
        }
    }

    /// Takes the whole list and hands out its entries, first pushed first. An entry may be pushed again once it is handed out.
    pub(crate) fn take(&self, mut receive: impl FnMut(u32)) {
        if self.is_empty() {
            return;
        }
        // Acquire: pairs with the Release in `push_chain`.
        let taken = self
            .head
            .swap(NIL, mutant::ordering("list take", Ordering::Acquire));
        let mut cursor = if mutant::is("newest first") {
            taken
        } else {
            self.reverse(taken)
        };
        while let Some((index, link)) = self.entry(cursor) {
            cursor = link.load(Ordering::Relaxed); // before the entry can be pushed again
            receive(index);
        }
    }

    /// Turns a list that was taken, newest first, into one with the oldest first. Relaxed: no other thread touches the links.
    fn reverse(&self, mut cursor: u32) -> u32 {
        let mut reversed = NIL;
        while let Some((_, link)) = self.entry(cursor) {
            let next = link.load(Ordering::Relaxed);
            link.store(reversed, Ordering::Relaxed);
            reversed = cursor;
            cursor = next;
        }
        reversed
    }

    /// The entry that a link leads to.
    fn entry(&self, link: u32) -> Option<(u32, &AtomicU32)> {
        let index = link.checked_sub(1)?;
        Some((index, self.links.get(index as usize)?))
    }
}

/// Entries that one thread has linked, ready to be pushed.
#[derive(Debug, Default)]
pub(crate) struct PushChain {
    newest: u32,
    oldest: u32,
}
