//! A KV cache for tests: one cell per slot, holding who wrote it.

/// What a slot holds: a number that is given to one token of one step, ever.
pub(crate) type Content = u64;

/// What lies in a slot that nobody may read.
const POISON: Content = 0;

/// One step of an engine, as a batch described it when it was reserved.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) handles: Vec<i64>,
    /// (source, destination) blocks.
    pub(crate) copies: Vec<(usize, usize)>,
    /// Slots that the step writes.
    pub(crate) writes: Vec<(usize, Content)>,
    /// Slots that its attention reads, and what must lie there once the step has written.
    pub(crate) reads: Vec<(usize, Content)>,
    /// Somebody has believed it: it may no longer fail.
    pub(crate) is_committed: bool,
}

/// What happens to the memory, in this order.
#[derive(Debug)]
pub(crate) enum Work {
    Step(Step),
    /// These blocks became free: whatever lies there is garbage from now on.
    Poison(Vec<u32>),
}

#[derive(Debug)]
pub(crate) struct Memory {
    cells: Vec<Content>,
    block_size: usize,
}

impl Memory {
    pub(crate) fn new(num_blocks: usize, block_size: usize) -> Self {
        Self {
            cells: vec![POISON; (num_blocks + 1) * block_size],
            block_size,
        }
    }

    pub(crate) fn at(&self, slot: usize) -> Content {
        self.cells[slot]
    }

    pub(crate) fn run(&mut self, work: &Work) {
        match work {
            Work::Step(step) => {
                self.run_partly(step, true, step.writes.len());
                for &(slot, content) in &step.reads {
                    assert_eq!(
                        self.cells[slot], content,
                        "slot {slot} as step {} reads it",
                        step.number
                    );
                }
            }
            Work::Poison(blocks) => {
                for &block in blocks {
                    let start = block as usize * self.block_size;
                    self.cells[start..start + self.block_size].fill(POISON);
                }
            }
        }
    }

    /// What a step that fails half-way leaves behind: all copies or none, and the first writes.
    pub(crate) fn run_partly(&mut self, step: &Step, with_copies: bool, num_writes: usize) {
        if with_copies {
            let sources: Vec<Vec<Content>> = step
                .copies
                .iter()
                .map(|&(source, _)| self.block(source).to_vec())
                .collect();
            for (&(_, destination), content) in step.copies.iter().zip(sources) {
                let start = destination * self.block_size;
                self.cells[start..start + self.block_size].copy_from_slice(&content);
            }
        }
        for &(slot, content) in step.writes.iter().take(num_writes) {
            self.cells[slot] = content;
        }
    }

    fn block(&self, block: usize) -> &[Content] {
        &self.cells[block * self.block_size..(block + 1) * self.block_size]
    }
}
