//! The nodes of a tree, in one array with reused places.

use std::ops::{Index, IndexMut};

use super::node::{Anchor, Node, NodeId};

#[derive(Debug)]
pub(super) struct Arena {
    places: Vec<Node>,
    first_free: NodeId,
    num_live: usize,
}

impl Arena {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            first_free: NodeId::NIL,
            num_live: 0,
        }
    }

    pub(super) fn insert(&mut self, node: Node) -> NodeId {
        self.num_live += 1;
        let id = self.first_free;
        if id.is_nil() {
            if self.places.len() == self.places.capacity() {
                self.places.reserve_exact(self.places.len() / 8 + 16);
            }
            self.places.push(node);
            return NodeId::new(self.places.len() - 1);
        }
        self.first_free = self[id].next_sibling;
        self[id] = node;
        id
    }

    /// Frees a place. What a free place holds has no memory of its own.
    pub(super) fn remove(&mut self, id: NodeId) {
        self.num_live -= 1;
        self[id] = Node {
            next_sibling: self.first_free,
            ..Node::new(Anchor::root(0))
        };
        self.first_free = id;
    }

    pub(super) const fn num_live(&self) -> usize {
        self.num_live
    }

    pub(super) const fn num_places(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, id: NodeId) -> Option<&Node> {
        self.places.get(id.index())
    }

    /// Length of the list of free places, or `None` if it is not a list.
    pub(super) fn num_free(&self) -> Option<usize> {
        let mut num_free = 0;
        let mut id = self.first_free;
        while !id.is_nil() {
            num_free += 1;
            if num_free > self.places.len() {
                return None;
            }
            id = self.get(id)?.next_sibling;
        }
        Some(num_free)
    }

    /// Bytes of the array and the runs. O(nodes).
    pub(super) fn memory_bytes(&self) -> usize {
        let runs: usize = self.places.iter().map(Node::memory_bytes).sum();
        self.places.capacity() * size_of::<Node>() + runs
    }
}

impl Index<NodeId> for Arena {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        &self.places[id.index()]
    }
}

impl IndexMut<NodeId> for Arena {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.places[id.index()]
    }
}
