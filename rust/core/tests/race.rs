//! What holders write into their blocks, under the thread sanitizer: a missing ordering in the pool or the graveyard is a data
//! race on the payload. Run without it, too, where it checks the values only.
//!
//! The sanitizer does not see into the standard library, which is built without it. So there is no test harness, no scope and
//! no `Arc`: plain threads, and shared state that is leaked.

use std::cell::UnsafeCell;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::thread;

use looseleaf_core::{BlockId, BlockPool, Error, Graveyard, SeqId};

const NUM_THREADS: u64 = 3;
const NUM_BLOCKS: u32 = 4;
const NUM_SLOTS: u32 = 2;
/// Rounds per thread, unless the command line has another number. The sanitizer needs 2,000,000 to meet most races.
const DEFAULT_ROUNDS: u64 = 200_000;

/// Plain memory that belongs to a block or to a sequence slot.
struct Payload(UnsafeCell<u64>);

// SAFETY: shared on purpose. A block's payload is written by its one holder and read by its holders, a slot's is used by who
// has the sequence; that these never meet is what this target checks.
unsafe impl Sync for Payload {}

impl Payload {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u64) {
        // SAFETY: the caller is the one holder of the block, or has the sequence.
        unsafe { *self.0.get() = value }
    }

    fn read(&self) -> u64 {
        // SAFETY: the caller is a holder of the block, whose writer has finished, or has the sequence.
        unsafe { *self.0.get() }
    }
}

struct Shared {
    pool: BlockPool,
    block_payloads: Vec<Payload>,
    /// A reference to a block on its way from one thread to another; null if there is none.
    letter: AtomicU32,
    graveyard: Graveyard,
    slot_payloads: Vec<Payload>,
    /// A handle on its way to the thread that drops it; 0 if there is none.
    handle: AtomicI64,
    num_finished: AtomicU32,
}

fn main() -> ExitCode {
    if cfg!(looseleaf_loom) {
        return ExitCode::SUCCESS; // loom's atomics work inside a model only
    }
    let rounds = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(DEFAULT_ROUNDS);
    let shared: &'static Shared = Box::leak(Box::new(Shared {
        pool: BlockPool::new(NUM_BLOCKS).expect("a valid size"),
        block_payloads: (0..=NUM_BLOCKS).map(|_| Payload::new()).collect(),
        letter: AtomicU32::new(0),
        graveyard: Graveyard::new(NUM_SLOTS),
        slot_payloads: (0..NUM_SLOTS).map(|_| Payload::new()).collect(),
        handle: AtomicI64::new(0),
        num_finished: AtomicU32::new(0),
    }));
    // One is there before anybody begins, so that one is dropped however the threads are scheduled.
    issue(shared, SeqId::new(0, 1).expect("a sequence id"));
    let threads: Vec<_> = (1..=NUM_THREADS)
        .map(|thread| thread::spawn(move || hold_and_drop(shared, thread, rounds)))
        .collect();
    let num_drained = issue_and_drain(shared);
    let num_shared: u64 = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .sum();

    let letter = shared.letter.load(Ordering::Acquire);
    let mut counts = [0; NUM_BLOCKS as usize + 1];
    counts[letter as usize] = u32::from(letter != 0);
    shared
        .pool
        .validate(&counts)
        .expect("every block is in one place");
    assert!(
        num_shared > 0 && num_drained > 0,
        "nothing was shared or dropped"
    );
    eprintln!(
        "race: {rounds} rounds in {NUM_THREADS} threads, {num_shared} blocks shared, {num_drained} handles dropped"
    );
    ExitCode::SUCCESS
}

/// Writes into blocks of its own, shares some, reads what others have shared, drops handles. Returns how many it has shared.
fn hold_and_drop(shared: &Shared, thread: u64, rounds: u64) -> u64 {
    let payload = |block: BlockId| &shared.block_payloads[block.index()];
    let mut num_shared = 0;
    for round in 0..rounds {
        let value = round * (NUM_THREADS + 1) + thread;
        let mut room = [BlockId::NULL; 2];
        let blocks = &mut room[..=usize::from(round % 3 == 0)];
        let allocated = shared.pool.allocate(blocks);
        let is_short = matches!(allocated, Err(Error::OutOfBlocks { .. }));
        assert!(allocated.is_ok() || is_short, "{allocated:?}");
        if allocated.is_ok() {
            for &block in &*blocks {
                payload(block).write(value);
            }
            shared
                .pool
                .retain(&blocks[..1])
                .expect("the thread holds it");
            num_shared += 1;
            // Acquire and Release: the letter hands over what its block says.
            let received = shared.letter.swap(blocks[0].get(), Ordering::AcqRel);
            for &block in &*blocks {
                assert_eq!(
                    payload(block).read(),
                    value,
                    "{block} was written by somebody else"
                );
            }
            shared.pool.release(blocks).expect("the thread holds them");
            let received = BlockId::new(received).expect("a block id");
            if !received.is_null() {
                assert_ne!(payload(received).read(), 0, "{received} was never written");
                shared
                    .pool
                    .release(&[received])
                    .expect("the reference came with the letter");
            }
        }
        if let Some(sequence) = SeqId::from_handle(shared.handle.swap(0, Ordering::Acquire)) {
            shared.slot_payloads[sequence.index() as usize].write(value);
            shared.graveyard.bury(sequence);
            shared.graveyard.bury(sequence);
        }
    }
    shared.num_finished.fetch_add(1, Ordering::Release);
    num_shared
}

/// Issues sequences, hands out their handles, and takes back what was dropped, until the others have finished.
fn issue_and_drain(shared: &Shared) -> u64 {
    let mut vacant: Vec<SeqId> = (1..NUM_SLOTS)
        .filter_map(|index| SeqId::new(index, 1))
        .collect();
    let mut num_drained = 0;
    let mut has_finished = false;
    while !has_finished {
        // What was dropped before is drained once more.
        has_finished = u64::from(shared.num_finished.load(Ordering::Acquire)) == NUM_THREADS;
        shared.graveyard.drain(|sequence| {
            let payload = &shared.slot_payloads[sequence.index() as usize];
            assert_ne!(
                payload.read(),
                0,
                "{sequence:?} was drained before it was dropped"
            );
            payload.write(0);
            vacant.extend(SeqId::new(sequence.index(), sequence.generation() + 1));
            num_drained += 1;
        });
        if shared.handle.load(Ordering::Relaxed) == 0
            && let Some(sequence) = vacant.pop()
        {
            issue(shared, sequence);
        }
        thread::yield_now();
    }
    num_drained
}

fn issue(shared: &Shared, sequence: SeqId) {
    shared.graveyard.issue(sequence);
    shared.handle.store(sequence.to_handle(), Ordering::Release);
}
