//! Baseline of the decode step: block tables as most engines keep them, a `HashMap` of `Vec`s, filling the same buffers.

use std::collections::HashMap;

use looseleaf_benches::engine::{BLOCK_SIZE, Buffers, staggered_len};
use looseleaf_core::BatchShape;

pub(crate) struct PlainTables {
    tables: HashMap<i64, (Vec<u32>, u32)>,
    free: Vec<u32>,
    handles: Vec<i64>,
    pub(crate) buffers: Buffers,
    columns: usize,
}

impl PlainTables {
    pub(crate) fn new(num_sequences: u32, max_sequence_len: u32) -> Self {
        let columns = max_sequence_len.div_ceil(BLOCK_SIZE);
        let mut free: Vec<u32> = (1..=num_sequences * columns).rev().collect();
        let mut tables = HashMap::new();
        for row in 0..num_sequences {
            let length = staggered_len(row as usize);
            let blocks = free.split_off(free.len() - length.div_ceil(BLOCK_SIZE) as usize);
            tables.insert(i64::from(row), (blocks, length));
        }
        let rows = num_sequences as usize;
        let columns = columns as usize;
        let tokens = rows;
        Self {
            tables,
            free,
            handles: (0..i64::from(num_sequences)).collect(),
            buffers: Buffers::new(BatchShape {
                rows,
                columns,
                tokens,
            }),
            columns,
        }
    }

    /// One token more for each sequence.
    pub(crate) fn step(&mut self) {
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
}
