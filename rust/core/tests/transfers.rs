//! Holders without a sequence: they come and go without the mutex, beside everything else.
#![cfg(not(looseleaf_loom))]

use std::sync::mpsc;
use std::thread;

use looseleaf_core::{Admit, BlockId, BlockManager, Config, Counts, Error, Reserve};

fn manager(num_blocks: u32) -> BlockManager {
    let config = Config::new(num_blocks, 4, 8, 64).expect("valid sizes");
    BlockManager::new(config.with_prefix_cache(3)).expect("valid sizes")
}

/// Admits and computes a prompt; its handle and blocks.
fn compute(manager: &BlockManager, tokens: &[i32]) -> Result<(i64, Vec<BlockId>), Error> {
    let mut locked = manager.lock()?;
    let handle = locked.admit(&Admit::new(tokens))?.id.to_handle();
    locked.reserve(&Reserve::new(&[handle]), None)?;
    locked.commit(&[handle], Counts::Default, None)?;
    let blocks = locked.blocks(handle)?;
    Ok((handle, blocks))
}

#[test]
fn a_block_that_a_transfer_holds_is_neither_free_nor_evicted() -> Result<(), Error> {
    let manager = manager(3);
    let (handle, blocks) = compute(&manager, &[1, 2, 3, 4, 5])?;
    manager.retain_blocks(&blocks)?;
    manager.lock()?.release(&[handle])?;
    let full = manager.lock()?.admit(&Admit::new(&[9, 9, 9, 9, 9]));
    assert!(matches!(full, Err(Error::OutOfBlocks { requested: 2, .. })));
    manager.release_blocks(&blocks)?;
    assert_eq!(
        manager.release_blocks(&blocks),
        Err(Error::NotHeld {
            block: blocks[0].get()
        })
    );
    let stats = manager.lock()?.stats();
    assert_eq!((stats.pool.num_free, stats.num_idle), (2, 1));
    manager.lock()?.validate()
}

#[test]
fn a_transfer_may_hold_the_tail_of_a_living_sequence() -> Result<(), Error> {
    let manager = manager(4);
    let (handle, blocks) = compute(&manager, &[1, 2, 3, 4, 5])?;
    manager.retain_blocks(&blocks)?;
    let mut locked = manager.lock()?;
    locked.validate_beside(&blocks)?;
    assert!(locked.validate().is_err());
    let outside = BlockId::new(99).expect("an id");
    assert!(matches!(
        locked.validate_beside(&[outside]),
        Err(Error::InvalidArgument { .. })
    ));
    locked.release(&[handle])?;
    drop(locked);
    manager.release_blocks(&blocks)?;
    manager.lock()?.validate()
}

#[test]
fn an_ancestor_that_is_evicted_before_a_held_descendant_takes_it_out_of_the_tree()
-> Result<(), Error> {
    let manager = manager(4);
    let (handle, blocks) = compute(&manager, &[1, 2, 3, 4, 5, 6, 7, 8, 9])?;
    manager.retain_blocks(&blocks[1..2])?;
    manager.lock()?.release(&[handle])?;
    // Everything but the held descendant: its ancestor goes, and its content with it.
    let (other, _) = compute(&manager, &[50; 12])?;
    let mut locked = manager.lock()?;
    locked.validate_beside(&blocks[1..2])?;
    assert_eq!(
        locked.lookup(&Admit::new(&[1, 2, 3, 4, 5, 6, 7, 8, 9]))?.0,
        0
    );
    locked.release(&[other])?;
    drop(locked);
    manager.release_blocks(&blocks[1..2])?;
    manager.lock()?.validate()
}

#[test]
fn transfers_that_end_at_any_time_lose_no_block() -> Result<(), Error> {
    let manager = manager(24);
    let (sender, receiver) = mpsc::channel::<Vec<BlockId>>();
    thread::scope(|scope| {
        let manager = &manager;
        scope.spawn(move || {
            for blocks in receiver {
                manager
                    .release_blocks(&blocks)
                    .expect("held by the transfer");
            }
        });
        let mut alive = Vec::new();
        for round in 0..3_000_i32 {
            let tokens: Vec<i32> = (0..9 + round % 5).map(|at| at * (1 + round % 3)).collect();
            match compute(manager, &tokens) {
                Ok((handle, blocks)) => {
                    manager
                        .retain_blocks(&blocks)
                        .expect("held by the sequence");
                    sender.send(blocks).expect("the receiver lives");
                    alive.push(handle);
                }
                Err(Error::OutOfBlocks { .. } | Error::TooManySequences { .. }) => {
                    // The transfers may hold all there is.
                    if let Some(handle) = alive.pop() {
                        let mut locked = manager.lock().expect("not poisoned");
                        locked.release(&[handle]).expect("alive");
                    } else {
                        thread::yield_now();
                    }
                }
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        let mut locked = manager.lock().expect("not poisoned");
        locked.release(&alive).expect("alive");
        drop(sender);
    });
    let mut locked = manager.lock()?;
    locked.validate()?;
    let stats = locked.stats();
    assert_eq!(stats.pool.num_free + stats.num_idle, 24);
    Ok(())
}
