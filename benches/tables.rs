//! Block tables: one decode step (reserve + commit, batch buffers included), admission and release.
//!
//! Floor of a decode step: one or two lines of sequence state read and written, 12 bytes per buffer streamed out: about 3 ns a
//! sequence. Baseline of the step: the same tables kept as a `HashMap` of `Vec`s, filling the same buffers.

use std::collections::HashMap;
use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use looseleaf_core::{
    Admit, BatchBuffers, BatchShape, BatchState, BlockManager, Config, Counts, Reserve,
};

const BLOCK_SIZE: u32 = 16;
const PROMPT_LEN: u32 = 1_000;
const MAX_SEQUENCE_LEN: u32 = 2_048;

/// Buffers that a caller would own.
struct Buffers {
    block_table: Vec<i32>,
    seq_lens: Vec<i32>,
    query_lens: Vec<i32>,
    cu_query_lens: Vec<i32>,
    slot_mapping: Vec<i64>,
    positions: Vec<i64>,
    token_ids: Vec<i64>,
    copies: Vec<i32>,
}

impl Buffers {
    fn new(shape: BatchShape) -> Self {
        Self {
            block_table: vec![0; shape.rows * shape.columns],
            seq_lens: vec![0; shape.rows],
            query_lens: vec![0; shape.rows],
            cu_query_lens: vec![0; shape.rows + 1],
            slot_mapping: vec![0; shape.tokens],
            positions: vec![0; shape.tokens],
            token_ids: vec![0; shape.tokens],
            copies: vec![0; 2 * shape.rows],
        }
    }

    fn borrow(&mut self) -> BatchBuffers<'_> {
        BatchBuffers {
            block_table: &mut self.block_table,
            seq_lens: &mut self.seq_lens,
            query_lens: &mut self.query_lens,
            cu_query_lens: &mut self.cu_query_lens,
            slot_mapping: &mut self.slot_mapping,
            positions: &mut self.positions,
            token_ids: &mut self.token_ids,
            copies: &mut self.copies,
        }
    }
}

struct Engine {
    manager: BlockManager,
    handles: Vec<i64>,
    buffers: Buffers,
    state: BatchState,
}

impl Engine {
    fn new(num_sequences: u32) -> Self {
        let num_blocks = num_sequences * MAX_SEQUENCE_LEN.div_ceil(BLOCK_SIZE);
        let config = Config::new(num_blocks, BLOCK_SIZE, num_sequences, MAX_SEQUENCE_LEN)
            .expect("valid sizes");
        let manager = BlockManager::new(config).expect("valid sizes");
        let shape = BatchShape::new(&config, num_sequences).expect("valid sizes");
        let mut buffers = Buffers::new(shape);
        let state = BatchState::new(shape, &mut buffers.borrow()).expect("right lengths");
        let mut engine = Self {
            manager,
            handles: Vec::new(),
            buffers,
            state,
        };
        engine.admit_all(num_sequences);
        engine
    }

    fn admit_all(&mut self, num_sequences: u32) {
        let mut locked = self.manager.lock().expect("not poisoned");
        // Staggered lengths: every step, one sequence in 16 crosses into a new block, as in a running engine.
        for index in 0..num_sequences {
            let prompt = vec![1; (PROMPT_LEN + index % BLOCK_SIZE) as usize];
            let handle = locked
                .admit(&Admit::new(&prompt))
                .expect("enough blocks")
                .id
                .to_handle();
            locked
                .reserve(&Reserve::new(&[handle]), None)
                .expect("enough blocks");
            locked
                .commit(&[handle], Counts::Default, None)
                .expect("reserved");
            self.handles.push(handle);
        }
    }

    fn step(&mut self, tokens: &[i32]) {
        let request = Reserve {
            handles: &self.handles,
            num_new: Counts::Same(1),
            tokens: Some(tokens),
            lookahead: 0,
            oom: looseleaf_core::Oom::Fail,
        };
        let batch = (&mut self.state, self.buffers.borrow());
        let mut locked = self.manager.lock().expect("not poisoned");
        locked
            .reserve(&request, Some(batch))
            .expect("enough blocks");
        locked
            .commit(&self.handles, Counts::Default, None)
            .expect("reserved");
    }

    fn roll_back(&mut self) {
        let mut locked = self.manager.lock().expect("not poisoned");
        for &handle in &self.handles {
            locked.truncate(handle, PROMPT_LEN).expect("longer");
        }
    }
}

/// The tables as most engines keep them.
struct MapEngine {
    tables: HashMap<i64, (Vec<u32>, u32)>,
    free: Vec<u32>,
    handles: Vec<i64>,
    buffers: Buffers,
    columns: usize,
}

impl MapEngine {
    fn new(num_sequences: u32) -> Self {
        let columns = MAX_SEQUENCE_LEN.div_ceil(BLOCK_SIZE) as usize;
        let rows = num_sequences as usize;
        let mut free: Vec<u32> = (1..=num_sequences * MAX_SEQUENCE_LEN.div_ceil(BLOCK_SIZE))
            .rev()
            .collect();
        let mut tables = HashMap::new();
        for index in 0..num_sequences {
            let length = PROMPT_LEN + index % BLOCK_SIZE;
            let blocks = free.split_off(free.len() - length.div_ceil(BLOCK_SIZE) as usize);
            tables.insert(i64::from(index), (blocks, length));
        }
        let shape = BatchShape {
            rows,
            columns,
            tokens: rows,
        };
        Self {
            tables,
            free,
            handles: (0..i64::from(num_sequences)).collect(),
            buffers: Buffers::new(shape),
            columns,
        }
    }

    fn step(&mut self) {
        for (row, handle) in self.handles.iter().enumerate() {
            let (blocks, length) = self.tables.get_mut(handle).expect("admitted");
            if length.is_multiple_of(BLOCK_SIZE) {
                blocks.push(self.free.pop().expect("enough blocks"));
            }
            let block = blocks[(*length / BLOCK_SIZE) as usize];
            self.buffers.slot_mapping[row] = i64::from(block * BLOCK_SIZE + *length % BLOCK_SIZE);
            *length += 1;
            self.buffers.seq_lens[row] = length.cast_signed();
            self.buffers.cu_query_lens[row + 1] = self.buffers.cu_query_lens[row] + 1;
            let cells = &mut self.buffers.block_table[row * self.columns..][..blocks.len()];
            for (cell, block) in cells.iter_mut().zip(blocks) {
                *cell = block.cast_signed();
            }
        }
    }

    fn roll_back(&mut self) {
        for (blocks, length) in self.tables.values_mut() {
            *length = PROMPT_LEN;
            self.free
                .extend(blocks.drain(PROMPT_LEN.div_ceil(BLOCK_SIZE) as usize..));
        }
    }
}

/// Steps between two roll-backs, which are not timed.
const STEPS: usize = 512;

fn decode_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode step");
    for num_sequences in [256, 1_024] {
        group.throughput(Throughput::Elements(num_sequences));
        let count = u32::try_from(num_sequences).expect("small");
        let mut map = MapEngine::new(count);
        group.bench_function(
            BenchmarkId::new("hash map of vecs (baseline)", num_sequences),
            |bencher| {
                bencher.iter_custom(|iterations| {
                    timed(iterations, &mut map, MapEngine::step, MapEngine::roll_back)
                });
            },
        );
        let tokens = vec![1; count as usize];
        let mut engine = Engine::new(count);
        group.bench_function(
            BenchmarkId::new("reserve + commit", num_sequences),
            |bencher| {
                bencher.iter_custom(|iterations| {
                    timed(
                        iterations,
                        &mut engine,
                        |engine| engine.step(black_box(&tokens)),
                        Engine::roll_back,
                    )
                });
            },
        );
    }
    group.finish();
}

fn timed<T>(
    iterations: u64,
    engine: &mut T,
    step: impl Fn(&mut T),
    roll_back: impl Fn(&mut T),
) -> std::time::Duration {
    let mut elapsed = std::time::Duration::ZERO;
    let mut left = usize::try_from(iterations).expect("small");
    while left > 0 {
        let now = left.min(STEPS);
        let start = std::time::Instant::now();
        for _ in 0..now {
            step(engine);
        }
        elapsed += start.elapsed();
        roll_back(engine);
        left -= now;
    }
    elapsed
}

fn admission(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admit and release");
    for num_blocks in [8_u32, 64, 512] {
        group.throughput(Throughput::Elements(u64::from(num_blocks)));
        let config = Config::new(65_536, BLOCK_SIZE, 64, 8_192).expect("valid sizes");
        let manager = BlockManager::new(config).expect("valid sizes");
        let prompt = vec![1; (num_blocks * BLOCK_SIZE) as usize];
        group.bench_function(BenchmarkId::new("blocks", num_blocks), |bencher| {
            bencher.iter_batched(
                || (),
                |()| {
                    let mut locked = manager.lock().expect("not poisoned");
                    let admission = locked
                        .admit(&Admit::new(black_box(&prompt)))
                        .expect("enough blocks");
                    locked.release(&[admission.id.to_handle()]).expect("alive");
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, decode_step, admission);
criterion_main!(benches);
