//! Batch buffers: written in part at every step, and right in whole.

use looseleaf_core::{BatchShape, BatchState, BlockManager, Config, Counts, Error, Reserve};

use crate::buffers::{BoundBatch, Buffers};
use crate::engine::admission;
use crate::engine::{Engine, prompt};

fn shape(rows: usize, columns: usize, tokens: usize) -> BatchShape {
    BatchShape {
        rows,
        columns,
        tokens,
    }
}

#[test]
fn a_new_batch_is_padding_all_over() {
    let bound = BoundBatch::new(shape(3, 4, 5));
    assert_eq!(bound.buffers, Buffers::padding(shape(3, 4, 5)));
    assert_eq!(
        (bound.state.num_sequences(), bound.state.num_tokens()),
        (0, 0)
    );
}

#[test]
fn a_step_fills_the_front_and_pads_the_rest() {
    let mut engine = Engine::new(8, 4);
    let (first, second) = (engine.admit(&prompt(1, 5)), engine.admit(&prompt(11, 13)));
    engine
        .try_reserve(&Reserve::new(&[second, first]))
        .expect("room");
    let buffers = &engine.batch.buffers;
    assert_eq!(buffers.block_table[..3], [3, 0, 0]);
    assert_eq!(buffers.block_table[16..19], [1, 2, 0]);
    assert_eq!(buffers.seq_lens, [3, 5, 0, 0]);
    assert_eq!(buffers.query_lens, [3, 5, 0, 0]);
    assert_eq!(buffers.cu_query_lens, [0, 3, 8, 8, 8]);
    assert_eq!(buffers.slot_mapping[..9], [12, 13, 14, 4, 5, 6, 7, 8, -1]);
    assert_eq!(buffers.positions[..9], [0, 1, 2, 0, 1, 2, 3, 4, 0]);
    assert_eq!(buffers.token_ids[..9], [11, 12, 13, 1, 2, 3, 4, 5, 0]);
    assert_eq!(buffers.copies, [-1; 8]);
    assert_eq!(
        (
            engine.batch.state.max_query_len(),
            engine.batch.state.max_seq_len()
        ),
        (5, 5)
    );
}

#[test]
fn a_step_of_nobody_leaves_padding() {
    let mut engine = Engine::new(8, 4);
    engine.prefill(&prompt(1, 20));
    engine
        .try_reserve(&Reserve::new(&[]))
        .expect("nothing to do");
    assert_eq!(
        engine.batch.buffers,
        Buffers::padding(engine.batch.state.shape())
    );
    assert_eq!(
        (
            engine.batch.state.max_query_len(),
            engine.batch.state.max_seq_len()
        ),
        (0, 0)
    );
}

#[test]
fn zero_new_tokens_is_a_row_without_tokens() {
    let mut engine = Engine::new(8, 4);
    let sequence = engine.prefill(&prompt(1, 6));
    let other = engine.admit(&prompt(1, 3));
    let before = engine.num_free();
    engine
        .try_reserve(&Reserve {
            num_new: Counts::Each(&[0, 3]),
            lookahead: 9,
            ..Reserve::new(&[sequence, other])
        })
        .expect("room");
    assert_eq!(engine.batch.buffers.seq_lens[..2], [6, 3]);
    assert_eq!(engine.batch.buffers.query_lens[..2], [0, 3]);
    assert_eq!(engine.batch.buffers.cu_query_lens[..3], [0, 0, 3]);
    assert_eq!(
        engine.table(sequence).len(),
        2,
        "lookahead is for those who compute"
    );
    assert_eq!(before - engine.num_free(), 2);
    engine.commit(&[sequence, other]);
    assert_eq!(engine.lengths(sequence).computed, 6);
}

#[test]
fn rows_that_move_change_or_go_leave_no_stale_cells() {
    let mut engine = Engine::new(32, 4);
    let long = engine.prefill(&prompt(1, 40));
    let short = engine.prefill(&prompt(101, 103));
    let orders: [&[i64]; 7] = [
        &[long, short],
        &[short, long],
        &[short],
        &[long],
        &[],
        &[short],
        &[long, short],
    ];
    for order in orders {
        engine.reserve(order, 1);
        let columns = engine.batch.state.shape().columns;
        for row in 0..4 {
            let cells = &engine.batch.buffers.block_table[row * columns..(row + 1) * columns];
            let mut expected = order
                .get(row)
                .map_or(vec![], |&handle| engine.table(handle));
            expected.resize(columns, 0);
            assert!(
                cells.iter().map(|cell| cell.cast_unsigned()).eq(expected),
                "row {row} of {order:?}"
            );
        }
    }
    // The place's next sequence stands in the same row, and is shorter.
    engine.reserve(&[long], 1);
    engine.release(&[long]);
    let next = engine.prefill(&prompt(1, 3));
    engine.reserve(&[next], 1);
    assert_eq!(engine.batch.buffers.block_table[1..], [0; 63]);
}

#[test]
fn a_table_that_shrank_and_grew_between_two_steps_is_written_anew() {
    let mut engine = Engine::new(32, 4);
    let sequence = engine.prefill(&prompt(1, 12));
    engine.reserve(&[sequence], 1);
    engine.truncate(sequence, 4);
    let between = engine.admit(&prompt(1, 8)); // takes the blocks that were given up
    engine
        .lock()
        .reserve(
            &Reserve {
                num_new: Counts::Same(9),
                ..Reserve::new(&[sequence])
            },
            None,
        )
        .expect("room");
    engine.reserve(&[sequence], 9);
    let table = engine.table(sequence);
    assert!(
        engine.batch.buffers.block_table[..4]
            .iter()
            .map(|cell| cell.cast_unsigned())
            .eq(table)
    );
    engine.release(&[between]);
}

#[test]
fn two_batches_of_one_manager_do_not_mix() {
    let mut engine = Engine::new(32, 4);
    let mut other = BoundBatch::new(shape(4, 16, 8));
    let (first, second) = (engine.prefill(&prompt(1, 6)), engine.prefill(&prompt(1, 9)));
    let child = engine.fork(first);
    for _ in 0..6 {
        engine.reserve(&[first, child], 1);
        let before = engine.batch.buffers.clone();
        engine
            .lock()
            .reserve(
                &Reserve {
                    num_new: Counts::Same(1),
                    ..Reserve::new(&[second])
                },
                Some(other.parts()),
            )
            .expect("room");
        assert_eq!(engine.batch.buffers, before);
        assert_eq!(
            other.buffers.seq_lens[0],
            engine.lengths(second).reserved.cast_signed()
        );
        engine.commit(&[second]);
        engine.commit(&[child, first]);
    }
    // A sequence that changes batches meets stale rows in neither.
    engine
        .lock()
        .reserve(
            &Reserve {
                num_new: Counts::Same(1),
                ..Reserve::new(&[first, second])
            },
            Some(other.parts()),
        )
        .expect("room");
    let mut table = engine.table(first);
    table.resize(16, 0);
    assert!(
        other.buffers.block_table[..16]
            .iter()
            .map(|cell| cell.cast_unsigned())
            .eq(table)
    );
}

#[test]
fn without_a_batch_only_tables_change() {
    let engine = Engine::new(8, 4);
    let sequence = engine.admit(&prompt(1, 6));
    assert_eq!(
        engine.lock().reserve(&Reserve::new(&[sequence]), None),
        Ok(1)
    );
    assert_eq!(engine.lengths(sequence).reserved, 6);
    engine.batch.check();
}

#[test]
fn a_step_larger_than_its_batch_is_refused() {
    let config = Config::new(32, 4, 4, 64).expect("sizes in range");
    let mut engine = Engine::with(config, 10);
    let (first, second) = (engine.admit(&prompt(1, 6)), engine.admit(&prompt(1, 5)));
    let before = engine.stats();
    let answer = engine.try_reserve(&Reserve::new(&[first, second]));
    let too_small = Error::BatchTooSmall {
        what: "max_batch_tokens",
        requested: 11,
        limit: 10,
    };
    assert_eq!(answer, Err(too_small));
    assert_eq!(engine.stats(), before);
    assert_eq!(engine.lengths(first).reserved, 0);
    engine.batch.check();

    engine
        .try_reserve(&Reserve {
            num_new: Counts::Each(&[6, 4]),
            ..Reserve::new(&[first, second])
        })
        .expect("exactly full");
    assert_eq!(engine.batch.state.num_tokens(), 10);
    assert!(!engine.slots().contains(&-1));
}

#[test]
fn buffers_of_another_length_are_refused() {
    type Spoil = fn(&mut Buffers);
    let good = shape(3, 4, 5);
    let spoilers: [(&str, Spoil); 8] = [
        ("block_table", |buffers| buffers.block_table.truncate(11)),
        ("seq_lens", |buffers| buffers.seq_lens.push(0)),
        ("query_lens", |buffers| buffers.query_lens.truncate(0)),
        ("cu_query_lens", |buffers| buffers.cu_query_lens.truncate(3)),
        ("slot_mapping", |buffers| buffers.slot_mapping.push(0)),
        ("positions", |buffers| buffers.positions.truncate(4)),
        ("token_ids", |buffers| buffers.token_ids.push(0)),
        ("copies", |buffers| buffers.copies.truncate(3)),
    ];
    for (name, spoil) in spoilers {
        let mut buffers = Buffers::garbage(good);
        spoil(&mut buffers);
        let answer = BatchState::new(good, &mut buffers.as_slices());
        assert!(
            matches!(&answer, Err(Error::InvalidArgument { argument, .. }) if *argument == name),
            "{answer:?}"
        );

        // Neither are they taken at a later step.
        let mut engine = Engine::with(Config::new(8, 4, 3, 16).expect("sizes in range"), 5);
        let sequence = engine.admit(&prompt(1, 5));
        let mut wrong = engine.batch.buffers.clone();
        spoil(&mut wrong);
        let state = &mut engine.batch.state;
        let mut locked = engine.manager.lock().expect("no call has panicked");
        let answer = locked.reserve(&Reserve::new(&[sequence]), Some((state, wrong.as_slices())));
        assert!(
            matches!(&answer, Err(Error::InvalidArgument { argument, .. }) if *argument == name),
            "{answer:?}"
        );
        assert_eq!(locked.lengths(sequence).expect("a live handle").reserved, 0);
    }
}

#[test]
fn a_batch_with_fewer_columns_than_a_table_may_get_is_refused() {
    let config = Config::new(32, 4, 2, 64).expect("sizes in range");
    let manager = BlockManager::new(config).expect("a valid configuration");
    let mut narrow = BoundBatch::new(shape(2, 2, 64));
    let mut locked = manager.lock().expect("no call has panicked");
    let sequence = locked
        .admit(&admission(&prompt(1, 12), None))
        .expect("room")
        .id
        .to_handle();
    let answer = locked.reserve(&Reserve::new(&[sequence]), Some(narrow.parts()));
    let too_small = Error::BatchTooSmall {
        what: "max_blocks_per_sequence",
        requested: 16,
        limit: 2,
    };
    assert_eq!(answer, Err(too_small));
    assert_eq!(locked.lengths(sequence).expect("a live handle").reserved, 0);

    let mut short = BoundBatch::new(shape(1, 16, 64));
    let second = locked
        .admit(&admission(&[1], None))
        .expect("room")
        .id
        .to_handle();
    let answer = locked.reserve(&Reserve::new(&[sequence, second]), Some(short.parts()));
    let too_small = Error::BatchTooSmall {
        what: "max_sequences",
        requested: 2,
        limit: 1,
    };
    assert_eq!(answer, Err(too_small));
}

#[test]
fn a_shape_follows_from_the_manager() {
    let config = Config::new(32, 4, 3, 17).expect("sizes in range");
    assert_eq!(BatchShape::new(&config, 9), Ok(shape(3, 5, 9)));
    for wrong in [0, 1 << 31, u32::MAX] {
        let answer = BatchShape::new(&config, wrong);
        assert!(matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "max_batch_tokens",
                ..
            })
        ));
    }
}

/// One new token with its id for each: the step that is taken most, by a way of its own.
#[test]
fn a_decode_step_checks_what_any_step_checks() {
    let config = Config::new(32, 4, 4, 64).expect("sizes in range");
    let mut engine = Engine::with(config, 4);
    let rows: Vec<i64> = (0..4).map(|token| engine.prefill(&[token])).collect();
    let before = (engine.stats(), engine.batch.buffers.clone());
    let tokens = [10, 11, 12, 13];
    let decode = Reserve {
        num_new: Counts::Same(1),
        tokens: Some(&tokens),
        ..Reserve::new(&rows)
    };

    for wrong in [&[10, 11, 12, -1][..], &tokens[..3], &[10, 11, 12, 13, 14]] {
        let answer = engine.try_reserve(&Reserve {
            tokens: Some(wrong),
            ..decode
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
    }
    let twice = [rows[0], rows[1], rows[2], rows[0]];
    let answer = engine.try_reserve(&Reserve {
        handles: &twice,
        ..decode
    });
    assert_eq!(answer, Err(Error::DuplicateSequence { handle: rows[0] }));

    let mut wrong = BoundBatch::new(shape(4, 16, 4));
    wrong.buffers.token_ids.pop();
    let mut narrow = BoundBatch::new(shape(4, 15, 4));
    let mut short = BoundBatch::new(shape(4, 16, 3));
    let mut locked = engine.lock();
    for bound in [&mut wrong, &mut narrow, &mut short] {
        let answer = locked.reserve(&decode, Some(bound.parts()));
        assert!(
            matches!(
                answer,
                Err(Error::BatchTooSmall { .. } | Error::InvalidArgument { .. })
            ),
            "{answer:?}"
        );
    }
    drop(locked);
    assert_eq!((engine.stats(), engine.batch.buffers.clone()), before);

    engine.try_reserve(&decode).expect("room");
    assert_eq!(engine.batch.buffers.token_ids, [10, 11, 12, 13]);
}
