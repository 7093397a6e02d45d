//! Every interleaving of a transfer that ends without the mutex and one call that holds it: the inbox, the idle list and the tree.
#![cfg(looseleaf_loom)]

#[expect(dead_code, reason = "shared with models that use the rest")]
mod explore;

use explore::{Size, explore, join};
use loom::sync::Arc;
use loom::thread;
use looseleaf_core::{Admit, BlockId, BlockManager, Config, Counts, Error, Locked, Reserve};

/// A manager with `num_blocks` blocks of one token whose first two hold the cached prompt 1, 2. A transfer holds both.
fn manager(num_blocks: u32) -> (Arc<BlockManager>, Vec<BlockId>) {
    let config = Config::new(num_blocks, 1, 2, 4).expect("valid sizes");
    let manager = BlockManager::new(config.with_prefix_cache(1)).expect("valid sizes");
    let blocks = {
        let mut locked = manager.lock().expect("not poisoned");
        let handle = admit(&mut locked, &[1, 2]).expect("room");
        let blocks = locked.blocks(handle).expect("alive");
        manager
            .retain_blocks(&blocks)
            .expect("held by the sequence");
        locked.release(&[handle]).expect("alive");
        blocks
    };
    (Arc::new(manager), blocks)
}

/// Admits and computes a prompt.
fn admit(locked: &mut Locked<'_>, tokens: &[i32]) -> Result<i64, Error> {
    let handle = locked.admit(&Admit::new(tokens))?.id.to_handle();
    locked.reserve(&Reserve::new(&[handle]), None)?;
    locked.commit(&[handle], Counts::Default, None)?;
    Ok(handle)
}

/// Runs `call` beside the end of the transfer; afterwards every block is in one place. The outcome is what `call` returned and how
/// many blocks are cached in the end.
fn beside_a_transfer(
    name: &str,
    num_blocks: u32,
    call: impl Fn(&mut Locked<'_>) -> u32 + Send + Sync + Copy + 'static,
) -> Vec<(u32, u32)> {
    explore(name, Size::Small, move || {
        let (manager, blocks) = manager(num_blocks);
        let transfer = {
            let manager = Arc::clone(&manager);
            thread::spawn(move || {
                manager
                    .release_blocks(&blocks)
                    .expect("held by the transfer")
            })
        };
        // The last to be spawned: whether the inbox is empty is a load alone.
        let caller = {
            let manager = Arc::clone(&manager);
            thread::spawn(move || call(&mut manager.lock().expect("not poisoned")))
        };
        join(transfer);
        let answer = join(caller);
        let mut locked = manager.lock().expect("not poisoned");
        locked.validate().expect("every block is in one place");
        let stats = locked.stats();
        assert_eq!(stats.pool.num_free + stats.num_idle, num_blocks);
        (answer, stats.num_idle)
    })
}

#[test]
fn a_hit_beside_the_last_release_finds_the_content() {
    let outcomes = beside_a_transfer("hit", 3, |locked| {
        let admission = locked.admit(&Admit::new(&[1, 2, 3])).expect("room");
        locked.release(&[admission.id.to_handle()]).expect("alive");
        admission.num_cached
    });
    assert_eq!(outcomes, [(2, 2)]);
}

#[test]
fn an_allocation_beside_the_last_release_takes_whole_or_nothing() {
    let outcomes = beside_a_transfer("allocate", 3, |locked| match admit(locked, &[7, 8]) {
        Ok(handle) => {
            locked.release(&[handle]).expect("alive");
            1
        }
        Err(Error::OutOfBlocks { .. }) => 0,
        Err(error) => panic!("{error}"),
    });
    // Refused: both cached blocks stay. Served: from the one free block and the leaf that was given up; two new ones are cached.
    assert_eq!(outcomes, [(0, 2), (1, 3)]);
}

#[test]
fn an_invalidation_beside_the_last_release_loses_no_block() {
    let outcomes = beside_a_transfer("reset", 2, |locked| {
        let dropped = locked.reset().expect("consistent");
        assert_eq!(dropped.num_dropped, 2);
        dropped.num_held
    });
    assert!(
        outcomes
            .iter()
            .all(|&(num_held, num_idle)| num_held <= 2 && num_idle == 0)
    );
    assert!(outcomes.len() >= 2, "{outcomes:?}");
}

#[test]
fn an_eviction_beside_the_last_release_takes_idle_blocks_only() {
    let outcomes = beside_a_transfer("evict", 2, |locked| locked.evict(2).expect("consistent"));
    assert!(
        outcomes
            .iter()
            .all(|&(evicted, num_idle)| evicted + num_idle == 2)
    );
    assert!(outcomes.len() >= 2, "{outcomes:?}");
}
