//! What is published and found.

use std::vec::IntoIter;

use looseleaf_benches::random::Random;
use looseleaf_core::BlockId;

/// Blocks that are published in one call.
pub(crate) struct Segment {
    pub(crate) predecessor: Option<BlockId>,
    pub(crate) tokens: Vec<i32>,
    pub(crate) blocks: Vec<BlockId>,
}

pub(crate) fn id(number: u32) -> BlockId {
    BlockId::new(number).expect("a small pool")
}

/// Ids in pieces of 32, as a pool hands them out that has been in use for a while.
fn scattered_ids(num_blocks: u32, random: &mut Random) -> Vec<BlockId> {
    let all: Vec<BlockId> = (1..=num_blocks).map(id).collect();
    let mut pieces: Vec<&[BlockId]> = all.chunks(32).collect();
    random.shuffle(&mut pieces);
    pieces.concat()
}

/// Prompts of `len` blocks that fill the pool and share nothing.
pub(crate) fn long_prompts(num_blocks: u32, len: usize, block_size: usize) -> Vec<Segment> {
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let ids = scattered_ids(num_blocks, &mut random);
    let segment = |blocks: &[BlockId]| Segment {
        predecessor: None,
        tokens: random.tokens(len * block_size),
        blocks: blocks.to_vec(),
    };
    ids.chunks_exact(len).map(segment).collect()
}

/// Conversations behind 16 system prompts of 64 blocks, until the pool is full.
///
/// A turn is a prompt of 2 to 40 blocks, published at once, and an answer of 1 to 20, published block by block. One turn in five
/// begins a conversation, one in ten answers an earlier turn anew, the others continue one.
pub(crate) struct Conversations {
    random: Random,
    block_size: usize,
    free: IntoIter<BlockId>,
    pub(crate) segments: Vec<Segment>,
    /// By segment: the segment that it follows.
    parents: Vec<Option<usize>>,
}

impl Conversations {
    pub(crate) fn new(num_blocks: u32, block_size: usize) -> Self {
        let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
        let free = scattered_ids(num_blocks, &mut random).into_iter();
        let mut this = Self {
            random,
            block_size,
            free,
            segments: Vec::new(),
            parents: Vec::new(),
        };
        let systems: Vec<usize> = (0..16).filter_map(|_| this.append(None, 64)).collect();
        let mut turns = systems.clone(); // each by its last segment
        let mut latest = systems.clone(); // of each conversation
        loop {
            let (parent, conversation) = match this.random.below(10) {
                0 | 1 => (systems[this.random.below(16)], None),
                2 => (turns[this.random.below(turns.len())], None),
                _ => {
                    let conversation = this.random.below(latest.len());
                    (latest[conversation], Some(conversation))
                }
            };
            let Some(turn) = this.turn(parent) else {
                return this;
            };
            turns.push(turn);
            match conversation {
                Some(conversation) => latest[conversation] = turn,
                None => latest.push(turn),
            }
        }
    }

    /// Every block, sequences released in random order, each tail first, as far as nobody else holds its blocks.
    pub(crate) fn released_by_sequence(&mut self) -> Vec<BlockId> {
        self.released(true)
    }

    /// Every block in random order, after those that stand behind it.
    pub(crate) fn released_by_block(&mut self) -> Vec<BlockId> {
        self.released(false)
    }

    fn released(&mut self, whole_sequences: bool) -> Vec<BlockId> {
        let mut num_children = vec![0; self.segments.len()];
        for parent in self.parents.iter().flatten() {
            num_children[*parent] += 1;
        }
        let mut tails: Vec<usize> = (0..self.segments.len()).collect();
        tails.retain(|&segment| num_children[segment] == 0);
        let mut order = Vec::new();
        let mut next = None;
        while let Some(segment) = next.take().or_else(|| self.random.take(&mut tails)) {
            order.extend(self.segments[segment].blocks.iter().rev());
            if let Some(parent) = self.parents[segment] {
                num_children[parent] -= 1;
                if num_children[parent] == 0 {
                    if whole_sequences {
                        next = Some(parent);
                    } else {
                        tails.push(parent);
                    }
                }
            }
        }
        order
    }

    fn turn(&mut self, parent: usize) -> Option<usize> {
        let prompt_len = 2 + self.random.below(39);
        let mut last = self.append(Some(parent), prompt_len)?;
        for _ in 0..=self.random.below(20) {
            last = self.append(Some(last), 1)?;
        }
        Some(last)
    }

    /// A segment of new blocks; `None` if the pool is used up.
    fn append(&mut self, parent: Option<usize>, len: usize) -> Option<usize> {
        if self.free.len() < len {
            return None;
        }
        let blocks = self.free.by_ref().take(len).collect();
        let tokens = self.random.tokens(len * self.block_size);
        let predecessor = parent.and_then(|parent| self.segments[parent].blocks.last().copied());
        self.segments.push(Segment {
            predecessor,
            tokens,
            blocks,
        });
        self.parents.push(parent);
        Some(self.segments.len() - 1)
    }
}
