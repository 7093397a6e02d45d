//! Every interleaving and reordering of a few pops and pushes on the free stack itself.
#![cfg(looseleaf_loom)]

mod explore;

use explore::{Payloads, Size, explore, join};
use loom::sync::Arc;
use loom::thread;
use looseleaf_core::{BlockId, FreeStack};

/// A stack, and the memory of its blocks.
struct Shared {
    stack: FreeStack,
    payloads: Payloads,
}

impl Shared {
    fn new(stack: FreeStack, num_blocks: u32) -> Arc<Self> {
        Arc::new(Self {
            stack,
            payloads: Payloads::new(num_blocks),
        })
    }

    /// Pops blocks, reads and writes them, as their one owner may.
    fn pop(&self, num_blocks: usize) -> Option<Vec<BlockId>> {
        let mut blocks = vec![BlockId::NULL; num_blocks];
        if !self.stack.pop(&mut blocks) {
            return None;
        }
        for &block in &blocks {
            self.payloads.read(block);
            self.payloads.write(block);
        }
        Some(blocks)
    }

    fn push(&self, blocks: &[BlockId]) {
        for &block in blocks {
            self.payloads.write(block);
        }
        self.stack.push(blocks);
    }

    /// Checks that each block is on the stack or in one of these hands, once.
    fn assert_complete(&self, num_blocks: u32, in_hands: impl IntoIterator<Item = BlockId>) {
        let mut places: Vec<u32> = in_hands.into_iter().map(BlockId::get).collect();
        places.extend(
            self.stack
                .blocks_at_rest()
                .expect("no cycle")
                .into_iter()
                .map(BlockId::get),
        );
        places.sort_unstable();
        assert!(
            places.windows(2).all(|pair| pair[0] != pair[1]),
            "two owners: {places:?}"
        );
        assert!(places.into_iter().eq(1..=num_blocks), "a block is lost");
    }
}

fn spawn<T: 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> T + 'static,
) -> thread::JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || work(&shared))
}

fn ids(blocks: Option<&Vec<BlockId>>) -> Vec<u32> {
    blocks
        .into_iter()
        .flatten()
        .copied()
        .map(BlockId::get)
        .collect()
}

#[test]
fn two_threads_never_pop_the_same_block() {
    let outcomes = explore("pop 1, push, pop 1 | pop 1, push", Size::Small, || {
        let shared = Shared::new(FreeStack::new(2), 2);
        let one = spawn(&shared, |shared| {
            let blocks = shared.pop(1).expect("two blocks for two threads");
            shared.push(&blocks);
            shared.pop(1).expect("two blocks for two threads")
        });
        let two = spawn(&shared, |shared| {
            let blocks = shared.pop(1).expect("two blocks for two threads");
            shared.push(&blocks);
        });
        let held = join(one);
        join(two);
        shared.assert_complete(2, held.iter().copied());
        ids(Some(&held))
    });
    assert_eq!(outcomes, [[1], [2]]);
}

#[test]
fn a_batch_is_popped_whole_or_not_at_all() {
    let outcomes = explore("pop 2, push 2 | pop 2", Size::Small, || {
        let shared = Shared::new(FreeStack::new(3), 3);
        let one = spawn(&shared, |shared| {
            let blocks = shared.pop(2);
            if let Some(blocks) = &blocks {
                shared.push(blocks);
            }
            blocks
        });
        let two = spawn(&shared, |shared| shared.pop(2));
        let (one, two) = (join(one), join(two));
        shared.assert_complete(3, two.iter().flatten().copied());
        (ids(one.as_ref()), ids(two.as_ref()))
    });
    let (both, none) = (vec![1, 2], vec![]);
    assert_eq!(
        outcomes,
        [
            (none.clone(), both.clone()),
            (both.clone(), none),
            (both.clone(), both)
        ]
    );
}

#[test]
fn a_pop_sees_what_was_written_before_the_push() {
    let outcomes = explore("push 1 | push 2 | pop 1", Size::Large, || {
        let shared = Shared::new(FreeStack::new(3), 3);
        let mut blocks = shared.pop(3).expect("all three");
        let batch = blocks.split_off(1);
        let one = spawn(&shared, move |shared| shared.push(&blocks));
        let two = spawn(&shared, move |shared| shared.push(&batch));
        let three = spawn(&shared, |shared| shared.pop(1));
        join(one);
        join(two);
        let popped = join(three);
        shared.assert_complete(3, popped.iter().flatten().copied());
        ids(popped.as_ref())
    });
    assert_eq!(outcomes, [vec![], vec![1], vec![2]]);
}

#[test]
fn a_pop_is_not_refused_while_the_stack_is_long_enough() {
    let outcomes = explore("pop 1, push, pop 1, push | pop 2", Size::Small, || {
        let shared = Shared::new(FreeStack::new(3), 3);
        let one = spawn(&shared, |shared| {
            for _ in 0..2 {
                let blocks = shared.pop(1).expect("three blocks, two elsewhere");
                shared.push(&blocks);
            }
        });
        let two = spawn(&shared, |shared| {
            shared.pop(2).expect("three blocks, one elsewhere")
        });
        join(one);
        let held = join(two);
        shared.assert_complete(3, held.iter().copied());
        ids(Some(&held))
    });
    assert_eq!(outcomes, [[1, 2], [2, 3]]);
}

/// Pop [1, 2] and push 1: two exchanges, after which the head is as it was if the tag has one bit only.
fn aba_in_two_exchanges(stack: FreeStack) -> Vec<u32> {
    let shared = Shared::new(stack, 3);
    let one = spawn(&shared, |shared| {
        let blocks = shared.pop(2)?;
        shared.push(&blocks[..1]);
        Some(blocks[1])
    });
    let two = spawn(&shared, |shared| shared.pop(1));
    let (one, two) = (join(one), join(two));
    shared.assert_complete(3, one.into_iter().chain(two.iter().flatten().copied()));
    ids(two.as_ref())
}

#[test]
fn the_tag_stops_aba() {
    let outcomes = explore("pop 2, push 1 | pop 1", Size::Small, || {
        aba_in_two_exchanges(FreeStack::new(3))
    });
    assert_eq!(outcomes, [[1], [3]]);
}

#[test]
#[should_panic(expected = "two owners")]
fn with_one_bit_of_tag_loom_finds_two_owners() {
    explore("one bit: pop 2, push 1 | pop 1", Size::Small, || {
        aba_in_two_exchanges(FreeStack::with_tag_bits(3, 1))
    });
}
