//! Many calls from four threads. Ownership is kept beside the pool and swapped atomically, so that two owners meet.
#![cfg(not(looseleaf_loom))]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use looseleaf_core::{BlockId, BlockPool, FreeStack};

const NUM_THREADS: u32 = 4;

/// Marsaglia's xorshift: the same sequence of choices in every run.
struct Choices(u32);

impl Choices {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 % limit
    }
}

fn spawn_all(work: impl Fn(u32, Choices) + Sync) {
    thread::scope(|scope| {
        for thread in 1..=NUM_THREADS {
            let work = &work;
            scope.spawn(move || work(thread, Choices(0x9e37_79b9 ^ thread)));
        }
    });
}

/// Takes and gives so many times in all, refusals not counted, and checks that a block has one owner at a time. `take` says
/// whether there were enough.
fn assert_one_owner(
    num_blocks: u32,
    num_calls: u32,
    take: impl Fn(&mut [BlockId]) -> bool + Sync,
    give: impl Fn(&[BlockId]) + Sync,
) {
    let owners: Vec<AtomicU32> = (0..=num_blocks).map(|_| AtomicU32::new(0)).collect();
    let refused = AtomicU64::new(0);
    spawn_all(|thread, mut choices| {
        let mut room = vec![BlockId::NULL; num_blocks as usize];
        let (mut calls, mut num_refused) = (0, 0);
        while calls < num_calls / NUM_THREADS {
            let blocks = &mut room[..=choices.below(num_blocks) as usize];
            if !take(blocks) {
                num_refused += 1;
                continue;
            }
            for &block in &*blocks {
                let before = owners[block.index()].swap(thread, Ordering::AcqRel);
                assert_eq!(before, 0, "{block} was handed out twice");
            }
            for &block in &*blocks {
                let before = owners[block.index()].swap(0, Ordering::AcqRel);
                assert_eq!(before, thread, "{block} was taken from its owner");
            }
            give(blocks);
            calls += 2;
        }
        refused.fetch_add(num_refused, Ordering::Relaxed);
    });
    let refused = refused.into_inner();
    eprintln!("{num_calls} calls took or gave blocks, {refused} more were refused");
}

/// Half of the calls on the stack itself, half on a pool.
fn assert_one_owner_on_the_stack_and_in_the_pool(num_calls: u32) {
    for num_blocks in [2, 3] {
        let stack = FreeStack::new(num_blocks);
        let give = |blocks: &[BlockId]| stack.push(blocks);
        assert_one_owner(num_blocks, num_calls / 4, |blocks| stack.pop(blocks), give);
        let left = stack.blocks_at_rest().expect("no cycle");
        assert_eq!(left.len(), num_blocks as usize);

        let pool = BlockPool::new(num_blocks).expect("a valid size");
        let give = |blocks: &[BlockId]| pool.release(blocks).expect("the thread holds them");
        let take = |blocks: &mut [BlockId]| pool.allocate(blocks).is_ok();
        assert_one_owner(num_blocks, num_calls / 4, take, give);
        assert_eq!(pool.num_free(), num_blocks);
        assert_eq!(pool.validate(&vec![0; num_blocks as usize + 1]), Ok(()));
    }
}

#[test]
fn no_block_is_handed_out_twice() {
    assert_one_owner_on_the_stack_and_in_the_pool(2_000_000);
}

#[test]
#[ignore = "make soak"]
fn no_block_is_handed_out_twice_in_a_hundred_million_calls() {
    assert_one_owner_on_the_stack_and_in_the_pool(100_000_000);
}

#[test]
fn the_last_of_two_holders_frees_a_block() {
    const NUM_BLOCKS: u32 = 6;
    const ROUNDS_PER_THREAD: u32 = 50_000;
    let pool = BlockPool::new(NUM_BLOCKS).expect("a valid size");
    // A reference on its way from one thread to another, as a block id.
    let mailbox = AtomicU32::new(0);
    let num_sent = AtomicU32::new(0);

    spawn_all(|_, mut choices| {
        for _ in 0..ROUNDS_PER_THREAD {
            let mut sent = BlockId::NULL;
            let mut room = [BlockId::NULL; 2];
            let blocks = &mut room[..=choices.below(2) as usize];
            if pool.allocate(blocks).is_ok() {
                sent = blocks[0];
                pool.retain(&[sent]).expect("the thread holds it");
                num_sent.fetch_add(1, Ordering::Relaxed);
            }
            let received = mailbox.swap(sent.get(), Ordering::AcqRel);
            let received = BlockId::new(received).expect("a block id");
            if !sent.is_null() {
                pool.release(blocks).expect("the thread holds them");
            }
            if !received.is_null() {
                pool.release(&[received])
                    .expect("the reference came with the letter");
            }
        }
    });

    assert!(
        num_sent.into_inner() > ROUNDS_PER_THREAD / 100,
        "hardly a block was shared"
    );
    let mut counts = [0; NUM_BLOCKS as usize + 1];
    let left = mailbox.into_inner() as usize;
    counts[left] = u32::from(left != 0);
    assert_eq!(pool.validate(&counts), Ok(()));
}
