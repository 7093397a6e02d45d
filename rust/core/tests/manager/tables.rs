//! Block tables: where tokens lie, and which call takes or gives back blocks.

use looseleaf_core::{Config, Counts, Error, Reserve};

use crate::engine::{Engine, prompt};

#[test]
fn a_table_grows_by_one_block_at_a_boundary() {
    // Block size 4, seven tokens, blocks 1 and 2.
    let mut engine = Engine::new(8, 4);
    let sequence = engine.prefill(&prompt(10, 16));
    assert_eq!(engine.table(sequence), [1, 2]);
    assert_eq!(engine.slots(), [4, 5, 6, 7, 8, 9, 10]);

    // Token 7 fills block 2; token 8 takes block 3.
    assert_eq!(engine.append(sequence, 17), (vec![], 2 * 4 + 3));
    assert_eq!(engine.append(sequence, 18), (vec![], 3 * 4));
    assert_eq!(engine.table(sequence), [1, 2, 3]);
    assert_eq!(engine.batch.buffers.seq_lens, [9, 0, 0, 0]);
    assert_eq!(engine.batch.buffers.block_table[..4], [1, 2, 3, 0]);
    engine.release(&[sequence]);
    assert_eq!(engine.num_free(), 8);
}

#[test]
fn an_appended_token_takes_a_block_only_where_one_begins() {
    for (length, num_new_blocks) in [(3, 0), (4, 1), (5, 0), (7, 0), (8, 1), (9, 0)] {
        let mut engine = Engine::new(8, 4);
        let sequence = engine.prefill(&prompt(1, length));
        let free = engine.num_free();
        let (copies, slot) = engine.append(sequence, 100);
        assert_eq!(copies, []);
        assert_eq!(
            free - engine.num_free(),
            num_new_blocks,
            "at length {length}"
        );
        assert_eq!(slot, engine.slot(sequence, length.cast_unsigned()));
        if length == 4 {
            assert_eq!(slot, i64::from(engine.table(sequence)[1]) * 4);
        }
    }
}

#[test]
fn the_last_block_holds_the_tokens_past_the_full_ones() {
    for (length, in_last_block) in [(0, 0), (1, 1), (4, 4), (5, 1), (8, 4)] {
        let mut engine = Engine::new(8, 4);
        let sequence = engine.prefill(&prompt(1, 9));
        engine.truncate(sequence, length);
        let num_full = u32::try_from(engine.table(sequence).len())
            .expect("short")
            .saturating_sub(1);
        assert_eq!(
            engine.lengths(sequence).computed - 4 * num_full,
            in_last_block
        );
        assert_eq!(engine.num_free(), 8 - length.div_ceil(4));
    }
}

#[test]
fn a_refused_admission_changes_nothing() {
    let mut engine = Engine::new(4, 4);
    let alive = engine.prefill(&prompt(1, 8));
    let before = (engine.stats(), engine.table(alive), engine.lengths(alive));

    let refused = engine.try_admit(&prompt(1, 12), None);
    let out_of_blocks = Error::OutOfBlocks {
        requested: 3,
        free: 2,
        evictable: 0,
    };
    assert_eq!(refused, Err(out_of_blocks));
    assert_eq!(
        (engine.stats(), engine.table(alive), engine.lengths(alive)),
        before
    );
    engine.lock().validate().expect("a consistent state");

    engine.admit(&prompt(1, 8)); // what is free is still to be had
    assert_eq!(engine.num_free(), 0);
}

#[test]
fn a_prompt_larger_than_the_pool_never_fits() {
    let config = Config::new(50, 16, 4, 2048).expect("sizes in range");
    let engine = Engine::with(config, 2048);
    let never = Error::NeverFits {
        requested: 57,
        capacity: 50,
    };
    assert_eq!(engine.try_admit(&prompt(1, 912), None), Err(never.clone()));
    // Nor does it when blocks are asked for a part of it only: the rest could never follow.
    assert_eq!(
        engine.try_admit(&prompt(1, 912), Some(16)),
        Err(never.clone())
    );
    assert_eq!(engine.try_admit(&prompt(1, 1), Some(912)), Err(never));
    assert_eq!(engine.lock().can_admit(912), Ok(false));
    assert_eq!(engine.stats().num_sequences, 0);

    let sequence = engine.admit(&prompt(1, 800)); // exactly the pool
    let never = Error::NeverFits {
        requested: 51,
        capacity: 50,
    };
    assert_eq!(
        engine.lock().reserve(
            &Reserve {
                num_new: Counts::Same(801),
                ..Reserve::new(&[sequence])
            },
            None
        ),
        Err(never)
    );
}

/// Two requests of 30 blocks each on 50 blocks: whoever runs out of blocks releases the younger one, which begins again later.
#[test]
fn requests_that_fit_one_by_one_finish_under_preemption() {
    const NUM_TOKENS: u32 = 30 * 16;
    let config = Config::new(50, 16, 4, 2048).expect("sizes in range");
    let mut engine = Engine::with(config, 64);
    let mut waiting = vec![prompt(1, 16), prompt(101, 116)];
    let mut running: Vec<i64> = Vec::new();
    let (mut num_finished, mut num_steps, mut num_preempted) = (0, 0, 0);
    while num_finished < 2 {
        num_steps += 1;
        assert!(num_steps <= 10 * 2 * NUM_TOKENS, "no end in sight");
        // A request that was preempted waits until the older one is through.
        while num_preempted == 0 || running.is_empty() {
            let Some(tokens) = waiting.pop() else { break };
            running.push(engine.admit(&tokens));
        }
        match engine.try_reserve(&Reserve::new(&running)) {
            Ok(_) => engine.commit(&running),
            Err(Error::OutOfBlocks { .. }) => {
                let youngest = running.pop().expect("somebody holds the blocks");
                engine.release(&[youngest]);
                waiting.push(prompt(101, 116));
                num_preempted += 1;
            }
            Err(error) => panic!("{error}"),
        }
        let is_done = |handle: &i64| engine.lengths(*handle).computed == NUM_TOKENS;
        let done: Vec<i64> = running.iter().copied().filter(is_done).collect();
        running.retain(|handle| !done.contains(handle));
        engine.release(&done);
        num_finished += done.len();
    }
    assert!(num_preempted > 0, "both fitted at once");
    assert_eq!(engine.num_free(), 50);
}

#[test]
fn an_admission_may_reserve_more_or_less_than_its_prompt() {
    let mut engine = Engine::new(16, 4);
    let chunked = engine.try_admit(&prompt(1, 20), Some(4)).expect("room");
    assert_eq!(engine.table(chunked).len(), 1);
    let roomy = engine.try_admit(&prompt(1, 4), Some(20)).expect("room");
    assert_eq!(engine.table(roomy).len(), 5);
    let bare = engine.try_admit(&prompt(1, 4), Some(0)).expect("room");
    assert_eq!(engine.table(bare), [0_u32; 0]);
    for handle in [chunked, roomy, bare] {
        let lengths = engine.lengths(handle);
        assert_eq!(
            (lengths.reserved, lengths.computed, lengths.cached),
            (0, 0, 0)
        );
    }
    // Only what is missing is allocated.
    engine.reserve(&[chunked], 8);
    engine.reserve(&[roomy, bare], 4);
    assert_eq!(
        [chunked, roomy, bare].map(|handle| engine.table(handle).len()),
        [2, 5, 1]
    );
}

#[test]
fn a_reserve_is_absolute() {
    let mut engine = Engine::new(8, 4);
    let sequence = engine.prefill(&prompt(1, 6));
    engine.reserve(&[sequence], 4);
    assert_eq!(engine.lengths(sequence).reserved, 10);
    engine.reserve(&[sequence], 4); // the step failed and is repeated
    assert_eq!(engine.lengths(sequence).reserved, 10);
    engine.reserve(&[sequence], 1); // and again, smaller
    assert_eq!(engine.lengths(sequence).reserved, 7);
    assert_eq!(
        engine.table(sequence).len(),
        3,
        "blocks that it has stay with it"
    );
}

#[test]
fn reserve_without_a_number_takes_what_is_known_and_at_least_one_token() {
    let mut engine = Engine::new(16, 4);
    let prefill = engine.admit(&prompt(1, 7));
    let decode = engine.prefill(&prompt(1, 5));
    let partly = engine.admit(&prompt(1, 9));
    engine.reserve(&[partly], 4);
    engine.commit(&[partly]);
    engine
        .try_reserve(&Reserve::new(&[prefill, decode, partly]))
        .expect("room");
    assert_eq!(engine.batch.buffers.query_lens, [7, 1, 5, 0]);
    assert_eq!(engine.batch.buffers.cu_query_lens, [0, 7, 8, 13, 13]);
}

#[test]
fn a_partial_commit_leaves_the_rest_to_be_reserved_again() {
    let mut engine = Engine::new(8, 4);
    let sequence = engine.prefill(&prompt(1, 3));
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Same(5),
            tokens: Some(&[4, 5, 6, 7, 8]),
            ..Reserve::new(&[sequence])
        })
        .expect("room");
    engine
        .lock()
        .commit(&[sequence], Counts::Same(5), None)
        .expect("within the reserved slots");
    assert_eq!(engine.lengths(sequence).computed, 5);
    assert_eq!(
        engine.lengths(sequence).known,
        8,
        "the rejected drafts stay until they are truncated"
    );

    engine.truncate(sequence, 5);
    assert_eq!(engine.lengths(sequence).known, 5);
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Same(2),
            tokens: Some(&[60, 70]),
            ..Reserve::new(&[sequence])
        })
        .expect("room");
    assert_eq!(engine.batch.buffers.token_ids[..2], [60, 70]);
    assert_eq!(engine.batch.buffers.positions[..2], [5, 6]);
    assert_eq!(
        engine.slots(),
        [engine.slot(sequence, 5), engine.slot(sequence, 6)]
    );
}

#[test]
fn computed_tokens_are_never_taken_back_by_a_commit() {
    let mut engine = Engine::new(8, 4);
    let sequence = engine.prefill(&prompt(1, 6));
    engine.reserve(&[sequence], 2);
    for wrong in [0, 5, 9, u32::MAX] {
        let answer = engine.lock().commit(&[sequence], Counts::Same(wrong), None);
        assert!(
            matches!(
                answer,
                Err(Error::InvalidArgument {
                    argument: "num_computed",
                    ..
                })
            ),
            "{answer:?}"
        );
        assert_eq!(engine.lengths(sequence).computed, 6);
    }
    engine
        .lock()
        .commit(&[sequence], Counts::Same(6), None)
        .expect("nothing was accepted");
    engine
        .lock()
        .commit(&[sequence], Counts::Same(8), None)
        .expect("all was accepted");
    assert_eq!(engine.lengths(sequence).computed, 8);
}

#[test]
fn token_ids_may_come_as_late_as_the_commit_or_never() {
    let mut engine = Engine::new(8, 4);
    let sequence = engine.prefill(&prompt(1, 3));
    engine.reserve(&[sequence], 1); // asynchronous: sampled on the device
    assert_eq!(engine.batch.buffers.token_ids[0], -1);
    engine.commit(&[sequence]);
    assert_eq!(engine.lengths(sequence).known, 3);

    // Ids for slots past a gap are refused: they could only be stored in the wrong place.
    let answer = engine.try_reserve(&Reserve {
        tokens: Some(&[5]),
        ..Reserve::new(&[sequence])
    });
    assert!(
        matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "tokens",
                ..
            })
        ),
        "{answer:?}"
    );

    engine.reserve(&[sequence], 1);
    let mut locked = engine.lock();
    for wrong in [&[][..], &[4], &[4, 5, 6]] {
        let answer = locked.commit(&[sequence], Counts::Default, Some(wrong));
        assert!(
            matches!(
                answer,
                Err(Error::InvalidArgument {
                    argument: "tokens",
                    ..
                })
            ),
            "{answer:?}"
        );
    }
    locked
        .commit(&[sequence], Counts::Default, Some(&[4, 5]))
        .expect("both ids");
    drop(locked);
    assert_eq!(engine.lengths(sequence).known, 5);
    engine.append(sequence, 6);
    assert_eq!(engine.batch.buffers.token_ids[0], 6);
}

#[test]
fn given_tokens_go_to_the_sequences_in_batch_order() {
    let mut engine = Engine::new(16, 4);
    let (first, second, third) = (
        engine.prefill(&[1]),
        engine.prefill(&[2]),
        engine.admit(&[3, 4]),
    );
    let rows = [third, second, first];
    let request = Reserve {
        num_new: Counts::Each(&[1, 3, 2]),
        tokens: Some(&[30, 20, 21, 22]),
        ..Reserve::new(&rows)
    };
    // The third knows its token already, the first gets its two last.
    let answer = engine.try_reserve(&request);
    assert!(
        matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "tokens",
                ..
            })
        ),
        "{answer:?}"
    );
    engine
        .try_reserve(&Reserve {
            tokens: Some(&[20, 21, 22, 10, 11]),
            ..request
        })
        .expect("room");
    assert_eq!(engine.batch.buffers.token_ids[..6], [3, 20, 21, 22, 10, 11]);
}

#[test]
fn a_row_without_new_tokens_takes_no_ids() {
    let mut engine = Engine::new(16, 4);
    let (late, other) = (engine.prefill(&[1]), engine.prefill(&[2]));
    engine.reserve(&[late], 2);
    engine.commit(&[late]); // two ids are missing
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Each(&[0, 2]),
            tokens: Some(&[20, 21]),
            ..Reserve::new(&[late, other])
        })
        .expect("room");
    assert_eq!(engine.batch.buffers.token_ids[..2], [20, 21]);
    assert_eq!(engine.lengths(late).known, 1);
    assert_eq!(engine.lengths(other).known, 3);
}

#[test]
fn truncating_to_the_present_length_gives_up_spare_blocks() {
    let mut engine = Engine::new(8, 4);
    let sequence = engine.prefill(&prompt(1, 5));
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Same(1),
            lookahead: 12,
            ..Reserve::new(&[sequence])
        })
        .expect("room");
    assert_eq!(engine.table(sequence).len(), 5);
    engine.commit(&[sequence]);
    engine.truncate(sequence, 6);
    assert_eq!((engine.table(sequence).len(), engine.num_free()), (2, 6));
}

#[test]
fn a_sequence_that_was_truncated_to_nothing_may_begin_again() {
    let mut engine = Engine::new(8, 4);
    let sequence = engine.prefill(&prompt(1, 9));
    engine.truncate(sequence, 0);
    assert_eq!(engine.num_free(), 8);
    engine.append(sequence, 50);
    let lengths = engine.lengths(sequence);
    assert_eq!(
        (lengths.known, lengths.reserved, lengths.computed),
        (1, 1, 1)
    );
}
