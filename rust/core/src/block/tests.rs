//! One transition after the other.

use super::*;

/// Words to begin with, for tests.
impl From<Snapshot> for BlockWord {
    fn from(word: Snapshot) -> Self {
        Self(AtomicU64::new(word.0))
    }
}

impl Snapshot {
    pub(crate) fn of(count: u32, is_published: bool, is_queued: bool, generation: u32) -> Self {
        let flags = if is_published { PUBLISHED } else { 0 } | if is_queued { QUEUED } else { 0 };
        Self(u64::from(count) | flags | u64::from(generation) << GENERATION_SHIFT)
    }
}

fn word(bits: u64) -> BlockWord {
    BlockWord(AtomicU64::new(bits))
}

#[test]
fn a_block_is_claimed_shared_and_released() {
    let word = BlockWord::new();
    assert_eq!(word.claim(), Claimed::Done);
    assert_eq!(
        (word.snapshot().count(), word.snapshot().generation()),
        (1, 1)
    );
    assert_eq!(word.retain(), Retained::Done);
    assert_eq!(word.release(), Released::StillHeld);
    assert_eq!(word.release(), Released::PushToStack);
    assert_eq!(word.claim(), Claimed::Done);
    assert_eq!(
        (word.snapshot().count(), word.snapshot().generation()),
        (1, 2)
    );
}

#[test]
fn a_free_block_is_neither_retained_nor_released() {
    let word = BlockWord::new();
    assert_eq!(word.retain(), Retained::NotHeld);
    assert_eq!(word.release(), Released::NotHeld);
    assert_eq!(word.snapshot(), Snapshot(0));
}

#[test]
fn a_block_that_is_held_or_flagged_is_not_claimed() {
    for bits in [1, QUEUED, PUBLISHED, PUBLISHED | QUEUED | 1] {
        assert_eq!(word(bits).claim(), Claimed::NotFree(Snapshot(bits)));
    }
}

#[test]
fn a_full_count_stays_out_of_the_flags() {
    let word = word(COUNT_MASK - 1);
    assert_eq!(word.retain(), Retained::Done);
    assert_eq!(word.retain(), Retained::Full);
    assert_eq!(word.snapshot(), Snapshot(COUNT_MASK));
    assert_eq!(word.snapshot().count(), Snapshot::MAX_COUNT);
}

#[test]
fn the_generation_wraps_and_leaves_the_rest() {
    let word = word(u64::MAX << GENERATION_SHIFT);
    assert_eq!(word.claim(), Claimed::Done);
    assert_eq!(word.snapshot(), Snapshot(1));
}

#[test]
fn a_restored_block_has_its_one_holder_back() {
    let word = BlockWord::new();
    assert_eq!(word.claim(), Claimed::Done);
    let held = word.snapshot();
    assert_eq!(word.release(), Released::PushToStack);
    assert!(word.restore(true));
    assert_eq!(word.snapshot(), held);
}
