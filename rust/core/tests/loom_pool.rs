//! Every interleaving and reordering of a few calls on the pool: the credits, the words and the stack together.
#![cfg(looseleaf_loom)]

mod explore;

use explore::{Payloads, Size, explore, join};
use loom::sync::Arc;
use loom::thread;
use looseleaf_core::{BlockId, BlockPool, Error};

/// A pool, and the memory of its blocks.
struct Shared {
    pool: BlockPool,
    payloads: Payloads,
}

impl Shared {
    fn new(num_blocks: u32) -> Arc<Self> {
        let pool = BlockPool::new(num_blocks).expect("a valid size");
        Arc::new(Self {
            pool,
            payloads: Payloads::new(num_blocks),
        })
    }

    /// Allocates blocks and writes them; none if there are too few.
    fn allocate(&self, num_blocks: usize) -> Vec<BlockId> {
        let mut blocks = vec![BlockId::NULL; num_blocks];
        match self.pool.allocate(&mut blocks) {
            Ok(()) => {}
            Err(Error::OutOfBlocks { .. }) => return Vec::new(),
            Err(error) => panic!("{error}"),
        }
        for &block in &blocks {
            self.payloads.write(block);
        }
        blocks
    }

    fn retain(&self, block: BlockId) {
        self.pool.retain(&[block]).expect("the thread holds it");
    }

    /// Reads blocks as a holder may, and lets go of them.
    fn release(&self, blocks: &[BlockId]) {
        for &block in blocks {
            self.payloads.read(block);
        }
        self.pool.release(blocks).expect("the thread holds them");
    }

    /// Checks that these references are all there are.
    fn assert_held(&self, references: impl IntoIterator<Item = BlockId>) {
        let mut counts = vec![0; self.pool.num_blocks() as usize + 1];
        for block in references {
            counts[block.index()] += 1;
        }
        self.pool
            .validate(&counts)
            .expect("every block is in one place");
    }
}

fn spawn<T: 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> T + 'static,
) -> thread::JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || work(&shared))
}

#[test]
fn the_last_block_goes_to_one_thread() {
    let outcomes = explore("allocate 1 | allocate 1 | allocate 1", Size::Large, || {
        let shared = Shared::new(1);
        let threads = [0; 3].map(|_| spawn(&shared, |shared| shared.allocate(1)));
        let held = threads.map(join);
        shared.assert_held(held.iter().flatten().copied());
        held.map(|blocks| blocks.len())
    });
    assert_eq!(outcomes, [[0, 0, 1], [0, 1, 0], [1, 0, 0]]);
}

#[test]
fn a_credit_always_finds_a_block() {
    let outcomes = explore(
        "release 1 | release 1 | allocate 1, allocate 2",
        Size::Large,
        || {
            let shared = Shared::new(2);
            let blocks = shared.allocate(2);
            let (first, second) = (blocks[0], blocks[1]);
            let one = spawn(&shared, move |shared| shared.release(&[first]));
            let two = spawn(&shared, move |shared| shared.release(&[second]));
            let three = spawn(&shared, |shared| {
                let blocks = shared.allocate(1);
                if blocks.is_empty() {
                    shared.allocate(2)
                } else {
                    blocks
                }
            });
            join(one);
            join(two);
            let held = join(three);
            shared.assert_held(held.iter().copied());
            held.len()
        },
    );
    assert_eq!(outcomes, [0, 1, 2]);
}

#[test]
fn credits_are_met_while_blocks_above_come_and_go() {
    let outcomes = explore(
        "allocate 2 | allocate 1, release 1; of 3",
        Size::Small,
        || {
            let shared = Shared::new(3);
            let one = spawn(&shared, |shared| shared.allocate(2).len());
            let two = spawn(&shared, |shared| {
                let blocks = shared.allocate(1);
                shared.release(&blocks);
                blocks.len()
            });
            (join(one), join(two))
        },
    );
    assert_eq!(outcomes, [(2, 1)]);
}

#[test]
fn credits_are_met_while_a_chain_with_the_old_bottom_is_made() {
    let outcomes = explore(
        "allocate 3 | allocate 1, release 2; of 5, the bottom held",
        Size::Small,
        || {
            let shared = Shared::new(5);
            let blocks = shared.allocate(5);
            let bottom = blocks[4];
            shared.release(&blocks[..4]);
            let one = spawn(&shared, |shared| shared.allocate(3).len());
            let two = spawn(&shared, move |shared| {
                let mut blocks = shared.allocate(1);
                let num_blocks = blocks.len();
                blocks.push(bottom);
                shared.release(&blocks);
                num_blocks
            });
            (join(one), join(two))
        },
    );
    assert_eq!(outcomes, [(3, 1)]);
}

#[test]
fn blocks_go_round_between_threads() {
    let outcomes = explore(
        "allocate 2, release 2 | allocate 1, release 1",
        Size::Small,
        || {
            let shared = Shared::new(2);
            let threads = [2, 1].map(|num_blocks| {
                spawn(&shared, move |shared| {
                    let blocks = shared.allocate(num_blocks);
                    shared.release(&blocks);
                    blocks.len()
                })
            });
            let num_allocated = threads.map(join);
            assert_eq!(shared.pool.num_free(), 2);
            shared.assert_held([]);
            num_allocated
        },
    );
    assert_eq!(outcomes, [[0, 1], [2, 0], [2, 1]]);
}

#[test]
fn the_next_owner_writes_after_every_former_holder_has_read() {
    let outcomes = explore(
        "read, release | read, release | allocate, write",
        Size::Large,
        || {
            let shared = Shared::new(1);
            let block = shared.allocate(1)[0];
            shared.retain(block);
            let readers = [0; 2].map(|_| spawn(&shared, move |shared| shared.release(&[block])));
            let writer = spawn(&shared, |shared| shared.allocate(1));
            readers.into_iter().for_each(join);
            let held = join(writer);
            shared.assert_held(held.iter().copied());
            held.len()
        },
    );
    assert_eq!(outcomes, [0, 1]);
}

#[test]
fn a_holder_that_counts_one_may_write_in_place() {
    let outcomes = explore(
        "read, release | write if the count is 1",
        Size::Small,
        || {
            let shared = Shared::new(1);
            let block = shared.allocate(1)[0];
            shared.retain(block);
            let reader = spawn(&shared, move |shared| shared.release(&[block]));
            let writer = spawn(&shared, move |shared| {
                let count = shared.pool.count(block);
                if count == 1 {
                    shared.payloads.write(block);
                }
                count
            });
            join(reader);
            let count = join(writer);
            shared.assert_held([block]);
            count
        },
    );
    assert_eq!(outcomes, [1, 2]);
}

#[test]
fn a_retain_keeps_a_block_that_another_holder_releases() {
    let outcomes = explore("release | retain, count, release", Size::Small, || {
        let shared = Shared::new(2);
        let block = shared.allocate(1)[0];
        shared.retain(block);
        let one = spawn(&shared, move |shared| shared.release(&[block]));
        let two = spawn(&shared, move |shared| {
            shared.retain(block);
            let count = shared.pool.count(block);
            shared.release(&[block]);
            count
        });
        join(one);
        let count = join(two);
        shared.assert_held([block]);
        count
    });
    assert_eq!(outcomes, [2, 3]);
}

#[test]
fn a_release_that_fails_disturbs_nobody() {
    let outcomes = explore("allocate 1, release | release [1, 1]", Size::Small, || {
        let shared = Shared::new(2);
        let block = shared.allocate(1)[0];
        let one = spawn(&shared, |shared| {
            let blocks = shared.allocate(1);
            shared.release(&blocks);
            blocks[0].get()
        });
        let two = spawn(&shared, move |shared| shared.pool.release(&[block, block]));
        let other = join(one);
        assert_eq!(join(two), Err(Error::NotHeld { block: 1 }));
        shared.assert_held([block]);
        other
    });
    assert_eq!(outcomes, [2]);
}
