//! Lock-free last-in-first-out stack of the free blocks.
//!
//! # Encoding
//!
//! A Treiber stack over block ids. `links[b]` is the block below `b`, or [`NIL`]. The head is one word:
//!
//! ```text
//! 63                    index_bits              0
//! [ tag: bumped by every pop and push | top id ]     index_bits = bits that num_blocks needs
//! ```
//!
//! A push or a pop moves any number of blocks with one successful compare-exchange of the head: a push writes its own chain
//! of links first, a pop walks the links first. The arrays live as long as the stack and a link always holds a valid id or
//! [`NIL`], so a walk over stale links reads nonsense at worst, and its compare-exchange then fails.
//!
//! # Why the walk is sound
//!
//! 1. The head is changed by compare-exchange only, so every change continues the release sequence of all pushes before it:
//!    whoever reads the head with Acquire sees the links of every block that stands on the stack at that moment.
//! 2. Every push and pop bumps the tag. A compare-exchange that succeeds on the head that the walk began with therefore
//!    proves that none took place in between (ABA). The tag has 64 minus `index_bits` bits: 43 for a million blocks, which
//!    at 50 million operations per second come round in 48 hours; a thread would have to sleep between two instructions for
//!    exactly that long.
//! 3. The links of blocks on the stack are not written. A later owner writes them only after its own pop, which reads a head
//!    of after ours; our pop's Release and its Acquire put our walk before that write. Without the Release half, no rule of
//!    the memory model kept a relaxed walk from reading links of the future.
//! 4. A walk that meets the end says nothing by itself: a block that was popped meanwhile may hang in a chain that is still being
//!    made, whose last link is of any age. So such a walk ends with an exchange, too, of the head for itself: where it succeeds,
//!    no push and no pop took place in between, and the links were those of the stack.

use std::hint::black_box;

use crate::mutant;
use crate::sync::{AtomicU32, AtomicU64, Ordering, OwnLine};
use crate::{BlockId, Config, Error};

/// Below the last block: the null block, which is never on the stack.
const NIL: BlockId = BlockId::NULL;

/// The free blocks of a pool.
///
/// The stack does not know who owns what: a block may be pushed only by the one who popped it. [`BlockPool`] keeps to that
/// for its callers.
///
/// # Examples
///
/// ```
/// use looseleaf_core::{BlockId, FreeStack};
///
/// let stack = FreeStack::new(3);
/// let mut blocks = [BlockId::NULL; 2];
/// assert!(stack.pop(&mut blocks));
/// assert_eq!(blocks.map(BlockId::get), [1, 2]);
/// assert!(!stack.pop(&mut [BlockId::NULL; 2])); // one is left: all or nothing
///
/// stack.push(&blocks);
/// let mut again = [BlockId::NULL; 3];
/// assert!(stack.pop(&mut again));
/// assert_eq!(again.map(BlockId::get), [1, 2, 3]);
/// ```
///
/// [`BlockPool`]: crate::BlockPool
#[derive(Debug)]
pub struct FreeStack {
    head: OwnLine<AtomicU64>,
    layout: HeadLayout,
    /// Indexed by block id; the null block's entry is unused.
    links: Box<[AtomicU32]>,
}

impl FreeStack {
    /// A stack of the blocks `1..=num_blocks`, 1 on top.
    ///
    /// # Panics
    ///
    /// If `num_blocks` exceeds [`Config::MAX_BLOCKS`].
    #[must_use]
    pub fn new(num_blocks: u32) -> Self {
        Self::with_layout(num_blocks, HeadLayout::new(num_blocks))
    }

    /// A stack whose tag has fewer bits: the negative control of the tests, which must find the ABA it lets in.
    #[cfg(any(test, looseleaf_loom))]
    #[must_use]
    pub fn with_tag_bits(num_blocks: u32, tag_bits: u32) -> Self {
        let layout = HeadLayout {
            tag_mask: (1 << tag_bits) - 1,
            ..HeadLayout::new(num_blocks)
        };
        Self::with_layout(num_blocks, layout)
    }

    fn with_layout(num_blocks: u32, layout: HeadLayout) -> Self {
        assert!(
            num_blocks <= Config::MAX_BLOCKS,
            "num_blocks is {num_blocks}, too large"
        );
        let below = |block| {
            if block < num_blocks {
                block + 1
            } else {
                NIL.get()
            }
        };
        let links = (0..=num_blocks)
            .map(|block| AtomicU32::new(below(block)))
            .collect();
        let head = AtomicU64::new(u64::from(below(0)));
        Self {
            head: OwnLine(head),
            layout,
            links,
        }
    }

    /// Takes `out.len()` blocks off the top, topmost first; `false` if there are not so many.
    ///
    /// All or nothing, in one compare-exchange. `false` says that at some moment, after all pushes and pops that this thread
    /// knows of, the stack was too short; what is in `out` then has no meaning. Lock-free, O(`out.len()`).
    pub fn pop(&self, out: &mut [BlockId]) -> bool {
        if out.is_empty() {
            return true;
        }
        let mut head = self.head_to_walk();
        loop {
            let below = self.walk(head, out);
            // A walk that meets the end leaves the head as it is: only if it is still there was the stack that short.
            let next = below.map_or(head, |below| self.layout.next(head, below));
            match self.exchange(head, next) {
                Ok(_) => return below.is_some(),
                Err(newer) => head = newer,
            }
        }
    }

    /// Takes as many blocks off the top as there are, up to `out.len()`, topmost first, in one compare-exchange; returns how many.
    pub(crate) fn pop_up_to(&self, out: &mut [BlockId]) -> usize {
        let mut head = self.head_to_walk();
        loop {
            let mut cursor = self.layout.top(head);
            let mut num_blocks = 0;
            while num_blocks < out.len() && cursor != NIL {
                out[num_blocks] = cursor;
                num_blocks += 1;
                cursor = self.below(cursor);
            }
            if num_blocks == 0 {
                return 0;
            }
            let next = self.layout.next(head, cursor);
            match self.exchange(head, next) {
                Ok(_) => return num_blocks,
                Err(newer) => head = newer,
            }
        }
    }

    /// Puts blocks on top; `blocks[0]` is popped first afterwards. Lock-free, one compare-exchange, O(`blocks.len()`).
    ///
    /// # Panics
    ///
    /// If a block is outside the pool. The null block, a block twice or a block that stands on the stack already corrupts
    /// the stack.
    pub fn push(&self, blocks: &[BlockId]) {
        let mut chain = Chain::default();
        for &block in blocks {
            self.append(&mut chain, block);
        }
        self.push_chain(&chain);
    }

    /// Hangs a block that the caller owns below a chain that the caller owns.
    pub(crate) fn append(&self, chain: &mut Chain, block: BlockId) {
        debug_assert!(!block.is_null(), "the null block is never free");
        if chain.len == 0 {
            chain.first = block;
        } else {
            // Relaxed: published by the Release in `push_chain`.
            self.link(chain.last).store(block.get(), Ordering::Relaxed);
        }
        chain.last = block;
        chain.len += 1;
    }

    /// Hangs a block that the caller owns above a chain that the caller owns.
    pub(crate) fn prepend(&self, chain: &mut Chain, block: BlockId) {
        if chain.len == 0 {
            chain.last = block;
        } else {
            // Relaxed: published by the Release in `push_chain`.
            self.link(block).store(chain.first.get(), Ordering::Relaxed);
        }
        chain.first = block;
        chain.len += 1;
    }

    /// Reads the links of blocks that are about to be hung to a chain, so that the reads overlap.
    pub(crate) fn fetch_links(&self, blocks: &[BlockId]) {
        let links = blocks.iter().map(|&block| self.below(block).get());
        black_box(links.fold(0, |sum, link| sum ^ link));
    }

    /// Puts a chain on top, with one compare-exchange.
    pub(crate) fn push_chain(&self, chain: &Chain) {
        if chain.len == 0 {
            return;
        }
        let last = self.link(chain.last);
        // Relaxed, here and on failure: the head is only copied, nothing is read through it.
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the Release below.
            last.store(self.layout.top(head).get(), Ordering::Relaxed);
            let next = self.layout.next(head, chain.first);
            // Release: pairs with the Acquire in `pop`; publishes the chain's links, and what the blocks' former holders did.
            match self.head.0.compare_exchange_weak(
                head,
                next,
                mutant::ordering("push", Ordering::Release),
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(newer) => head = newer,
            }
        }
    }

    /// Whether the owner of a chain has put this block into it. O(length).
    pub(crate) fn chain_contains(&self, chain: &Chain, block: BlockId) -> bool {
        let mut cursor = chain.first;
        for _ in 0..chain.len {
            if cursor == block {
                return true;
            }
            cursor = self.below(cursor);
        }
        false
    }

    /// The blocks on the stack, topmost first, while nobody pushes or pops. Allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if a link leads out of the pool or back to a block above.
    pub fn blocks_at_rest(&self) -> Result<Vec<BlockId>, Error> {
        let mut is_seen = vec![false; self.links.len()];
        let mut blocks = Vec::new();
        let mut cursor = self.layout.top(self.head.0.load(Ordering::Acquire)); // pairs with `push_chain`
        while cursor != NIL {
            let Some(is_seen) = is_seen.get_mut(cursor.index()) else {
                let message = format!("the free stack leads to {cursor}, outside the pool");
                return Err(Error::Corrupt { message });
            };
            if std::mem::replace(is_seen, true) {
                let message = format!("{cursor} stands twice on the free stack");
                return Err(Error::Corrupt { message });
            }
            blocks.push(cursor);
            cursor = self.below(cursor);
        }
        Ok(blocks)
    }

    /// The head that a pop begins with.
    fn head_to_walk(&self) -> u64 {
        // Acquire: pairs with the Release in `push_chain`, whose links the walk reads.
        let acquire = mutant::ordering("pop begins", Ordering::Acquire);
        self.head.0.load(acquire)
    }

    /// Ends a pop whose walk began with `head`; the head to walk again if another has come.
    fn exchange(&self, head: u64, next: u64) -> Result<u64, u64> {
        // AcqRel: the Acquire half as in `head_to_walk`. The Release half pairs with the Acquire of the pops that follow: our walk
        // comes before anything their owners write into the links.
        // On failure Acquire, for the next walk.
        let failure = mutant::ordering("pop again", Ordering::Acquire);
        self.head
            .0
            .compare_exchange_weak(head, next, Ordering::AcqRel, failure)
    }

    /// Writes the blocks at the top into `out` and returns what is below them; `None` if the walk ends too early.
    fn walk(&self, head: u64, out: &mut [BlockId]) -> Option<BlockId> {
        let mut cursor = self.layout.top(head);
        for block in out {
            if cursor == NIL {
                return None;
            }
            *block = cursor;
            cursor = self.below(cursor);
        }
        Some(cursor)
    }

    fn below(&self, block: BlockId) -> BlockId {
        // Relaxed: ordered by the Acquire of the head, see the module's text; within a chain, by its one owner.
        BlockId::new(self.link(block).load(Ordering::Relaxed)).unwrap_or(NIL)
    }

    fn link(&self, block: BlockId) -> &AtomicU32 {
        &self.links[block.index()]
    }
}

/// Blocks that one thread owns and has linked, ready to be pushed.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    first: BlockId,
    last: BlockId,
    len: u32,
}

impl Chain {
    /// Number of blocks.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }
}

/// Where the head word keeps what.
#[derive(Debug, Clone, Copy)]
struct HeadLayout {
    index_bits: u32,
    /// Applied to the tag before it is shifted into place.
    tag_mask: u64,
}

impl HeadLayout {
    fn new(num_blocks: u32) -> Self {
        let index_bits = u32::BITS - num_blocks.leading_zeros();
        let tag_mask = if mutant::is("no tag") {
            0
        } else {
            u64::MAX >> index_bits
        };
        Self {
            index_bits,
            tag_mask,
        }
    }

    /// The top block, or [`NIL`].
    fn top(self, head: u64) -> BlockId {
        let index = head & !(u64::MAX << self.index_bits);
        u32::try_from(index)
            .ok()
            .and_then(BlockId::new)
            .unwrap_or(NIL)
    }

    /// The head that follows `head`, with another top.
    fn next(self, head: u64, top: BlockId) -> u64 {
        let tag = (head >> self.index_bits).wrapping_add(1) & self.tag_mask;
        tag << self.index_bits | u64::from(top.get())
    }
}

#[cfg(all(test, not(looseleaf_loom)))]
mod tests {
    use super::*;

    fn pop<const N: usize>(stack: &FreeStack) -> [u32; N] {
        let mut blocks = [BlockId::NULL; N];
        assert!(stack.pop(&mut blocks));
        blocks.map(BlockId::get)
    }

    /// The head after: one thread reads the head (top 1), another pops 1, pops 2 and pushes 1 back.
    fn head_before_and_after_aba(stack: &FreeStack) -> (u64, u64) {
        let before = stack.head.0.load(Ordering::Relaxed);
        assert_eq!(pop::<1>(stack), [1]);
        assert_eq!(pop::<1>(stack), [2]);
        stack.push(&[BlockId::new(1).expect("a block")]);
        (before, stack.head.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_head_that_was_read_before_aba_is_not_the_head_afterwards() {
        let (before, after) = head_before_and_after_aba(&FreeStack::new(3));
        assert_ne!(before, after);
        let (before, after) = head_before_and_after_aba(&FreeStack::with_tag_bits(3, 0));
        assert_eq!(before, after, "without a tag, the two are the same word");
    }

    /// One thread has walked from 1 to 2 when another pops 1, pops 2 and pushes 1 back. Returns whether the first one's exchange
    /// succeeds, and what is on the stack then. The other has block 2.
    fn exchange_after_aba(stack: &FreeStack) -> (bool, Vec<u32>) {
        let head = stack.head_to_walk();
        let mut walked = [BlockId::NULL];
        let below = stack.walk(head, &mut walked).expect("three blocks");
        assert_eq!((walked[0].get(), below.get()), (1, 2));
        head_before_and_after_aba(stack);
        let next = stack.layout.next(head, below);
        let mut answer = stack.exchange(head, next);
        while answer == Err(head) {
            answer = stack.exchange(head, next); // a weak exchange may fail for nothing
        }
        let left = stack.blocks_at_rest().expect("no cycle");
        (answer.is_ok(), left.into_iter().map(BlockId::get).collect())
    }

    #[test]
    fn a_pop_that_slept_through_aba_does_not_hand_out_what_is_owned() {
        let tagged = exchange_after_aba(&FreeStack::new(3));
        assert_eq!(tagged, (false, vec![1, 3]));
        let untagged = exchange_after_aba(&FreeStack::with_tag_bits(3, 0));
        assert_eq!(untagged, (true, vec![2, 3]), "2 has an owner and is free");
    }

    #[test]
    fn the_tag_fills_the_bits_that_ids_leave() {
        for (num_blocks, index_bits) in [(1, 1), (2, 2), (3, 2), (4, 3), (1 << 20, 21)] {
            let layout = HeadLayout::new(num_blocks);
            assert_eq!(layout.index_bits, index_bits);
            let top = BlockId::new(num_blocks).expect("a block");
            let largest_tag = u64::MAX << index_bits;
            assert_eq!(layout.top(largest_tag | u64::from(num_blocks)), top);
            assert_eq!(
                layout.next(largest_tag, top),
                u64::from(num_blocks),
                "the tag wraps to 0"
            );
            assert_eq!(
                layout
                    .next(largest_tag >> 1 & largest_tag, NIL)
                    .count_ones(),
                1
            );
        }
        assert_eq!(HeadLayout::new(Config::MAX_BLOCKS).index_bits, 31);
    }

    #[test]
    fn the_tag_wraps_without_touching_the_top() {
        let stack = FreeStack::with_tag_bits(2, 1);
        for _ in 0..5 {
            let blocks = pop::<2>(&stack).map(|id| BlockId::new(id).expect("a block"));
            assert_eq!(blocks.map(BlockId::get), [1, 2]);
            stack.push(&blocks);
        }
    }

    #[test]
    fn the_head_has_cache_lines_of_its_own() {
        assert_eq!(align_of::<OwnLine<AtomicU64>>(), 128);
        assert_eq!(size_of::<OwnLine<AtomicU64>>(), 128);
    }
}
