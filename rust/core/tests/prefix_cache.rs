//! The prefix cache through the manager: what is found, adopted, evicted and dropped.
#![cfg(not(looseleaf_loom))]

use looseleaf_core::prefix::Namespace;
use looseleaf_core::{Admit, BlockManager, Config, Counts, Error, LookupReason, Reserve};

const PLAIN: &[u8] = &[1];

struct Cache {
    manager: BlockManager,
}

impl Cache {
    fn new(num_blocks: u32) -> Self {
        let config = Config::new(num_blocks, 4, 8, 64).expect("valid sizes");
        let manager = BlockManager::new(config.with_prefix_cache(7)).expect("valid sizes");
        Self { manager }
    }

    fn try_admit(&self, tokens: &[i32], namespace: &[u8]) -> Result<(i64, u32), Error> {
        let mut locked = self.manager.lock().expect("not poisoned");
        let request = Admit {
            namespace,
            ..Admit::new(tokens)
        };
        let can = locked.can_admit_prompt(&request, 0).expect("consistent");
        let admission = locked.admit(&request);
        assert_eq!(can, admission.is_ok());
        locked.validate().expect("consistent");
        admission.map(|admission| (admission.id.to_handle(), admission.num_cached))
    }

    fn admit(&self, tokens: &[i32]) -> i64 {
        self.try_admit(tokens, PLAIN).expect("room").0
    }

    /// Computes all that is known.
    fn compute(&self, handle: i64) {
        let mut locked = self.manager.lock().expect("not poisoned");
        locked
            .reserve(&Reserve::new(&[handle]), None)
            .expect("room");
        locked
            .commit(&[handle], Counts::Default, None)
            .expect("reserved");
        locked.validate().expect("consistent");
    }

    fn compute_to(&self, handle: i64, num_computed: u32) {
        let mut locked = self.manager.lock().expect("not poisoned");
        locked
            .reserve(&Reserve::new(&[handle]), None)
            .expect("room");
        locked
            .commit(&[handle], Counts::Same(num_computed), None)
            .expect("reserved");
        locked.validate().expect("consistent");
    }

    fn append(&self, handle: i64, token: i32) {
        let mut locked = self.manager.lock().expect("not poisoned");
        let handles = [handle];
        let request = Reserve {
            num_new: Counts::Same(1),
            tokens: Some(&[token]),
            ..Reserve::new(&handles)
        };
        locked.reserve(&request, None).expect("room");
        locked
            .commit(&[handle], Counts::Default, None)
            .expect("reserved");
        locked.validate().expect("consistent");
    }

    fn release(&self, handle: i64) {
        let mut locked = self.manager.lock().expect("not poisoned");
        locked.release(&[handle]).expect("alive");
        locked.validate().expect("consistent");
    }

    /// Computes a prompt and lets go of it.
    fn cache(&self, tokens: &[i32]) {
        let handle = self.admit(tokens);
        self.compute(handle);
        self.release(handle);
    }

    fn lookup_in(&self, tokens: &[i32], namespace: &[u8]) -> (u32, LookupReason) {
        let request = Admit {
            namespace,
            ..Admit::new(tokens)
        };
        self.manager
            .lock()
            .expect("not poisoned")
            .lookup(&request)
            .expect("a valid prompt")
    }

    fn hits(&self, tokens: &[i32]) -> u32 {
        self.lookup_in(tokens, PLAIN).0
    }

    /// (free, idle)
    fn free(&self) -> (u32, u32) {
        let stats = self.manager.lock().expect("not poisoned").stats();
        (stats.pool.num_free, stats.num_idle)
    }

    fn blocks(&self, handle: i64) -> Vec<u32> {
        let locked = self.manager.lock().expect("not poisoned");
        let blocks = locked.blocks(handle).expect("alive");
        blocks
            .into_iter()
            .map(looseleaf_core::BlockId::get)
            .collect()
    }
}

fn range(first: i32, last: i32) -> Vec<i32> {
    (first..=last).collect()
}

#[test]
fn a_failed_admission_leaves_hits_and_counts_as_they_were() {
    let cache = Cache::new(6);
    let other = cache.admit(&range(50, 57));
    let first = cache.admit(&range(1, 8));
    cache.compute(first);
    let refused = cache.try_admit(&range(1, 20), PLAIN);
    assert_eq!(
        refused,
        Err(Error::OutOfBlocks {
            requested: 3,
            free: 2,
            evictable: 0
        })
    );
    assert_eq!(cache.free(), (2, 0));
    cache.release(first);
    assert_eq!(cache.free(), (2, 2));
    cache.release(other);
}

#[test]
fn idle_hits_are_not_spare_capacity() {
    let cache = Cache::new(6);
    let other = cache.admit(&[99]);
    cache.cache(&range(1, 8));
    assert_eq!(cache.free(), (3, 2));
    let refused = cache.try_admit(&range(1, 24), PLAIN);
    assert_eq!(
        refused,
        Err(Error::OutOfBlocks {
            requested: 6,
            free: 3,
            evictable: 2
        })
    );
    assert_eq!((cache.free(), cache.hits(&range(1, 24))), ((3, 2), 8));
    let (handle, num_cached) = cache.try_admit(&range(1, 20), PLAIN).expect("just enough");
    assert_eq!((num_cached, cache.free()), (8, (0, 0)));
    cache.release(handle);
    cache.release(other);
}

#[test]
fn a_held_hit_costs_nothing() {
    let cache = Cache::new(4);
    let first = cache.admit(&range(1, 9));
    cache.compute(first);
    assert_eq!(cache.free(), (1, 0));
    let (second, num_cached) = cache.try_admit(&range(1, 9), PLAIN).expect("one new block");
    assert_eq!((num_cached, cache.free()), (8, (0, 0)));
    assert_eq!(cache.blocks(first)[..2], cache.blocks(second)[..2]);
}

#[test]
fn a_lookup_never_returns_the_whole_prompt() {
    let cache = Cache::new(8);
    cache.cache(&range(1, 8));
    assert_eq!(
        cache.lookup_in(&range(1, 8), PLAIN),
        (4, LookupReason::Capped)
    );
    assert_eq!(
        cache.lookup_in(&range(1, 9), PLAIN),
        (8, LookupReason::Capped)
    );
    assert_eq!(
        cache.lookup_in(&range(1, 4), PLAIN),
        (0, LookupReason::Capped)
    );
    assert_eq!(
        cache.lookup_in(&range(1, 14), PLAIN),
        (8, LookupReason::NoEntry)
    );
    assert_eq!(
        cache.lookup_in(&range(2, 14), PLAIN),
        (0, LookupReason::NoEntry)
    );
}

#[test]
fn a_recycled_block_forgets_its_old_content() {
    let cache = Cache::new(3);
    cache.cache(&[1, 2, 3, 4, 9]);
    assert_eq!(cache.hits(&[1, 2, 3, 4, 5]), 4);
    cache.cache(&range(100, 111));
    assert_eq!(cache.hits(&[1, 2, 3, 4, 5]), 0);
}

#[test]
fn namespaces_never_meet() {
    let cache = Cache::new(16);
    let space = |salt: &str, adapter: &str| {
        let mut builder = Namespace::builder();
        if !salt.is_empty() {
            builder = builder.salt(salt);
        }
        if !adapter.is_empty() {
            builder = builder.adapter(adapter, "1");
        }
        builder.build().expect("valid parts")
    };
    let adapter = space("", "S");
    let (handle, _) = cache
        .try_admit(&range(1, 8), adapter.as_bytes())
        .expect("room");
    cache.compute(handle);
    cache.release(handle);
    assert_eq!(
        cache.lookup_in(&range(1, 9), adapter.as_bytes()),
        (8, LookupReason::Capped)
    );
    assert_eq!(
        cache.lookup_in(&range(1, 9), space("S", "").as_bytes()),
        (0, LookupReason::Namespace)
    );
    assert_eq!(
        cache.lookup_in(&range(1, 9), PLAIN),
        (0, LookupReason::Namespace)
    );
}

#[test]
fn only_computed_full_blocks_are_published() {
    for (num_computed, hits) in [(3, 0), (6, 4), (8, 8)] {
        let cache = Cache::new(8);
        let handle = cache.admit(&range(1, 9));
        cache.compute_to(handle, num_computed);
        assert_eq!(cache.hits(&range(1, 9)), hits, "after {num_computed}");
    }
}

#[test]
fn the_tail_of_a_sequence_goes_first() {
    for round in 0..200 {
        let cache = Cache::new(3);
        // Other orders of the free stack, other ids.
        let spare: Vec<i64> = (0..round % 3).map(|_| cache.admit(&[1])).collect();
        for handle in spare {
            cache.release(handle);
        }
        cache.cache(&range(1, 12));
        let one = cache.admit(&[77]);
        assert_eq!(cache.hits(&[range(1, 12), vec![0]].concat()), 8);
        cache.release(one);
    }
}

#[test]
fn live_blocks_are_never_evicted() {
    let cache = Cache::new(4);
    let alive = cache.admit(&range(1, 8));
    cache.compute(alive);
    let before = cache.blocks(alive);
    let dropped = cache
        .manager
        .lock()
        .expect("not poisoned")
        .reset()
        .expect("consistent");
    assert_eq!((dropped.num_dropped, dropped.num_held), (2, 2));
    let new = [cache.admit(&[50]), cache.admit(&[60])];
    assert!(matches!(
        cache.try_admit(&[70], PLAIN),
        Err(Error::OutOfBlocks { .. })
    ));
    for handle in new {
        assert!(
            cache
                .blocks(handle)
                .iter()
                .all(|block| !before.contains(block))
        );
    }
    assert_eq!(cache.blocks(alive), before);
    cache.release(alive);
    assert_eq!(cache.free(), (2, 0));
    assert_eq!(cache.hits(&range(1, 8)), 0);
}

#[test]
fn generated_tokens_are_found_like_prompt_tokens() {
    let cache = Cache::new(8);
    let handle = cache.admit(&range(1, 6));
    cache.compute(handle);
    for token in 7..=12 {
        cache.append(handle, token);
    }
    cache.release(handle);
    assert_eq!(cache.hits(&range(1, 13)), 12);
}

#[test]
fn a_duplicate_adopts_the_canonical_block() {
    let cache = Cache::new(8);
    let (first, second) = (cache.admit(&range(1, 9)), cache.admit(&range(1, 9)));
    cache.compute(first);
    assert_eq!(cache.free(), (2, 0));
    cache.compute(second);
    assert_eq!(cache.blocks(first)[..2], cache.blocks(second)[..2]);
    assert_ne!(cache.blocks(first)[2], cache.blocks(second)[2]);
    assert_eq!(cache.free(), (4, 0));
}

#[test]
fn a_duplicate_of_idle_content_needs_a_credit_to_adopt() {
    let cache = Cache::new(4);
    let late = cache.admit(&range(1, 8));
    cache.cache(&range(1, 8));
    assert_eq!(cache.free(), (0, 2));
    cache.compute(late);
    // Adopted both: the idle blocks are held now, the own ones are free.
    assert_eq!(cache.free(), (2, 0));
}

#[test]
fn a_write_into_a_published_block_copies_it() {
    let cache = Cache::new(8);
    let handle = cache.admit(&range(1, 8));
    cache.compute(handle);
    let published = cache.blocks(handle);
    {
        let mut locked = cache.manager.lock().expect("not poisoned");
        locked.truncate(handle, 6).expect("longer");
        locked.validate().expect("consistent");
    }
    cache.append(handle, 70);
    let now = cache.blocks(handle);
    assert_eq!(now[0], published[0]);
    assert_ne!(now[1], published[1]);
    assert_eq!(
        cache.hits(&range(1, 9)),
        8,
        "the old content is still cached"
    );
    cache.append(handle, 80);
    assert_eq!(
        cache.hits(&[1, 2, 3, 4, 5, 6, 70, 80, 0]),
        8,
        "the new content as well"
    );
}

#[test]
fn what_was_admitted_before_an_invalidation_is_never_found_after_it() {
    let cache = Cache::new(16);
    let old = cache.admit(&range(1, 9));
    cache.compute_to(old, 4);
    let fork = {
        let mut locked = cache.manager.lock().expect("not poisoned");
        let dropped = locked.invalidate(PLAIN).expect("consistent");
        assert_eq!((dropped.num_dropped, dropped.num_held), (1, 1));
        locked.fork(old).expect("room").id.to_handle()
    };
    cache.compute(old);
    cache.compute(fork);
    assert_eq!(cache.hits(&range(1, 9)), 0);
    let new = cache.admit(&range(1, 9));
    cache.compute(new);
    assert_eq!(cache.hits(&range(1, 9)), 8);
    for handle in [old, fork, new] {
        cache.release(handle);
    }
    assert_eq!(cache.free(), (14, 2));
}

#[test]
fn evicting_frees_the_oldest_first() {
    let cache = Cache::new(8);
    cache.cache(&range(1, 4));
    cache.cache(&range(11, 14));
    assert_eq!(cache.free(), (6, 2));
    assert_eq!(cache.manager.lock().expect("not poisoned").evict(1), Ok(1));
    assert_eq!(
        (cache.hits(&range(1, 5)), cache.hits(&range(11, 15))),
        (0, 4)
    );
    assert_eq!(cache.manager.lock().expect("not poisoned").evict(9), Ok(1));
    assert_eq!(cache.free(), (8, 0));
}

#[test]
fn an_admission_without_cache_neither_hits_nor_publishes() {
    let cache = Cache::new(8);
    cache.cache(&range(1, 4));
    let mut locked = cache.manager.lock().expect("not poisoned");
    let tokens = range(1, 8);
    let request = Admit {
        cache: false,
        ..Admit::new(&tokens)
    };
    assert_eq!(locked.lookup(&request), Ok((0, LookupReason::Disabled)));
    let admission = locked.admit(&request).expect("room");
    assert_eq!(admission.num_cached, 0);
    drop(locked);
    cache.compute(admission.id.to_handle());
    assert_eq!(cache.hits(&range(1, 9)), 4);
}

#[test]
fn a_release_without_cache_drops_what_the_sequence_added() {
    let cache = Cache::new(8);
    cache.cache(&range(1, 4));
    let handle = cache.admit(&range(1, 9));
    cache.compute(handle);
    let mut locked = cache.manager.lock().expect("not poisoned");
    locked.release_with(&[handle], false).expect("alive");
    locked.validate().expect("consistent");
    drop(locked);
    assert_eq!(cache.hits(&range(1, 9)), 4, "its admission hit stays");
    assert_eq!(cache.free(), (7, 1));
}
