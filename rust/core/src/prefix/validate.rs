//! Recounts the tree.

use super::node::{Anchor, Home, NodeId};
use super::tree::PrefixTree;
use crate::Error;

impl PrefixTree {
    /// Checks every rule that the tree lives by and returns the number of published blocks. O(blocks + nodes).
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] names the first disagreement.
    pub fn validate(&self) -> Result<usize, Error> {
        if !self.roots.is_consistent() {
            return Err(corrupt("names and roots disagree"));
        }
        let (num_nodes, num_blocks) = self.validate_nodes()?;
        let num_homes = self.homes.iter().filter(|home| **home != Home::NIL).count();
        require(num_homes, num_blocks, "blocks with a home")?;
        require(self.num_published, num_blocks, "published blocks")?;
        require(self.arena.num_live(), num_nodes, "live nodes")?;
        // Each node is found by its content, so entries as many as nodes leave none to spare.
        require(self.children.len(), num_nodes, "entries of the child table")?;
        let Some(num_free) = self.arena.num_free() else {
            return Err(corrupt("the free places form a circle"));
        };
        require(num_free, self.arena.num_places() - num_nodes, "free places")?;
        Ok(num_blocks)
    }

    /// Visits every node from the roots down; returns how many there are, and how many blocks are in them.
    fn validate_nodes(&self) -> Result<(usize, usize), Error> {
        let mut num_nodes = 0;
        let mut num_blocks = 0;
        let mut lists = Vec::new();
        for root in self.roots.iter() {
            let place = self.roots.at(root.place());
            lists.push((Anchor::root(root.place()), place.first_child));
        }
        while let Some((anchor, mut next)) = lists.pop() {
            let mut previous = NodeId::NIL;
            while !next.is_nil() {
                num_nodes += 1;
                if num_nodes > self.arena.num_places() {
                    return Err(corrupt("the nodes form a circle"));
                }
                let Some(node) = self.arena.get(next) else {
                    return Err(corrupt(format!("{next:?} is outside the arena")));
                };
                if (node.anchor, node.previous_sibling) != (anchor, previous) {
                    return Err(corrupt(format!("{next:?} is listed in the wrong place")));
                }
                // A list hangs on the last block of a run, so children anywhere else are not reached, and miscounted.
                lists.push((self.validate_run(next)?, node.first_child));
                num_blocks += node.len();
                (previous, next) = (next, node.next_sibling);
            }
        }
        Ok((num_nodes, num_blocks))
    }

    /// Checks the run of one node and returns the anchor at its end.
    fn validate_run(&self, id: NodeId) -> Result<Anchor, Error> {
        let node = &self.arena[id];
        let Some(last) = node.last() else {
            return Err(corrupt(format!("{id:?} is empty")));
        };
        if node.len() > self.max_run || node.tokens.len() != node.len() * self.block_size {
            return Err(corrupt(format!("the run of {id:?} has the wrong length")));
        }
        for (index, &block) in (0..).zip(&node.blocks) {
            if self.home(block) != Some(Home { node: id, index }) {
                return Err(corrupt(format!("the home of {block} is not {id:?}")));
            }
        }
        let first_tokens = node.tokens_at(0, self.block_size);
        if self.children.find(&self.arena, node.anchor, first_tokens) != Some(id) {
            return Err(corrupt(format!("{id:?} is not found by its content")));
        }
        Ok(Anchor::block(last))
    }
}

fn require(counted: usize, expected: usize, what: &str) -> Result<(), Error> {
    if counted == expected {
        return Ok(());
    }
    Err(corrupt(format!("{counted} {what}, {expected} expected")))
}

fn corrupt(message: impl std::fmt::Display) -> Error {
    Error::Corrupt {
        message: format!("prefix tree: {message}"),
    }
}
