//! The digest: the same for the same calls, another for anything that differs.
#![cfg(not(looseleaf_loom))]

use std::collections::HashSet;

use looseleaf_core::prefix::Namespace;
use looseleaf_core::{Admit, BlockManager, Config, Counts, Locked, Reserve};

fn manager(seed: u64) -> BlockManager {
    let config = Config::new(12, 4, 4, 32).expect("valid sizes");
    BlockManager::new(config.with_prefix_cache(seed)).expect("valid sizes")
}

fn admit(locked: &mut Locked<'_>, tokens: &[i32], namespace: &[u8]) -> i64 {
    let request = Admit {
        namespace,
        ..Admit::new(tokens)
    };
    locked.admit(&request).expect("room").id.to_handle()
}

fn compute(locked: &mut Locked<'_>, handle: i64) {
    locked
        .reserve(&Reserve::new(&[handle]), None)
        .expect("room");
    locked
        .commit(&[handle], Counts::Default, None)
        .expect("reserved");
}

#[test]
fn each_call_changes_it_and_the_same_calls_change_it_alike() {
    let tenant = Namespace::builder().salt("tenant").build().expect("valid");
    // The hash seed decides how long a search takes, nothing else.
    let digests = [1, 2].map(|seed| {
        let manager = manager(seed);
        let mut locked = manager.lock().expect("not poisoned");
        let mut digests = vec![locked.digest().expect("consistent")];
        let mut note = |locked: &mut Locked<'_>| {
            let digest = locked.digest().expect("consistent");
            assert_eq!(locked.digest(), Ok(digest), "reading it changes nothing");
            digests.push(digest);
        };
        let first = admit(&mut locked, &[1, 2, 3, 4, 5, 6], &[1]);
        note(&mut locked);
        locked.reserve(&Reserve::new(&[first]), None).expect("room");
        note(&mut locked);
        locked
            .commit(&[first], Counts::Default, None)
            .expect("reserved");
        note(&mut locked);
        let child = locked.fork(first).expect("room").id.to_handle();
        note(&mut locked);
        compute(&mut locked, child);
        note(&mut locked);
        locked.truncate(first, 5).expect("long enough");
        note(&mut locked);
        let other = admit(&mut locked, &[1, 2, 3, 4, 5], tenant.as_bytes());
        compute(&mut locked, other);
        note(&mut locked);
        locked.release(&[first]).expect("alive");
        note(&mut locked);
        locked.release(&[child, other]).expect("alive");
        note(&mut locked);
        locked.evict(1).expect("consistent");
        note(&mut locked);
        locked.invalidate(tenant.as_bytes()).expect("consistent");
        note(&mut locked);
        digests
    });
    assert_eq!(digests[0], digests[1]);
    let distinct: HashSet<_> = digests[0].iter().collect();
    assert_eq!(distinct.len(), digests[0].len());
}

#[test]
fn a_namespace_or_a_token_makes_a_difference() {
    let digest = |tokens: &[i32], namespace: &[u8]| {
        let manager = manager(1);
        let mut locked = manager.lock().expect("not poisoned");
        let handle = admit(&mut locked, tokens, namespace);
        compute(&mut locked, handle);
        locked.release(&[handle]).expect("alive");
        locked.digest().expect("consistent")
    };
    let tenant = Namespace::builder().salt("tenant").build().expect("valid");
    let plain = digest(&[1, 2, 3, 4, 5], &[1]);
    assert_eq!(digest(&[1, 2, 3, 4, 5], &[1]), plain);
    assert_ne!(digest(&[1, 2, 3, 9, 5], &[1]), plain);
    assert_ne!(digest(&[1, 2, 3, 4, 5], tenant.as_bytes()), plain);
}

#[test]
fn the_order_of_eviction_makes_a_difference() {
    let digest = |order: [usize; 2]| {
        let manager = manager(1);
        let mut locked = manager.lock().expect("not poisoned");
        let handles = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 5]].map(|tokens| {
            let handle = admit(&mut locked, &tokens, &[1]);
            compute(&mut locked, handle);
            handle
        });
        for index in order {
            locked.release(&[handles[index]]).expect("alive");
        }
        locked.digest().expect("consistent")
    };
    assert_ne!(digest([0, 1]), digest([1, 0]));
}
