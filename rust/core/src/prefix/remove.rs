//! Removing: takes blocks out, each after its descendants.

use std::hint::black_box;

use super::TreeError;
use super::node::{Before, Home, NodeId};
use super::tree::PrefixTree;
use crate::BlockId;

impl PrefixTree {
    /// Takes a block out of the tree. O(1).
    ///
    /// # Errors
    ///
    /// [`TreeError::NotATail`] if published blocks stand behind it: [`descendants`](Self::descendants) lists them.
    /// [`TreeError::NotPublished`] if it is not in the tree.
    pub fn remove(&mut self, block: BlockId) -> Result<(), TreeError> {
        let home = self.home(block).ok_or(TreeError::NotPublished(block))?;
        let node = &mut self.arena[home.node];
        let index = home.index as usize;
        if index + 1 < node.len() || !node.first_child.is_nil() {
            return Err(TreeError::NotATail(block));
        }
        if index == 0 {
            self.close(home.node);
        } else {
            node.pop(self.block_size);
        }
        self.homes[block.index()] = Home::NIL;
        self.num_published -= 1;
        Ok(())
    }

    /// Reads what removing these blocks will read. The reads do not wait for each other, while removals with other work between
    /// them do: call this first when a few hundred blocks go that were not used for long.
    pub fn prefetch(&self, blocks: &[BlockId]) {
        let homes = blocks.iter().filter_map(|&block| self.home(block));
        let nodes = homes.map(|home| &self.arena[home.node]);
        // Of a node that goes, the run as well: its place in the table of children is found by its first tokens, and it is freed.
        let reads = nodes.map(|node| match (&node.blocks[..], &node.tokens[..]) {
            ([block], [token, ..]) => block.get() ^ token.cast_unsigned(),
            _ => u32::from(node.first_child.is_nil()),
        });
        black_box(reads.fold(0, |sum, read| sum ^ read));
    }

    /// Removes a node without children whose run is about to be empty.
    fn close(&mut self, id: NodeId) {
        self.children.remove(&self.arena, id);
        let node = &self.arena[id];
        let (anchor, next, previous) = (node.anchor, node.next_sibling, node.previous_sibling);
        if !next.is_nil() {
            self.arena[next].previous_sibling = previous;
        }
        if previous.is_nil() {
            *self.first_child_mut(anchor) = next;
        } else {
            self.arena[previous].next_sibling = next;
        }
        self.arena.remove(id);
        if let Before::Root(place) = anchor.before() {
            self.roots.drop_if_unneeded(place);
        }
    }
}
