//! A workload in which every allocation fails once, and requests are given up after every call.
//!
//! The workload is a script over everything that takes blocks: admissions with and without hits, steps with lookahead, forks,
//! copies on write, adoption, transfers. Before each call that takes blocks a hog takes so many that the call finds one too few,
//! two too few and so on. A twin does the same without the failing call; from there on the two must not differ.
#![cfg(not(looseleaf_loom))]

use std::collections::BTreeMap;

use looseleaf_core::{
    Admit, BlockId, BlockManager, Config, Counts, Error, Lengths, Reserve, SeqId, Stats,
};

const BLOCK_SIZE: u32 = 2;
const ENOUGH: u32 = 24;

#[derive(Clone, Copy, Debug)]
enum Call {
    Admit(char, &'static [i32]),
    AdmitUncached(char, &'static [i32]),
    /// A place for more than the prompt.
    AdmitLong(char, &'static [i32], u32),
    /// Slots for all that is known and not computed.
    Prefill(&'static str),
    /// Slots for one new token each, which is known, with lookahead.
    Append(&'static str, &'static [i32], u32),
    Commit(&'static str),
    Fork(char, char),
    Truncate(char, u32),
    Release(char),
    Forget(char),
    Bury(char),
    /// A transfer holds the sequence's blocks.
    Retain(char),
    ReleaseTransfer,
    Invalidate,
    Evict(u32),
}
use Call::{
    Admit as In, AdmitLong, AdmitUncached, Append, Bury, Commit, Evict, Forget, Fork, Invalidate,
    Prefill, Release, ReleaseTransfer, Retain, Truncate,
};

const SCRIPT: [Call; 48] = [
    In('a', &[1, 2, 3, 4, 5]),
    Prefill("a"),
    Commit("a"),
    In('b', &[1, 2, 3, 4, 6, 7]), // two hits that are held
    Prefill("b"),
    Commit("b"),
    Fork('a', 'c'), // with a partial block
    Append("ca", &[50, 51], 0),
    Append("ca", &[], 0), // the step is repeated: the copy is emitted again
    Commit("ca"),
    Append("abc", &[52, 53, 54], 3),
    Commit("abc"),
    In('d', &[9, 9, 8, 8, 7]),
    In('e', &[9, 9, 8, 8, 6]), // the same content, not computed yet
    Prefill("de"),
    Commit("d"),
    Release('d'),
    Commit("e"), // adopts what is idle
    Bury('e'),
    In('f', &[9, 9, 8, 8, 5, 5, 5]), // two hits that are idle
    Prefill("f"),
    Fork('f', 'g'), // nothing new is computed
    Commit("f"),
    Retain('f'),
    Release('f'),
    Truncate('a', 3),
    Append("a", &[60], 0), // into a published block
    Truncate('a', 3),      // gives the copy up
    Append("a", &[61], 0),
    Commit("a"),
    ReleaseTransfer,
    In('h', &[9, 9, 8, 8, 5, 5, 4]),
    Evict(1),
    Release('b'),
    AdmitLong('i', &[7, 7, 7], 9),
    Prefill("ih"),
    Commit("ih"),
    Forget('h'),
    AdmitUncached('j', &[1, 2, 3, 4, 5]),
    Prefill("j"),
    Commit("j"),
    Invalidate,
    Append("acgij", &[70, 71, 73, 74], 1), // g has known tokens left
    Commit("acgij"),
    In('k', &[1, 2, 3, 4, 5]),
    Prefill("k"),
    Commit("k"),
    Release('c'),
];

/// Prompts whose hits are compared.
const PROBES: [&[i32]; 5] = [
    &[1, 2, 3, 4, 5, 0],
    &[1, 2, 3, 4, 6, 7, 0],
    &[9, 9, 8, 8, 5, 5, 5],
    &[7, 7, 7, 7, 0],
    &[1, 2, 3, 61, 0],
];

struct World {
    manager: BlockManager,
    handles: BTreeMap<char, i64>,
    transfer: Vec<BlockId>,
}

/// Everything that a caller can see without changing it.
#[derive(Debug, PartialEq)]
struct Observed {
    sequences: Vec<(Lengths, Vec<BlockId>)>,
    stats: Stats,
    hits: Vec<u32>,
    longest_admission: u32,
    /// Of all that will ever matter, the order of eviction included.
    digest: [u8; 32],
}

impl World {
    fn new(num_blocks: u32) -> Self {
        let config = Config::new(num_blocks, BLOCK_SIZE, 12, 64).expect("valid sizes");
        Self {
            manager: BlockManager::new(config.with_prefix_cache(5)).expect("valid sizes"),
            handles: BTreeMap::new(),
            transfer: Vec::new(),
        }
    }

    fn named(&self, names: &str) -> Vec<i64> {
        names
            .chars()
            .filter_map(|name| self.handles.get(&name).copied())
            .collect()
    }

    /// Does one call; one on a sequence whose admission has failed does nothing.
    fn apply(&mut self, call: Call) -> Result<(), Error> {
        let mut locked = self.manager.lock()?;
        match call {
            In(name, tokens) => {
                let id = locked.admit(&Admit::new(tokens))?.id;
                self.handles.insert(name, id.to_handle());
            }
            AdmitUncached(name, tokens) => {
                let request = Admit {
                    cache: false,
                    ..Admit::new(tokens)
                };
                let id = locked.admit(&request)?.id;
                self.handles.insert(name, id.to_handle());
            }
            AdmitLong(name, tokens, reserve) => {
                let request = Admit {
                    reserve: Some(reserve),
                    ..Admit::new(tokens)
                };
                let id = locked.admit(&request)?.id;
                self.handles.insert(name, id.to_handle());
            }
            Prefill(names) => {
                let handles = self.named(names);
                locked.reserve(&Reserve::new(&handles), None)?;
            }
            Append(names, tokens, lookahead) => {
                let handles = self.named(names);
                let is_whole = handles.len() == names.len();
                let request = Reserve {
                    num_new: Counts::Same(1),
                    tokens: (is_whole && !tokens.is_empty()).then_some(tokens),
                    lookahead,
                    ..Reserve::new(&handles)
                };
                locked.reserve(&request, None)?;
            }
            Commit(names) => locked.commit(&self.named(names), Counts::Default, None)?,
            Fork(parent, child) => {
                if let Some(&parent) = self.handles.get(&parent) {
                    let id = locked.fork(parent)?.id;
                    self.handles.insert(child, id.to_handle());
                }
            }
            Truncate(name, length) => {
                if let Some(&handle) = self.handles.get(&name) {
                    let lengths = locked.lengths(handle)?;
                    locked.truncate(handle, length.min(lengths.known))?;
                }
            }
            Release(name) | Forget(name) => {
                if let Some(handle) = self.handles.remove(&name) {
                    locked.release_with(&[handle], matches!(call, Release(_)))?;
                }
            }
            Bury(name) => {
                if let Some(id) = self.handles.remove(&name).and_then(SeqId::from_handle) {
                    self.manager.bury(id); // while the mutex is held
                }
            }
            Retain(name) => {
                if let Some(&handle) = self.handles.get(&name) {
                    self.transfer = locked.blocks(handle)?;
                    self.manager.retain_blocks(&self.transfer)?;
                }
            }
            ReleaseTransfer => self
                .manager
                .release_blocks(&std::mem::take(&mut self.transfer))?,
            Invalidate => drop(locked.invalidate(Admit::new(&[1]).namespace)?),
            Evict(num_blocks) => drop(locked.evict(num_blocks)?),
        }
        Ok(())
    }

    fn observe(&self) -> Observed {
        let mut locked = self.manager.lock().expect("not poisoned");
        locked.validate_beside(&self.transfer).expect("consistent");
        let sequences = self.handles.values().map(|&handle| {
            let lengths = locked.lengths(handle).expect("alive");
            (lengths, locked.blocks(handle).expect("alive"))
        });
        Observed {
            sequences: sequences.collect(),
            stats: locked.stats(),
            hits: PROBES
                .map(|probe| locked.lookup(&Admit::new(probe)).expect("a valid prompt").0)
                .to_vec(),
            longest_admission: (0..=64)
                .filter(|&length| locked.can_admit(length) == Ok(true))
                .max()
                .unwrap_or(0),
            digest: locked.digest().expect("consistent"),
        }
    }

    fn available(&self) -> u32 {
        let stats = self.manager.lock().expect("not poisoned").stats();
        stats.pool.num_free + stats.num_idle
    }

    /// Takes all blocks but so many away, the cached ones last.
    fn leave(&mut self, num_blocks: u32) {
        let surplus = self.available() - num_blocks;
        let mut locked = self.manager.lock().expect("not poisoned");
        let request = Admit {
            reserve: Some(surplus * BLOCK_SIZE),
            cache: false,
            ..Admit::new(&[1])
        };
        let hog = locked.admit(&request).expect("the blocks are there").id;
        self.handles.insert('~', hog.to_handle());
    }

    /// Releases everything, some by name and some as dropped handles.
    fn abandon(&mut self) {
        self.apply(ReleaseTransfer).expect("held by the transfer");
        let names: Vec<char> = self.handles.keys().copied().collect();
        for (at, &name) in names.iter().enumerate() {
            let call = [Release(name), Bury(name), Forget(name)][at % 3];
            self.apply(call).expect("alive");
        }
        let observed = self.observe();
        assert_eq!(observed.stats.num_sequences, 0);
        assert_eq!(
            self.available(),
            observed.stats.pool.num_blocks,
            "blocks are lost: {observed:?}"
        );
    }
}

/// How many blocks each call of the script takes where there are enough.
fn needs() -> Vec<u32> {
    let mut world = World::new(ENOUGH);
    let mut needs = Vec::new();
    for call in SCRIPT {
        let before = world.available();
        world.apply(call).expect("enough blocks");
        needs.push(before.saturating_sub(world.available()));
    }
    let stats = world.observe().stats;
    assert!(
        stats.num_copies >= 2 && stats.num_hit_tokens >= 12,
        "the script has lost its point: {stats:?}"
    );
    needs
}

#[test]
fn an_allocation_that_fails_leaves_no_trace() {
    let mut num_failures = 0;
    for (at, need) in needs().into_iter().enumerate() {
        for left in 0..need {
            let (mut world, mut twin) = (World::new(ENOUGH), World::new(ENOUGH));
            for &call in &SCRIPT[..at] {
                world.apply(call).expect("enough blocks");
                twin.apply(call).expect("enough blocks");
            }
            world.leave(left);
            twin.leave(left);
            let before = world.observe();
            let call = SCRIPT[at];
            let refused = world.apply(call);
            assert!(
                matches!(refused, Err(Error::OutOfBlocks { .. })),
                "{call:?} with {left} left: {refused:?}"
            );
            assert_eq!(world.observe(), before, "{call:?} with {left} left");
            num_failures += 1;
            for world in [&mut world, &mut twin] {
                world.apply(Release('~')).expect("alive");
            }
            for &call in &SCRIPT[at..] {
                world.apply(call).expect("enough blocks");
                twin.apply(call).expect("enough blocks");
                assert_eq!(world.observe(), twin.observe(), "{call:?}");
            }
            // The order in which the cached blocks go.
            while twin.manager.lock().expect("not poisoned").stats().num_idle > 0 {
                world.apply(Evict(1)).expect("consistent");
                twin.apply(Evict(1)).expect("consistent");
                assert_eq!(world.observe(), twin.observe());
            }
        }
    }
    eprintln!("{num_failures} allocations failed, one at a time");
    assert!(num_failures >= 30, "the script hardly allocates");
}

#[test]
fn a_pool_of_any_size_refuses_without_a_trace() {
    let mut num_refused = 0;
    for num_blocks in 1..=ENOUGH {
        let mut world = World::new(num_blocks);
        for call in SCRIPT {
            let before = world.observe();
            match world.apply(call) {
                Ok(()) => {}
                Err(Error::OutOfBlocks { .. } | Error::NeverFits { .. }) => {
                    assert_eq!(world.observe(), before, "{call:?} of {num_blocks} blocks");
                    num_refused += 1;
                }
                // After a call that was refused, the script may name what is not there.
                Err(Error::InvalidArgument { .. }) => {
                    assert_eq!(world.observe(), before, "{call:?}");
                }
                Err(error) => panic!("{call:?} of {num_blocks} blocks: {error}"),
            }
        }
        world.abandon();
    }
    assert!(num_refused >= 100, "only {num_refused} calls were refused");
}

#[test]
fn requests_that_are_abandoned_after_any_call_give_all_blocks_back() {
    for num_calls in 0..=SCRIPT.len() {
        let mut world = World::new(ENOUGH);
        for &call in &SCRIPT[..num_calls] {
            world.apply(call).expect("enough blocks");
        }
        world.abandon();
        world.apply(Evict(ENOUGH)).expect("consistent");
        let stats = world.observe().stats;
        assert_eq!((stats.pool.num_free, stats.num_idle), (ENOUGH, 0));
    }
}
