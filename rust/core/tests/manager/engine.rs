//! The smallest engine: one manager, one batch and a memory that holds token ids, for tests that spell their calls out.

use looseleaf_core::{
    Admit, BatchShape, BlockId, BlockManager, Config, Counts, Error, Lengths, Locked, Reserve,
    SeqId, Stats,
};

use crate::buffers::BoundBatch;
use crate::memory::{Content, Memory, Step, Work};

/// Room for every test that does not look for a limit.
const MAX_SEQUENCES: u32 = 4;
const MAX_SEQUENCE_LEN: u32 = 64;
const MAX_BATCH_TOKENS: u32 = 64;

pub(crate) struct Engine {
    pub(crate) manager: BlockManager,
    pub(crate) batch: BoundBatch,
    memory: Memory,
}

impl Engine {
    pub(crate) fn new(num_blocks: u32, block_size: u32) -> Self {
        let config = Config::new(num_blocks, block_size, MAX_SEQUENCES, MAX_SEQUENCE_LEN);
        Self::with(config.expect("sizes in range"), MAX_BATCH_TOKENS)
    }

    pub(crate) fn with(config: Config, max_batch_tokens: u32) -> Self {
        let shape = BatchShape::new(&config, max_batch_tokens).expect("at least one token");
        Self {
            manager: BlockManager::new(config).expect("a valid configuration"),
            batch: BoundBatch::new(shape),
            memory: Memory::new(config.num_blocks() as usize, config.block_size() as usize),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        self.manager.lock().expect("no call has panicked")
    }

    pub(crate) fn try_admit(&self, tokens: &[i32], reserve: Option<u32>) -> Result<i64, Error> {
        let admission = self.lock().admit(&admission(tokens, reserve))?;
        Ok(admission.id.to_handle())
    }

    pub(crate) fn admit(&self, tokens: &[i32]) -> i64 {
        self.try_admit(tokens, None).expect("room")
    }

    /// Admits and computes a prompt.
    pub(crate) fn prefill(&mut self, tokens: &[i32]) -> i64 {
        let handle = self.admit(tokens);
        self.try_reserve(&Reserve::new(&[handle])).expect("room");
        self.run();
        self.commit(&[handle]);
        handle
    }

    pub(crate) fn fork(&self, handle: i64) -> i64 {
        self.lock().fork(handle).expect("room").id.to_handle()
    }

    /// Reserves into the batch.
    pub(crate) fn try_reserve(&mut self, request: &Reserve<'_>) -> Result<u32, Error> {
        let mut locked = self.manager.lock().expect("no call has panicked");
        let answer = locked.reserve(request, Some(self.batch.parts()));
        locked.validate().expect("a consistent state");
        answer
    }

    /// Reserves `num_new` tokens of each, whose ids stay unknown.
    pub(crate) fn reserve(&mut self, handles: &[i64], num_new: u32) {
        let request = Reserve {
            num_new: Counts::Same(num_new),
            ..Reserve::new(handles)
        };
        self.try_reserve(&request).expect("room");
    }

    /// Runs the newest step: its copies, then its writes. Every slot gets the id of its token.
    pub(crate) fn run(&mut self) {
        let buffers = &self.batch.buffers;
        let index = |slot: i64| usize::try_from(slot).expect("a slot");
        let tokens = buffers.token_ids.iter().map(|token| token.cast_unsigned());
        let step = Step {
            number: 0,
            handles: Vec::new(),
            copies: buffers.copy_pairs(),
            writes: self
                .slots()
                .iter()
                .map(|&slot| index(slot))
                .zip(tokens)
                .collect(),
            reads: Vec::new(),
            is_committed: false,
        };
        self.memory.run(&Work::Step(step));
    }

    /// The ids that lie where the first `length` tokens of a sequence are.
    pub(crate) fn read(&self, handle: i64, length: u32) -> Vec<Content> {
        let slots = (0..length).map(|position| self.slot(handle, position));
        slots
            .map(|slot| self.memory.at(usize::try_from(slot).expect("a slot")))
            .collect()
    }

    /// Commits all reserved slots.
    pub(crate) fn commit(&self, handles: &[i64]) {
        let mut locked = self.lock();
        locked
            .commit(handles, Counts::Default, None)
            .expect("a step");
        locked.validate().expect("a consistent state");
    }

    /// Computes one more token. Returns the copies of the step and the slot of the token.
    pub(crate) fn append(&mut self, handle: i64, token: i32) -> (Vec<(u32, u32)>, i64) {
        let (handles, tokens) = ([handle], [token]);
        let request = Reserve {
            num_new: Counts::Same(1),
            tokens: Some(&tokens),
            ..Reserve::new(&handles)
        };
        self.try_reserve(&request).expect("room");
        let step = (self.copies(), self.slots()[0]);
        self.run();
        self.commit(&[handle]);
        step
    }

    pub(crate) fn truncate(&self, handle: i64, length: u32) {
        let mut locked = self.lock();
        locked.truncate(handle, length).expect("long enough");
        locked.validate().expect("a consistent state");
    }

    pub(crate) fn release(&self, handles: &[i64]) {
        let mut locked = self.lock();
        locked.release(handles).expect("handles of this manager");
        locked.validate().expect("a consistent state");
    }

    pub(crate) fn lengths(&self, handle: i64) -> Lengths {
        self.lock().lengths(handle).expect("a live handle")
    }

    pub(crate) fn table(&self, handle: i64) -> Vec<u32> {
        let locked = self.lock();
        let blocks = locked.blocks(handle).expect("a live handle");
        blocks.iter().copied().map(BlockId::get).collect()
    }

    /// Where a token lies.
    pub(crate) fn slot(&self, handle: i64, position: u32) -> i64 {
        let block_size = self.manager.config().block_size();
        let block = self.table(handle)[(position / block_size) as usize];
        i64::from(block * block_size + position % block_size)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.lock().stats()
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.stats().pool.num_free
    }

    /// (source, destination) pairs of the newest step.
    pub(crate) fn copies(&self) -> Vec<(u32, u32)> {
        let id = |id: usize| u32::try_from(id).expect("a block id");
        let pairs = self.batch.buffers.copy_pairs();
        pairs
            .into_iter()
            .map(|(source, destination)| (id(source), id(destination)))
            .collect()
    }

    /// Slots that the newest step writes.
    pub(crate) fn slots(&self) -> &[i64] {
        &self.batch.buffers.slot_mapping[..self.batch.state.num_tokens()]
    }
}

/// The token ids `first..=last`.
pub(crate) fn prompt(first: i32, last: i32) -> Vec<i32> {
    (first..=last).collect()
}

pub(crate) fn id_of(handle: i64) -> SeqId {
    SeqId::from_handle(handle).expect("an issued handle")
}

/// A prompt without a namespace.
pub(crate) fn admission(tokens: &[i32], reserve: Option<u32>) -> Admit<'_> {
    Admit {
        reserve,
        ..Admit::new(tokens)
    }
}
