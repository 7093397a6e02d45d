//! Roots: what keeps one alive, and what a stale one can do.

use super::super::TreeError;
use super::fixture::{Fixture, id};

#[test]
fn a_held_root_stays_without_blocks() {
    let mut fixture = Fixture::new(4, 1);
    fixture.publish(None, &[1], [1]);
    fixture.remove([1]);
    fixture.publish(None, &[1], [1]);
}

#[test]
fn a_root_without_holders_goes_with_its_last_block() {
    let mut fixture = Fixture::new(4, 1);
    fixture.publish(None, &[1], [1]);
    fixture.tree.release_root(fixture.root);
    assert_eq!(fixture.tree.find_root(b""), Some(fixture.root));
    fixture.remove([1]);
    assert_eq!(fixture.tree.find_root(b""), None);
    assert!(!fixture.tree.is_current(fixture.root));
}

#[test]
fn namespaces_that_come_and_go_leave_nothing_behind() {
    let mut fixture = Fixture::new(4, 1);
    let root = fixture.tree.open_root(b"first");
    fixture.tree.release_root(root);
    let bytes = fixture.tree.memory_bytes();
    for number in 0..10_000_u32 {
        let root = fixture.tree.open_root(&number.to_le_bytes());
        fixture.tree.release_root(root);
    }
    assert_eq!(fixture.tree.memory_bytes(), bytes);
}

#[test]
fn a_forgotten_namespace_starts_anew() {
    let mut fixture = Fixture::new(4, 1);
    let old = fixture.root;
    fixture.publish(None, &[1], [1]);
    assert_eq!(fixture.tree.forget(old), Err(TreeError::RootNotEmpty));
    fixture.remove([1]);
    assert_eq!(fixture.tree.forget(old), Ok(()));
    let new = fixture.tree.open_root(b"");
    assert_ne!(new, old);
    let published = fixture.tree.publish(new, None, &[1], &[id(2)]);
    assert_eq!(published.map(|published| published.num_new), Ok(1));
    // Who still holds the old one can neither find nor publish, and releases nothing of the new one.
    assert_eq!(fixture.tree.find(old, &[1], &mut Vec::new()), 0);
    assert_eq!(
        fixture.tree.publish(old, None, &[3], &[id(3)]),
        Err(TreeError::StaleRoot)
    );
    assert_eq!(
        fixture.tree.publish(old, Some(id(2)), &[3], &[id(3)]),
        Err(TreeError::StaleRoot)
    );
    assert_eq!(fixture.tree.retain_root(old), Err(TreeError::StaleRoot));
    assert_eq!(fixture.tree.forget(old), Err(TreeError::StaleRoot));
    fixture.tree.release_root(old);
    assert!(fixture.tree.is_current(new));
    fixture.validate();
}

#[test]
fn namespaces_share_nothing() {
    let mut fixture = Fixture::new(4, 1);
    let other = fixture.tree.open_root(b"other");
    fixture.publish(None, &[1, 2], [1, 2]);
    let published = fixture.tree.publish(other, None, &[1, 2], &[id(3), id(4)]);
    assert_eq!(published.map(|published| published.num_new), Ok(2));
    let mut found = Vec::new();
    fixture.tree.blocks_of(other, &mut found);
    assert_eq!(found, [id(4), id(3)]);
    fixture.validate();
}
