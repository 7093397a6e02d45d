//! Exactly full, one more, and numbers that do not fit.

use looseleaf_core::{BlockManager, Config, Counts, Error, LookupReason, Reserve};

use crate::engine::admission;
use crate::engine::{Engine, prompt};

fn engine(num_blocks: u32, max_sequences: u32, max_sequence_len: u32) -> Engine {
    let config = Config::new(num_blocks, 4, max_sequences, max_sequence_len);
    Engine::with(config.expect("sizes in range"), 64)
}

#[test]
fn sizes_that_no_machine_has_are_refused_not_tried() {
    let config =
        Config::new(Config::MAX_BLOCKS, 1, 2_147_483_647, 2_147_483_647).expect("in range");
    let refused = BlockManager::new(config).map(drop);
    assert!(
        matches!(refused, Err(Error::OutOfMemory { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_lookahead_ends_with_the_pool() {
    let mut engine = Engine::with(Config::new(2, 2, 4, 64).expect("sizes in range"), 16);
    let sequence = engine.prefill(&[1]);
    let mut locked = engine.lock();
    let handles = [sequence];
    let request = Reserve {
        num_new: Counts::Same(1),
        lookahead: 100,
        ..Reserve::new(&handles)
    };
    assert_eq!(locked.reserve(&request, None), Ok(1));
    assert_eq!(locked.blocks(sequence).expect("alive").len(), 2);
    locked.validate().expect("consistent");
}

#[test]
fn every_block_can_be_had_and_not_one_more() {
    let mut engine = engine(4, 4, 64);
    let first = engine.admit(&prompt(1, 15));
    assert_eq!(engine.num_free(), 0);
    let none = Error::OutOfBlocks {
        requested: 1,
        free: 0,
        evictable: 0,
    };
    assert_eq!(engine.try_admit(&[1], None), Err(none.clone()));
    let second = engine
        .try_admit(&[1], Some(0))
        .expect("no block needed yet");
    let answer = engine.try_reserve(&Reserve::new(&[first, second]));
    assert_eq!(answer, Err(none), "the step as a whole");
    assert_eq!(engine.lengths(first).reserved, 0);
    engine.reserve(&[first], 16);
    let answer = engine.try_reserve(&Reserve {
        num_new: Counts::Same(17),
        ..Reserve::new(&[first])
    });
    assert_eq!(
        answer,
        Err(Error::NeverFits {
            requested: 5,
            capacity: 4
        })
    );
    engine.release(&[first]);
    engine.reserve(&[second], 16);
    assert_eq!(engine.num_free(), 0);
}

#[test]
fn sequences_that_fit_alone_but_not_together_may_be_tried_again() {
    let mut engine = engine(4, 4, 64);
    let handles: Vec<i64> = (0..4)
        .map(|_| engine.try_admit(&[1], Some(0)).expect("a place"))
        .collect();
    let request = Reserve {
        num_new: Counts::Same(16),
        ..Reserve::new(&handles)
    };
    let answer = engine.try_reserve(&request);
    assert_eq!(
        answer,
        Err(Error::OutOfBlocks {
            requested: 16,
            free: 4,
            evictable: 0
        })
    );
    engine
        .try_reserve(&Reserve {
            handles: &handles[..1],
            ..request
        })
        .expect("one of them");
}

#[test]
fn every_place_can_be_had_and_not_one_more() {
    let engine = engine(8, 2, 64);
    let (first, _second) = (engine.admit(&[1]), engine.admit(&[2]));
    let full = Error::TooManySequences { max_sequences: 2 };
    assert_eq!(engine.try_admit(&[3], None), Err(full.clone()));
    assert_eq!(engine.lock().fork(first).err(), Some(full));
    assert_eq!(engine.lock().can_admit(1), Ok(false));
    assert_eq!(engine.num_free(), 6);
    engine.release(&[first]);
    assert_eq!(engine.lock().can_admit(1), Ok(true));
    engine.admit(&[3]);
}

#[test]
fn a_sequence_may_be_as_long_as_promised_and_not_longer() {
    let mut engine = engine(8, 2, 10);
    let too_long = |requested| Error::SequenceTooLong {
        requested,
        max_sequence_len: 10,
    };
    assert_eq!(engine.try_admit(&prompt(1, 11), None), Err(too_long(11)));
    assert_eq!(engine.try_admit(&prompt(1, 1), Some(11)), Err(too_long(11)));
    assert_eq!(engine.lock().can_admit(11), Ok(false));
    let sequence = engine.prefill(&prompt(1, 10));
    assert_eq!(
        engine.try_reserve(&Reserve::new(&[sequence])),
        Err(too_long(11))
    );

    engine.truncate(sequence, 9);
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Same(1),
            lookahead: 100,
            ..Reserve::new(&[sequence])
        })
        .expect("lookahead ends with the sequence");
    assert_eq!(engine.table(sequence).len(), 3);
    engine.commit(&[sequence]);
    assert_eq!(engine.lengths(sequence).computed, 10);
}

#[test]
fn numbers_that_overflow_are_refused_or_capped() {
    let mut engine = engine(4, 2, 16);
    let sequence = engine.prefill(&prompt(1, 6));
    for huge in [1 << 31, u32::MAX - 6, u32::MAX] {
        let before = engine.stats();
        let too_long = |requested| Error::SequenceTooLong {
            requested,
            max_sequence_len: 16,
        };
        assert_eq!(
            engine.try_reserve(&Reserve {
                num_new: Counts::Same(huge),
                ..Reserve::new(&[sequence])
            }),
            Err(too_long(u64::from(huge) + 6))
        );
        assert_eq!(
            engine.try_admit(&[1], Some(huge)),
            Err(too_long(u64::from(huge)))
        );
        assert_eq!(engine.lock().can_admit(huge), Ok(false));
        let answer = engine.lock().truncate(sequence, huge);
        assert!(matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "length",
                ..
            })
        ));
        let answer = engine.lock().commit(&[sequence], Counts::Same(huge), None);
        assert!(matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "num_computed",
                ..
            })
        ));
        assert_eq!(engine.stats(), before);

        engine
            .try_reserve(&Reserve {
                lookahead: huge,
                ..Reserve::new(&[sequence])
            })
            .expect("capped at the longest sequence");
        assert_eq!(engine.table(sequence).len(), 4);
        engine.truncate(sequence, 6);
    }
    assert_eq!(engine.lock().can_admit(0), Ok(false));
}

#[test]
fn a_number_of_each_needs_one_per_sequence() {
    let mut engine = Engine::new(8, 4);
    let sequence = engine.admit(&[1]);
    for wrong in [&[][..], &[1, 1]] {
        let answer = engine.try_reserve(&Reserve {
            num_new: Counts::Each(wrong),
            ..Reserve::new(&[sequence])
        });
        assert!(matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "num_new",
                ..
            })
        ));
        let answer = engine.lock().commit(&[sequence], Counts::Each(wrong), None);
        assert!(matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "num_computed",
                ..
            })
        ));
    }
}

#[test]
fn negative_tokens_are_refused() {
    let mut engine = Engine::new(8, 4);
    let is_refused = |answer: Result<(), Error>| matches!(answer, Err(Error::InvalidArgument { argument: "tokens", message }) if message.contains("-1"));
    assert!(is_refused(engine.try_admit(&[1, -1], None).map(drop)));
    let sequence = engine.prefill(&[1]);
    assert!(is_refused(
        engine
            .try_reserve(&Reserve {
                tokens: Some(&[-1]),
                ..Reserve::new(&[sequence])
            })
            .map(drop)
    ));
    engine.reserve(&[sequence], 1);
    assert!(is_refused(engine.lock().commit(
        &[sequence],
        Counts::Default,
        Some(&[-1])
    )));
    assert_eq!(engine.try_admit(&[], None), Err(Error::EmptyPrompt));
    engine.admit(&[i32::MAX]);
}

#[test]
fn a_long_limit_costs_no_memory_that_the_pool_cannot_fill() {
    // Rows of that length for every sequence would be more than most machines have, and abort the process.
    let longest = i32::MAX.cast_unsigned();
    let config = Config::new(4, 1, 4096, longest).expect("sizes in range");
    let manager = BlockManager::new(config).expect("a valid configuration");
    let mut locked = manager.lock().expect("no call has panicked");
    locked.admit(&admission(&[1, 2], None)).expect("room");
    locked.validate().expect("a consistent state");
}

#[test]
fn a_lookup_finds_nothing_while_prefixes_are_not_cached() {
    let mut engine = Engine::new(8, 4);
    engine.prefill(&prompt(1, 8));
    let (num_tokens, reason) = engine
        .lock()
        .lookup(&admission(&prompt(1, 9), None))
        .expect("a valid prompt");
    assert_eq!(
        (num_tokens, reason, reason.as_str()),
        (0, LookupReason::Disabled, "disabled")
    );
}
