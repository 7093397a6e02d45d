//! Random calls on a small pool, each compared with a model of plain vectors.
#![cfg(not(looseleaf_loom))]

use looseleaf_core::{BlockId, BlockPool, Error};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Debug, Clone)]
enum Call {
    Allocate(usize),
    /// Any ids, the null block and one outside the pool among them.
    Retain(Vec<u32>),
    Release(Vec<u32>),
    /// References that the caller has.
    ReleaseHeld(Vec<Index>),
}

const MAX_BLOCKS: u32 = 8;

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let ids = || prop::collection::vec(0..=MAX_BLOCKS + 1, 0..5);
    let call = prop_oneof![
        3 => (0..=MAX_BLOCKS as usize + 1).prop_map(Call::Allocate),
        2 => ids().prop_map(Call::Retain),
        1 => ids().prop_map(Call::Release),
        3 => prop::collection::vec(any::<Index>(), 0..5).prop_map(Call::ReleaseHeld),
    ];
    prop::collection::vec(call, 0..80)
}

/// The pool as one thread sees it.
struct Model {
    /// Topmost last.
    free: Vec<u32>,
    counts: Vec<u32>,
    generations: Vec<u32>,
}

impl Model {
    fn new(num_blocks: u32) -> Self {
        let zeros = vec![0; num_blocks as usize + 1];
        Self {
            free: (1..=num_blocks).rev().collect(),
            counts: zeros.clone(),
            generations: zeros,
        }
    }

    fn is_held(&self, id: u32) -> bool {
        self.counts.get(id as usize).is_some_and(|&count| count > 0)
    }

    fn allocate(&mut self, requested: usize) -> Result<Vec<u32>, Error> {
        let capacity = self.counts.len() - 1;
        let (requested_u32, free) = (small(requested), small(self.free.len()));
        if requested > capacity {
            return Err(Error::NeverFits {
                requested: requested as u64,
                capacity: small(capacity),
            });
        }
        let Some(rest) = self.free.len().checked_sub(requested) else {
            return Err(Error::OutOfBlocks {
                requested: requested_u32,
                free,
                evictable: 0,
            });
        };
        let mut ids = self.free.split_off(rest);
        ids.reverse();
        for &id in &ids {
            self.counts[id as usize] = 1;
            self.generations[id as usize] += 1;
        }
        Ok(ids)
    }

    fn retain(&mut self, ids: &[u32]) -> Result<(), Error> {
        if let Some(&block) = ids.iter().find(|&&id| !self.is_held(id)) {
            return Err(Error::NotHeld { block });
        }
        for &id in ids {
            self.counts[id as usize] += 1;
        }
        Ok(())
    }

    fn release(&mut self, ids: &[u32]) -> Result<(), Error> {
        if let Some(&block) = ids.iter().find(|&&id| !self.is_held(id)) {
            return Err(Error::NotHeld { block });
        }
        let mut counts = self.counts.clone();
        let mut freed = Vec::new();
        for &id in ids.iter().rev() {
            let count = &mut counts[id as usize];
            *count = count.checked_sub(1).ok_or(Error::NotHeld { block: id })?;
            if *count == 0 {
                freed.push(id);
            }
        }
        self.counts = counts;
        self.free.extend(freed);
        Ok(())
    }

    /// One id for every reference.
    fn references(&self) -> Vec<u32> {
        let ids = 0..small(self.counts.len());
        ids.flat_map(|id| std::iter::repeat_n(id, self.counts[id as usize] as usize))
            .collect()
    }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("a small number")
}

fn blocks(ids: &[u32]) -> Vec<BlockId> {
    ids.iter()
        .map(|&id| BlockId::new(id).expect("a block id"))
        .collect()
}

fn allocate(pool: &BlockPool, num_blocks: usize) -> Result<Vec<u32>, Error> {
    let mut out = vec![BlockId::NULL; num_blocks];
    pool.allocate(&mut out)
        .map(|()| out.into_iter().map(BlockId::get).collect())
}

proptest! {
    #[test]
    fn the_pool_does_what_its_model_does(num_blocks in 1..=MAX_BLOCKS, calls in calls()) {
        let pool = BlockPool::new(num_blocks).expect("a valid size");
        let mut model = Model::new(num_blocks);
        let mut peak_in_use = 0;
        for call in calls {
            match call {
                Call::Allocate(n) => prop_assert_eq!(allocate(&pool, n), model.allocate(n)),
                Call::Retain(ids) => prop_assert_eq!(pool.retain(&blocks(&ids)), model.retain(&ids)),
                Call::Release(ids) => {
                    prop_assert_eq!(pool.release(&blocks(&ids)), model.release(&ids));
                }
                Call::ReleaseHeld(picks) => {
                    let mut held = model.references();
                    let take = |pick: Index| (!held.is_empty()).then(|| held.swap_remove(pick.index(held.len())));
                    let ids: Vec<u32> = picks.into_iter().filter_map(take).collect();
                    prop_assert_eq!(pool.release(&blocks(&ids)), Ok(()));
                    prop_assert_eq!(model.release(&ids), Ok(()));
                }
            }
            let in_use = num_blocks - small(model.free.len());
            peak_in_use = peak_in_use.max(in_use);
            prop_assert_eq!(pool.num_free(), num_blocks - in_use);
            prop_assert_eq!(pool.stats().peak_in_use, peak_in_use);
            prop_assert_eq!(pool.validate(&model.counts), Ok(()));
            for id in 0..=num_blocks {
                let block = BlockId::new(id).expect("a block id");
                prop_assert_eq!(pool.generation(block), model.generations[id as usize]);
            }
        }
    }
}
