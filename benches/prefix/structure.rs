//! What the structures have in common.

use looseleaf_benches::chained::Chained;
use looseleaf_core::BlockId;
use looseleaf_core::prefix::{PrefixTree, Root};

use crate::node_per_block::NodePerBlock;

pub(crate) trait Structure {
    fn publish(&mut self, predecessor: Option<BlockId>, tokens: &[i32], blocks: &[BlockId]);
    fn find(&self, tokens: &[i32], found: &mut Vec<BlockId>);
    fn remove(&mut self, block: BlockId);
    fn memory_bytes(&self) -> usize;

    fn can_prefetch(&self) -> bool {
        false
    }

    fn prefetch(&self, _blocks: &[BlockId]) {}
}

pub(crate) fn structures(
    num_blocks: u32,
    block_size: usize,
) -> Vec<(&'static str, Box<dyn Structure>)> {
    vec![
        (
            "chained hash (baseline)",
            Box::new(Chained::new(num_blocks, block_size)),
        ),
        (
            "node per block (baseline)",
            Box::new(NodePerBlock::new(num_blocks, block_size)),
        ),
        ("prefix tree", Box::new(Tree::new(num_blocks, block_size))),
    ]
}

impl Structure for Chained {
    fn publish(&mut self, predecessor: Option<BlockId>, tokens: &[i32], blocks: &[BlockId]) {
        Self::publish(self, predecessor, tokens, blocks);
    }

    fn find(&self, tokens: &[i32], found: &mut Vec<BlockId>) {
        Self::find(self, tokens, found);
    }

    fn remove(&mut self, block: BlockId) {
        Self::remove(self, block);
    }

    fn memory_bytes(&self) -> usize {
        Self::memory_bytes(self)
    }
}

/// The structure under test, with one namespace.
struct Tree {
    tree: PrefixTree,
    root: Root,
}

impl Tree {
    fn new(num_blocks: u32, block_size: usize) -> Self {
        let block_size = u32::try_from(block_size).expect("a small block size");
        let mut tree = PrefixTree::new(num_blocks, block_size, 0x5eed);
        let root = tree.open_root(b"");
        Self { tree, root }
    }
}

impl Structure for Tree {
    fn publish(&mut self, predecessor: Option<BlockId>, tokens: &[i32], blocks: &[BlockId]) {
        let published = self.tree.publish(self.root, predecessor, tokens, blocks);
        assert_eq!(
            published.map(|published| published.num_new),
            Ok(blocks.len())
        );
    }

    fn find(&self, tokens: &[i32], found: &mut Vec<BlockId>) {
        self.tree.find(self.root, tokens, found);
    }

    fn remove(&mut self, block: BlockId) {
        assert_eq!(self.tree.remove(block), Ok(()));
    }

    fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes()
    }

    fn can_prefetch(&self) -> bool {
        true
    }

    fn prefetch(&self, blocks: &[BlockId]) {
        self.tree.prefetch(blocks);
    }
}
