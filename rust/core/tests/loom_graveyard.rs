//! Every interleaving and reordering of a few drops, with the drain that the mutex holder runs.
#![cfg(looseleaf_loom)]

mod explore;

use explore::{Payloads, Size, explore, join};
use loom::sync::Arc;
use loom::thread;
use looseleaf_core::{BlockId, Graveyard, SeqId};

fn sequence(index: u32, generation: u32) -> SeqId {
    SeqId::new(index, generation).expect("a sequence id")
}

fn drain(graveyard: &Graveyard) -> Vec<SeqId> {
    let mut buried = Vec::new();
    graveyard.drain(|sequence| buried.push(sequence));
    buried
}

fn with_issued(ids: &[SeqId]) -> Arc<Graveyard> {
    let graveyard = Graveyard::new(2);
    for &id in ids {
        graveyard.issue(id);
    }
    Arc::new(graveyard)
}

fn spawn<T: 'static>(
    graveyard: &Arc<Graveyard>,
    work: impl FnOnce(&Graveyard) -> T + 'static,
) -> thread::JoinHandle<T> {
    let graveyard = Arc::clone(graveyard);
    thread::spawn(move || work(&graveyard))
}

#[test]
fn a_sequence_dropped_in_two_threads_is_drained_once() {
    let outcomes = explore("bury A | bury A | drain", Size::Large, || {
        let id = sequence(0, 1);
        let graveyard = with_issued(&[id]);
        let droppers = [0; 2].map(|_| spawn(&graveyard, move |graveyard| graveyard.bury(id)));
        let drainer = spawn(&graveyard, drain);
        droppers.into_iter().for_each(join);
        let early = join(drainer);
        let late = drain(&graveyard);
        assert_eq!([early.as_slice(), &late].concat(), [id]);
        early.len()
    });
    assert_eq!(outcomes, [0, 1]);
}

#[test]
fn sequences_dropped_in_two_threads_are_both_drained() {
    let outcomes = explore("bury A | bury B | drain", Size::Large, || {
        let ids = [sequence(0, 1), sequence(1, 1)];
        let graveyard = with_issued(&ids);
        let droppers = ids.map(|id| spawn(&graveyard, move |graveyard| graveyard.bury(id)));
        let drainer = spawn(&graveyard, drain);
        droppers.into_iter().for_each(join);
        let early = join(drainer);
        let mut all = [early.as_slice(), &drain(&graveyard)].concat();
        all.sort_unstable();
        assert_eq!(all, ids);
        assert!(graveyard.is_empty());
        early
    });
    let (a, b) = (sequence(0, 1), sequence(1, 1));
    assert_eq!(outcomes, [vec![], vec![a], vec![a, b], vec![b], vec![b, a]]);
}

#[test]
fn a_close_and_a_drop_end_a_sequence_once() {
    let outcomes = explore("bury A | close A, issue A', drain", Size::Small, || {
        let (old, new) = (sequence(0, 1), sequence(0, 2));
        let graveyard = with_issued(&[old]);
        let dropper = spawn(&graveyard, move |graveyard| graveyard.bury(old));
        let holder = spawn(&graveyard, move |graveyard| {
            let is_vacant = graveyard.close(old);
            if is_vacant {
                graveyard.issue(new);
            }
            (is_vacant, drain(graveyard))
        });
        join(dropper);
        let (is_vacant, early) = join(holder);
        let all = [early.as_slice(), &drain(&graveyard)].concat();
        assert_eq!(all, if is_vacant { vec![] } else { vec![old] });
        assert_eq!(graveyard.close(new), is_vacant);
        (is_vacant, early.len())
    });
    assert_eq!(outcomes, [(false, 0), (false, 1), (true, 0)]);
}

#[test]
fn a_late_drop_spares_the_next_sequence_of_its_slot() {
    let outcomes = explore(
        "bury A, bury A | drain, issue A', bury A', drain",
        Size::Small,
        || {
            let (old, new) = (sequence(0, 1), sequence(0, 2));
            let graveyard = with_issued(&[old]);
            let dropper = spawn(&graveyard, move |graveyard| {
                graveyard.bury(old);
                graveyard.bury(old);
            });
            let holder = spawn(&graveyard, move |graveyard| {
                if drain(graveyard) != [old] {
                    return false;
                }
                graveyard.issue(new);
                graveyard.bury(new);
                assert_eq!(drain(graveyard), [new]);
                true
            });
            join(dropper);
            let was_drained = join(holder);
            assert_eq!(
                drain(&graveyard),
                if was_drained { vec![] } else { vec![old] }
            );
            was_drained
        },
    );
    assert_eq!(outcomes, [false, true]);
}

#[test]
fn the_drain_sees_what_was_done_before_the_drop() {
    let outcomes = explore(
        "write A, bury A | write B, bury B | drain, write",
        Size::Large,
        || {
            let ids = [sequence(0, 1), sequence(1, 1)];
            let graveyard = with_issued(&ids);
            let payloads = Arc::new(Payloads::new(1));
            let payload = |id: SeqId| BlockId::new(id.index()).expect("a small index");
            let droppers = ids.map(|id| {
                let payloads = Arc::clone(&payloads);
                spawn(&graveyard, move |graveyard| {
                    payloads.write(payload(id));
                    graveyard.bury(id);
                })
            });
            let drainer = spawn(&graveyard, move |graveyard| {
                let mut num_drained = 0;
                graveyard.drain(|id| {
                    payloads.read(payload(id));
                    payloads.write(payload(id));
                    num_drained += 1;
                });
                num_drained
            });
            droppers.into_iter().for_each(join);
            join(drainer)
        },
    );
    assert_eq!(outcomes, [0, 1, 2]);
}
