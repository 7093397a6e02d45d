//! What the threads of a search do, and where they begin.
//!
//! The small scenarios have one block of content 0 and few others. The large ones choose programs from a menu for each start:
//! sequences that are admitted, forked, written, published and released, beside allocations, invalidations, and threads that hold
//! blocks without a sequence.

use super::Rules;
use super::blocks::DRAIN;
use super::model::{
    Block, List, MAX_BLOCKS, NUM_CONTENTS, NUM_PLACES, Place, Sequence, Shared, State, Step, Thread,
};
use crate::block::{BlockWord, Snapshot};

pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) start: State,
    pub(super) rules: Rules,
}

/// A program, and the blocks that its thread holds from the start.
type Program = (Vec<Step>, Vec<Block>);

/// Where a search begins: everything follows from tables, references, the tree and the idle order.
#[derive(Clone, Copy)]
struct Start {
    name: &'static str,
    num_blocks: u8,
    tables: [&'static [Block]; 2],
    tree: [Option<Block>; NUM_CONTENTS],
    /// Oldest first.
    idle: &'static [Block],
    /// Blocks held by a thread each, without a sequence.
    raw: &'static [Block],
}

impl Start {
    fn state(&self, programs: &[Program]) -> State {
        let mut shared = Shared {
            num_blocks: self.num_blocks,
            words: [BlockWord::new().snapshot(); MAX_BLOCKS],
            stack: List::default(),
            inbox: List::default(),
            graveyard: List::default(),
            idle: self.idle.iter().copied().collect(),
            credits: 0,
            mutex: None,
            tree: self.tree,
            holds: [0; MAX_BLOCKS],
            sequences: [Sequence::default(); NUM_PLACES],
            epoch: 0,
        };
        for (place, table) in self.tables.iter().enumerate() {
            let table: List = table.iter().copied().collect();
            shared.sequences[place].table = (!table.is_empty()).then_some(table);
        }
        let in_hands = programs.iter().flat_map(|(_, references)| references);
        let held: Vec<Block> = shared
            .tables()
            .flat_map(|table| table.to_vec())
            .chain(in_hands.copied())
            .collect();
        for block in 0..self.num_blocks {
            let count: u32 = held.iter().map(|&other| u32::from(other == block)).sum();
            let is_published = self.tree.contains(&Some(block));
            shared.words[usize::from(block)] = Snapshot::of(count, is_published, false, 0);
            if count == 0 && !is_published {
                shared.stack.push(block);
            }
            assert!(
                count > 0 || !is_published || self.idle.contains(&block),
                "block {block} is nowhere"
            );
        }
        shared.credits = u8::try_from(shared.stack.len() + shared.idle.len()).expect("few");
        let threads = programs
            .iter()
            .map(|(steps, references)| Thread::new(steps, references.iter().copied().collect()));
        State {
            shared,
            threads: threads.collect(),
        }
    }
}

fn locked(steps: &[Step]) -> Vec<Step> {
    [&[Step::Lock], DRAIN.as_slice(), steps, &[Step::Unlock]].concat()
}

fn admit(place: Place, num_new: u8) -> Vec<Step> {
    locked(&[Step::Admit(place, num_new)])
}

fn release(place: Place) -> Vec<Step> {
    locked(&[Step::ReleaseSequence(place)])
}

fn bury(place: Place) -> Vec<Step> {
    vec![Step::Bury(place)]
}

/// Acknowledges copies and publishes the first columns.
fn commit(place: Place, num_columns: usize) -> Vec<Step> {
    let mut steps = vec![Step::AcknowledgeAll(place)];
    steps.extend((0..num_columns).map(|column| Step::Publish(place, column)));
    locked(&steps)
}

fn acknowledge(place: Place) -> Vec<Step> {
    locked(&[Step::AcknowledgeAll(place)])
}

fn write(place: Place, column: usize) -> Vec<Step> {
    locked(&[Step::Write(place, column)])
}

fn fork(parent: Place, child: Place) -> Vec<Step> {
    locked(&[Step::Fork(parent, child)])
}

fn truncate(place: Place, keep: usize) -> Vec<Step> {
    locked(&[Step::Truncate(place, keep)])
}

fn drop_content(content: usize) -> Vec<Step> {
    locked(&[Step::UnpublishTree(content, false)])
}

fn drop_content_top_first(content: usize) -> Vec<Step> {
    locked(&[Step::UnpublishTree(content, true)])
}

fn evict(num_blocks: u8) -> Vec<Step> {
    locked(&[Step::EvictSome(num_blocks)])
}

fn pin(place: Place, column: usize) -> Vec<Step> {
    locked(&[Step::Pin(place, column)])
}

fn allocate(wanted: u8) -> Vec<Step> {
    vec![Step::Take(wanted), Step::AllOrNothing(wanted)]
}

fn allocate_and_release(wanted: u8) -> Vec<Step> {
    vec![Step::Take(wanted), Step::ReleaseAll]
}

fn let_go() -> Vec<Step> {
    vec![Step::ReleaseAll]
}

mod large;
mod small;

pub(super) use large::{large, sample};
pub(super) use small::small;
