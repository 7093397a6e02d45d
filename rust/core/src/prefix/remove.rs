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
        let nodes = homes.map(|home| home.node);
        let goes = |&id: &NodeId| self.arena[id].len() == 1;
        black_box(nodes.clone().filter(goes).count());
        // A node that goes leaves the list of its siblings, then the table of children.
        let going = nodes.filter(goes);
        black_box(going.clone().fold(0, |sum, id| sum ^ self.read_around(id)));
        let found = going.filter(|&id| self.children.contains(&self.arena, id));
        black_box(found.count());
    }

    /// Reads the siblings of a node and the start of its run, by which it is found among the children and which is freed with it.
    /// The answer has no meaning.
    fn read_around(&self, id: NodeId) -> u32 {
        let node = &self.arena[id];
        let siblings = [node.next_sibling, node.previous_sibling];
        let siblings = siblings.iter().filter_map(|&id| self.arena.get(id));
        let start = match (node.blocks.first(), node.tokens.first()) {
            (Some(block), Some(token)) => block.get() ^ token.cast_unsigned(),
            _ => 0,
        };
        siblings.fold(start, |sum, sibling| sum ^ sibling.anchor.number())
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
