//! A digest of what a manager holds, to find out where two of them part.
//!
//! Ranks of a tensor-parallel engine make the same calls on managers of their own and must come to the same tables. The same
//! calls by one thread give the same block ids and the same digest; comparing digests after a step finds the first one that
//! differs, long before wrong text does.

use sha2::{Digest as _, Sha256};

use crate::manager::Locked;
use crate::prefix::Predecessor;
use crate::{BlockId, Error};

impl Locked<'_> {
    /// SHA-256 of the logical state: sizes, sequences with their tokens, lengths and tables, copies to be done, what is cached
    /// where, and the order in which it will be evicted. Neither counters nor the order of free blocks nor hash seeds go in.
    /// O(tokens of all sequences and cached blocks).
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn digest(&mut self) -> Result<[u8; 32], Error> {
        self.begin()?;
        let mut hasher = Sha256::new();
        let config = self.config;
        for size in [
            config.num_blocks(),
            config.block_size(),
            config.max_sequences(),
            config.max_sequence_len(),
        ] {
            hasher.update(size.to_le_bytes());
        }
        for place in 0..self.state.sequences.len() {
            self.digest_sequence(&mut hasher, place);
        }
        self.digest_cache(&mut hasher);
        Ok(hasher.finalize().into())
    }

    fn digest_sequence(&self, hasher: &mut Sha256, place: usize) {
        let state = &*self.state;
        let sequence = &state.sequences[place];
        hasher.update(sequence.generation.to_le_bytes());
        hasher.update([u8::from(sequence.is_alive)]);
        if !sequence.is_alive {
            return;
        }
        for number in [
            sequence.known,
            sequence.reserved,
            sequence.computed,
            sequence.num_cached,
            sequence.num_published,
            u32::from(sequence.publishes),
            sequence.num_blocks,
        ] {
            hasher.update(number.to_le_bytes());
        }
        let (whole, tail) = state
            .tokens
            .between(place, 0, sequence.known, sequence.known);
        let cells = state.tables.cells(place, sequence.num_blocks);
        for number in whole.iter().chain(tail).chain(cells) {
            hasher.update(number.to_le_bytes());
        }
        let copy = state.pending[place].map_or([0; 2], |copy| [copy.column + 1, copy.source.get()]);
        for number in copy {
            hasher.update(number.to_le_bytes());
        }
        let root = state.roots[place];
        let namespace = root.and_then(|root| state.cache.as_ref()?.tree.namespace_of(root));
        digest_bytes(hasher, namespace.unwrap_or_default());
    }

    fn digest_cache(&self, hasher: &mut Sha256) {
        let Some(cache) = &self.state.cache else {
            return;
        };
        for id in 1..=self.config.num_blocks() {
            let Some(block) = BlockId::new(id) else {
                continue;
            };
            let Some(tokens) = cache.tree.tokens_of(block) else {
                continue;
            };
            hasher.update(id.to_le_bytes());
            // What it stands behind names the rest of its prefix.
            match cache.tree.predecessor(block) {
                Some(Predecessor::Block(before)) => hasher.update(before.get().to_le_bytes()),
                Some(Predecessor::Namespace(namespace)) => {
                    hasher.update([0; 4]);
                    digest_bytes(hasher, namespace);
                }
                None => {}
            }
            for token in tokens {
                hasher.update(token.to_le_bytes());
            }
        }
        hasher.update([0; 4]);
        for block in cache.idle.oldest() {
            hasher.update(block.get().to_le_bytes());
        }
    }
}

/// Bytes of any length, so that none is a part of the next.
fn digest_bytes(hasher: &mut Sha256, bytes: &[u8]) {
    hasher.update((bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}
