//! Every interleaving of a transfer that ends without the mutex and one call that holds it: the inbox, the idle list and the tree.
#![cfg(looseleaf_loom)]

#[expect(dead_code, reason = "shared with models that use the rest")]
mod explore;

use explore::{Payloads, Size, explore, join};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
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

/// The one block that is released under the mutex by a sequence and without it by a transfer: the last of them frees it, and the
/// next owner writes after both.
#[test]
fn the_next_owner_writes_after_a_transfer_and_a_sequence_have_let_go() {
    let outcomes = explore("read, release | release, admit, write", Size::Small, || {
        let config = Config::new(1, 4, 2, 4).expect("valid sizes");
        let manager = BlockManager::new(config.with_prefix_cache(1)).expect("valid sizes");
        let payloads = Arc::new(Payloads::new(1));
        let (handle, blocks) = {
            let mut locked = manager.lock().expect("not poisoned");
            let handle = admit(&mut locked, &[1]).expect("room");
            (handle, locked.blocks(handle).expect("alive"))
        };
        manager.retain_blocks(&blocks).expect("held");
        let manager = Arc::new(manager);
        let transfer = {
            let (manager, payloads) = (Arc::clone(&manager), Arc::clone(&payloads));
            thread::spawn(move || {
                payloads.read(blocks[0]);
                manager.release_blocks(&blocks).expect("held");
            })
        };
        let caller = {
            let manager = Arc::clone(&manager);
            thread::spawn(move || {
                let mut locked = manager.lock().expect("not poisoned");
                locked.release(&[handle]).expect("alive");
                let Ok(next) = admit(&mut locked, &[2]) else {
                    return 0;
                };
                let blocks = locked.blocks(next).expect("alive");
                payloads.write(blocks[0]);
                locked.release(&[next]).expect("alive");
                1
            })
        };
        join(transfer);
        let answer = join(caller);
        let mut locked = manager.lock().expect("not poisoned");
        locked.validate().expect("every block is in one place");
        assert_eq!(locked.stats().pool.num_free, 1);
        answer
    });
    assert_eq!(outcomes, [0, 1]);
}

/// A manager of two blocks, the cached block 1, held by a transfer, and the memory of both.
fn one_cached_block() -> (Arc<BlockManager>, Arc<Payloads>, BlockId) {
    let config = Config::new(2, 1, 3, 4).expect("valid sizes");
    let manager = BlockManager::new(config.with_prefix_cache(1)).expect("valid sizes");
    let block = {
        let mut locked = manager.lock().expect("not poisoned");
        let handle = admit(&mut locked, &[1]).expect("room");
        let block = locked.blocks(handle).expect("alive")[0];
        manager.retain_blocks(&[block]).expect("held");
        locked.release(&[handle]).expect("alive");
        block
    };
    (Arc::new(manager), Arc::new(Payloads::new(2)), block)
}

/// Hits the cached block and keeps it without a sequence. Returns how many tokens were cached.
fn hit_and_retain(manager: &BlockManager, locked: &mut Locked<'_>) -> Option<(BlockId, u32)> {
    let admission = locked.admit(&Admit::new(&[1, 9])).ok()?;
    let handle = admission.id.to_handle();
    let hit = locked.blocks(handle).expect("alive")[0];
    manager.retain_blocks(&[hit]).expect("held");
    locked.release(&[handle]).expect("alive");
    Some((hit, admission.num_cached))
}

/// Takes both blocks if they are to be had, and writes them.
fn allocate_and_write(locked: &mut Locked<'_>, payloads: &Payloads) -> bool {
    let Ok(handle) = admit(locked, &[7, 8]) else {
        return false;
    };
    for block in locked.blocks(handle).expect("alive") {
        payloads.write(block);
    }
    locked.release(&[handle]).expect("alive");
    true
}

fn assert_settled(manager: &BlockManager) -> u32 {
    let mut locked = manager.lock().expect("not poisoned");
    locked.validate().expect("every block is in one place");
    let stats = locked.stats();
    assert_eq!(stats.pool.num_free + stats.num_idle, 2);
    stats.num_idle
}

/// A cached block is on its way to the inbox when it is hit, held by another transfer, and let go again.
#[test]
fn a_block_that_is_hit_on_its_way_to_the_inbox_is_settled_once() {
    let name = "release | hit, retain; read, release | allocate, write";
    let outcomes = explore(name, Size::Huge, || {
        let (manager, payloads, block) = one_cached_block();
        let first = {
            let manager = Arc::clone(&manager);
            thread::spawn(move || manager.release_blocks(&[block]).expect("held"))
        };
        let second = {
            let (manager, payloads) = (Arc::clone(&manager), Arc::clone(&payloads));
            thread::spawn(move || {
                let mut locked = manager.lock().expect("not poisoned");
                let Some((hit, num_cached)) = hit_and_retain(&manager, &mut locked) else {
                    return 0;
                };
                drop(locked);
                payloads.read(hit);
                manager.release_blocks(&[hit]).expect("held");
                num_cached
            })
        };
        let third = {
            let manager = Arc::clone(&manager);
            thread::spawn(move || {
                let mut locked = manager.lock().expect("not poisoned");
                allocate_and_write(&mut locked, &payloads)
            })
        };
        join(first);
        let num_cached = join(second);
        let was_served = join(third);
        (num_cached, was_served, assert_settled(&manager))
    });
    // Given up before it is looked for; found and kept; found, then given up for what the third thread caches.
    assert_eq!(outcomes, [(0, true, 0), (1, false, 1), (1, true, 2)]);
}

/// As above, and its content is dropped before the last of its holders lets go: so it goes from the inbox to the stack.
#[test]
fn a_block_that_loses_its_content_on_its_way_to_the_inbox_is_free_after_all_holders() {
    let name = "release | hit, retain, hand over, reset, allocate, write | read, release";
    let outcomes = explore(name, Size::Huge, || {
        let (manager, payloads, block) = one_cached_block();
        let is_handed_over = Arc::new(AtomicBool::new(false));
        let first = {
            let manager = Arc::clone(&manager);
            thread::spawn(move || manager.release_blocks(&[block]).expect("held"))
        };
        let caller = {
            let (manager, payloads) = (Arc::clone(&manager), Arc::clone(&payloads));
            let is_handed_over = Arc::clone(&is_handed_over);
            thread::spawn(move || {
                let mut locked = manager.lock().expect("not poisoned");
                let (hit, _) = hit_and_retain(&manager, &mut locked).expect("one is free");
                assert_eq!(hit, block);
                is_handed_over.store(true, Ordering::Release);
                locked.reset().expect("consistent");
                allocate_and_write(&mut locked, &payloads)
            })
        };
        let second = {
            let manager = Arc::clone(&manager);
            thread::spawn(move || {
                let is_mine = is_handed_over.load(Ordering::Acquire);
                if is_mine {
                    payloads.read(block);
                    manager.release_blocks(&[block]).expect("held");
                }
                is_mine
            })
        };
        join(first);
        let was_served = join(caller);
        if !join(second) {
            manager.release_blocks(&[block]).expect("held");
        }
        assert_settled(&manager);
        was_served
    });
    assert_eq!(outcomes, [false, true]);
}
