//! Decode steps: one token for each sequence, with and without the prefix cache, and the tables of a batch.

use looseleaf_benches::clock::Lap;
use looseleaf_benches::engine::{BLOCK_SIZE, Engine, staggered_len};
use looseleaf_benches::random::Random;
use looseleaf_benches::table::{Row, Table};
use looseleaf_core::Config;

use crate::plain_tables::PlainTables;

/// Steps before the sequences are cut to their prompts again.
const STEPS: usize = 512;
const ROUNDS: usize = 3;
const MAX_SEQUENCE_LEN: u32 = 2_048;

/// Of a decoded token: a line of state read and written; slot, position, id and length written; handle and token read.
const STEP_BYTES: f64 = 2.0 * 64.0 + 28.0 + 12.0;

fn engine(num_sequences: u32, len: impl Fn(usize) -> u32, max_len: u32) -> Engine {
    let num_blocks = num_sequences * max_len.div_ceil(BLOCK_SIZE);
    let config = Config::new(num_blocks, BLOCK_SIZE, num_sequences, max_len).expect("valid sizes");
    let mut engine = Engine::new(config, num_sequences);
    for row in 0..num_sequences as usize {
        let handle = engine.admit(&vec![1; len(row) as usize]);
        engine.handles.push(handle);
    }
    engine
}

/// Same lengths as the baseline, same offsets, and each slot lies in the block that its table names.
fn check(engine: &Engine, plain: &PlainTables) {
    let (ours, theirs) = (&engine.buffers, &plain.buffers);
    assert_eq!(ours.seq_lens, theirs.seq_lens);
    assert_eq!(ours.cu_query_lens, theirs.cu_query_lens);
    let columns = MAX_SEQUENCE_LEN.div_ceil(BLOCK_SIZE) as usize;
    let size = i64::from(BLOCK_SIZE);
    for (row, (&our, &their)) in ours
        .slot_mapping
        .iter()
        .zip(&theirs.slot_mapping)
        .enumerate()
    {
        assert_eq!(our % size, their % size);
        let position = ours.seq_lens[row].cast_unsigned() - 1;
        let cell = ours.block_table[row * columns + (position / BLOCK_SIZE) as usize];
        assert!(cell > 0);
        assert_eq!(our / size, i64::from(cell));
    }
    let live = |table: &[i32]| table.iter().map(|&cell| cell > 0).collect::<Vec<_>>();
    assert_eq!(live(&ours.block_table), live(&theirs.block_table));
}

/// How much less it takes where little else disturbs the caches.
fn undisturbed(lap: &Lap, num_sequences: f64) -> String {
    format!(
        "the fastest tenth below {:.1}",
        lap.fastest_tenth() / num_sequences
    )
}

/// Reserve, and reserve and commit, without a prefix cache.
pub(crate) fn without_prefix_cache(table: &mut Table) {
    for (num_sequences, goal) in [(256, 6.0), (1_024, 6.0), (4_096, 12.0)] {
        let mut engine = engine(num_sequences, staggered_len, MAX_SEQUENCE_LEN);
        let mut plain = PlainTables::new(num_sequences, MAX_SEQUENCE_LEN);
        let tokens = vec![1; num_sequences as usize];
        for _ in 0..2 * BLOCK_SIZE {
            engine.reserve(&tokens);
            engine.commit();
            plain.step();
            check(&engine, &plain);
        }
        let (mut reserve, mut commit, mut baseline) = (Lap::new(), Lap::new(), Lap::new());
        for _ in 0..STEPS {
            baseline.time(|| plain.step());
        }
        for _ in 0..ROUNDS {
            engine.truncate(staggered_len);
            for _ in 0..STEPS {
                reserve.time(|| engine.reserve(&tokens));
                commit.time(|| engine.commit());
            }
        }
        let each = |lap: &Lap| lap.median() / f64::from(num_sequences);
        let rate = table.machine().cache_bytes_per_ns;
        let floor = STEP_BYTES / rate;
        let formula = format!("168 B / {rate:.0} B/ns");
        table.add(
            Row::new(
                format!("reserve one token each, B = {num_sequences}, no prefix cache"),
                "ns per sequence",
                each(&reserve),
            )
            .goal(goal)
            .floor(formula, floor)
            .baseline("hash map of vecs, reserve + commit in one", each(&baseline))
            .note(undisturbed(&reserve, f64::from(num_sequences))),
        );
        table.add(Row::new(
            format!("commit of that step, B = {num_sequences}"),
            "ns per sequence",
            each(&commit),
        ));
    }
}

/// Reserve and commit where every step publishes and evicts: the cache is full, and four requests are replaced at each step.
pub(crate) fn with_prefix_cache(table: &mut Table) {
    const NUM_BLOCKS: u32 = 1 << 20;
    const NUM_SEQUENCES: usize = 1_024;
    const REPLACED: usize = 4;
    const NUM_STEPS: usize = 640;
    let config = Config::new(NUM_BLOCKS, BLOCK_SIZE, 1_040, 4_096)
        .expect("valid sizes")
        .with_prefix_cache(7);
    let mut engine = Engine::new(config, 4_096);
    let mut random = Random::new(0x5eed);
    crate::fill(&mut engine, &mut random);
    for row in 0..NUM_SEQUENCES {
        let handle = engine.admit(&random.tokens(staggered_len(row) as usize));
        engine.handles.push(handle);
    }
    let before = engine.manager.lock().expect("not poisoned").stats();
    assert_eq!(before.pool.num_free, 0, "the cache is full");
    let (mut step, mut replace) = (Lap::new(), Lap::new());
    for number in 0..NUM_STEPS {
        let tokens = random.tokens(NUM_SEQUENCES);
        step.time(|| {
            engine.reserve(&tokens);
            engine.commit();
        });
        let first = number * REPLACED % NUM_SEQUENCES;
        let rows = first..first + REPLACED;
        // So long that at each later step one row in 16 needs a block, as before.
        let prompts: Vec<_> = rows
            .clone()
            .map(|row| random.tokens(staggered_len(number + 5 * row) as usize))
            .collect();
        replace.time(|| {
            let gone = engine.handles[rows.clone()].to_vec();
            engine.release(&gone);
            for (row, prompt) in rows.zip(&prompts) {
                engine.handles[row] = engine.admit(prompt);
            }
        });
    }
    let mut locked = engine.manager.lock().expect("not poisoned");
    let after = locked.stats();
    assert!(
        after.num_evicted - before.num_evicted > 64 * 4 * 640,
        "it evicts"
    );
    assert_eq!(after.pool.num_free, 0, "the cache is still full");
    locked.validate().expect("consistent");
    drop(locked);
    let machine = table.machine();
    // One sequence in 16 publishes and evicts: tokens read and written, home, node and word of the victim.
    let floor = STEP_BYTES / machine.cache_bytes_per_ns
        + (128.0 / machine.memory_bytes_per_ns + 3.0 * machine.overlapped_miss_ns) / 16.0;
    let each = |nanoseconds: f64| nanoseconds / 1_024.0;
    table.add(
        Row::new(
            "reserve + commit with publish + evict, 1 M blocks, B = 1024",
            "ns per sequence",
            each(step.median()),
        )
        .goal(25.0)
        .floor(
            "168 B in the L2 cache + (128 B from memory + 3 misses side by side) / 16",
            floor,
        )
        .note(format!(
            "{}; mean {:.1}; replacing 4 requests of 1,000 tokens beside it takes {:.0} us a step",
            undisturbed(&step, 1_024.0),
            each(step.mean()),
            replace.median() / 1e3
        )),
    );
}

/// Dense tables of 49.7 k ids: on request, in a step whose rows all moved, and in one whose rows are in their places.
pub(crate) fn tables(table: &mut Table) {
    const NUM_SEQUENCES: u32 = 256;
    const MAX_LEN: u32 = 4_096;
    const COLUMNS: usize = 256;
    // About 194 blocks each, 49.7 k in all, in the middle of the run.
    let len = |row: usize| 2_940 + u32::try_from(row % 16).unwrap_or(0) * 13;
    let mut engine = engine(NUM_SEQUENCES, len, MAX_LEN);
    let tokens = vec![1; NUM_SEQUENCES as usize];
    let mut rows = vec![0; NUM_SEQUENCES as usize * COLUMNS];
    let (mut gathered, mut moved, mut appended) = (Lap::new(), Lap::new(), Lap::new());
    let mut num_ids = 0;
    for _ in 0..64 {
        engine.handles.rotate_right(1);
        moved.time(|| engine.reserve(&tokens));
        engine.commit();
        // Now each row is in its place.
        appended.time(|| engine.reserve(&tokens));
        engine.commit();
        let mut locked = engine.manager.lock().expect("not poisoned");
        let result = gathered.time(|| locked.gather_rows(&engine.handles, &mut rows, COLUMNS));
        assert_eq!(result, Ok(()));
        assert_eq!(rows, engine.buffers.block_table);
        num_ids = rows.iter().filter(|&&cell| cell > 0).count();
    }
    assert!((49_000..51_000).contains(&num_ids), "{num_ids} ids");
    let rate = table.machine().cache_bytes_per_ns;
    let num_bytes = f64::from(u32::try_from(8 * num_ids).unwrap_or(u32::MAX));
    let moving = (
        format!("{num_bytes:.0} B / {rate:.0} B/ns"),
        num_bytes / rate / 1e3,
    );
    let staying = (
        format!("256 x 168 B / {rate:.0} B/ns"),
        256.0 * 168.0 / rate / 1e3,
    );
    let whole = "the whole reserve of that step";
    for (what, lap, goal, floor, note) in [
        ("gather_rows", &gathered, 60.0, &moving, ""),
        ("a step, all rows moved", &moved, 60.0, &moving, whole),
        (
            "a step, 16 rows appended to",
            &appended,
            2.0,
            &staying,
            whole,
        ),
    ] {
        table.add(
            Row::new(
                format!("dense tables, B = 256, 49.7 k ids: {what}"),
                "us",
                lap.median() / 1e3,
            )
            .goal(goal)
            .floor(floor.0.clone(), floor.1)
            .note(note),
        );
    }
}
