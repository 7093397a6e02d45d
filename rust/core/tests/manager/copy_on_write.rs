//! Forks share blocks; the first write into a shared one goes to a copy.

use looseleaf_core::{Counts, Error, Reserve};

use crate::engine::{Engine, prompt};

#[test]
fn fork_then_write_copies_one_block() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let child = engine.fork(parent);
    let shared = engine.table(parent);
    assert_eq!(engine.table(child), shared);
    assert_eq!(engine.num_free(), 6);

    let (copies, _) = engine.append(child, 100);
    let destination = engine.table(child)[1];
    assert_eq!(copies, [(shared[1], destination)]);
    let (copies, _) = engine.append(parent, 200);
    assert_eq!(copies, []);

    assert_eq!(engine.table(parent), shared);
    assert_eq!(engine.table(child), [shared[0], destination]);
    assert_eq!(engine.num_free(), 5);
    assert_eq!(engine.stats().num_copies, 1);
    assert_eq!(engine.read(parent, 7), [1, 2, 3, 4, 5, 6, 200]);
    assert_eq!(engine.read(child, 7), [1, 2, 3, 4, 5, 6, 100]);
    engine.release(&[parent, child]);
    assert_eq!(engine.num_free(), 8);
}

#[test]
fn a_write_after_a_full_block_copies_nothing() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 8));
    let child = engine.fork(parent);
    assert_eq!(engine.append(child, 100).0, []);
    assert_eq!(engine.append(parent, 200).0, []);
    assert_eq!(engine.num_free(), 4);
    assert_eq!(engine.stats().num_copies, 0);
    assert_eq!(engine.read(parent, 9), [1, 2, 3, 4, 5, 6, 7, 8, 200]);
    assert_eq!(engine.read(child, 9), [1, 2, 3, 4, 5, 6, 7, 8, 100]);
}

#[test]
fn the_last_sharer_writes_in_place() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let child = engine.fork(parent);
    engine.release(&[parent]);
    assert_eq!(engine.append(child, 100).0, []);
    assert_eq!(engine.num_free(), 6);
}

#[test]
fn of_all_sharers_in_a_step_one_keeps_the_block() {
    for reversed in [false, true] {
        let mut engine = Engine::new(16, 4);
        let parent = engine.prefill(&prompt(1, 6));
        let mut rows = vec![
            parent,
            engine.fork(parent),
            engine.fork(parent),
            engine.fork(parent),
        ];
        if reversed {
            rows.reverse();
        }
        engine
            .try_reserve(&Reserve {
                num_new: Counts::Same(1),
                tokens: Some(&[100, 200, 300, 400]),
                ..Reserve::new(&rows)
            })
            .expect("room");
        assert_eq!(engine.copies().len(), 3);
        let destinations: Vec<u32> = rows.iter().map(|&row| engine.table(row)[1]).collect();
        assert!((1..4).all(|row| !destinations[..row].contains(&destinations[row])));
        engine.run();
        engine.commit(&rows);
        for (row, token) in rows.into_iter().zip([100, 200, 300, 400]) {
            assert_eq!(engine.read(row, 7), [1, 2, 3, 4, 5, 6, token]);
        }
    }
}

#[test]
fn a_copy_is_emitted_until_a_commit_acknowledges_it() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let child = engine.fork(parent);
    engine.reserve(&[child], 1);
    let copies = engine.copies();
    let source = copies[0].0;
    engine.reserve(&[child], 1); // the step failed
    assert_eq!(engine.copies(), copies);
    assert_eq!(engine.stats().num_copies, 1, "emitted twice, copied once");

    // Nobody needs the source but the copy: it stays, whatever becomes of its other holders.
    engine.release(&[parent]);
    assert_eq!(engine.num_free(), 5);
    let refill = engine.admit(&prompt(50, 69));
    assert!(!engine.table(refill).contains(&source));

    engine.reserve(&[child], 2);
    assert_eq!(engine.copies(), copies);
    engine.run();
    engine
        .lock()
        .commit(&[child], Counts::Same(6), None)
        .expect("nothing was accepted");
    assert_eq!(engine.num_free(), 1, "the source is free");
    engine.reserve(&[child], 1);
    assert_eq!(engine.copies(), []);
    assert_eq!(engine.read(child, 6), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_pending_copy_goes_with_its_row_into_any_batch() {
    let mut engine = Engine::new(16, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let (first, second) = (engine.fork(parent), engine.fork(parent));
    engine.reserve(&[first, second], 1);
    let copies = engine.copies();
    assert_eq!(copies.len(), 2);
    engine.reserve(&[second], 1);
    assert_eq!(engine.copies(), copies[1..]);
    engine.reserve(&[parent], 1);
    assert_eq!(engine.copies(), []);
    // A row that computes nothing brings its copy along.
    engine.reserve(&[first], 0);
    assert_eq!(engine.copies(), copies[..1]);
    engine.run();
    engine.commit(&[first]);
    assert_eq!(engine.read(first, 6), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_fork_of_a_sequence_with_a_pending_copy_shares_the_source() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let child = engine.fork(parent);
    let source = engine.table(parent)[1];
    engine.reserve(&[child], 1); // the copy has not run
    let grandchild = engine.fork(child);
    assert_eq!(engine.table(grandchild)[1], source);
    assert_ne!(engine.table(child)[1], source);
    assert_eq!(engine.read(grandchild, 6), [1, 2, 3, 4, 5, 6]);

    // Child and its copy leave; the two others still share.
    engine.release(&[child]);
    assert_eq!(engine.num_free(), 6);
    assert_eq!(engine.append(grandchild, 300).0.len(), 1);
    assert_eq!(engine.append(parent, 200).0, []);
    assert_eq!(engine.read(parent, 7), [1, 2, 3, 4, 5, 6, 200]);
    assert_eq!(engine.read(grandchild, 7), [1, 2, 3, 4, 5, 6, 300]);
}

#[test]
fn truncating_below_a_pending_copy_gives_it_up() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let child = engine.fork(parent);
    engine.reserve(&[child], 1);
    assert_eq!(engine.num_free(), 5);
    engine.truncate(child, 4);
    assert_eq!(
        engine.num_free(),
        6,
        "the destination is free, the source is the parent's alone"
    );
    engine.reserve(&[child], 1);
    assert_eq!(engine.copies(), []);
    engine.release(&[parent]);
    engine.release(&[child]);
    assert_eq!(engine.num_free(), 8);
}

#[test]
fn truncating_into_a_pending_copy_keeps_it() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 7));
    let child = engine.fork(parent);
    engine.reserve(&[child], 1);
    let copies = engine.copies();
    engine.truncate(child, 5);
    engine.release(&[parent]);
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Same(1),
            tokens: Some(&[100]),
            ..Reserve::new(&[child])
        })
        .expect("room");
    assert_eq!(engine.copies(), copies);
    engine.run();
    engine.commit(&[child]);
    assert_eq!(engine.read(child, 6), [1, 2, 3, 4, 5, 100]);
}

#[test]
fn a_held_source_is_written_above_the_hold_and_copied_below_it() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let child = engine.fork(parent);
    engine.reserve(&[child], 1); // holds slots 0 and 1 of the shared block
    let source = engine.table(parent)[1];

    let (copies, slot) = engine.append(parent, 200); // slot 2 of it
    assert_eq!((copies, slot), (vec![], i64::from(source) * 4 + 2));

    engine.truncate(parent, 5);
    let (copies, slot) = engine.append(parent, 201); // slot 1 of it: the child's copy still needs what is there
    let moved = engine.table(parent)[1];
    assert_eq!(
        (copies, slot),
        (vec![(source, moved)], i64::from(moved) * 4 + 1)
    );

    engine.reserve(&[child], 1); // the child's step runs at last
    assert_eq!(engine.copies(), [(source, engine.table(child)[1])]);
    engine.run();
    engine.commit(&[child]);
    assert_eq!(engine.read(child, 6), [1, 2, 3, 4, 5, 6]);
    assert_eq!(engine.read(parent, 6), [1, 2, 3, 4, 5, 201]);
    engine.release(&[parent, child]);
    assert_eq!(engine.num_free(), 8);
}

#[test]
fn a_row_of_the_same_step_may_not_write_below_another_rows_copy() {
    // The parent was truncated to one token in the shared block; the child has two there.
    for reversed in [false, true] {
        let mut engine = Engine::new(8, 4);
        let parent = engine.prefill(&prompt(1, 6));
        let child = engine.fork(parent);
        engine.truncate(parent, 5);
        let mut rows = [(parent, 200), (child, 100)];
        if reversed {
            rows.reverse();
        }
        engine
            .try_reserve(&Reserve {
                num_new: Counts::Same(1),
                tokens: Some(&rows.map(|row| row.1)),
                ..Reserve::new(&rows.map(|row| row.0))
            })
            .expect("room");
        let num_copies = if reversed { 2 } else { 1 };
        assert_eq!(engine.copies().len(), num_copies);
        engine.run();
        engine.commit(&rows.map(|row| row.0));
        assert_eq!(engine.read(parent, 6), [1, 2, 3, 4, 5, 200]);
        assert_eq!(engine.read(child, 7), [1, 2, 3, 4, 5, 6, 100]);
    }
}

#[test]
fn capacity_is_never_shared() {
    let mut engine = Engine::new(16, 4);
    let parent = engine.try_admit(&prompt(1, 6), Some(16)).expect("room");
    engine.reserve(&[parent], 6);
    engine.run();
    engine.commit(&[parent]);
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Same(1),
            lookahead: 20,
            ..Reserve::new(&[parent])
        })
        .expect("room");
    assert_eq!(engine.table(parent).len(), 7);

    let child = engine.fork(parent);
    assert_eq!(engine.table(child), engine.table(parent)[..2]);
    let lengths = engine.lengths(child);
    assert_eq!(
        (
            lengths.known,
            lengths.reserved,
            lengths.computed,
            lengths.cached
        ),
        (6, 6, 6, 6)
    );
}

#[test]
fn a_fork_before_anything_is_computed_shares_no_block() {
    let engine = Engine::new(8, 4);
    let parent = engine.admit(&prompt(1, 6));
    let child = engine.fork(parent);
    assert_eq!(engine.table(child), [0_u32; 0]);
    assert_eq!((engine.lengths(child).known, engine.num_free()), (6, 6));
}

#[test]
fn a_fork_within_a_step_is_not_touched_by_the_step() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 5));
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Same(2),
            tokens: Some(&[60, 70]),
            ..Reserve::new(&[parent])
        })
        .expect("room");
    let child = engine.fork(parent); // after the reserve, before the step
    engine.run();
    engine.commit(&[parent]);
    assert_eq!(
        engine.lengths(child).known,
        7,
        "it knows what its parent knew"
    );
    engine.truncate(child, 5);
    assert_eq!(engine.append(child, 100).0.len(), 1);
    assert_eq!(engine.read(parent, 7), [1, 2, 3, 4, 5, 60, 70]);
    assert_eq!(engine.read(child, 6), [1, 2, 3, 4, 5, 100]);
}

#[test]
fn a_step_without_room_for_its_copies_changes_nothing() {
    let mut engine = Engine::new(3, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let children = [engine.fork(parent), engine.fork(parent)];
    let before = (engine.stats(), engine.batch.buffers.clone());
    let tables = children.map(|child| engine.table(child));
    let request = Reserve {
        num_new: Counts::Same(1),
        ..Reserve::new(&children)
    };
    let answer = engine.try_reserve(&request);
    assert_eq!(
        answer,
        Err(Error::OutOfBlocks {
            requested: 2,
            free: 1,
            evictable: 0
        })
    );
    assert_eq!((engine.stats(), engine.batch.buffers.clone()), before);
    assert_eq!(children.map(|child| engine.table(child)), tables);

    // No hold was left behind: with the last free block, one of them is copied, and the last sharer is not.
    engine.release(&[parent]);
    engine.try_reserve(&request).expect("one copy");
    assert_eq!(engine.copies().len(), 1);
}

#[test]
fn a_released_row_takes_its_pending_copy_along() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let child = engine.fork(parent);
    engine.reserve(&[child], 1);
    engine.release(&[parent]); // the source is held by the copy alone
    assert_eq!(engine.num_free(), 5);
    engine.release(&[child]);
    assert_eq!(engine.num_free(), 8);
}

#[test]
fn a_chain_of_forks_reads_each_its_own() {
    let mut engine = Engine::new(16, 4);
    let mut chain = vec![engine.prefill(&prompt(1, 2))];
    for generation in 1..4 {
        let child = engine.fork(chain[generation - 1]);
        engine.append(child, 10 * i32::try_from(generation).expect("small"));
        chain.push(child);
    }
    assert_eq!(engine.read(chain[3], 5), [1, 2, 10, 20, 30]);
    assert_eq!(
        engine.append(chain[0], 77).0,
        [],
        "each fork has left the block that it shared"
    );
    assert_eq!(engine.read(chain[0], 3), [1, 2, 77]);
    assert_eq!(engine.read(chain[1], 3), [1, 2, 10]);
    engine.release(&chain);
    assert_eq!(engine.num_free(), 16);
}

#[test]
fn a_repeated_step_that_brings_its_token_late_emits_its_copy_again() {
    let mut engine = Engine::new(8, 4);
    let parent = engine.prefill(&prompt(1, 6));
    let child = engine.fork(parent);
    engine.reserve(&[child], 1); // the token was not known yet; the step failed
    let copies = engine.copies();
    assert_eq!(copies.len(), 1);
    assert_eq!(engine.append(child, 100).0, copies);
    assert_eq!(engine.read(child, 7), [1, 2, 3, 4, 5, 6, 100]);
    assert_eq!(engine.append(child, 101).0, []);

    // The same where a draft token was taken back.
    let other = engine.fork(parent);
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Same(1),
            tokens: Some(&[200]),
            ..Reserve::new(&[other])
        })
        .expect("room");
    let copies = engine.copies();
    engine.truncate(other, 6);
    assert_eq!(engine.append(other, 300).0, copies);
    assert_eq!(engine.read(other, 7), [1, 2, 3, 4, 5, 6, 300]);
}

#[test]
fn a_hold_keeps_what_the_longest_of_its_copies_needs() {
    let mut engine = Engine::new(16, 8);
    let long = engine.prefill(&prompt(1, 7));
    let (short, last) = (engine.fork(long), engine.fork(long));
    engine.truncate(short, 3);
    engine.truncate(last, 5);
    engine.reserve(&[long], 1); // holds seven slots
    engine.reserve(&[short], 1); // and three of them
    let (copies, _) = engine.append(last, 100); // would be the sixth
    assert_eq!(copies.len(), 1);

    engine.reserve(&[long, short], 1);
    engine.run();
    engine.commit(&[long, short]);
    assert_eq!(engine.read(long, 7), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(engine.read(short, 3), [1, 2, 3]);
    assert_eq!(engine.read(last, 6), [1, 2, 3, 4, 5, 100]);
}
