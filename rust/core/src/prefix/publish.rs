//! Publishing: makes blocks findable.

use super::TreeError;
use super::node::{Anchor, Before, Home, Node, NodeId};
use super::roots::Root;
use super::tree::PrefixTree;
use crate::BlockId;

/// Tokens from which on a run is not moved to grow.
const MAX_MOVED_TOKENS: usize = 512;

/// What [`PrefixTree::publish`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "blocks may be left to publish"]
pub struct Published {
    /// How many of the blocks are in the tree now: all of them, or none.
    pub num_new: usize,
    /// The block that has the first block's content already. The caller may adopt it in place of its own and go on behind it.
    pub existing: Option<BlockId>,
}

/// Where a block is to stand.
#[derive(Clone, Copy)]
struct End {
    anchor: Anchor,
    /// Home of the predecessor, if that is a block.
    home: Option<Home>,
}

impl PrefixTree {
    /// Publishes `blocks`, which hold `tokens`, behind `predecessor` (`None`: at the start of `root`'s namespace).
    ///
    /// If the first block's content is there already, that block is returned and nothing is published. Otherwise all are new,
    /// since nothing can stand behind a new block. The predecessor must descend from `root`; only a debug build checks that.
    /// O(blocks) and at most one split of a run.
    ///
    /// # Errors
    ///
    /// [`TreeError::StaleRoot`], [`TreeError::WrongLength`]; [`TreeError::NotPublished`] names the predecessor;
    /// [`TreeError::AlreadyPublished`] and [`TreeError::OutsidePool`] name one of the blocks.
    pub fn publish(
        &mut self,
        root: Root,
        predecessor: Option<BlockId>,
        tokens: &[i32],
        blocks: &[BlockId],
    ) -> Result<Published, TreeError> {
        let end = self.end(root, predecessor)?;
        if tokens.len() != blocks.len() * self.block_size {
            return Err(TreeError::WrongLength {
                num_tokens: tokens.len(),
                num_blocks: blocks.len(),
                block_size: self.block_size,
            });
        }
        if blocks.is_empty() {
            return Ok(Published {
                num_new: 0,
                existing: None,
            });
        }
        let existing = self.successor(end, tokens);
        if existing.is_some() {
            return Ok(Published {
                num_new: 0,
                existing,
            });
        }
        self.claim(blocks)?;
        let node = self.node_behind(end, tokens);
        self.extend(node, blocks, tokens);
        Ok(Published {
            num_new: blocks.len(),
            existing: None,
        })
    }

    /// Reads what publishing behind a block will read; the answer has no meaning. For who is about to publish behind many.
    pub(crate) fn fetch_end(&self, predecessor: BlockId) -> u32 {
        let node = self.home(predecessor).map(|home| &self.arena[home.node]);
        let ends = node.map(|node| (node.blocks.last(), node.tokens.last()));
        match ends {
            Some((Some(block), Some(token))) => block.get() ^ token.cast_unsigned(),
            _ => 0,
        }
    }

    fn end(&self, root: Root, predecessor: Option<BlockId>) -> Result<End, TreeError> {
        self.roots.get(root).ok_or(TreeError::StaleRoot)?;
        let Some(block) = predecessor else {
            let anchor = Anchor::root(root.place());
            return Ok(End { anchor, home: None });
        };
        let home = self.home(block).ok_or(TreeError::NotPublished(block))?;
        debug_assert_eq!(self.root_of(home.node), root.place(), "root of {block}");
        Ok(End {
            anchor: Anchor::block(block),
            home: Some(home),
        })
    }

    /// The block at `end` that begins as `tokens` do.
    fn successor(&self, end: End, tokens: &[i32]) -> Option<BlockId> {
        if let Some(home) = end.home {
            let node = &self.arena[home.node];
            let next = home.index as usize + 1;
            if next < node.len() {
                let is_same = node.tokens_at(next, self.block_size) == &tokens[..self.block_size];
                return is_same.then(|| node.blocks[next]);
            }
        }
        let child = self.child(self.first_child(end.anchor), end.anchor, tokens)?;
        Some(self.arena[child].blocks[0])
    }

    /// Marks the homes of blocks that are about to be published: of all or, if one is published or stands twice, of none.
    fn claim(&mut self, blocks: &[BlockId]) -> Result<(), TreeError> {
        for (num_claimed, &block) in blocks.iter().enumerate() {
            let refusal = match self.homes.get_mut(block.index()) {
                Some(home) if *home == Home::NIL && !block.is_null() => {
                    *home = Home::CLAIMED;
                    continue;
                }
                Some(_) if !block.is_null() => TreeError::AlreadyPublished(block),
                _ => TreeError::OutsidePool(block),
            };
            for block in &blocks[..num_claimed] {
                self.homes[block.index()] = Home::NIL;
            }
            return Err(refusal);
        }
        Ok(())
    }

    /// A node whose run can be continued at `end`; a new one, still empty, if need be.
    fn node_behind(&mut self, end: End, tokens: &[i32]) -> NodeId {
        if let Some(home) = end.home {
            let node = &self.arena[home.node];
            let next = home.index as usize + 1;
            if next < node.len() {
                self.split(home.node, next);
            } else if node.first_child.is_nil() {
                return home.node;
            }
        }
        self.open_child(end.anchor, tokens)
    }

    /// Appends to the run of a node without children and, where that is full, to a child, and so on.
    fn extend(&mut self, mut id: NodeId, mut blocks: &[BlockId], mut tokens: &[i32]) {
        self.num_published += blocks.len();
        loop {
            let first = self.arena[id].len();
            let num_fitting = self.room(id).min(blocks.len());
            let (fitting, later) = blocks.split_at(num_fitting);
            let (fitting_tokens, later_tokens) = tokens.split_at(num_fitting * self.block_size);
            self.arena[id].extend(fitting, fitting_tokens);
            self.set_homes(id, first);
            if later.is_empty() {
                return;
            }
            // A run without room is not empty.
            let last = self.arena[id].last().unwrap_or_default();
            id = self.open_child(Anchor::block(last), later_tokens);
            (blocks, tokens) = (later, later_tokens);
        }
    }

    /// How many blocks a run may still take. A long one is not moved to make room: sequences that decode publish block by block,
    /// and would copy kilobytes every few blocks. What comes behind is a child.
    fn room(&self, id: NodeId) -> usize {
        let node = &self.arena[id];
        if node.tokens.len() < MAX_MOVED_TOKENS {
            self.max_run - node.len()
        } else {
            node.free().min(self.max_run - node.len())
        }
    }

    /// Makes the blocks of a run from `at` on a child of the rest.
    fn split(&mut self, id: NodeId, at: usize) {
        let back = self.arena[id].split_off(at, self.block_size);
        let anchor = back.anchor;
        let child = self.arena.insert(back);
        self.arena[id].first_child = child;
        let first_block = self.arena[child].tokens_at(0, self.block_size);
        self.children.insert(child, anchor, first_block);
        self.set_homes(child, 0);
    }

    fn open_child(&mut self, anchor: Anchor, tokens: &[i32]) -> NodeId {
        let id = self.arena.insert(Node::new(anchor));
        let next = std::mem::replace(self.first_child_mut(anchor), id);
        self.arena[id].next_sibling = next;
        if !next.is_nil() {
            self.arena[next].previous_sibling = id;
        }
        self.children.insert(id, anchor, &tokens[..self.block_size]);
        id
    }

    /// Writes the homes of a run from `first` on.
    fn set_homes(&mut self, id: NodeId, first: usize) {
        let new = &self.arena[id].blocks[first..];
        let first = u32::try_from(first).expect("a run is shorter than the pool");
        for (index, block) in (first..).zip(new) {
            self.homes[block.index()] = Home { node: id, index };
        }
    }

    fn first_child(&self, anchor: Anchor) -> NodeId {
        match anchor.before() {
            Before::Root(place) => self.roots.at(place).first_child,
            Before::Block(block) => self.arena[self.homes[block.index()].node].first_child,
        }
    }

    pub(super) fn first_child_mut(&mut self, anchor: Anchor) -> &mut NodeId {
        match anchor.before() {
            Before::Root(place) => &mut self.roots.at_mut(place).first_child,
            Before::Block(block) => &mut self.arena[self.homes[block.index()].node].first_child,
        }
    }
}
