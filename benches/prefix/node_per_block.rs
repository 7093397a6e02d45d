//! Baseline: a tree with a node per block and a map of children in each.

use looseleaf_benches::chained::{HashedMap, mix};
use looseleaf_core::BlockId;

use crate::structure::Structure;

/// A node has the index of its block; 0 is the root.
#[derive(Default)]
struct Node {
    predecessor: BlockId,
    hash: u64,
    tokens: Box<[i32]>,
    children: HashedMap<BlockId>,
}

pub(crate) struct NodePerBlock {
    block_size: usize,
    nodes: Vec<Node>,
}

impl NodePerBlock {
    pub(crate) fn new(num_blocks: u32, block_size: usize) -> Self {
        let nodes = (0..=num_blocks).map(|_| Node::default()).collect();
        Self { block_size, nodes }
    }
}

impl Structure for NodePerBlock {
    fn publish(&mut self, predecessor: Option<BlockId>, tokens: &[i32], blocks: &[BlockId]) {
        let mut predecessor = predecessor.unwrap_or(BlockId::NULL);
        for (&block, content) in blocks.iter().zip(tokens.chunks_exact(self.block_size)) {
            let hash = mix(0, content);
            let replaced = self.nodes[predecessor.index()].children.insert(hash, block);
            assert_eq!(replaced, None, "a collision");
            let node = &mut self.nodes[block.index()];
            node.predecessor = predecessor;
            node.hash = hash;
            node.tokens = content.into();
            predecessor = block;
        }
    }

    fn find(&self, tokens: &[i32], found: &mut Vec<BlockId>) {
        let mut node = &self.nodes[0];
        for content in tokens.chunks_exact(self.block_size) {
            let Some(&child) = node.children.get(&mix(0, content)) else {
                return;
            };
            node = &self.nodes[child.index()];
            if *node.tokens != *content {
                return;
            }
            found.push(child);
        }
    }

    fn remove(&mut self, block: BlockId) {
        let node = std::mem::take(&mut self.nodes[block.index()]);
        assert!(node.children.is_empty());
        let siblings = &mut self.nodes[node.predecessor.index()].children;
        assert_eq!(siblings.remove(&node.hash), Some(block));
        if siblings.is_empty() {
            siblings.shrink_to_fit();
        }
    }

    fn memory_bytes(&self) -> usize {
        let of_children = |node: &Node| match node.children.capacity() {
            0 => 0,
            capacity => (capacity * 8 / 7).next_power_of_two() * 17 + 16,
        };
        let of_node = |node: &Node| size_of::<Node>() + node.tokens.len() * 4 + of_children(node);
        self.nodes.iter().map(of_node).sum()
    }
}
