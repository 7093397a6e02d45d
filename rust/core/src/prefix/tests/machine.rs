//! One operation on the tree and on the oracle, then the comparison.

use super::super::tree::PrefixTree;
use super::super::{Published, Root, TreeError};
use super::coverage::Coverage;
use super::operation::{Fault, NUM_NAMESPACES, Operation, Scenario};
use super::oracle::Oracle;
use crate::BlockId;

#[derive(Debug)]
pub(super) struct Machine {
    tree: PrefixTree,
    oracle: Oracle,
    num_blocks: u32,
    block_size: usize,
    /// Per namespace: its root, if there must be one, and how often the machine holds it.
    roots: [(Option<Root>, u32); NUM_NAMESPACES],
    /// A root that was forgotten or dropped.
    stale: Option<Root>,
    pub(super) coverage: Coverage,
}

fn name(namespace: usize) -> [u8; 1] {
    [u8::try_from(namespace).expect("few namespaces")]
}

fn id(number: u32) -> BlockId {
    BlockId::new(number).expect("a small number")
}

impl Machine {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let (hash, seed) = scenario.hash.function();
        let &Scenario {
            num_blocks,
            block_size,
            max_run,
            ..
        } = scenario;
        Self {
            tree: PrefixTree::with_hash(num_blocks, block_size, max_run, hash, seed),
            oracle: Oracle::new(block_size as usize),
            num_blocks,
            block_size: block_size as usize,
            roots: [(None, 0); NUM_NAMESPACES],
            stale: None,
            coverage: Coverage::default(),
        }
    }

    pub(super) fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Publish {
                namespace,
                behind,
                tokens,
                num_blocks,
                fault,
            } => {
                self.publish(*namespace, *behind, tokens, *num_blocks, *fault);
            }
            Operation::Find { namespace, tokens } => self.find(*namespace, tokens),
            Operation::Remove(choice) => {
                if let Some(block) = self.choose(*choice) {
                    self.remove(block);
                }
            }
            Operation::RemoveTree(choice) => {
                if let Some(block) = self.choose(*choice) {
                    self.remove_tree(block);
                }
            }
            Operation::Forget(namespace) => self.forget(*namespace),
            Operation::Open(namespace) => self.open(*namespace),
            Operation::Release(namespace) => self.release(*namespace),
        }
        self.compare();
    }

    /// A published block; `None` if there is none.
    fn choose(&self, choice: u8) -> Option<BlockId> {
        let index = usize::from(choice) % self.oracle.len().max(1);
        self.oracle.blocks().nth(index)
    }

    fn unpublished(&self) -> Vec<BlockId> {
        let all = (1..=self.num_blocks).map(id);
        all.filter(|&block| self.oracle.path(block).is_none())
            .collect()
    }

    fn publish(
        &mut self,
        namespace: usize,
        behind: u8,
        tokens: &[i32],
        num_blocks: usize,
        fault: Fault,
    ) {
        self.open(namespace);
        let mut root = self.roots[namespace].0.expect("just opened");
        let candidates = self.oracle.blocks_of(namespace);
        let mut predecessor = match usize::from(behind) % (candidates.len() + 1) {
            0 => None,
            index => Some(candidates[index - 1]),
        };
        let mut blocks = self.unpublished();
        blocks.truncate(num_blocks);
        let rotation = usize::from(behind) % blocks.len().max(1);
        blocks.rotate_left(rotation);
        let mut tokens = &tokens[..blocks.len() * self.block_size];

        let mut path = (namespace, Vec::new());
        if let Some(block) = predecessor {
            path = self.oracle.path(block).expect("published").clone();
        }
        let existing = tokens
            .get(..self.block_size)
            .and_then(|first| self.oracle.at(&(namespace, [&path.1, first].concat())));
        let is_new = existing.is_none() && !blocks.is_empty();
        let refusal = match fault {
            Fault::Published if is_new && self.oracle.len() > 0 => {
                let published = self.oracle.blocks().next().expect("one");
                *blocks.last_mut().expect("one") = published;
                Some(TreeError::AlreadyPublished(published))
            }
            Fault::Twice if is_new && blocks.len() > 1 => {
                blocks[1] = blocks[0];
                Some(TreeError::AlreadyPublished(blocks[0]))
            }
            Fault::NullBlock if is_new => {
                *blocks.last_mut().expect("one") = BlockId::NULL;
                Some(TreeError::OutsidePool(BlockId::NULL))
            }
            Fault::OutsidePool if is_new => {
                *blocks.last_mut().expect("one") = id(self.num_blocks + 1);
                Some(TreeError::OutsidePool(id(self.num_blocks + 1)))
            }
            Fault::Short if !tokens.is_empty() => {
                tokens = &tokens[1..];
                Some(TreeError::WrongLength {
                    num_tokens: tokens.len(),
                    num_blocks: blocks.len(),
                    block_size: self.block_size,
                })
            }
            Fault::StaleRoot if self.stale.is_some() => {
                root = self.stale.expect("one");
                Some(TreeError::StaleRoot)
            }
            Fault::Predecessor if !self.unpublished().is_empty() => {
                let block = self.unpublished()[0];
                predecessor = Some(block);
                Some(TreeError::NotPublished(block))
            }
            _ => None,
        };

        let num_nodes = self.tree.arena.num_live();
        let answer = self.tree.publish(root, predecessor, tokens, &blocks);
        if let Some(refusal) = refusal {
            self.coverage.note(name_of(refusal));
            assert_eq!(answer, Err(refusal));
            assert_eq!(self.tree.arena.num_live(), num_nodes);
            return;
        }
        let num_new = if existing.is_some() { 0 } else { blocks.len() };
        assert_eq!(answer, Ok(Published { num_new, existing }));
        self.note_publish(num_nodes, predecessor, answer);
        for (block, content) in blocks[..num_new].iter().zip(tokens.chunks(self.block_size)) {
            path.1.extend_from_slice(content);
            self.oracle.publish(path.clone(), *block);
        }
    }

    fn note_publish(
        &mut self,
        num_nodes: usize,
        predecessor: Option<BlockId>,
        answer: Result<Published, TreeError>,
    ) {
        let num_nodes_more = self.tree.arena.num_live() - num_nodes;
        let is_long = answer.is_ok_and(|published| published.num_new > self.tree.max_run);
        self.coverage.note(match (answer, num_nodes_more) {
            (
                Ok(Published {
                    existing: Some(_), ..
                }),
                _,
            ) => "content that exists",
            (Ok(Published { num_new: 0, .. }), _) => "no blocks",
            (_, 0) => "a run that grows",
            (_, _) if is_long => "a full run",
            (_, 1) if predecessor.is_some() => "a child",
            (_, 1) => "a child of a root",
            _ => "a split",
        });
    }

    fn find(&mut self, namespace: usize, tokens: &[i32]) {
        let expected = self.oracle.find(namespace, tokens);
        let mut found = vec![BlockId::MAX];
        let num_found = match self.tree.find_root(&name(namespace)) {
            Some(root) => self.tree.find(root, tokens, &mut found),
            None => 0,
        };
        assert_eq!(found[0], BlockId::MAX, "what is in the vector stays");
        assert_eq!(found[1..], expected);
        assert_eq!(num_found, expected.len());
        self.coverage.note(match num_found {
            0 => "a miss",
            1 => "a hit of one block",
            _ => "a hit of several blocks",
        });
    }

    fn remove(&mut self, block: BlockId) {
        let is_tail = self.oracle.below(block).is_empty();
        self.tree
            .prefetch(&[block, id(self.num_blocks), BlockId::MAX]);
        let answer = self.tree.remove(block);
        if is_tail {
            assert_eq!(answer, Ok(()));
            self.oracle.remove(block);
            assert_eq!(self.tree.remove(block), Err(TreeError::NotPublished(block)));
            self.drop_unneeded_roots();
            self.coverage.note("a tail that goes");
        } else {
            assert_eq!(answer, Err(TreeError::NotATail(block)));
            self.coverage.note(name_of(TreeError::NotATail(block)));
        }
    }

    fn remove_tree(&mut self, block: BlockId) {
        let mut found = vec![block];
        self.tree.descendants(block, &mut found);
        assert_eq!(found.remove(0), block, "what is in the vector stays");
        self.assert_removable(&found, &self.oracle.below(block));
        self.coverage.note(if found.is_empty() {
            "no descendants"
        } else {
            "descendants"
        });
        found.push(block);
        for block in found {
            self.remove(block);
        }
    }

    /// That `found` are the blocks in `expected`, each after all that stand behind it.
    fn assert_removable(&self, found: &[BlockId], expected: &[BlockId]) {
        let mut sorted = found.to_vec();
        sorted.sort();
        assert_eq!(sorted, expected);
        for (index, &above) in found.iter().enumerate() {
            let later = &found[index + 1..];
            assert!(
                !later
                    .iter()
                    .any(|&below| self.oracle.is_below(below, above))
            );
        }
    }

    fn forget(&mut self, namespace: usize) {
        let Some(root) = self.roots[namespace].0 else {
            return;
        };
        let mut found = Vec::new();
        self.tree.blocks_of(root, &mut found);
        self.assert_removable(&found, &self.oracle.blocks_of(namespace));
        if !found.is_empty() {
            assert_eq!(self.tree.forget(root), Err(TreeError::RootNotEmpty));
            self.coverage.note(name_of(TreeError::RootNotEmpty));
        }
        for block in found {
            self.remove(block);
        }
        let answer = self.tree.forget(root);
        if self.roots[namespace].0.is_some() {
            assert_eq!(answer, Ok(()));
            self.coverage.note("a held root that is forgotten");
            self.roots[namespace] = (None, 0);
            self.stale = Some(root);
        } else {
            assert_eq!(answer, Err(TreeError::StaleRoot)); // dropped with its last block
        }
    }

    fn open(&mut self, namespace: usize) {
        let before = self.roots[namespace];
        let root = self.tree.open_root(&name(namespace));
        match before.0 {
            Some(known) => {
                assert_eq!(root, known);
                assert_eq!(self.tree.retain_root(root), Ok(()));
                self.tree.release_root(root);
            }
            None => assert_ne!(Some(root), self.stale),
        }
        self.roots[namespace] = (Some(root), before.1 + 1);
    }

    fn release(&mut self, namespace: usize) {
        let (Some(root), num_holders) = self.roots[namespace] else {
            return;
        };
        for _ in 0..num_holders {
            self.tree.release_root(root);
        }
        self.roots[namespace].1 = 0;
        self.drop_unneeded_roots();
    }

    fn drop_unneeded_roots(&mut self) {
        for namespace in 0..NUM_NAMESPACES {
            let (root, num_holders) = self.roots[namespace];
            if root.is_some() && num_holders == 0 && self.oracle.blocks_of(namespace).is_empty() {
                self.roots[namespace].0 = None;
                self.stale = root;
                self.coverage.note("a root that is dropped");
            }
        }
    }

    fn compare(&self) {
        assert_eq!(self.tree.validate(), Ok(self.oracle.len()));
        assert_eq!(self.tree.num_published(), self.oracle.len());
        for number in 0..=self.num_blocks + 1 {
            let block = id(number);
            let path = self.oracle.path(block);
            assert_eq!(self.tree.is_published(block), path.is_some());
            let mut tokens = vec![-1];
            self.tree.path_tokens(block, &mut tokens);
            let expected = path.map_or(&[][..], |path| &path.1);
            assert_eq!(tokens[1..], *expected);
            let own = path.map(|path| &path.1[path.1.len() - self.block_size..]);
            assert_eq!(self.tree.tokens_of(block), own);
        }
        let mut num_roots = 0;
        for (namespace, &(root, _)) in self.roots.iter().enumerate() {
            assert_eq!(self.tree.find_root(&name(namespace)), root);
            num_roots += usize::from(root.is_some());
        }
        assert_eq!(self.tree.roots().count(), num_roots);
        if let Some(stale) = self.stale {
            assert!(!self.tree.is_current(stale));
            assert_eq!(self.tree.find(stale, &[0; 8], &mut Vec::new()), 0);
        }
    }
}

fn name_of(refusal: TreeError) -> &'static str {
    match refusal {
        TreeError::StaleRoot => "StaleRoot",
        TreeError::RootNotEmpty => "RootNotEmpty",
        TreeError::NotPublished(_) => "NotPublished",
        TreeError::AlreadyPublished(_) => "AlreadyPublished",
        TreeError::NotATail(_) => "NotATail",
        TreeError::OutsidePool(_) => "OutsidePool",
        TreeError::WrongLength { .. } => "WrongLength",
    }
}
