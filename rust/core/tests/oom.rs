//! A step that is short of blocks: refused as a whole, or served as far as they go.
#![cfg(not(looseleaf_loom))]

#[expect(dead_code, reason = "shared by tests that each use a part of it")]
mod content;

use content::{Random, rounds};
use looseleaf_core::{Admit, BlockManager, Config, Counts, Error, Oom, Reserve};

fn manager(num_blocks: u32) -> BlockManager {
    let config = Config::new(num_blocks, 4, 6, 64).expect("valid sizes");
    BlockManager::new(config.with_prefix_cache(3)).expect("valid sizes")
}

/// Computes a prompt of `num_tokens` tokens that nobody else has.
fn prefill(manager: &BlockManager, first: i32, num_tokens: i32) -> i64 {
    let tokens: Vec<i32> = (first..first + num_tokens).collect();
    let mut locked = manager.lock().expect("not poisoned");
    let handle = locked
        .admit(&Admit::new(&tokens))
        .expect("room")
        .id
        .to_handle();
    locked
        .reserve(&Reserve::new(&[handle]), None)
        .expect("room");
    locked
        .commit(&[handle], Counts::Default, None)
        .expect("reserved");
    handle
}

#[test]
fn a_prefix_is_served_and_the_rest_is_left_alone() {
    let manager = manager(5);
    let handles: Vec<i64> = (0..3).map(|row| prefill(&manager, 100 * row, 4)).collect();
    let mut locked = manager.lock().expect("not poisoned");
    let tokens = [1, 2, 3];
    let request = Reserve {
        num_new: Counts::Same(1),
        tokens: Some(&tokens),
        ..Reserve::new(&handles)
    };
    let before = locked.digest().expect("consistent");
    let refused = Error::OutOfBlocks {
        requested: 3,
        free: 2,
        evictable: 0,
    };
    assert_eq!(locked.reserve(&request, None), Err(refused));
    assert_eq!(locked.digest(), Ok(before));
    let served = locked.reserve(
        &Reserve {
            oom: Oom::Prefix,
            ..request
        },
        None,
    );
    assert_eq!(served, Ok(2));
    locked.validate().expect("consistent");
    let known: Vec<u32> = handles
        .iter()
        .map(|&handle| locked.lengths(handle).expect("alive").known)
        .collect();
    assert_eq!(known, [5, 5, 4]);
    // Not even the first fits any more, and nothing is missing.
    locked
        .commit(&handles[..2], Counts::Default, None)
        .expect("reserved");
    let last = Reserve {
        oom: Oom::Prefix,
        ..Reserve::new(&handles[2..])
    };
    assert_eq!(locked.reserve(&last, None), Ok(0));
    locked.validate().expect("consistent");
}

#[test]
fn faults_are_refused_whatever_fits() {
    let manager = manager(2);
    let handles = [prefill(&manager, 0, 4), prefill(&manager, 50, 4)];
    let mut locked = manager.lock().expect("not poisoned");
    let before = locked.digest();
    let with = |handles: &[i64], num_new| {
        let mut locked = manager.lock().expect("not poisoned");
        locked.reserve(
            &Reserve {
                num_new: Counts::Same(num_new),
                oom: Oom::Prefix,
                ..Reserve::new(handles)
            },
            None,
        )
    };
    drop(locked);
    let duplicate = Error::DuplicateSequence { handle: handles[0] };
    assert_eq!(with(&[handles[0], handles[0]], 1), Err(duplicate));
    assert!(matches!(with(&handles, 5), Err(Error::NeverFits { .. })));
    locked = manager.lock().expect("not poisoned");
    assert_eq!(locked.digest(), before);
}

/// The same calls on two managers; then one serves a prefix, the other the same sequences alone.
fn serve_alike(seed: u64, operations: u32) {
    let mut random = Random(seed);
    let num_blocks = 3 + u32::try_from(random.below(14)).expect("small");
    let managers = [manager(num_blocks), manager(num_blocks)];
    let mut handles: Vec<i64> = Vec::new();
    for _ in 0..operations {
        match random.below(6) {
            0 => {
                let tokens: Vec<i32> = (0..=random.below(12)).map(|_| random.token()).collect();
                let [first, second] = managers.each_ref().map(|manager| {
                    manager
                        .lock()
                        .expect("not poisoned")
                        .admit(&Admit::new(&tokens))
                });
                assert_eq!(first, second);
                handles.extend(first.map(|admission| admission.id.to_handle()));
            }
            1 if !handles.is_empty() => {
                let parent = handles[random.below(handles.len())];
                let [first, second] = managers
                    .each_ref()
                    .map(|manager| manager.lock().expect("not poisoned").fork(parent));
                assert_eq!(first, second);
                handles.extend(first.map(|admission| admission.id.to_handle()));
            }
            2 if !handles.is_empty() => {
                let ended = handles.swap_remove(random.below(handles.len()));
                for manager in &managers {
                    manager
                        .lock()
                        .expect("not poisoned")
                        .release(&[ended])
                        .expect("alive");
                }
            }
            _ => step(&managers, &handles, &mut random),
        }
        let [first, second] = managers
            .each_ref()
            .map(|manager| manager.lock().expect("not poisoned").digest());
        assert_eq!(first, second, "seed {seed}");
    }
}

fn step(managers: &[BlockManager; 2], handles: &[i64], random: &mut Random) {
    let num_new: Vec<u32> = handles
        .iter()
        .map(|_| u32::try_from(random.below(7)).expect("small"))
        .collect();
    let request = |num_rows: usize, oom| Reserve {
        num_new: Counts::Each(&num_new[..num_rows]),
        lookahead: 3,
        oom,
        ..Reserve::new(&handles[..num_rows])
    };
    let mut locked = managers[0].lock().expect("not poisoned");
    let served = locked.reserve(&request(handles.len(), Oom::Prefix), None);
    let Ok(served) = served else { return };
    let served = served as usize;
    locked.validate().expect("consistent");
    let mut other = managers[1].lock().expect("not poisoned");
    if served < handles.len() {
        let answer = other.reserve(&request(served + 1, Oom::Fail), None);
        assert!(
            matches!(
                answer,
                Err(Error::OutOfBlocks { .. } | Error::NeverFits { .. })
            ),
            "{answer:?} for one more than the {served} served"
        );
    }
    other
        .reserve(&request(served, Oom::Fail), None)
        .expect("what was served");
    for locked in [&mut locked, &mut other] {
        locked
            .commit(&handles[..served], Counts::Default, None)
            .expect("reserved");
    }
}

#[test]
fn a_prefix_is_the_longest_that_fits_and_is_served_as_if_it_were_all() {
    rounds(0x00B5, serve_alike);
}
