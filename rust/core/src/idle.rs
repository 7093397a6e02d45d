//! The order in which idle blocks are given up: exact least recently used.
//!
//! Idle blocks are published and have no holder; they are kept because somebody may ask for their content again, and are the
//! first to go when blocks run out. They come in at the young end when their last holder lets go (a sequence's last block first,
//! so that a leaf of the prefix tree always goes before its ancestors), leave from the middle when somebody asks for them, and
//! from the old end when they are evicted.
//!
//! The order is an unrolled list: chunks of [`CHUNK`] places, linked both ways, each block knowing its place. Leaving from the
//! middle leaves a hole; a chunk without blocks goes, and two neighbors that fit into one are merged. So every operation is O(1)
//! (a merge moves at most one chunk, and a chunk has to lose half its blocks first), chunks are allocated when first needed
//! and then kept, and the next victims lie side by side: a linked list of single blocks would wait for memory at every one of
//! them.
//!
//! Everything else talks to this module by [`IdleOrder::push`], [`IdleOrder::remove`] and [`IdleOrder::oldest`] alone; another
//! policy replaces it here.

use crate::BlockId;

const CHUNK: u32 = 64;
const NIL: u32 = u32::MAX;

/// Places of a chunk hold a block id, or 0, the null block, for a hole.
#[derive(Clone, Debug)]
struct Chunk {
    blocks: [u32; CHUNK as usize],
    /// First place that may hold a block, and one past the last.
    start: u32,
    end: u32,
    num_blocks: u32,
    older: u32,
    younger: u32,
}

const EMPTY: Chunk = Chunk {
    blocks: [0; CHUNK as usize],
    start: 0,
    end: 0,
    num_blocks: 0,
    older: NIL,
    younger: NIL,
};

/// Idle blocks, oldest first.
#[derive(Debug)]
pub(crate) struct IdleOrder {
    chunks: Vec<Chunk>,
    free_chunks: Vec<u32>,
    /// By block id: chunk × [`CHUNK`] + place, or [`NIL`].
    places: Vec<u32>,
    oldest: u32,
    youngest: u32,
    num_blocks: u32,
}

impl IdleOrder {
    /// For the blocks `1..=num_blocks`, none idle. Memory: 4 bytes per block, and 4.3 to 17 per idle block.
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self {
            chunks: Vec::new(),
            free_chunks: Vec::new(),
            places: vec![NIL; num_blocks as usize + 1],
            oldest: NIL,
            youngest: NIL,
            num_blocks: 0,
        }
    }

    /// Number of idle blocks.
    pub(crate) fn len(&self) -> u32 {
        self.num_blocks
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.places[block.index()] != NIL
    }

    /// Adds a block at the young end. It must not be idle.
    pub(crate) fn push(&mut self, block: BlockId) {
        debug_assert!(!self.contains(block), "{block} is idle already");
        let is_full = self.youngest == NIL || self.chunks[self.youngest as usize].end == CHUNK;
        let index = if is_full {
            self.append_chunk()
        } else {
            self.youngest
        };
        let chunk = &mut self.chunks[index as usize];
        chunk.blocks[chunk.end as usize] = block.get();
        self.places[block.index()] = index * CHUNK + chunk.end;
        chunk.end += 1;
        chunk.num_blocks += 1;
        self.num_blocks += 1;
    }

    /// Takes a block out, wherever it stands; `false` if it is not idle.
    pub(crate) fn remove(&mut self, block: BlockId) -> bool {
        let place = std::mem::replace(&mut self.places[block.index()], NIL);
        if place == NIL {
            return false;
        }
        let (index, at) = (place / CHUNK, place % CHUNK);
        let chunk = &mut self.chunks[index as usize];
        chunk.blocks[at as usize] = 0;
        chunk.num_blocks -= 1;
        self.num_blocks -= 1;
        if chunk.num_blocks == 0 {
            self.unlink(index);
            return true;
        }
        if at == chunk.start {
            chunk.start += 1;
        }
        // The oldest chunk is being used up from its front and will go by itself.
        if index != self.oldest {
            self.merge_around(index);
        }
        true
    }

    /// The oldest blocks, oldest first.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = BlockId> + '_ {
        let mut next = self.oldest;
        let chunks = std::iter::from_fn(move || {
            let chunk = self.chunks.get(next as usize)?;
            next = chunk.younger;
            Some(chunk)
        });
        chunks
            .flat_map(|chunk| &chunk.blocks[chunk.start as usize..chunk.end as usize])
            .filter(|&&id| id != 0)
            .filter_map(|&id| BlockId::new(id))
    }

    fn append_chunk(&mut self) -> u32 {
        let index = self.free_chunks.pop().unwrap_or_else(|| {
            self.chunks.push(EMPTY);
            u32::try_from(self.chunks.len() - 1).unwrap_or(NIL)
        });
        let chunk = &mut self.chunks[index as usize];
        *chunk = Chunk {
            older: self.youngest,
            ..EMPTY
        };
        match self.youngest {
            NIL => self.oldest = index,
            youngest => self.chunks[youngest as usize].younger = index,
        }
        self.youngest = index;
        index
    }

    /// Takes an empty chunk out of the list.
    fn unlink(&mut self, index: u32) {
        let Chunk { older, younger, .. } = self.chunks[index as usize];
        match older {
            NIL => self.oldest = younger,
            older => self.chunks[older as usize].younger = younger,
        }
        match younger {
            NIL => self.youngest = older,
            younger => self.chunks[younger as usize].older = older,
        }
        self.free_chunks.push(index);
    }

    /// Merges a chunk with a neighbor if both fit into half of one: then half a chunk has to come or go before the next merge.
    fn merge_around(&mut self, index: u32) {
        let Chunk { older, younger, .. } = self.chunks[index as usize];
        if self.fit_into_half(older, index) {
            self.merge(older, index);
        } else if self.fit_into_half(index, younger) {
            self.merge(index, younger);
        }
    }

    fn fit_into_half(&self, older: u32, younger: u32) -> bool {
        let num_blocks = |index: u32| {
            self.chunks
                .get(index as usize)
                .map(|chunk| chunk.num_blocks)
        };
        match (num_blocks(older), num_blocks(younger)) {
            (Some(older), Some(younger)) => older + younger <= CHUNK / 2,
            _ => false,
        }
    }

    /// Moves the blocks of `older` and `younger`, in order, into `older`.
    fn merge(&mut self, older: u32, younger: u32) {
        let mut blocks = [0; CHUNK as usize];
        let mut end = 0;
        for index in [older, younger] {
            let chunk = &self.chunks[index as usize];
            for &block in &chunk.blocks[chunk.start as usize..chunk.end as usize] {
                if block != 0 {
                    self.places[block as usize] = older * CHUNK + end;
                    blocks[end as usize] = block;
                    end += 1;
                }
            }
        }
        let chunk = &mut self.chunks[older as usize];
        chunk.blocks = blocks;
        chunk.start = 0;
        chunk.end = end;
        chunk.num_blocks = end;
        self.unlink(younger);
    }
}

#[cfg(all(test, not(looseleaf_loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn id(id: u32) -> BlockId {
        BlockId::new(id).expect("small")
    }

    fn order(idle: &IdleOrder) -> Vec<u32> {
        idle.oldest().map(BlockId::get).collect()
    }

    #[test]
    fn blocks_leave_in_the_order_they_came() {
        let mut idle = IdleOrder::new(1_000);
        for block in 1..=1_000 {
            idle.push(id(block));
        }
        for block in 1..=1_000 {
            assert_eq!(idle.oldest().next(), Some(id(block)));
            assert!(idle.remove(id(block)));
        }
        assert_eq!((idle.len(), idle.oldest().next()), (0, None));
        assert!(!idle.remove(id(1)));
    }

    #[test]
    fn holes_cost_at_most_four_times_the_blocks() {
        let mut idle = IdleOrder::new(64_000);
        for block in 1..=64_000 {
            idle.push(id(block));
        }
        for block in (1..=64_000).filter(|block| block % 64 != 7) {
            idle.remove(id(block));
        }
        let in_use = idle.chunks.len() - idle.free_chunks.len();
        assert!(
            in_use * 64 <= 4 * idle.len() as usize + 2 * 64,
            "{in_use} chunks for {} blocks",
            idle.len()
        );
        assert_eq!(
            order(&idle),
            (1..=64_000)
                .filter(|block| block % 64 == 7)
                .collect::<Vec<_>>()
        );
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_a_plain_queue(operations in prop::collection::vec((1..=200_u32, any::<bool>()), 0..2_000)) {
            let mut idle = IdleOrder::new(200);
            let mut queue = VecDeque::new();
            for (block, pop) in operations {
                if pop {
                    let oldest = idle.oldest().next();
                    prop_assert_eq!(oldest.map(BlockId::get), queue.pop_front());
                    if let Some(oldest) = oldest {
                        idle.remove(oldest);
                    }
                } else if idle.contains(id(block)) {
                    idle.remove(id(block));
                    queue.retain(|&other| other != block);
                } else {
                    idle.push(id(block));
                    queue.push_back(block);
                }
                prop_assert_eq!(idle.len() as usize, queue.len());
            }
            prop_assert_eq!(order(&idle), Vec::from(queue));
        }
    }
}
