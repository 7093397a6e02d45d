//! Walks up and down the tree.

use super::node::{Before, NodeId};
use super::roots::Root;
use super::tree::PrefixTree;
use crate::BlockId;

/// What a published block stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessor<'a> {
    /// The block before it.
    Block(BlockId),
    /// It is a first one, in the namespace with these canonical bytes.
    Namespace(&'a [u8]),
}

impl PrefixTree {
    /// Appends the published blocks behind a block, at any distance: each after all of its own descendants, so that they can be
    /// removed in this order. Nothing for a block that is not published. O(blocks found).
    pub fn descendants(&self, block: BlockId, found: &mut Vec<BlockId>) {
        let Some(home) = self.home(block) else {
            return;
        };
        let node = &self.arena[home.node];
        let first = found.len();
        found.extend_from_slice(&node.blocks[home.index as usize + 1..]);
        self.append_trees(node.first_child, found);
        found[first..].reverse();
    }

    /// Appends every published block of a root, in an order in which they can be removed. O(blocks found).
    pub fn blocks_of(&self, root: Root, found: &mut Vec<BlockId>) {
        if let Some(place) = self.roots.get(root) {
            let first = found.len();
            self.append_trees(place.first_child, found);
            found[first..].reverse();
        }
    }

    /// Appends the tokens of a published block's whole prefix, its own included. Nothing for a block that is not published.
    /// O(tokens).
    pub fn path_tokens(&self, block: BlockId, tokens: &mut Vec<i32>) {
        let mut runs = Vec::new();
        let mut next = self.home(block);
        while let Some(home) = next {
            let node = &self.arena[home.node];
            runs.push(&node.tokens[..(home.index as usize + 1) * self.block_size]);
            next = match node.anchor.before() {
                Before::Root(_) => None,
                Before::Block(block) => self.home(block),
            };
        }
        for run in runs.into_iter().rev() {
            tokens.extend_from_slice(run);
        }
    }

    /// What a published block stands behind; `None` for a block that is not published.
    #[must_use]
    pub fn predecessor(&self, block: BlockId) -> Option<Predecessor<'_>> {
        let home = self.home(block)?;
        let node = &self.arena[home.node];
        let before = match home.index.checked_sub(1) {
            Some(index) => Before::Block(node.blocks[index as usize]),
            None => node.anchor.before(),
        };
        Some(match before {
            Before::Block(block) => Predecessor::Block(block),
            Before::Root(place) => Predecessor::Namespace(self.roots.at(place).name()),
        })
    }

    /// Place of the root that a node descends from.
    pub(super) fn root_of(&self, mut id: NodeId) -> u32 {
        loop {
            match self.arena[id].anchor.before() {
                Before::Root(place) => return place,
                Before::Block(block) => id = self.homes[block.index()].node,
            }
        }
    }

    /// Appends the blocks of the trees below `first` and its later siblings, each after its predecessor.
    fn append_trees(&self, first: NodeId, found: &mut Vec<BlockId>) {
        let mut next = first;
        let mut depth = 0_usize;
        while !next.is_nil() {
            let node = &self.arena[next];
            found.extend_from_slice(&node.blocks);
            if !node.first_child.is_nil() {
                next = node.first_child;
                depth += 1;
                continue;
            }
            // Up to the nearest ancestor with a sibling.
            let mut done = next;
            next = self.arena[done].next_sibling;
            while next.is_nil() && depth > 0 {
                depth -= 1;
                if let Before::Block(block) = self.arena[done].anchor.before() {
                    done = self.homes[block.index()].node;
                }
                next = self.arena[done].next_sibling;
            }
        }
    }
}
