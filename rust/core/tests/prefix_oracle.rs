//! The prefix cache against a plain oracle: hits, free and idle blocks, evictions and content after every call.
//!
//! The oracle keys cached blocks by their whole prefix and keeps the idle ones in a plain list. A fake memory holds, for every
//! slot, a fingerprint of the prefix that was written there, so that a hit on wrong content shows at once.
//!
//! `LOOSELEAF_OPERATIONS` sets the number of operations (default 20,000).
#![cfg(not(looseleaf_loom))]

mod content;

use std::collections::HashMap;

use content::{Random, fingerprint, rounds};
use looseleaf_core::{Admit, BlockManager, Config, Counts, Error, Invalidated, Reserve};

type Prefix = Vec<i32>;

struct Live {
    handle: i64,
    tokens: Vec<i32>,
    computed: usize,
    num_blocks: usize,
    /// Leading blocks that are published.
    published: usize,
    publishes: bool,
    epoch: u32,
}

struct Oracle {
    num_blocks: usize,
    block_size: usize,
    /// Holders of each published prefix.
    holders: HashMap<Prefix, usize>,
    /// Published prefixes without holders, oldest first.
    idle: Vec<Prefix>,
    num_private: usize,
    epoch: u32,
    /// Holders of blocks whose content was invalidated, by the epoch that published them. Each is one private block.
    orphans: HashMap<(u32, Prefix), usize>,
}

impl Oracle {
    fn free(&self) -> usize {
        self.num_blocks - self.num_private - self.holders.len()
    }

    fn credits(&self) -> usize {
        self.free() + self.idle.len()
    }

    fn hits(&self, tokens: &[i32]) -> usize {
        let limit = (tokens.len() - 1) / self.block_size;
        (1..=limit)
            .take_while(|blocks| {
                self.holders
                    .contains_key(&tokens[..blocks * self.block_size])
            })
            .count()
    }

    fn hold(&mut self, prefix: &[i32]) {
        let holders = self.holders.get_mut(prefix).expect("published");
        if *holders == 0 {
            self.idle.retain(|idle| idle != prefix);
        }
        *holders += 1;
    }

    fn let_go(&mut self, prefix: &[i32]) {
        if let Some(holders) = self.holders.get_mut(prefix) {
            *holders -= 1;
            if *holders == 0 {
                self.idle.push(prefix.to_vec());
            }
        }
    }

    fn let_go_orphan(&mut self, epoch: u32, prefix: &[i32]) {
        let key = (epoch, prefix.to_vec());
        let holders = self.orphans.get_mut(&key).expect("invalidated");
        *holders -= 1;
        if *holders == 0 {
            self.orphans.remove(&key);
            self.num_private -= 1;
        }
    }

    /// Takes blocks, from the idle ones where the free ones do not suffice.
    fn take(&mut self, num_blocks: usize) {
        for _ in 0..num_blocks.saturating_sub(self.free()) {
            let oldest = self.idle.remove(0);
            self.holders.remove(&oldest);
        }
        self.num_private += num_blocks;
    }

    fn evict(&mut self, num_blocks: usize) {
        for _ in 0..num_blocks.min(self.idle.len()) {
            let oldest = self.idle.remove(0);
            self.holders.remove(&oldest);
        }
    }
}

struct Machine {
    manager: BlockManager,
    oracle: Oracle,
    memory: Vec<u64>,
    live: Vec<Live>,
    random: Random,
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("a small number")
}

impl Machine {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let block_size = 1 + random.below(4);
        let num_blocks = 6 + random.below(27);
        let config = Config::new(small(num_blocks), small(block_size), 6, 40).expect("valid sizes");
        Self {
            manager: BlockManager::new(config.with_prefix_cache(seed)).expect("valid sizes"),
            oracle: Oracle {
                num_blocks,
                block_size,
                holders: HashMap::new(),
                idle: Vec::new(),
                num_private: 0,
                epoch: 0,
                orphans: HashMap::new(),
            },
            memory: vec![0; (num_blocks + 1) * block_size],
            live: Vec::new(),
            random,
        }
    }

    fn prompt(&mut self) -> Vec<i32> {
        let len = 1 + self.random.below(20);
        (0..len).map(|_| self.random.token()).collect()
    }

    fn admit(&mut self) {
        let tokens = self.prompt();
        let reserve = (self.random.below(4) == 0).then(|| self.random.below(24));
        let request = Admit {
            reserve: reserve.map(small),
            ..Admit::new(&tokens)
        };
        let size = self.oracle.block_size;
        let hits = self.oracle.hits(&tokens);
        let idle_hits = (1..=hits)
            .filter(|blocks| self.oracle.holders[&tokens[..blocks * size]] == 0)
            .count();
        let wanted = reserve.unwrap_or(tokens.len());
        let num_new = wanted.div_ceil(size).saturating_sub(hits);
        let longest = wanted.max(tokens.len()).div_ceil(size);
        let fits = longest <= self.oracle.num_blocks
            && self.live.len() < 6
            && num_new + idle_hits <= self.oracle.credits();

        let mut locked = self.manager.lock().expect("not poisoned");
        assert_eq!(locked.can_admit_prompt(&request, 0), Ok(fits));
        let found = locked.lookup(&request).expect("a valid prompt").0 as usize;
        assert_eq!(found, hits * size);
        match locked.admit(&request) {
            Ok(admission) => {
                assert!(fits);
                assert_eq!(admission.num_cached as usize, hits * size);
                drop(locked);
                for blocks in 1..=hits {
                    self.oracle.hold(&tokens[..blocks * size]);
                }
                self.oracle.take(num_new);
                self.live.push(Live {
                    handle: admission.id.to_handle(),
                    computed: hits * size,
                    num_blocks: hits + num_new,
                    published: hits,
                    publishes: true,
                    epoch: self.oracle.epoch,
                    tokens,
                });
            }
            Err(Error::OutOfBlocks {
                requested,
                free,
                evictable,
            }) => {
                assert!(!fits);
                assert_eq!(
                    (requested as usize, free as usize, evictable as usize),
                    (
                        num_new + idle_hits,
                        self.oracle.free(),
                        self.oracle.idle.len()
                    )
                );
            }
            Err(error) => assert!(!fits, "{error}"),
        }
    }

    /// Reserves some tokens, writes them, commits some of them.
    fn step(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let index = self.random.below(self.live.len());
        let size = self.oracle.block_size;
        let live = &mut self.live[index];
        let num_new = (1 + self.random.below(6)).min(40 - live.computed);
        let end = live.computed + num_new;
        let unknown: Vec<i32> = (live.tokens.len()..end)
            .map(|_| self.random.token())
            .collect();
        let blocks = end.div_ceil(size).saturating_sub(live.num_blocks);
        let handles = [live.handle];
        let request = Reserve {
            num_new: Counts::Same(small(num_new)),
            tokens: Some(&unknown),
            ..Reserve::new(&handles)
        };
        let mut locked = self.manager.lock().expect("not poisoned");
        let reserved = locked.reserve(&request, None);
        if end.div_ceil(size) > self.oracle.num_blocks {
            assert!(num_new == 0 || matches!(reserved, Err(Error::NeverFits { .. })));
            return;
        }
        if blocks > self.oracle.credits() {
            assert!(
                matches!(reserved, Err(Error::OutOfBlocks { .. })),
                "{reserved:?}"
            );
            return;
        }
        assert_eq!(reserved, Ok(1));
        live.tokens.extend(unknown);
        live.num_blocks += blocks;
        self.oracle.take(blocks);
        let table = locked.blocks(live.handle).expect("alive");
        for position in live.computed..end {
            let slot = table[position / size].index() * size + position % size;
            self.memory[slot] = fingerprint(&live.tokens[..=position]);
        }
        let accepted = live.computed + self.random.below(num_new + 1);
        locked
            .commit(&handles, Counts::Same(small(accepted)), None)
            .expect("reserved");
        live.computed = accepted;
        self.oracle.publish(live);
    }

    fn release(&mut self, drop_handle: bool) {
        if self.live.is_empty() {
            return;
        }
        let index = self.random.below(self.live.len());
        let live = self.live.swap_remove(index);
        if drop_handle {
            let id = looseleaf_core::SeqId::from_handle(live.handle).expect("issued");
            self.manager.bury(id);
        } else {
            self.manager
                .lock()
                .expect("not poisoned")
                .release(&[live.handle])
                .expect("alive");
        }
        self.oracle.num_private -= live.num_blocks - live.published;
        for blocks in (1..=live.published).rev() {
            let prefix = &live.tokens[..blocks * self.oracle.block_size];
            if live.epoch == self.oracle.epoch {
                self.oracle.let_go(prefix);
            } else {
                self.oracle.let_go_orphan(live.epoch, prefix);
            }
        }
    }

    fn drop_content(&mut self) {
        let mut locked = self.manager.lock().expect("not poisoned");
        if self.random.below(4) > 0 {
            let num_blocks = self.random.below(4);
            let evicted = locked.evict(small(num_blocks)).expect("consistent") as usize;
            assert_eq!(evicted, self.oracle.idle.len().min(num_blocks));
            self.oracle.evict(num_blocks);
            return;
        }
        let num_held = self.oracle.holders.len() - self.oracle.idle.len();
        let expected = Invalidated {
            num_dropped: small(self.oracle.holders.len()),
            num_held: small(num_held),
        };
        assert_eq!(locked.invalidate(&[1]), Ok(expected));
        let epoch = self.oracle.epoch;
        let held = self
            .oracle
            .holders
            .drain()
            .filter(|(_, holders)| *holders > 0);
        self.oracle
            .orphans
            .extend(held.map(|(prefix, holders)| ((epoch, prefix), holders)));
        self.oracle.idle.clear();
        self.oracle.num_private += num_held;
        self.oracle.epoch += 1;
    }

    fn check(&self) {
        let mut locked = self.manager.lock().expect("not poisoned");
        locked.validate().expect("consistent");
        let size = self.oracle.block_size;
        for live in &self.live {
            let table = locked.blocks(live.handle).expect("alive");
            assert_eq!(table.len(), live.num_blocks);
            for position in 0..live.computed {
                let slot = table[position / size].index() * size + position % size;
                assert_eq!(
                    self.memory[slot],
                    fingerprint(&live.tokens[..=position]),
                    "content at {position}"
                );
            }
        }
        let stats = locked.stats();
        assert_eq!(
            (stats.pool.num_free as usize, stats.num_idle as usize),
            (self.oracle.free(), self.oracle.idle.len())
        );
    }
}

impl Oracle {
    fn publish(&mut self, live: &mut Live) {
        while live.publishes && (live.published + 1) * self.block_size <= live.computed {
            let end = (live.published + 1) * self.block_size;
            let prefix = &live.tokens[..end];
            let predecessor = &live.tokens[..end - self.block_size];
            let is_current = live.epoch == self.epoch
                && (predecessor.is_empty() || self.holders.contains_key(predecessor));
            if !is_current {
                live.publishes = false;
            } else if let Some(&holders) = self.holders.get(prefix) {
                if holders == 0 && self.credits() == 0 {
                    live.publishes = false;
                } else {
                    self.hold(prefix);
                    self.num_private -= 1;
                    live.published += 1;
                }
            } else {
                self.holders.insert(prefix.to_vec(), 1);
                self.num_private -= 1;
                live.published += 1;
            }
        }
    }
}

fn run(seed: u64, operations: u32) {
    let mut machine = Machine::new(seed);
    for _ in 0..operations {
        match machine.random.below(20) {
            0..=5 => machine.admit(),
            6..=14 => machine.step(),
            15..=17 => machine.release(false),
            18 => machine.release(true),
            _ => machine.drop_content(),
        }
        machine.check();
    }
    while !machine.live.is_empty() {
        machine.release(false);
        machine.check();
    }
}

#[test]
fn hits_counts_evictions_and_content_are_those_of_the_oracle() {
    rounds(0x1234_5678, run);
}
