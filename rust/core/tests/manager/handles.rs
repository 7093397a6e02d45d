//! Handles: which are refused, and how a sequence ends.

use std::hint;
use std::sync::{Barrier, mpsc};
use std::thread;

use looseleaf_core::{BlockManager, Config, Counts, Error, Locked, Reserve, SeqId};

use crate::engine::admission;
use crate::engine::{Engine, id_of, prompt};

/// What every call that takes handles answers to these.
fn answers(engine: &Engine, handles: &[i64]) -> Vec<Result<(), Error>> {
    let mut locked = engine.lock();
    let mut answers = vec![
        locked.reserve(&Reserve::new(handles), None).map(drop),
        locked.commit(handles, Counts::Default, None),
    ];
    if let &[handle] = handles {
        answers.push(locked.fork(handle).map(drop));
        answers.push(locked.truncate(handle, 0));
        answers.push(locked.lengths(handle).map(drop));
        answers.push(locked.blocks(handle).map(drop));
    }
    locked.validate().expect("a consistent state");
    answers
}

#[test]
fn a_released_handle_is_stale() {
    let engine = Engine::new(8, 4);
    let handle = engine.admit(&prompt(1, 6));
    engine.release(&[handle]);
    for answer in answers(&engine, &[handle]) {
        assert_eq!(answer, Err(Error::StaleSequence { handle }));
    }
}

#[test]
fn a_handle_that_was_never_issued_is_unknown() {
    let engine = Engine::new(8, 4);
    let issued = engine.admit(&prompt(1, 6));
    let next_place = issued + 1;
    let next_generation = issued + (1 << 32);
    let no_place = issued + 1000;
    let unknown = [
        next_place,
        next_generation,
        no_place,
        0,
        1,
        -1,
        -issued,
        i64::MIN,
        i64::MAX,
    ];
    for handle in unknown {
        for answer in answers(&engine, &[handle]) {
            assert_eq!(answer, Err(Error::UnknownSequence { handle }));
        }
        let answer = engine.lock().release(&[issued, handle]);
        assert_eq!(answer, Err(Error::UnknownSequence { handle }));
    }
    assert_eq!(
        engine.num_free(),
        6,
        "the known one was not released either"
    );
}

#[test]
fn a_handle_that_stands_twice_is_refused() {
    let engine = Engine::new(8, 4);
    let (first, second) = (engine.admit(&[1]), engine.admit(&[2]));
    let duplicate = Err(Error::DuplicateSequence { handle: first });
    for answer in answers(&engine, &[first, second, first]) {
        assert_eq!(answer, duplicate);
    }
    assert_eq!(engine.lock().release(&[first, second, first]), duplicate);
    assert_eq!(engine.stats().num_sequences, 2);
    // The refusal is forgotten with the call.
    for answer in answers(&engine, &[first, second]) {
        assert_eq!(answer, Ok(()));
    }
}

#[test]
fn releasing_again_does_nothing() {
    let engine = Engine::new(8, 4);
    let (first, second) = (engine.admit(&prompt(1, 6)), engine.admit(&prompt(1, 6)));
    engine.release(&[first]);
    let before = engine.stats();
    engine.release(&[first]);
    assert_eq!(engine.stats(), before);
    engine.release(&[first, second]); // beside a live one
    assert_eq!(engine.num_free(), 8);
    engine.release(&[second, first]);
    engine.release(&[]);
    assert_eq!(engine.num_free(), 8);
}

#[test]
fn a_handle_never_comes_back() {
    let config = Config::new(4, 4, 1, 16).expect("sizes in range");
    let mut engine = Engine::with(config, 16);
    let first = engine.prefill(&[1]);
    engine.release(&[first]);
    let mut seen = vec![first];
    for generation in 2..=1000 {
        let handle = engine.prefill(&[generation]);
        assert!(!seen.contains(&handle));
        seen.push(handle);
        // By name, by a drop, or by both.
        match generation % 3 {
            0 => engine.release(&[handle]),
            1 => engine.manager.bury(id_of(handle)),
            _ => {
                engine.manager.bury(id_of(handle));
                engine.release(&[handle]);
            }
        }
    }
    let alive = engine.admit(&prompt(1, 6));
    for &handle in &seen {
        for answer in answers(&engine, &[handle]) {
            assert_eq!(answer, Err(Error::StaleSequence { handle }));
        }
        engine.manager.bury(id_of(handle)); // a drop that comes very late
    }
    engine.release(&seen);
    assert_eq!(
        engine.table(alive).len(),
        2,
        "none of them ended the place's newest sequence"
    );
    assert_eq!(engine.num_free(), 2);
}

#[test]
fn a_dropped_handle_is_gone_at_the_next_look() {
    let engine = Engine::new(8, 4);
    let handle = engine.admit(&prompt(1, 30));
    engine.manager.bury(id_of(handle));
    let stats = engine.stats();
    assert_eq!((stats.pool.num_free, stats.num_sequences), (8, 0));

    let handle = engine.admit(&prompt(1, 30));
    engine.manager.bury(id_of(handle));
    let lengths = engine.lock().lengths(handle);
    assert_eq!(lengths, Err(Error::StaleSequence { handle }));
}

#[test]
fn a_handle_dropped_under_the_mutex_gives_its_blocks_back_with_the_next_call() {
    // Also with one that fails.
    let calls: [fn(&mut Locked<'_>); 8] = [
        |locked| assert_eq!(locked.release(&[]), Ok(())),
        |locked| assert!(locked.commit(&[0], Counts::Default, None).is_err()),
        |locked| assert!(locked.reserve(&Reserve::new(&[0]), None).is_err()),
        |locked| assert!(locked.fork(0).is_err()),
        |locked| assert!(locked.truncate(0, 0).is_err()),
        |locked| assert_eq!(locked.can_admit(32), Ok(true)),
        |locked| assert_eq!(locked.admit(&admission(&[], None)), Err(Error::EmptyPrompt)),
        |locked| assert_eq!(locked.validate(), Ok(())),
    ];
    for call in calls {
        let engine = Engine::new(8, 4);
        let handle = engine.admit(&prompt(1, 30));
        let mut locked = engine.lock();
        engine.manager.bury(id_of(handle));
        engine.manager.bury(id_of(handle)); // once is enough
        call(&mut locked);
        let stats = locked.stats();
        assert_eq!((stats.pool.num_free, stats.num_sequences), (8, 0));
        locked.validate().expect("a consistent state");
    }
}

#[test]
fn a_drop_waits_for_nobody() {
    let engine = Engine::new(8, 4);
    let handle = engine.admit(&prompt(1, 6));
    let mut locked = engine.lock();
    // Were a drop to take the mutex, this scope would never end.
    thread::scope(|scope| {
        scope.spawn(|| engine.manager.bury(id_of(handle)));
    });
    locked.validate().expect("a consistent state");
    assert_eq!(locked.lengths(handle), Err(Error::StaleSequence { handle }));
    assert_eq!(locked.stats().pool.num_free, 8);
}

#[test]
fn drops_from_many_threads_give_everything_back() {
    const NUM_THREADS: u32 = 4;
    const NUM_ROUNDS: u32 = 500;
    let config = Config::new(64, 4, 32, 16).expect("sizes in range");
    let manager = BlockManager::new(config).expect("a valid configuration");
    let start = Barrier::new(NUM_THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..NUM_THREADS {
            let (manager, start) = (&manager, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..NUM_ROUNDS {
                    let mut locked = manager.lock().expect("no call has panicked");
                    let parent = locked
                        .admit(&admission(&prompt(1, 6), None))
                        .expect("room")
                        .id;
                    let child = locked.fork(parent.to_handle()).expect("room").id;
                    drop(locked);
                    if (thread + round) % 2 == 0 {
                        manager.bury(parent);
                        manager.bury(child);
                    } else {
                        let mut locked = manager.lock().expect("no call has panicked");
                        let handles = [parent, child].map(SeqId::to_handle);
                        locked.release(&handles).expect("live handles");
                        drop(locked);
                        manager.bury(child);
                    }
                }
            });
        }
    });
    let mut locked = manager.lock().expect("no call has panicked");
    locked.validate().expect("a consistent state");
    let stats = locked.stats();
    assert_eq!((stats.pool.num_free, stats.num_sequences), (64, 0));
    let num_sequences = u64::from(NUM_THREADS * NUM_ROUNDS);
    assert_eq!(
        stats.pool.num_allocated,
        2 * num_sequences,
        "a fork allocates nothing"
    );
}

#[test]
fn a_drop_and_a_release_at_once_end_a_sequence_once() {
    // So many, and dropped so slowly, that the release runs among the drops in most rounds.
    const NUM_SEQUENCES: u32 = 4096;
    const NUM_ROUNDS: usize = 20;
    let config = Config::new(NUM_SEQUENCES, 4, NUM_SEQUENCES, 16).expect("sizes in range");
    let manager = BlockManager::new(config).expect("a valid configuration");
    let (send, receive) = mpsc::channel::<Vec<SeqId>>();
    let start = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            for ids in receive {
                start.wait();
                for id in ids.into_iter().rev() {
                    (0..20).for_each(|_| hint::spin_loop());
                    manager.bury(id);
                }
                start.wait();
            }
        });
        for _ in 0..NUM_ROUNDS {
            let mut locked = manager.lock().expect("no call has panicked");
            let admit = |_| {
                locked
                    .admit(&admission(&[1], None))
                    .expect("every place is free")
                    .id
            };
            let ids: Vec<SeqId> = (0..NUM_SEQUENCES).map(admit).collect();
            let handles: Vec<i64> = ids.iter().copied().map(SeqId::to_handle).collect();
            send.send(ids).expect("the other thread listens");
            start.wait();
            locked.release(&handles).expect("live or dropped");
            start.wait();
            locked.validate().expect("a consistent state");
            assert_eq!(locked.stats().pool.num_free, NUM_SEQUENCES);
        }
        drop(send);
    });
}

#[test]
fn a_manager_is_refused_after_a_panic_within_a_call() {
    let engine = Engine::new(8, 4);
    let handle = engine.admit(&[1]);
    let manager = &engine.manager;
    let panicked = thread::scope(|scope| {
        let within = scope.spawn(|| {
            let _locked = manager.lock().expect("no call has panicked");
            panic!("on purpose");
        });
        within.join().is_err()
    });
    assert!(panicked);
    assert_eq!(manager.lock().err(), Some(Error::Poisoned));
    assert_eq!(manager.try_lock().err(), Some(Error::Poisoned));
    manager.bury(id_of(handle)); // a drop still waits for nobody
}

#[test]
fn the_mutex_is_tried_without_waiting() {
    let engine = Engine::new(8, 4);
    let locked = engine.lock();
    assert!(matches!(engine.manager.try_lock(), Ok(None)));
    drop(locked);
    assert!(matches!(engine.manager.try_lock(), Ok(Some(_))));
}
