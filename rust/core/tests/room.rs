//! Calls that evict many blocks let go of the mutex in between.
#![cfg(not(looseleaf_loom))]

use std::cell::Cell;

use looseleaf_core::{Admit, BlockManager, Config, Counts, Error, Locked, MAX_VICTIMS, Reserve};

const NUM_BLOCKS: u32 = 4 * MAX_VICTIMS;

fn manager() -> BlockManager {
    let config = Config::new(NUM_BLOCKS, 1, 8, 2 * NUM_BLOCKS).expect("valid sizes");
    BlockManager::new(config.with_prefix_cache(7)).expect("valid sizes")
}

fn prompt(first: u32, num_tokens: u32) -> Vec<i32> {
    (first..first + num_tokens).map(u32::cast_signed).collect()
}

/// Caches a prompt that is idle afterwards, all tokens but the last of it.
fn cache(manager: &BlockManager, tokens: &[i32]) {
    let handle = admit(manager, tokens).expect("room").0;
    manager
        .call(|locked| locked.reserve(&Reserve::new(&[handle]), None))
        .expect("room");
    manager
        .call(|locked| locked.commit(&[handle], Counts::Default, None))
        .expect("reserved");
    manager
        .call(|locked| locked.release(&[handle]))
        .expect("alive");
}

/// Handle, cached tokens, and how often the mutex was taken.
fn admit(manager: &BlockManager, tokens: &[i32]) -> Result<(i64, u32, u32), Error> {
    let num_locks = Cell::new(0);
    let lock = || {
        num_locks.set(num_locks.get() + 1);
        let mut locked = manager.lock()?;
        locked.validate()?;
        Ok::<_, Error>(locked)
    };
    let admission = manager.call_with(lock, |locked| locked.admit(&Admit::new(tokens)))?;
    Ok((
        admission.id.to_handle(),
        admission.num_cached,
        num_locks.get(),
    ))
}

#[test]
fn an_admission_evicts_in_pieces_and_keeps_what_it_hits() {
    let manager = manager();
    // The oldest content is what the prompt begins with: evicting ahead must spare it.
    let old = prompt(0, MAX_VICTIMS);
    cache(&manager, &old);
    cache(&manager, &prompt(50_000, NUM_BLOCKS - MAX_VICTIMS));
    let tokens = [old.clone(), prompt(90_000, 3 * MAX_VICTIMS)].concat();
    let (handle, num_cached, num_locks) = admit(&manager, &tokens).expect("room");
    assert_eq!(num_cached, MAX_VICTIMS);
    assert!(num_locks > 2, "evicted in {num_locks} holds of the mutex");
    manager.call(Locked::validate).expect("consistent");
    manager
        .call(|locked| locked.release(&[handle]))
        .expect("alive");
}

#[test]
fn an_admission_that_cannot_be_evicts_nothing() {
    let manager = manager();
    cache(&manager, &prompt(0, NUM_BLOCKS));
    let (holder, ..) = admit(&manager, &prompt(0, MAX_VICTIMS)).expect("room");
    let before = manager.call(Locked::digest);
    let answer = admit(&manager, &prompt(50_000, NUM_BLOCKS));
    assert!(
        matches!(answer, Err(Error::OutOfBlocks { .. })),
        "{answer:?}"
    );
    assert_eq!(manager.call(Locked::digest), before);
    manager
        .call(|locked| locked.release(&[holder]))
        .expect("alive");
}

#[test]
fn a_step_evicts_in_pieces_too() {
    let manager = manager();
    cache(&manager, &prompt(0, NUM_BLOCKS));
    let request = Admit {
        reserve: Some(0),
        ..Admit::new(&[70_000])
    };
    let handle = manager
        .call(|locked| locked.admit(&request))
        .expect("room")
        .id
        .to_handle();
    let num_new = 3 * MAX_VICTIMS;
    let handles = [handle];
    let step = Reserve {
        num_new: Counts::Same(num_new),
        ..Reserve::new(&handles)
    };
    let served = manager.call(|locked| locked.reserve(&step, None));
    assert_eq!(served, Ok(1));
    let mut locked = manager.lock().expect("not poisoned");
    locked.validate().expect("consistent");
    assert_eq!(
        locked.blocks(handle).expect("alive").len(),
        num_new as usize
    );
}

#[test]
fn one_hold_of_the_mutex_takes_what_it_needs_all_the_same() {
    let manager = manager();
    cache(&manager, &prompt(0, NUM_BLOCKS));
    let mut locked = manager.lock().expect("not poisoned");
    let tokens = prompt(50_000, NUM_BLOCKS);
    locked
        .admit(&Admit::new(&tokens))
        .expect("everything is evictable");
    locked.validate().expect("consistent");
}

#[test]
fn evicting_on_purpose_stops_at_the_number_asked_for() {
    let manager = manager();
    cache(&manager, &prompt(0, NUM_BLOCKS));
    assert_eq!(manager.evict(MAX_VICTIMS + 7), Ok(MAX_VICTIMS + 7));
    assert_eq!(manager.evict(u32::MAX), Ok(NUM_BLOCKS - MAX_VICTIMS - 7));
    assert_eq!(manager.evict(1), Ok(0));
}
