//! Cached prompts: which blocks hold which tokens, and who may share them.
//!
//! # Problem
//!
//! A prompt that begins like an earlier one needs not be computed again as far as the two agree. Its blocks have to be found
//! by their tokens and by all tokens in front of them, in a few nanoseconds per block, and never wrongly: a block of other
//! content is somebody else's text in the answer. So a hash may lead to a block, but only a comparison of the tokens
//! themselves makes it a hit, and only within one [`Namespace`].
//!
//! # Structure
//!
//! A [`PrefixTree`] has a root per namespace. Below it hang nodes; a node is a *run*: blocks that follow each other, with their
//! tokens side by side, so that a long prompt is compared at the speed of memory. Children follow the last block of a run.
//!
//! ```text
//! names                 roots            nodes, in an arena                          homes, by block id
//! "tenant-7" ────────>  0: first child   node: blocks  7  3  9                       3: node 0, index 1
//!                                              tokens  1 2  3 4  5 6                 7: node 0, index 0
//! child table                                  anchor  root 0                        9: node 0, index 2
//! hash(anchor, first                           first child, siblings
//! block) ────────────>  node
//! ```
//!
//! - A node hangs on its *anchor*, the block (or root) in front of it. As the anchor is a block, a run is split without
//!   touching the children behind its end.
//! - One hash table finds the child that begins with given tokens. Inside a run nothing is hashed.
//! - A run has 2,048 tokens at most, so that splitting it takes a bounded time, and one of 512 or more is not moved to grow; a
//!   longer prompt is a chain of nodes.
//! - A block is published in one place, its *home*. Memory per block: its tokens, 4 bytes for its id, 8 for its home, and a
//!   share of its node (64 bytes, and about 20 in the child table).
//!
//! # Operations
//!
//! | call | does | cost |
//! |---|---|---|
//! | [`find`](PrefixTree::find) | compares a prompt with run after run | a comparison per block, a hash per node |
//! | [`publish`](PrefixTree::publish) | appends to the run that ends with the predecessor; opens a child if the predecessor has successors, and splits its run first if it is not the last | O(new blocks), one split |
//! | [`remove`](PrefixTree::remove) | drops the last block of a run without children; the node goes with its last block | O(1) |
//! | [`descendants`](PrefixTree::descendants), [`blocks_of`](PrefixTree::blocks_of) | list what has to be removed first | O(blocks listed) |
//! | [`forget`](PrefixTree::forget) | gives a namespace a new start | O(1) |
//!
//! Nodes never merge back: it would cost a copy, and the next split would undo it. The tree counts no references; a caller
//! that publishes for holders of whole prefixes, and removes the longest unused tail first, never meets
//! [`TreeError::NotATail`].
//!
//! # Example
//!
//! Block size 2. Prompt A is `1 2 3 4 5 6` in blocks 7, 3, 9; prompt B is `1 2 3 4 8 8`.
//!
//! ```text
//! 1. publish A                      root ── [7 3 9]
//! 2. find B                         1 2 is block 7, 3 4 is block 3, then the run goes on differently: 7, 3
//! 3. publish 8 8 behind 3, block 5  root ── [7 3] ─┬─ [9]        the run is split behind 3
//!                                                  └─ [5]
//! 4. publish 1 2 in block 4         block 7 has that content already: nothing is published
//! 5. remove 3                       refused: 9 and 5 stand behind it
//! 6. remove 9, 5, 3                 root ── [7]
//! ```
//!
//! ```
//! use looseleaf_core::BlockId;
//! use looseleaf_core::prefix::{Namespace, PrefixTree, TreeError};
//!
//! let block = |number| BlockId::new(number).unwrap();
//! let mut tree = PrefixTree::new(10, 2, 0);
//! let root = tree.open_root(Namespace::default().as_bytes());
//!
//! let published = tree.publish(root, None, &[1, 2, 3, 4, 5, 6], &[block(7), block(3), block(9)])?;
//! assert_eq!(published.num_new, 3);
//!
//! let mut found = Vec::new();
//! assert_eq!(tree.find(root, &[1, 2, 3, 4, 8, 8], &mut found), 2);
//! assert_eq!(found, [block(7), block(3)]);
//!
//! tree.publish(root, Some(block(3)), &[8, 8], &[block(5)])?;
//! assert_eq!(tree.find(root, &[1, 2, 3, 4, 8, 8], &mut found), 3);
//!
//! let published = tree.publish(root, None, &[1, 2], &[block(4)])?;
//! assert_eq!((published.num_new, published.existing), (0, Some(block(7))));
//!
//! assert_eq!(tree.remove(block(3)), Err(TreeError::NotATail(block(3))));
//! for number in [9, 5, 3] {
//!     tree.remove(block(number))?;
//! }
//! assert_eq!(tree.validate(), Ok(1));
//! # Ok::<(), TreeError>(())
//! ```

mod arena;
mod children;
mod error;
mod hash;
mod key;
mod namespace;
mod node;
mod publish;
mod remove;
mod roots;
mod tree;
mod validate;
mod walk;

pub use error::TreeError;
pub use key::{ContentKey, content_keys};
pub use namespace::{Namespace, NamespaceBuilder};
pub use publish::Published;
pub use roots::Root;
pub use tree::PrefixTree;
pub use walk::Predecessor;

#[cfg(all(test, not(looseleaf_loom)))]
mod tests;
