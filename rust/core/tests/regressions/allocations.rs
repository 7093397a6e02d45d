//! Work that grows faster than it should shows in what the calls ask of the system's allocator: a copied match, a rebuilt heap.
//! Counted, not timed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::{Engine, range};
use looseleaf_core::{Admit, Error};

struct Counting;

thread_local! {
    static NUM_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(num_bytes: usize) {
    // Nothing is counted while the thread ends.
    let _ = NUM_BYTES.try_with(|total| total.set(total.get() + num_bytes));
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the contract of `dealloc`; the memory is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        // SAFETY: the caller keeps to the contract of `realloc`; the memory is the system allocator's.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn num_bytes(work: impl FnOnce()) -> usize {
    let before = NUM_BYTES.get();
    work();
    NUM_BYTES.get() - before
}

/// NVIDIA/TensorRT-LLM#17848: for each block of a prompt, the vector of all matches so far was copied. #14499 and
/// ai-dynamo/dynamo#11013: work per request that grew with the square of its blocks.
#[test]
fn a_prompt_twice_as_long_costs_twice_the_memory_traffic() -> Result<(), Error> {
    let cost = |num_blocks: i32| -> Result<[usize; 4], Error> {
        let engine = Engine::new(3 * num_blocks.unsigned_abs());
        let prompt = range(1, 4 * num_blocks);
        let compute = num_bytes(|| drop(engine.compute(&prompt)));
        // The same with all but the last block found, and adopted at once; with a suffix of its own; given up.
        let hit = num_bytes(|| drop(engine.compute(&prompt)));
        let longer = [prompt, range(1, 4 * num_blocks)].concat();
        let go_on = num_bytes(|| drop(engine.compute(&longer)));
        let drop_all = num_bytes(|| {
            let dropped = engine.manager.lock().map(|mut locked| locked.reset());
            assert!(dropped.is_ok());
        });
        engine.validate()?;
        Ok([compute, hit, go_on, drop_all])
    };
    let (short, long) = (cost(1_000)?, cost(2_000)?);
    for (short, long) in short.into_iter().zip(long) {
        assert!(
            long <= 3 * short + 4_096,
            "{short} bytes for 1,000 blocks, {long} for 2,000"
        );
    }
    assert!(short[0] > 10_000, "nothing is counted: {short:?}");
    Ok(())
}

/// sgl-project/sglang#14339 and #38454, sgl-project/sglang-omni#1723: every eviction collected all leaves of the tree into a heap,
/// 70 ms for 41,000 of them.
#[test]
fn an_eviction_costs_the_same_among_few_leaves_and_many() -> Result<(), Error> {
    let cost = |num_leaves: i32| -> Result<usize, Error> {
        let engine = Engine::new(num_leaves.unsigned_abs());
        // The places that are used below have room for their tokens from now on.
        let places = [
            engine.admit(&[1])?,
            engine.admit(&[1])?,
            engine.admit(&[1])?,
        ];
        engine.manager.lock()?.release(&places)?;
        for leaf in 0..num_leaves {
            let handle = engine.compute(&[leaf; 4])?;
            engine.release(handle)?;
        }
        assert_eq!(engine.unused()?, (0, num_leaves.unsigned_abs()));
        let mut handles = Vec::with_capacity(2);
        // The first makes room for its scratch, the second is counted.
        let mut evict = || -> Result<(), Error> {
            let admission = engine.manager.lock()?.admit(&Admit::new(&[i32::MAX; 4]))?;
            handles.push(admission.id.to_handle());
            engine.manager.lock()?.release(&handles)?;
            handles.clear();
            Ok(())
        };
        evict()?;
        // What it took has come back free: take that away, so that the next has to evict.
        let hog = engine.admit(&[1])?;
        let bytes = num_bytes(|| assert!(evict().is_ok()));
        engine.release(hog)?;
        assert_eq!(engine.manager.lock()?.stats().num_evicted, 2);
        engine.validate()?;
        Ok(bytes)
    };
    let (few, many) = (cost(40)?, cost(41_000)?);
    assert_eq!(
        few, many,
        "bytes for an eviction among 40 leaves and among 41,000"
    );
    Ok(())
}
