//! Forks, copies, truncations, transfers and the prefix cache together: every sequence reads its own content after every call.
//!
//! A fake memory holds a fingerprint of the prefix that was written into each slot. A step runs its copies first, then its
//! writes, as kernels do. Counts are not predicted here, they are recounted by `validate`.
//!
//! `LOOSELEAF_OPERATIONS` sets the number of operations (default 20,000).
#![cfg(not(looseleaf_loom))]

mod content;

use content::{Random, fingerprint, rounds};
use looseleaf_core::{
    Admit, BatchBuffers, BatchShape, BatchState, BlockId, BlockManager, Config, Counts, Error,
    Reserve, SeqId,
};

struct Live {
    handle: i64,
    tokens: Vec<i32>,
    computed: usize,
}

/// Blocks that somebody reads without a sequence, and what they said when that began.
struct Transfer {
    blocks: Vec<BlockId>,
    content: Vec<u64>,
}

struct Machine {
    manager: BlockManager,
    block_size: usize,
    memory: Vec<u64>,
    live: Vec<Live>,
    transfers: Vec<Transfer>,
    state: BatchState,
    arrays: Arrays,
    random: Random,
}

#[derive(Default)]
struct Arrays {
    rows: [Vec<i32>; 5],
    tokens: [Vec<i64>; 3],
}

impl Arrays {
    fn new(shape: BatchShape) -> Self {
        let rows = [
            shape.rows * shape.columns,
            shape.rows,
            shape.rows,
            shape.rows + 1,
            2 * shape.rows,
        ];
        Self {
            rows: rows.map(|len| vec![0; len]),
            tokens: [(); 3].map(|()| vec![0; shape.tokens]),
        }
    }

    fn borrow(&mut self) -> BatchBuffers<'_> {
        let [block_table, seq_lens, query_lens, cu_query_lens, copies] = &mut self.rows;
        let [slot_mapping, positions, token_ids] = &mut self.tokens;
        BatchBuffers {
            block_table,
            seq_lens,
            query_lens,
            cu_query_lens,
            slot_mapping,
            positions,
            token_ids,
            copies,
        }
    }
}

impl Machine {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let block_size = 1 + random.below(4);
        let num_blocks = 8 + random.below(25);
        let size = |number: usize| u32::try_from(number).expect("small");
        let config = Config::new(size(num_blocks), size(block_size), 6, 40).expect("valid sizes");
        let config = config.with_prefix_cache(seed);
        let shape = BatchShape::new(&config, 64).expect("valid sizes");
        let mut arrays = Arrays::new(shape);
        Self {
            manager: BlockManager::new(config).expect("valid sizes"),
            block_size,
            memory: vec![0; (num_blocks + 1) * block_size],
            live: Vec::new(),
            transfers: Vec::new(),
            state: BatchState::new(shape, &mut arrays.borrow()).expect("right lengths"),
            arrays,
            random,
        }
    }

    fn admit(&mut self) {
        let tokens: Vec<i32> = (0..=self.random.below(20))
            .map(|_| self.random.token())
            .collect();
        match self
            .manager
            .lock()
            .expect("not poisoned")
            .admit(&Admit::new(&tokens))
        {
            Ok(admission) => self.live.push(Live {
                handle: admission.id.to_handle(),
                computed: admission.num_cached as usize,
                tokens,
            }),
            Err(
                Error::OutOfBlocks { .. }
                | Error::NeverFits { .. }
                | Error::TooManySequences { .. },
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// A step over some of the sequences, in any order. Some steps fail after their writes and are repeated later.
    fn step(&mut self) {
        let mut chosen: Vec<usize> = (0..self.live.len())
            .filter(|_| self.random.below(3) > 0)
            .collect();
        if self.random.below(2) == 0 {
            chosen.reverse();
        }
        let is_decode = self.random.below(2) == 0;
        let (mut handles, mut num_new, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        let mut tokens = Vec::new();
        for &index in &chosen {
            let live = &self.live[index];
            let count = if is_decode { 1 } else { self.random.below(6) }.min(40 - live.computed);
            let mut own = live.tokens.clone();
            while own.len() < live.computed + count {
                own.push(self.random.token());
                unknown.push(own[own.len() - 1]);
            }
            handles.push(live.handle);
            num_new.push(u32::try_from(count).expect("small"));
            tokens.push(own);
        }
        let counts = if is_decode && num_new.iter().all(|&count| count == 1) {
            Counts::Same(1)
        } else {
            Counts::Each(&num_new)
        };
        let request = Reserve {
            num_new: counts,
            tokens: Some(&unknown),
            ..Reserve::new(&handles)
        };
        let mut locked = self.manager.lock().expect("not poisoned");
        match locked.reserve(&request, Some((&mut self.state, self.arrays.borrow()))) {
            Ok(_) => {}
            Err(Error::OutOfBlocks { .. } | Error::NeverFits { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        let size = self.block_size;
        let block = |id: i32| usize::try_from(id).expect("an id") * size;
        let pairs = self.arrays.rows[4][..2 * self.state.num_copies()].chunks(2);
        let sources: Vec<(usize, Vec<u64>)> = pairs
            .map(|pair| {
                (
                    block(pair[1]),
                    self.memory[block(pair[0])..][..size].to_vec(),
                )
            })
            .collect();
        for (destination, content) in sources {
            self.memory[destination..][..size].copy_from_slice(&content);
        }
        let mut at = 0;
        for (row, &index) in chosen.iter().enumerate() {
            let live = &mut self.live[index];
            live.tokens.clone_from(&tokens[row]);
            for position in live.computed..live.computed + num_new[row] as usize {
                assert_eq!(
                    self.arrays.tokens[1][at],
                    i64::try_from(position).expect("small")
                );
                assert_eq!(self.arrays.tokens[2][at], i64::from(live.tokens[position]));
                let slot = usize::try_from(self.arrays.tokens[0][at]).expect("a slot");
                self.memory[slot] = fingerprint(&live.tokens[..=position]);
                at += 1;
            }
        }
        assert_eq!(at, self.state.num_tokens());
        if self.random.below(5) == 0 {
            return;
        }
        let ends: Vec<u32> = chosen
            .iter()
            .zip(&num_new)
            .map(|(&index, &count)| {
                let accepted = self.random.below(count as usize + 1);
                self.live[index].computed += accepted;
                u32::try_from(self.live[index].computed).expect("small")
            })
            .collect();
        locked
            .commit(&handles, Counts::Each(&ends), None)
            .expect("reserved");
    }

    fn fork(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let parent = self.random.below(self.live.len());
        let forked = self
            .manager
            .lock()
            .expect("not poisoned")
            .fork(self.live[parent].handle);
        match forked {
            Ok(admission) => {
                let Live {
                    tokens, computed, ..
                } = &self.live[parent];
                self.live.push(Live {
                    handle: admission.id.to_handle(),
                    tokens: tokens.clone(),
                    computed: *computed,
                });
            }
            Err(error) => assert!(matches!(error, Error::TooManySequences { .. }), "{error}"),
        }
    }

    fn truncate(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let index = self.random.below(self.live.len());
        let live = &mut self.live[index];
        let length = self.random.below(live.tokens.len() + 1);
        let mut locked = self.manager.lock().expect("not poisoned");
        locked
            .truncate(live.handle, u32::try_from(length).expect("small"))
            .expect("not longer than the sequence");
        live.tokens.truncate(length);
        live.computed = live.computed.min(length);
    }

    fn release(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let index = self.random.below(self.live.len());
        let live = self.live.swap_remove(index);
        if self.random.below(4) == 0 {
            self.manager
                .bury(SeqId::from_handle(live.handle).expect("issued"));
            return;
        }
        let cache = self.random.below(4) > 0;
        let mut locked = self.manager.lock().expect("not poisoned");
        locked.release_with(&[live.handle], cache).expect("alive");
    }

    /// A transfer begins to read the computed blocks of a sequence.
    fn begin_transfer(&mut self) {
        if self.live.is_empty() || self.transfers.len() == 2 {
            return;
        }
        let live = &self.live[self.random.below(self.live.len())];
        let mut blocks = {
            let locked = self.manager.lock().expect("not poisoned");
            locked.blocks(live.handle).expect("alive")
        };
        blocks.truncate(live.computed / self.block_size);
        self.manager.retain_blocks(&blocks).expect("held");
        let content = self.read(&blocks);
        self.transfers.push(Transfer { blocks, content });
    }

    fn end_transfer(&mut self) {
        if let Some(transfer) = self.transfers.pop() {
            assert_eq!(self.read(&transfer.blocks), transfer.content);
            self.manager.release_blocks(&transfer.blocks).expect("held");
        }
    }

    fn read(&self, blocks: &[BlockId]) -> Vec<u64> {
        let size = self.block_size;
        let slots = |block: &BlockId| &self.memory[block.index() * size..][..size];
        blocks.iter().flat_map(slots).copied().collect()
    }

    fn drop_content(&mut self) {
        let mut locked = self.manager.lock().expect("not poisoned");
        match self.random.below(4) {
            0 => drop(locked.reset().expect("consistent")),
            1 => drop(locked.invalidate(&[1]).expect("consistent")),
            _ => drop(locked.evict(3).expect("consistent")),
        }
    }

    fn check(&self) {
        let mut locked = self.manager.lock().expect("not poisoned");
        let held: Vec<BlockId> = self
            .transfers
            .iter()
            .flat_map(|transfer| transfer.blocks.clone())
            .collect();
        locked.validate_beside(&held).expect("consistent");
        for live in &self.live {
            let table = locked.blocks(live.handle).expect("alive");
            for position in 0..live.computed {
                let slot = table[position / self.block_size].index() * self.block_size
                    + position % self.block_size;
                let expected = fingerprint(&live.tokens[..=position]);
                assert_eq!(
                    self.memory[slot], expected,
                    "position {position} of {}",
                    live.handle
                );
            }
        }
    }
}

fn run(seed: u64, operations: u32) {
    let mut machine = Machine::new(seed);
    for _ in 0..operations {
        match machine.random.below(20) {
            0..=3 => machine.admit(),
            4..=11 => machine.step(),
            12..=13 => machine.fork(),
            14..=15 => machine.truncate(),
            16..=17 => machine.release(),
            18 if machine.random.below(2) == 0 => machine.begin_transfer(),
            18 => machine.end_transfer(),
            _ => machine.drop_content(),
        }
        machine.check();
    }
    while !machine.live.is_empty() {
        machine.release();
        machine.check();
    }
    while !machine.transfers.is_empty() {
        machine.end_transfer();
        machine.check();
    }
    let stats = machine.manager.lock().expect("not poisoned").stats();
    assert_eq!(stats.pool.num_free + stats.num_idle, stats.pool.num_blocks);
}

#[test]
fn every_sequence_reads_its_own_content() {
    rounds(0x9876_5432, run);
}
