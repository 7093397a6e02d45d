//! Finds the child of an anchor that begins with given tokens.
//!
//! One hash table for the whole tree. An entry keeps its hash, so that growing the table reads no node, and so that an entry
//! of another hash is passed by without reading its node.

use hashbrown::HashTable;

use super::arena::Arena;
use super::hash::BlockHash;
use super::node::{Anchor, NodeId};

#[derive(Debug)]
pub(super) struct Children {
    table: HashTable<Entry>,
    hash: BlockHash,
    seed: u64,
    block_size: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    node: NodeId,
}

/// The table takes places from the low bits of a hash and tags from the high ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Children {
    /// With room for a node per 16 blocks, which most trees never exceed: growing later moves all entries at once.
    pub(super) fn new(num_blocks: u32, block_size: usize, hash: BlockHash, seed: u64) -> Self {
        Self {
            table: HashTable::with_capacity(num_blocks as usize / 16),
            hash,
            seed,
            block_size,
        }
    }

    /// The child of `anchor` whose first block has these tokens.
    pub(super) fn find(&self, arena: &Arena, anchor: Anchor, tokens: &[i32]) -> Option<NodeId> {
        let hash = (self.hash)(self.seed, anchor, tokens);
        let is_wanted = |entry: &Entry| {
            entry.hash == hash && {
                let node = &arena[entry.node];
                node.anchor == anchor && node.tokens_at(0, self.block_size) == tokens
            }
        };
        let entry = self.table.find(spread(hash), is_wanted)?;
        Some(entry.node)
    }

    /// Adds a node that is not there yet.
    pub(super) fn insert(&mut self, node: NodeId, anchor: Anchor, tokens: &[i32]) {
        let hash = (self.hash)(self.seed, anchor, tokens);
        let entry = Entry { hash, node };
        let rehash = |entry: &Entry| spread(entry.hash);
        self.table.insert_unique(spread(hash), entry, rehash);
    }

    /// Removes a node whose first block and anchor are still in the arena.
    pub(super) fn remove(&mut self, arena: &Arena, id: NodeId) {
        let hash = self.hash_of(arena, id);
        let found = self
            .table
            .find_entry(spread(hash), |entry| entry.node == id);
        debug_assert!(found.is_ok(), "every node is in the table");
        if let Ok(found) = found {
            found.remove();
        }
    }

    /// Whether a node of the arena is there.
    pub(super) fn contains(&self, arena: &Arena, id: NodeId) -> bool {
        let entry = self
            .table
            .find(spread(self.hash_of(arena, id)), |entry| entry.node == id);
        entry.is_some()
    }

    fn hash_of(&self, arena: &Arena, id: NodeId) -> u32 {
        let node = &arena[id];
        (self.hash)(self.seed, node.anchor, node.tokens_at(0, self.block_size))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.table.allocation_size()
    }
}
