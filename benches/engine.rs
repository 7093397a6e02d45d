//! An engine around a block manager: the buffers that a caller owns, and the calls of its steps.

use looseleaf_core::{
    Admit, BatchBuffers, BatchShape, BatchState, BlockManager, Config, Counts, Oom, Reserve,
};

/// Tokens of a block in every benchmark of the manager.
pub const BLOCK_SIZE: u32 = 16;

/// Buffers that a caller would own.
pub struct Buffers {
    /// As in [`BatchBuffers`].
    pub block_table: Vec<i32>,
    /// As in [`BatchBuffers`].
    pub seq_lens: Vec<i32>,
    query_lens: Vec<i32>,
    /// As in [`BatchBuffers`].
    pub cu_query_lens: Vec<i32>,
    /// As in [`BatchBuffers`].
    pub slot_mapping: Vec<i64>,
    positions: Vec<i64>,
    token_ids: Vec<i64>,
    copies: Vec<i32>,
}

impl Buffers {
    /// Buffers of that shape.
    #[must_use]
    pub fn new(shape: BatchShape) -> Self {
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

/// A manager, a batch, and the sequences of the next step. It panics where a benchmark is wrong.
pub struct Engine {
    /// The manager.
    pub manager: BlockManager,
    /// The running sequences, in the order of the batch's rows.
    pub handles: Vec<i64>,
    /// What the newest step wrote.
    pub buffers: Buffers,
    state: BatchState,
}

#[expect(
    clippy::missing_panics_doc,
    reason = "every call panics where a benchmark is wrong"
)]
impl Engine {
    /// No sequences yet.
    #[must_use]
    pub fn new(config: Config, max_batch_tokens: u32) -> Self {
        let shape = BatchShape::new(&config, max_batch_tokens).expect("valid sizes");
        let mut buffers = Buffers::new(shape);
        let state = BatchState::new(shape, &mut buffers.borrow()).expect("right lengths");
        Self {
            manager: BlockManager::new(config).expect("valid sizes"),
            handles: Vec::new(),
            buffers,
            state,
        }
    }

    /// Begins a sequence and computes its prompt, without a batch. Returns its handle.
    pub fn admit(&mut self, prompt: &[i32]) -> i64 {
        let mut locked = self.manager.lock().expect("not poisoned");
        let admission = locked.admit(&Admit::new(prompt)).expect("enough blocks");
        drop(locked);
        let handle = admission.id.to_handle();
        self.compute(handle);
        handle
    }

    /// Computes what of a sequence is not computed yet, without a batch.
    pub fn compute(&mut self, handle: i64) {
        let mut locked = self.manager.lock().expect("not poisoned");
        locked
            .reserve(&Reserve::new(&[handle]), None)
            .expect("enough blocks");
        locked
            .commit(&[handle], Counts::Default, None)
            .expect("reserved");
    }

    /// Begins a sequence, computes its prompt in a step of its own, and ends it.
    pub fn serve(&mut self, prompt: &[i32]) {
        let mut locked = self.manager.lock().expect("not poisoned");
        let admission = locked.admit(&Admit::new(prompt)).expect("enough blocks");
        let handles = [admission.id.to_handle()];
        let batch = (&mut self.state, self.buffers.borrow());
        locked
            .reserve(&Reserve::new(&handles), Some(batch))
            .expect("enough blocks");
        locked
            .commit(&handles, Counts::Default, None)
            .expect("reserved");
        locked.release(&handles).expect("alive");
    }

    /// Makes room for one token of each running sequence and writes the batch.
    pub fn reserve(&mut self, tokens: &[i32]) {
        let request = Reserve {
            handles: &self.handles,
            num_new: Counts::Same(1),
            tokens: Some(tokens),
            oom: Oom::Fail,
            lookahead: 0,
        };
        let batch = (&mut self.state, self.buffers.borrow());
        let mut locked = self.manager.lock().expect("not poisoned");
        let num_served = locked.reserve(&request, Some(batch));
        assert_eq!(
            num_served.map(|num_served| num_served as usize),
            Ok(self.handles.len())
        );
    }

    /// Notes that the tokens of the step are computed.
    pub fn commit(&mut self) {
        let mut locked = self.manager.lock().expect("not poisoned");
        locked
            .commit(&self.handles, Counts::Default, None)
            .expect("reserved");
    }

    /// Ends sequences.
    pub fn release(&mut self, handles: &[i64]) {
        let mut locked = self.manager.lock().expect("not poisoned");
        locked.release(handles).expect("alive");
    }

    /// Cuts each running sequence to the length of its row.
    pub fn truncate(&mut self, length: impl Fn(usize) -> u32) {
        let mut locked = self.manager.lock().expect("not poisoned");
        for (row, &handle) in self.handles.iter().enumerate() {
            locked.truncate(handle, length(row)).expect("longer");
        }
    }
}

/// Length of a row's prompt: about 1,000 tokens, so staggered that every step one sequence in 16 needs a block.
#[must_use]
pub fn staggered_len(row: usize) -> u32 {
    1_000 + u32::try_from(row).unwrap_or(0) % BLOCK_SIZE
}
