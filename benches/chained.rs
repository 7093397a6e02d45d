//! Baseline: one hash table over chained hashes, an entry per block.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use looseleaf_core::BlockId;

/// Keys are hashes already.
#[derive(Default)]
pub struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// A map whose keys are hashes.
pub type HashedMap<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

/// Hash of a block's tokens and of what stands before it.
#[must_use]
pub fn mix(before: u64, tokens: &[i32]) -> u64 {
    let pair = |low: i32, high: i32| {
        u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned())
    };
    let (quads, _) = tokens.as_chunks();
    let mut state = before ^ 0x5eed;
    for &[a, b, c, d] in quads {
        let (low, high) = (state ^ pair(a, b)).carrying_mul(pair(c, d) ^ 0x9e37_79b9_7f4a_7c15, 0);
        state = low ^ high;
    }
    state
}

/// Block by hash; tokens and hashes by block.
pub struct Chained {
    block_size: usize,
    blocks: HashedMap<BlockId>,
    /// By block id.
    tokens: Vec<i32>,
    hashes: Vec<u64>,
    predecessors: Vec<BlockId>,
}

impl Chained {
    /// For the blocks `1..=num_blocks`, none published.
    #[must_use]
    pub fn new(num_blocks: u32, block_size: usize) -> Self {
        let num_places = num_blocks as usize + 1;
        Self {
            block_size,
            blocks: HashedMap::default(),
            tokens: vec![0; num_places * block_size],
            hashes: vec![0; num_places],
            predecessors: vec![BlockId::NULL; num_places],
        }
    }

    fn tokens_of(&self, block: BlockId) -> &[i32] {
        &self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    /// Adds blocks behind another.
    ///
    /// # Panics
    /// If two contents have the same hash.
    pub fn publish(&mut self, predecessor: Option<BlockId>, tokens: &[i32], blocks: &[BlockId]) {
        let mut predecessor = predecessor.unwrap_or(BlockId::NULL);
        let mut hash = self.hashes[predecessor.index()];
        for (&block, content) in blocks.iter().zip(tokens.chunks_exact(self.block_size)) {
            hash = mix(hash, content);
            match self.blocks.entry(hash) {
                Entry::Occupied(_) => panic!("a collision"),
                Entry::Vacant(entry) => entry.insert(block),
            };
            let start = block.index() * self.block_size;
            self.tokens[start..start + self.block_size].copy_from_slice(content);
            self.hashes[block.index()] = hash;
            self.predecessors[block.index()] = predecessor;
            predecessor = block;
        }
    }

    /// In stages, so that the misses of one stage overlap: all hashes, then all probes, then all comparisons.
    pub fn find(&self, tokens: &[i32], found: &mut Vec<BlockId>) {
        let first = found.len();
        let contents = tokens.chunks_exact(self.block_size);
        let mut hash = 0;
        let hashes: Vec<u64> = contents
            .clone()
            .map(|content| {
                hash = mix(hash, content);
                hash
            })
            .collect();
        found.extend(hashes.iter().map_while(|hash| self.blocks.get(hash)));
        let mut predecessor = BlockId::NULL;
        let mut num_equal = 0;
        for (&block, content) in found[first..].iter().zip(contents) {
            if self.predecessors[block.index()] != predecessor || self.tokens_of(block) != content {
                break;
            }
            predecessor = block;
            num_equal += 1;
        }
        found.truncate(first + num_equal);
    }

    /// Takes a block out.
    ///
    /// # Panics
    /// If it is not there.
    pub fn remove(&mut self, block: BlockId) {
        assert_eq!(self.blocks.remove(&self.hashes[block.index()]), Some(block));
    }

    /// All that it keeps.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let entry = size_of::<(u64, BlockId)>() + 1;
        let num_buckets = (self.blocks.capacity() * 8 / 7).next_power_of_two();
        num_buckets * entry
            + self.tokens.len() * 4
            + self.hashes.len() * 8
            + self.predecessors.len() * 4
    }
}
