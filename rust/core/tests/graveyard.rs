//! What one thread can see of the graveyard.
#![cfg(not(looseleaf_loom))]

use looseleaf_core::{Graveyard, SeqId};

fn sequence(index: u32, generation: u32) -> SeqId {
    SeqId::new(index, generation).expect("a sequence id")
}

fn drain(graveyard: &Graveyard) -> Vec<SeqId> {
    let mut buried = Vec::new();
    graveyard.drain(|sequence| buried.push(sequence));
    buried
}

fn with_issued(ids: &[SeqId]) -> Graveyard {
    let graveyard = Graveyard::new(4);
    for &id in ids {
        graveyard.issue(id);
    }
    graveyard
}

#[test]
fn the_first_buried_is_the_first_drained() {
    let ids = [
        sequence(2, 1),
        sequence(0, 7),
        sequence(3, 1),
        sequence(1, 2),
    ];
    let graveyard = with_issued(&ids);
    assert!(graveyard.is_empty());
    assert_eq!(drain(&graveyard), []);
    for id in ids {
        graveyard.bury(id);
        assert!(!graveyard.is_empty());
    }
    assert_eq!(drain(&graveyard), ids);
    assert!(graveyard.is_empty());
    assert_eq!(drain(&graveyard), []);
}

#[test]
fn a_sequence_is_buried_once() {
    let id = sequence(1, 1);
    let graveyard = with_issued(&[id]);
    graveyard.bury(id);
    graveyard.bury(id);
    assert_eq!(drain(&graveyard), [id]);
    graveyard.bury(id); // its slot is vacant
    assert!(graveyard.is_empty());
}

#[test]
fn a_late_drop_does_not_reach_the_next_sequence_of_the_slot() {
    let (old, new) = (sequence(1, 1), sequence(1, 2));
    let graveyard = with_issued(&[old]);
    graveyard.bury(old);
    assert_eq!(drain(&graveyard), [old]);
    graveyard.issue(new);
    graveyard.bury(old);
    assert!(graveyard.is_empty());
    graveyard.bury(new);
    assert_eq!(drain(&graveyard), [new]);
}

#[test]
fn a_sequence_closed_by_name_is_not_drained() {
    let (old, new) = (sequence(1, 1), sequence(1, 2));
    let graveyard = with_issued(&[old]);
    assert!(graveyard.close(old));
    assert!(!graveyard.close(old));
    graveyard.bury(old);
    assert!(graveyard.is_empty());
    graveyard.issue(new);
    assert!(!graveyard.close(old));
    assert!(graveyard.close(new));
}

#[test]
fn a_sequence_that_was_dropped_first_is_left_to_the_drain() {
    let id = sequence(0, 1);
    let graveyard = with_issued(&[id]);
    graveyard.bury(id);
    assert!(!graveyard.close(id));
    assert_eq!(drain(&graveyard), [id]);
}

#[test]
fn a_slot_may_be_issued_and_buried_again_while_it_is_drained() {
    let ids = [sequence(0, 1), sequence(1, 1), sequence(2, 1)];
    let graveyard = with_issued(&ids);
    for id in ids {
        graveyard.bury(id);
    }
    let mut drained = Vec::new();
    graveyard.drain(|id| {
        drained.push(id);
        let next = sequence(id.index(), id.generation() + 1);
        graveyard.issue(next);
        graveyard.bury(next);
    });
    assert_eq!(drained, ids);
    assert_eq!(
        drain(&graveyard),
        [sequence(0, 2), sequence(1, 2), sequence(2, 2)]
    );
}

#[test]
fn an_id_that_was_never_issued_is_not_buried() {
    let graveyard = with_issued(&[sequence(0, 1)]);
    for id in [
        sequence(0, 2),
        sequence(1, 1),
        sequence(4, 1),
        sequence(u32::MAX, 1),
    ] {
        graveyard.bury(id);
        assert!(!graveyard.close(id));
    }
    assert!(graveyard.is_empty());
}
