//! What the tests have in common.

use super::super::hash::{BlockHash, multiply_mix};
use super::super::node::Anchor;
use super::super::{PrefixTree, Published, Root};
use crate::BlockId;

pub(super) fn id(number: u32) -> BlockId {
    BlockId::new(number).expect("a small number")
}

pub(super) fn ids<const N: usize>(numbers: [u32; N]) -> [BlockId; N] {
    numbers.map(id)
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Hash {
    Mix(u64),
    /// Everything collides.
    Constant,
    /// Permutations collide.
    SumModFour,
}

impl Hash {
    pub(super) fn function(self) -> (BlockHash, u64) {
        match self {
            Self::Mix(seed) => (multiply_mix, seed),
            Self::Constant => (constant, 0),
            Self::SumModFour => (sum_mod_four, 0),
        }
    }
}

fn constant(_: u64, _: Anchor, _: &[i32]) -> u32 {
    0
}

fn sum_mod_four(_: u64, _: Anchor, tokens: &[i32]) -> u32 {
    let sum: i32 = tokens.iter().sum();
    sum.rem_euclid(4).cast_unsigned()
}

/// A tree with runs of 4 blocks at most, and one root, called "".
pub(super) struct Fixture {
    pub(super) tree: PrefixTree,
    pub(super) root: Root,
}

impl Fixture {
    pub(super) fn new(num_blocks: u32, block_size: u32) -> Self {
        Self::with_hash(num_blocks, block_size, Hash::Mix(1))
    }

    pub(super) fn with_hash(num_blocks: u32, block_size: u32, hash: Hash) -> Self {
        let (hash, seed) = hash.function();
        let mut tree = PrefixTree::with_hash(num_blocks, block_size, 4, hash, seed);
        let root = tree.open_root(b"");
        Self { tree, root }
    }

    /// Publishes what must be new.
    pub(super) fn publish<const N: usize>(
        &mut self,
        behind: Option<u32>,
        tokens: &[i32],
        blocks: [u32; N],
    ) {
        let published = self
            .tree
            .publish(self.root, behind.map(id), tokens, &ids(blocks));
        let existing = None;
        assert_eq!(
            published,
            Ok(Published {
                num_new: N,
                existing
            })
        );
        self.validate();
    }

    pub(super) fn find(&self, tokens: &[i32]) -> Vec<u32> {
        let mut found = Vec::new();
        self.tree.find(self.root, tokens, &mut found);
        found.into_iter().map(BlockId::get).collect()
    }

    pub(super) fn remove<const N: usize>(&mut self, blocks: [u32; N]) {
        for block in ids(blocks) {
            assert_eq!(self.tree.remove(block), Ok(()));
            self.validate();
        }
    }

    /// The runs from the root on, first child first.
    pub(super) fn runs(&self) -> Vec<Vec<u32>> {
        let mut blocks = Vec::new();
        self.tree.blocks_of(self.root, &mut blocks);
        let mut runs: Vec<Vec<u32>> = Vec::new();
        let mut last = None;
        for block in blocks.into_iter().rev() {
            let node = self.tree.home(block).expect("published").node;
            if last.replace(node) != Some(node) {
                runs.push(Vec::new());
            }
            runs.last_mut().expect("just pushed").push(block.get());
        }
        runs
    }

    pub(super) fn validate(&self) {
        assert_eq!(self.tree.validate(), Ok(self.tree.num_published()));
    }
}
