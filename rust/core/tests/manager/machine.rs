//! One operation on the manager, on the oracle and on the memory, and the comparison of all three.

mod calls;
mod notes;
mod queue;
mod step;

use std::collections::VecDeque;

use looseleaf_core::{BatchShape, BlockId, BlockManager, Error, Locked};

use crate::buffers::BoundBatch;
use crate::coverage::Coverage;
use crate::engine::admission;
use crate::memory::{Content, Memory, Work};
use crate::operation::{Operation, Scenario};
use crate::oracle::Oracle;

pub(crate) struct Machine {
    manager: BlockManager,
    oracle: Oracle,
    memory: Memory,
    /// What the memory has still to do: an engine runs its steps later than it reserves them, in the same order.
    queue: VecDeque<Work>,
    batches: [BoundBatch; 2],
    lag: usize,
    num_steps: u64,
    last_content: Content,
    last_token: i32,
    pub(crate) coverage: Coverage,
}

impl Machine {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let config = scenario.config;
        let bind = |max_batch_tokens: u8| {
            let shape = BatchShape::new(&config, u32::from(max_batch_tokens));
            BoundBatch::new(shape.expect("at least one token"))
        };
        Self {
            manager: BlockManager::new(config).expect("a valid configuration"),
            oracle: Oracle::new(config),
            memory: Memory::new(config.num_blocks() as usize, config.block_size() as usize),
            queue: VecDeque::new(),
            batches: [bind(scenario.max_batch_tokens), bind(64)],
            lag: usize::from(scenario.lag),
            num_steps: 0,
            last_content: 0,
            last_token: 0,
            coverage: Coverage::default(),
        }
    }

    pub(crate) fn apply(&mut self, operation: &Operation) {
        let used = self.oracle.used();
        match operation {
            Operation::Admit {
                num_tokens,
                reserve,
                is_negative,
            } => self.admit(*num_tokens, *reserve, *is_negative),
            Operation::CanAdmit(num_tokens) => self.can_admit(u32::from(*num_tokens)),
            Operation::Reserve {
                rows,
                num_new,
                tokens,
                lookahead,
                batch,
            } => self.reserve(*rows, num_new, *tokens, *lookahead, *batch),
            Operation::Commit {
                rows,
                num_computed,
                tokens,
            } => self.commit(*rows, num_computed, *tokens),
            Operation::Fork(rows) => self.fork(*rows),
            Operation::Truncate(rows, length) => self.truncate(*rows, u32::from(*length)),
            Operation::Release(rows) => self.release(*rows),
            Operation::Bury(rows) => self.bury(*rows),
            Operation::Run => {
                self.run_oldest();
            }
            Operation::Fail {
                with_copies,
                num_writes,
            } => self.fail_newest(*with_copies, usize::from(*num_writes)),
        }
        self.poison_freed(used);
        while self.num_queued_steps() > self.lag {
            self.run_oldest();
        }
        if !matches!(operation, Operation::Bury(_)) {
            self.check();
        }
    }

    /// Runs what is left to run, then releases everything: no block and no place may be missing.
    pub(crate) fn finish(mut self) -> Coverage {
        while !self.queue.is_empty() {
            self.run_oldest();
        }
        self.check();
        let handles: Vec<i64> = self.oracle.live.keys().copied().collect();
        self.lock().release(&handles).expect("live handles");
        for handle in handles {
            self.oracle.ended(handle);
        }
        self.check();
        let config = *self.manager.config();
        assert_eq!(self.lock().stats().pool.num_free, config.num_blocks());
        for _ in 0..config.max_sequences() {
            self.lock()
                .admit(&admission(&[0], Some(0)))
                .expect("a free place");
        }
        self.coverage
    }

    /// What a caller can see, for a comparison with another machine.
    pub(crate) fn observed(&self) -> Vec<(i64, Vec<u32>)> {
        let handles = self.oracle.live.keys();
        handles
            .map(|&handle| (handle, self.table(handle)))
            .collect()
    }

    fn lock(&self) -> Locked<'_> {
        self.manager.lock().expect("no call has panicked")
    }

    fn table(&self, handle: i64) -> Vec<u32> {
        let locked = self.lock();
        let blocks = locked.blocks(handle).expect("a live handle");
        blocks.iter().map(|block: &BlockId| block.get()).collect()
    }

    /// Compares everything that a caller can see with the oracle. After a failed call the oracle is as it was before.
    fn check(&self) {
        let mut locked = self.lock();
        locked.validate().expect("a consistent state");
        assert_eq!(locked.stats(), self.oracle.stats());
        for (&handle, sequence) in &self.oracle.live {
            assert_eq!(locked.lengths(handle), Ok(sequence.lengths()));
            let blocks = locked.blocks(handle).expect("a live handle");
            assert!(
                blocks
                    .iter()
                    .map(|block| block.get())
                    .eq(sequence.blocks.iter().copied())
            );
        }
        for &handle in self.oracle.ended.iter().rev().take(8) {
            assert_eq!(locked.lengths(handle), Err(Error::StaleSequence { handle }));
        }
        self.batches.iter().for_each(BoundBatch::check);
        if self.queue.is_empty() {
            self.check_contents();
        }
    }

    /// Every sequence reads its own tokens through its table, or through the source of a copy that is still pending.
    fn check_contents(&self) {
        let block_size = self.oracle.config.block_size() as usize;
        for (handle, sequence) in &self.oracle.live {
            for (position, &content) in sequence.contents.iter().enumerate() {
                let block = sequence.source_of_truth(position / block_size) as usize;
                let slot = block * block_size + position % block_size;
                assert_eq!(
                    self.memory.at(slot),
                    content,
                    "position {position} of sequence {handle}, in block {block}"
                );
            }
        }
    }
}
