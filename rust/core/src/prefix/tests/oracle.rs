//! What is published, as a map from whole prefixes to blocks.

use std::collections::{BTreeMap, HashMap};

use crate::BlockId;

/// A namespace and all tokens up to the end of a block.
pub(super) type Path = (usize, Vec<i32>);

#[derive(Debug)]
pub(super) struct Oracle {
    block_size: usize,
    blocks: HashMap<Path, BlockId>,
    paths: BTreeMap<BlockId, Path>,
}

impl Oracle {
    pub(super) fn new(block_size: usize) -> Self {
        Self {
            block_size,
            blocks: HashMap::new(),
            paths: BTreeMap::new(),
        }
    }

    pub(super) fn at(&self, path: &Path) -> Option<BlockId> {
        self.blocks.get(path).copied()
    }

    pub(super) fn path(&self, block: BlockId) -> Option<&Path> {
        self.paths.get(&block)
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.paths.keys().copied()
    }

    pub(super) fn blocks_of(&self, namespace: usize) -> Vec<BlockId> {
        let paths = self.paths.iter();
        let of_namespace = paths.filter(|(_, path)| path.0 == namespace);
        of_namespace.map(|(&block, _)| block).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(super) fn publish(&mut self, path: Path, block: BlockId) {
        assert_eq!(self.paths.insert(block, path.clone()), None);
        assert_eq!(self.blocks.insert(path, block), None);
    }

    pub(super) fn remove(&mut self, block: BlockId) {
        let path = self.paths.remove(&block).expect("a published block");
        assert_eq!(self.blocks.remove(&path), Some(block));
    }

    pub(super) fn find(&self, namespace: usize, tokens: &[i32]) -> Vec<BlockId> {
        let ends = (1..=tokens.len() / self.block_size).map(|index| index * self.block_size);
        ends.map_while(|end| self.at(&(namespace, tokens[..end].to_vec())))
            .collect()
    }

    /// Whether `below` stands behind `above`, at any distance.
    pub(super) fn is_below(&self, below: BlockId, above: BlockId) -> bool {
        let (below, above) = (&self.paths[&below], &self.paths[&above]);
        below.0 == above.0 && below.1.len() > above.1.len() && below.1.starts_with(&above.1)
    }

    pub(super) fn below(&self, above: BlockId) -> Vec<BlockId> {
        self.blocks()
            .filter(|&block| self.is_below(block, above))
            .collect()
    }
}
