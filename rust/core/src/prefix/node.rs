//! A node: a run of blocks, and where it hangs.

use crate::BlockId;

/// Index of a node in the tree's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(u32);

impl NodeId {
    /// No node.
    pub(super) const NIL: Self = Self(u32::MAX);

    pub(super) fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("fewer nodes than blocks"))
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) const fn is_nil(self) -> bool {
        self.0 == Self::NIL.0
    }
}

/// Where a published block is: its node, and its index in the node's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) node: NodeId,
    pub(super) index: u32,
}

impl Home {
    /// Of a block that is not published.
    pub(super) const NIL: Self = Self::outside(0);
    /// Of a block that the current call is about to publish.
    pub(super) const CLAIMED: Self = Self::outside(1);

    const fn outside(index: u32) -> Self {
        let node = NodeId::NIL;
        Self { node, index }
    }
}

/// What stands before the first block of a node: the last block of its parent, or a root.
///
/// A block rather than a node, so that the children of a run stay as they are when the run is split in front of its last block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Anchor(u32);

/// An [`Anchor`], spelled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Place of a root.
    Root(u32),
    Block(BlockId),
}

impl Anchor {
    /// Above every block id.
    const ROOT: u32 = 1 << 31;

    pub(super) fn root(place: u32) -> Self {
        debug_assert!(place < Self::ROOT);
        Self(Self::ROOT | place)
    }

    pub(super) const fn block(block: BlockId) -> Self {
        Self(block.get())
    }

    pub(super) fn before(self) -> Before {
        BlockId::new(self.0).map_or(Before::Root(self.0 & !Self::ROOT), Before::Block)
    }

    pub(super) const fn number(self) -> u32 {
        self.0
    }
}

/// A run of published blocks, each the predecessor of the next, and their tokens.
///
/// One cache line, because a walk over the tree reads one node after the other.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    pub(super) blocks: Vec<BlockId>,
    /// `block_size` of each block, in order.
    pub(super) tokens: Vec<i32>,
    pub(super) anchor: Anchor,
    /// Children follow the run's last block.
    pub(super) first_child: NodeId,
    /// The next child of the same anchor; in a free place of the arena, the next free place.
    pub(super) next_sibling: NodeId,
    pub(super) previous_sibling: NodeId,
}

const _: () = assert!(size_of::<Node>() == 64);

impl Node {
    pub(super) const fn new(anchor: Anchor) -> Self {
        Self {
            blocks: Vec::new(),
            tokens: Vec::new(),
            anchor,
            first_child: NodeId::NIL,
            next_sibling: NodeId::NIL,
            previous_sibling: NodeId::NIL,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The last block, or `None` in a free place of the arena.
    pub(super) fn last(&self) -> Option<BlockId> {
        self.blocks.last().copied()
    }

    /// The tokens of the block at `index`.
    pub(super) fn tokens_at(&self, index: usize, block_size: usize) -> &[i32] {
        &self.tokens[index * block_size..][..block_size]
    }

    /// Blocks that the run can take without being moved.
    pub(super) const fn free(&self) -> usize {
        self.blocks.capacity() - self.len()
    }

    /// Appends blocks to the run.
    ///
    /// Room grows by a half, not to the double: most of the tree's memory is in runs, and most runs have stopped growing.
    pub(super) fn extend(&mut self, blocks: &[BlockId], tokens: &[i32]) {
        if self.free() < blocks.len() {
            let additional = blocks.len().max(self.len() / 2).max(4);
            self.blocks.reserve_exact(additional);
            self.tokens
                .reserve_exact(tokens.len() / blocks.len() * additional);
        }
        self.blocks.extend_from_slice(blocks);
        self.tokens.extend_from_slice(tokens);
    }

    /// Takes the blocks from `at` on out of the run, into a node that hangs below the rest and has the children.
    pub(super) fn split_off(&mut self, at: usize, block_size: usize) -> Self {
        let anchor = Anchor::block(self.blocks[at - 1]);
        let back = Self {
            blocks: self.blocks.split_off(at),
            tokens: self.tokens.split_off(at * block_size),
            first_child: self.first_child,
            ..Self::new(anchor)
        };
        self.blocks.shrink_to_fit();
        self.tokens.shrink_to_fit();
        back
    }

    /// Drops the last block, and gives memory back when half of it is unused.
    pub(super) fn pop(&mut self, block_size: usize) {
        self.blocks.pop();
        self.tokens.truncate(self.len() * block_size);
        let num_unused = self.blocks.capacity() - self.len();
        if num_unused >= self.len().max(16) {
            self.blocks.shrink_to_fit();
            self.tokens.shrink_to_fit();
        }
    }

    /// Bytes of the run.
    pub(super) const fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<BlockId>() + self.tokens.capacity() * size_of::<i32>()
    }
}
