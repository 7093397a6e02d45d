//! One test for each kind of fault that was reported in public against systems of this sort, named after the property that
//! keeps it out. The references are the issues that described the kind.
#![cfg(not(looseleaf_loom))]

#[path = "regressions/allocations.rs"]
mod allocations;

use looseleaf_core::prefix::Namespace;
use looseleaf_core::{Admit, BlockId, BlockManager, Config, Counts, Error, Reserve, SeqId};

const PLAIN: &[u8] = &[1];

struct Engine {
    manager: BlockManager,
}

impl Engine {
    /// Blocks of four tokens.
    fn new(num_blocks: u32) -> Self {
        let config = Config::new(num_blocks, 4, 8, 1 << 20).expect("valid sizes");
        let manager = BlockManager::new(config.with_prefix_cache(11)).expect("valid sizes");
        Self { manager }
    }

    fn admit_in(&self, namespace: &[u8], tokens: &[i32]) -> Result<(i64, u32), Error> {
        let request = Admit {
            namespace,
            ..Admit::new(tokens)
        };
        let admission = self.manager.lock()?.admit(&request)?;
        Ok((admission.id.to_handle(), admission.num_cached))
    }

    fn admit(&self, tokens: &[i32]) -> Result<i64, Error> {
        self.admit_in(PLAIN, tokens).map(|(handle, _)| handle)
    }

    fn reserve(&self, handle: i64, tokens: &[i32]) -> Result<(), Error> {
        let handles = [handle];
        let request = if tokens.is_empty() {
            Reserve::new(&handles)
        } else {
            Reserve {
                num_new: Counts::Same(u32::try_from(tokens.len()).expect("few")),
                tokens: Some(tokens),
                ..Reserve::new(&handles)
            }
        };
        self.manager.lock()?.reserve(&request, None).map(drop)
    }

    fn commit(&self, handle: i64) -> Result<(), Error> {
        self.manager
            .lock()?
            .commit(&[handle], Counts::Default, None)
    }

    /// Admits a prompt and computes all of it.
    fn compute(&self, tokens: &[i32]) -> Result<i64, Error> {
        let handle = self.admit(tokens)?;
        self.reserve(handle, &[])?;
        self.commit(handle)?;
        Ok(handle)
    }

    fn release(&self, handle: i64) -> Result<(), Error> {
        self.manager.lock()?.release(&[handle])
    }

    fn blocks(&self, handle: i64) -> Result<Vec<BlockId>, Error> {
        self.manager.lock()?.blocks(handle)
    }

    fn hits(&self, tokens: &[i32]) -> Result<u32, Error> {
        Ok(self.manager.lock()?.lookup(&Admit::new(tokens))?.0)
    }

    /// (free, idle)
    fn unused(&self) -> Result<(u32, u32), Error> {
        let stats = self.manager.lock()?.stats();
        Ok((stats.pool.num_free, stats.num_idle))
    }

    fn validate(&self) -> Result<(), Error> {
        self.manager.lock()?.validate()
    }
}

fn range(first: i32, last: i32) -> Vec<i32> {
    (first..=last).collect()
}

/// NVIDIA/TensorRT-LLM#12667: a block that still stood in the free queue was pinned, and queued again when the pin ended.
/// vllm-project/vllm#42571 and ai-dynamo/dynamo#13398: a block named twice in one call was queued twice.
#[test]
fn a_block_enters_the_idle_list_once_however_it_was_held() -> Result<(), Error> {
    let engine = Engine::new(4);
    let handle = engine.compute(&range(1, 8))?;
    let blocks = engine.blocks(handle)?;
    engine.release(handle)?;
    assert_eq!(engine.unused()?, (2, 2));
    for _ in 0..3 {
        // Hit while idle, held by a transfer twice, let go of in one call that names it twice.
        let (again, _) = engine.admit_in(PLAIN, &range(1, 9))?;
        let twice = [blocks[0], blocks[0], blocks[1], blocks[1]];
        engine.manager.retain_blocks(&twice)?;
        engine.release(again)?;
        engine.manager.release_blocks(&twice)?;
        assert!(engine.manager.release_blocks(&blocks).is_err());
        engine.validate()?;
        assert_eq!(engine.unused()?, (2, 2));
    }
    // All there is, once each.
    let last = engine.admit(&range(50, 65))?;
    let mut all: Vec<u32> = engine
        .blocks(last)?
        .iter()
        .map(|block| block.get())
        .collect();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4]);
    assert!(matches!(engine.admit(&[1]), Err(Error::OutOfBlocks { .. })));
    Ok(())
}

/// Avarok-Cybersecurity/atlas#373: an eviction took a block that a sequence still read; an insertion kept the old node's block
/// and counted the new one's.
#[test]
fn what_the_cache_gives_up_a_sequence_keeps() -> Result<(), Error> {
    let engine = Engine::new(8);
    let (first, second) = (engine.admit(&range(1, 9))?, engine.admit(&range(1, 9))?);
    for handle in [first, second] {
        engine.reserve(handle, &[])?;
        engine.commit(handle)?;
    }
    // The second holds the canonical blocks now, its own are free.
    assert_eq!(engine.blocks(first)?[..2], engine.blocks(second)?[..2]);
    assert_eq!(engine.unused()?, (4, 0));
    engine.release(first)?;
    let held = engine.blocks(second)?;
    {
        let mut locked = engine.manager.lock()?;
        assert_eq!(locked.evict(8)?, 0, "nothing is idle");
        assert_eq!(locked.reset()?.num_held, 2);
    }
    let other = engine.admit(&range(20, 39))?;
    assert!(
        engine
            .blocks(other)?
            .iter()
            .all(|block| !held.contains(block))
    );
    engine.release(second)?;
    engine.release(other)?;
    assert_eq!(engine.unused()?, (8, 0));
    engine.validate()
}

/// sgl-project/sglang#16067: the references taken by a match were kept when the allocation behind it failed.
#[test]
fn a_match_whose_allocation_fails_holds_nothing() -> Result<(), Error> {
    let engine = Engine::new(6);
    let other = engine.admit(&[99])?;
    let holder = engine.compute(&range(1, 9))?;
    // Two hits that are held; then two that are idle, and are no room for the rest of their own prompt.
    for (requested, free, evictable) in [(4, 2, 0), (6, 3, 2)] {
        let expected = Error::OutOfBlocks {
            requested,
            free,
            evictable,
        };
        for _ in 0..10 {
            assert_eq!(engine.admit(&range(1, 24)), Err(expected.clone()));
            engine.validate()?;
        }
        engine.release(holder)?;
    }
    assert_eq!((engine.unused()?, engine.hits(&range(1, 9))?), ((3, 2), 8));
    engine.release(other)?;
    assert_eq!(engine.unused()?, (4, 2));
    Ok(())
}

/// sgl-project/sglang#35270, #6888 and #7130, NVIDIA/TensorRT-LLM#12834, xLLM-AI/xllm#829: counters of free and evictable
/// blocks drifted from the truth until an idle check ended the server.
#[test]
fn free_idle_and_held_blocks_are_all_blocks_after_every_call() -> Result<(), Error> {
    let engine = Engine::new(16);
    let check = |held: &[i64]| -> Result<(), Error> {
        let mut blocks: Vec<BlockId> = Vec::new();
        for &handle in held {
            blocks.extend(engine.blocks(handle)?);
        }
        blocks.sort_unstable();
        blocks.dedup();
        let (free, idle) = engine.unused()?;
        assert_eq!(free as usize + idle as usize + blocks.len(), 16);
        engine.validate()
    };
    for round in 0..40 {
        let prompt: Vec<i32> = range(1, 6 + round % 11);
        let first = engine.compute(&prompt)?;
        check(&[first])?;
        let fork = engine.manager.lock()?.fork(first)?.id.to_handle();
        check(&[first, fork])?;
        engine.reserve(fork, &[100 + round])?;
        engine.commit(fork)?;
        check(&[first, fork])?;
        engine.manager.lock()?.truncate(first, 3)?;
        check(&[first, fork])?;
        let second = engine.compute(&prompt)?;
        check(&[first, fork, second])?;
        engine.release(first)?;
        if let Some(id) = SeqId::from_handle(fork) {
            engine.manager.bury(id);
        }
        check(&[second])?;
        engine.release(second)?;
        check(&[])?;
    }
    Ok(())
}

/// NVIDIA/TensorRT-LLM#12542, #8813 and #12892: a block was evicted and written anew while a transfer, or the copy that a partial
/// match needs, still read it, so that a user read another's text.
#[test]
fn a_block_that_is_being_read_is_handed_to_nobody() -> Result<(), Error> {
    let engine = Engine::new(4);
    let parent = engine.compute(&range(1, 6))?;
    let source = engine.blocks(parent)?[1];
    let child = engine.manager.lock()?.fork(parent)?.id.to_handle();
    engine.reserve(child, &[70])?;
    assert_ne!(
        engine.blocks(child)?[1],
        source,
        "the child writes into a copy"
    );
    engine.release(parent)?;
    // Nobody's table has the source any more, its copy has not run: two blocks are in use, one is read.
    let refused = engine.admit(&range(50, 57));
    assert!(
        matches!(
            refused,
            Err(Error::OutOfBlocks {
                requested: 2,
                free: 1,
                ..
            })
        ),
        "{refused:?}"
    );
    engine.commit(child)?; // the copy has run
    let next = engine.admit(&range(50, 57))?;
    assert!(engine.blocks(next)?.contains(&source));
    engine.release(next)?;

    // The same for a transfer of cached blocks.
    let blocks = engine.blocks(child)?;
    engine.manager.retain_blocks(&blocks)?;
    engine.release(child)?;
    let next = engine.admit(&range(50, 57))?;
    assert!(
        engine
            .blocks(next)?
            .iter()
            .all(|block| !blocks.contains(block))
    );
    assert!(matches!(engine.admit(&[1]), Err(Error::OutOfBlocks { .. })));
    engine.manager.release_blocks(&blocks)?;
    engine.admit(&[1])?;
    engine.validate()
}

/// NVIDIA/TensorRT-LLM#17926: a commit took a snapshot, that evicted, and the eviction detached blocks of the request being
/// committed.
#[test]
fn a_commit_in_a_full_pool_evicts_nothing_and_keeps_its_own_blocks() -> Result<(), Error> {
    let engine = Engine::new(6);
    let late = engine.admit(&range(1, 12))?;
    let early = engine.compute(&range(1, 12))?;
    let canonical = engine.blocks(early)?;
    engine.release(early)?;
    assert_eq!(
        engine.unused()?,
        (0, 3),
        "full: three blocks in use, three idle"
    );
    engine.reserve(late, &[])?;
    let before = engine.manager.lock()?.stats();
    engine.commit(late)?;
    let after = engine.manager.lock()?.stats();
    assert_eq!(after.num_evicted, before.num_evicted);
    assert_eq!(engine.blocks(late)?, canonical, "adopted, all of them");
    assert_eq!(engine.unused()?, (3, 0));
    assert_eq!(engine.hits(&range(1, 13))?, 12);
    engine.validate()
}

/// NVIDIA/TensorRT-LLM#16019: a block that was used again kept links of its former life. #15018: blocks whose parent had gone
/// were served later.
#[test]
fn a_recycled_block_has_no_links_of_its_former_life() -> Result<(), Error> {
    let engine = Engine::new(3);
    let first = engine.compute(&range(1, 12))?;
    engine.release(first)?;
    // The leaf goes, then all, to other prompts that begin alike or not at all alike.
    let prompts = [
        [range(1, 8), range(90, 93)].concat(),
        range(40, 51),
        [range(1, 4), range(40, 47)].concat(),
        range(1, 12),
    ];
    for (at, prompt) in prompts.iter().enumerate() {
        let handle = engine.compute(prompt)?;
        engine.release(handle)?;
        assert_eq!(engine.hits(&[prompt.as_slice(), &[0]].concat())?, 12);
        for other in prompts.iter().take(at) {
            let common = prompt
                .iter()
                .zip(other)
                .take_while(|(one, two)| one == two)
                .count();
            let expected = u32::try_from(common / 4 * 4).expect("few");
            assert_eq!(
                engine.hits(&[other.as_slice(), &[0]].concat())?,
                expected,
                "{other:?} after {prompt:?}"
            );
        }
        engine.validate()?;
    }
    Ok(())
}

/// NVIDIA/TensorRT-LLM#12306: prompts with different pictures have the same placeholder tokens.
#[test]
fn the_same_placeholders_of_other_pictures_are_no_hit() -> Result<(), Error> {
    let engine = Engine::new(16);
    let picture = |digest: &[u8]| Namespace::builder().named("image", digest).build();
    let (cat, dog) = (picture(b"cat")?, picture(b"dog")?);
    let prompt = [vec![32_000; 8], range(1, 5)].concat();
    let (handle, _) = engine.admit_in(cat.as_bytes(), &prompt)?;
    engine.reserve(handle, &[])?;
    engine.commit(handle)?;
    let (_, same) = engine.admit_in(cat.as_bytes(), &prompt)?;
    let (_, other) = engine.admit_in(dog.as_bytes(), &prompt)?;
    let (_, none) = engine.admit_in(PLAIN, &prompt)?;
    assert_eq!((same, other, none), (12, 0, 0));
    engine.validate()
}

/// ovg-project/kvcached#371, LMCache/LMCache#2823, NVIDIA/TensorRT-LLM#9311: a destructor that runs inside a call waited for the
/// lock which that call held.
#[test]
fn what_ends_inside_a_call_waits_for_no_lock() -> Result<(), Error> {
    let engine = Engine::new(4);
    let handle = engine.compute(&range(1, 8))?;
    let blocks = engine.blocks(handle)?;
    engine.manager.retain_blocks(&blocks)?;
    let id = SeqId::from_handle(handle).expect("issued");
    {
        let mut locked = engine.manager.lock()?;
        engine.manager.bury(id);
        engine.manager.release_blocks(&blocks)?;
        locked.validate()?;
    }
    assert_eq!(engine.unused()?, (2, 2));
    Ok(())
}

/// sgl-project/sglang#37584: of two implementations of one thing, one did nothing and nobody saw. Here a step of one token each
/// has a way of its own beside the general one.
#[test]
fn a_decode_step_does_what_the_general_step_does() -> Result<(), Error> {
    let engines = [Engine::new(12), Engine::new(12)];
    let mut alive: Vec<i64> = Vec::new();
    for round in 0..60_i32 {
        let mut answers = Vec::new();
        for (engine, is_general) in engines.iter().zip([false, true]) {
            let mut locked = engine.manager.lock()?;
            let tokens: Vec<i32> = alive.iter().map(|_| round % 3).collect();
            let ones = vec![1; alive.len()];
            let request = Reserve {
                num_new: if is_general {
                    Counts::Each(&ones)
                } else {
                    Counts::Same(1)
                },
                tokens: Some(&tokens),
                ..Reserve::new(&alive)
            };
            let served = locked.reserve(&request, None);
            if served.is_ok() {
                locked.commit(&alive, Counts::Default, None)?;
            }
            if round % 7 == 3 && !alive.is_empty() {
                locked.release(&alive[..1])?;
            }
            let new = match round % 5 {
                0 => locked
                    .admit(&Admit::new(&[5; 5]))
                    .map(|admission| admission.id.to_handle()),
                2 if !alive.is_empty() => {
                    let parent = alive[alive.len() - 1];
                    locked
                        .fork(parent)
                        .map(|admission| admission.id.to_handle())
                }
                _ => Err(Error::EmptyPrompt),
            };
            locked.validate()?;
            answers.push((served, new, locked.stats()));
        }
        assert_eq!(answers[0], answers[1]);
        if round % 7 == 3 && !alive.is_empty() {
            alive.remove(0);
        }
        if let Ok(handle) = answers[0].1 {
            for engine in &engines {
                engine.reserve(handle, &[]).ok();
                engine.commit(handle)?;
            }
            alive.push(handle);
        }
        for &handle in &alive {
            assert_eq!(engines[0].blocks(handle), engines[1].blocks(handle));
        }
    }
    assert!(engines[0].manager.lock()?.stats().num_copies > 0);
    Ok(())
}
