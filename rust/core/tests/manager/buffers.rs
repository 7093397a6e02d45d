//! Batch buffers, as the manager fills them and as the oracle builds them from scratch.

use looseleaf_core::{BatchBuffers, BatchShape, BatchState};

use crate::oracle::Sequence;

/// What uninitialized memory may hold.
const GARBAGE: i32 = -77;

/// Buffers of one batch, padding included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) block_table: Vec<i32>,
    pub(crate) seq_lens: Vec<i32>,
    pub(crate) query_lens: Vec<i32>,
    pub(crate) cu_query_lens: Vec<i32>,
    pub(crate) slot_mapping: Vec<i64>,
    pub(crate) positions: Vec<i64>,
    pub(crate) token_ids: Vec<i64>,
    pub(crate) copies: Vec<i32>,
}

/// Buffers, what the manager knows of them, and what they must hold.
#[derive(Debug)]
pub(crate) struct BoundBatch {
    pub(crate) state: BatchState,
    pub(crate) buffers: Buffers,
    pub(crate) expected: Buffers,
}

impl Buffers {
    pub(crate) fn filled(shape: BatchShape, cell: i32, slot: i64, length: i32, copy: i32) -> Self {
        let BatchShape {
            rows,
            columns,
            tokens,
        } = shape;
        Self {
            block_table: vec![cell; rows * columns],
            seq_lens: vec![length; rows],
            query_lens: vec![length; rows],
            cu_query_lens: vec![length; rows + 1],
            slot_mapping: vec![slot; tokens],
            positions: vec![i64::from(length); tokens],
            token_ids: vec![i64::from(length); tokens],
            copies: vec![copy; 2 * rows],
        }
    }

    /// Buffers as they were allocated.
    pub(crate) fn garbage(shape: BatchShape) -> Self {
        Self::filled(shape, GARBAGE, i64::from(GARBAGE), GARBAGE, GARBAGE)
    }

    /// A batch of no sequence.
    pub(crate) fn padding(shape: BatchShape) -> Self {
        Self::filled(shape, 0, -1, 0, -1)
    }

    /// The batch of these sequences, whose reserved slots are the step's.
    pub(crate) fn built(shape: BatchShape, block_size: u32, rows: &[&Sequence]) -> Self {
        let mut buffers = Self::padding(shape);
        let (mut num_tokens, mut num_copies) = (0, 0);
        for (row, sequence) in rows.iter().enumerate() {
            for (column, &block) in sequence.blocks.iter().enumerate() {
                buffers.block_table[row * shape.columns + column] = block.cast_signed();
            }
            for position in sequence.computed..sequence.reserved {
                let block = sequence.blocks[(position / block_size) as usize];
                let slot = block * block_size + position % block_size;
                let token = sequence.tokens.get(position as usize);
                buffers.slot_mapping[num_tokens] = i64::from(slot);
                buffers.positions[num_tokens] = i64::from(position);
                buffers.token_ids[num_tokens] = token.map_or(-1, |&token| i64::from(token));
                num_tokens += 1;
            }
            if let Some(pending) = sequence.pending {
                buffers.copies[2 * num_copies] = pending.source.cast_signed();
                buffers.copies[2 * num_copies + 1] = sequence.blocks[pending.column].cast_signed();
                num_copies += 1;
            }
            buffers.seq_lens[row] = sequence.reserved.cast_signed();
            buffers.query_lens[row] = (sequence.reserved - sequence.computed).cast_signed();
            let total = i32::try_from(num_tokens).expect("small batches");
            buffers.cu_query_lens[row + 1..].fill(total);
        }
        buffers
    }

    pub(crate) fn as_slices(&mut self) -> BatchBuffers<'_> {
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

    /// (source, destination) pairs, the padding left out.
    pub(crate) fn copy_pairs(&self) -> Vec<(usize, usize)> {
        let id = |id: i32| usize::try_from(id).expect("a block id");
        let live = self.copies.chunks(2).take_while(|pair| pair[0] != -1);
        live.map(|pair| (id(pair[0]), id(pair[1]))).collect()
    }
}

impl BoundBatch {
    pub(crate) fn new(shape: BatchShape) -> Self {
        let mut buffers = Buffers::garbage(shape);
        let state = BatchState::new(shape, &mut buffers.as_slices()).expect("matching lengths");
        let bound = Self {
            state,
            buffers,
            expected: Buffers::padding(shape),
        };
        bound.check();
        bound
    }

    /// The batch as a call takes it.
    pub(crate) fn parts(&mut self) -> (&mut BatchState, BatchBuffers<'_>) {
        (&mut self.state, self.buffers.as_slices())
    }

    /// Compares every cell with what it must hold, padding included.
    pub(crate) fn check(&self) {
        assert_eq!(self.buffers, self.expected);
    }

    /// Takes over the step of these sequences as what the buffers must hold from now on, and compares.
    pub(crate) fn check_step(&mut self, block_size: u32, rows: &[&Sequence]) {
        self.expected = Buffers::built(self.state.shape(), block_size, rows);
        self.check();
        let lengths = |of: fn(&Sequence) -> u32| rows.iter().map(|row| of(row)).max().unwrap_or(0);
        assert_eq!(self.state.num_sequences(), rows.len());
        assert_eq!(
            self.state.num_copies(),
            rows.iter().filter(|row| row.pending.is_some()).count()
        );
        assert_eq!(
            self.state.max_query_len(),
            lengths(|row| row.reserved - row.computed)
        );
        assert_eq!(self.state.max_seq_len(), lengths(|row| row.reserved));
        let num_tokens: u32 = rows.iter().map(|row| row.reserved - row.computed).sum();
        assert_eq!(self.state.num_tokens(), num_tokens as usize);
    }
}
