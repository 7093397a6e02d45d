//! The tree itself: roots, lookups and reading.

use super::TreeError;
use super::arena::Arena;
use super::children::Children;
use super::hash::{BlockHash, multiply_mix};
use super::node::{Anchor, Home, NodeId};
use super::roots::{Root, Roots};
use crate::{BlockId, Config};

/// Most tokens of a run, so that splitting and growing one takes no more than a microsecond or two.
const MAX_RUN_TOKENS: usize = 2048;

/// Which blocks hold which prompts. The [module](super) explains it.
///
/// The tree counts no references and frees nothing: whoever holds blocks says what is published and what goes.
#[derive(Debug)]
pub struct PrefixTree {
    pub(super) block_size: usize,
    /// Most blocks of a node.
    pub(super) max_run: usize,
    /// Indexed by block id; the null block's is never used.
    pub(super) homes: Box<[Home]>,
    pub(super) arena: Arena,
    pub(super) children: Children,
    pub(super) roots: Roots,
    pub(super) num_published: usize,
}

impl PrefixTree {
    /// An empty tree for the blocks `1..=num_blocks`.
    ///
    /// The seed changes how long a search takes, never what it finds. Where prompts come from strangers it should be a random
    /// number: whoever knows it can make prompts that take long.
    ///
    /// # Panics
    ///
    /// If `num_blocks` exceeds [`Config::MAX_BLOCKS`] or `block_size` is not in `1..=`[`Config::MAX_BLOCK_SIZE`].
    #[must_use]
    pub fn new(num_blocks: u32, block_size: u32, seed: u64) -> Self {
        let max_run = (MAX_RUN_TOKENS / block_size.max(1) as usize).max(1);
        Self::with_hash(num_blocks, block_size, max_run, multiply_mix, seed)
    }

    /// A tree with another hash, for tests: with one that collides, say.
    pub(super) fn with_hash(
        num_blocks: u32,
        block_size: u32,
        max_run: usize,
        hash: BlockHash,
        seed: u64,
    ) -> Self {
        assert!(
            num_blocks <= Config::MAX_BLOCKS,
            "num_blocks is {num_blocks}, too large"
        );
        assert!(
            (1..=Config::MAX_BLOCK_SIZE).contains(&block_size),
            "block_size is {block_size}, must be in 1..={}",
            Config::MAX_BLOCK_SIZE
        );
        let block_size = block_size as usize;
        Self {
            block_size,
            max_run,
            homes: vec![Home::NIL; num_blocks as usize + 1].into_boxed_slice(),
            arena: Arena::new(),
            children: Children::new(num_blocks, block_size, hash, seed),
            roots: Roots::default(),
            num_published: 0,
        }
    }

    /// The root of a namespace, created on first use. It stays at least until [`release_root`](Self::release_root) was called
    /// as often as this.
    pub fn open_root(&mut self, namespace: &[u8]) -> Root {
        self.roots.open(namespace)
    }

    /// The root of a namespace, if there is one. It may be gone after the next call that changes the tree.
    #[must_use]
    pub fn find_root(&self, namespace: &[u8]) -> Option<Root> {
        self.roots.find(namespace)
    }

    /// Holds an open root once more.
    ///
    /// # Errors
    ///
    /// [`TreeError::StaleRoot`] if it was forgotten.
    pub fn retain_root(&mut self, root: Root) -> Result<(), TreeError> {
        self.roots.retain(root)
    }

    /// Gives a hold up. A root without holders and blocks is dropped. For a forgotten root, this does nothing.
    pub fn release_root(&mut self, root: Root) {
        self.roots.release(root);
    }

    /// Drops an empty root although it may be held. Its namespace gets a new root on next use; nothing can be found or published
    /// below the old one.
    ///
    /// # Errors
    ///
    /// [`TreeError::RootNotEmpty`] if blocks are published below it, [`TreeError::StaleRoot`] if it is gone already.
    pub fn forget(&mut self, root: Root) -> Result<(), TreeError> {
        self.roots.forget(root)
    }

    /// Whether the root was neither forgotten nor dropped.
    #[must_use]
    pub fn is_current(&self, root: Root) -> bool {
        self.roots.get(root).is_some()
    }

    /// Canonical bytes of a root's namespace; `None` if the root was forgotten or dropped.
    #[must_use]
    pub fn namespace_of(&self, root: Root) -> Option<&[u8]> {
        self.roots.get(root).map(super::roots::Place::name)
    }

    /// Every root there is.
    pub fn roots(&self) -> impl Iterator<Item = Root> {
        self.roots.iter()
    }

    /// Appends the longest run of published blocks that `tokens` begins with, and returns its length in blocks.
    ///
    /// Only whole blocks match, and `tokens` may be matched to its end: the caller has cut off what it wants computed anew.
    /// O(blocks matched); nothing is hashed but the first block of each node on the way.
    pub fn find(&self, root: Root, tokens: &[i32], found: &mut Vec<BlockId>) -> usize {
        let num_before = found.len();
        let mut rest = tokens;
        let mut next = self
            .roots
            .get(root)
            .and_then(|place| self.child(place.first_child, Anchor::root(root.place()), rest));
        while let Some(id) = next {
            let node = &self.arena[id];
            let num_matched = self.common_blocks(&node.tokens, rest);
            found.extend_from_slice(&node.blocks[..num_matched]);
            rest = &rest[num_matched * self.block_size..];
            next = match node.last() {
                Some(last) if num_matched == node.len() => {
                    self.child(node.first_child, Anchor::block(last), rest)
                }
                _ => None,
            };
        }
        found.len() - num_before
    }

    /// Whether the block is in the tree.
    #[must_use]
    pub fn is_published(&self, block: BlockId) -> bool {
        self.home(block).is_some()
    }

    /// Number of blocks in the tree.
    #[must_use]
    pub const fn num_published(&self) -> usize {
        self.num_published
    }

    /// What a published block holds.
    #[must_use]
    pub fn tokens_of(&self, block: BlockId) -> Option<&[i32]> {
        let home = self.home(block)?;
        Some(self.arena[home.node].tokens_at(home.index as usize, self.block_size))
    }

    /// Bytes of the tree, those of its allocator not counted. O(nodes + roots).
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.homes)
            + self.arena.memory_bytes()
            + self.children.memory_bytes()
            + self.roots.memory_bytes()
    }

    pub(super) fn home(&self, block: BlockId) -> Option<Home> {
        let home = *self.homes.get(block.index())?;
        (!home.node.is_nil()).then_some(home)
    }

    /// The child of `anchor` that begins as `tokens` do.
    pub(super) fn child(
        &self,
        first_child: NodeId,
        anchor: Anchor,
        tokens: &[i32],
    ) -> Option<NodeId> {
        if first_child.is_nil() {
            return None;
        }
        let tokens = tokens.get(..self.block_size)?;
        self.children.find(&self.arena, anchor, tokens)
    }

    /// Number of whole blocks that two token runs have in common at their start.
    fn common_blocks(&self, run: &[i32], tokens: &[i32]) -> usize {
        let whole = run.len().min(tokens.len()) / self.block_size;
        // Comparing all at once is the fast case: a prompt that goes on, or ends, where the run does.
        if run[..whole * self.block_size] == tokens[..whole * self.block_size] {
            return whole;
        }
        let blocks = run.chunks_exact(self.block_size);
        let pairs = blocks.zip(tokens.chunks_exact(self.block_size));
        pairs.take_while(|(block, wanted)| block == wanted).count()
    }
}
