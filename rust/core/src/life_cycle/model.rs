//! The state that the search walks through: the words are those of the code, everything around them is plain.

use crate::block::{BlockWord, Snapshot};

pub(super) type Block = u8;
pub(super) type Place = usize;

pub(super) const MAX_BLOCKS: usize = 5;
pub(super) const NUM_PLACES: usize = 4;
pub(super) const NUM_CONTENTS: usize = 4;

/// The contents that blocks can have: 0 is followed by 1 and 3, and 1 by 2.
pub(super) const PARENTS: [Option<usize>; NUM_CONTENTS] = [None, Some(0), Some(1), Some(0)];

/// A few blocks, sequences or contents, without memory of its own.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct List {
    len: u8,
    items: [u8; 6],
}

impl List {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.items[..usize::from(self.len)]
    }

    pub(super) fn push(&mut self, item: u8) {
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<u8> {
        let item = *self.as_slice().last()?;
        self.len -= 1;
        self.items[usize::from(self.len)] = 0; // so that equal lists are equal bytes
        Some(item)
    }

    /// Takes the first occurrence out.
    pub(super) fn remove(&mut self, item: u8) -> bool {
        let Some(at) = self.as_slice().iter().position(|&other| other == item) else {
            return false;
        };
        self.items.copy_within(at + 1.., at);
        self.len -= 1;
        self.items[usize::from(self.len)] = 0;
        true
    }

    pub(super) fn replace(&mut self, at: usize, item: u8) -> u8 {
        std::mem::replace(&mut self.items[at], item)
    }

    pub(super) fn count(self, item: u8) -> usize {
        let matches = self
            .as_slice()
            .iter()
            .map(|&other| usize::from(other == item));
        matches.sum()
    }
}

impl FromIterator<u8> for List {
    fn from_iter<T: IntoIterator<Item = u8>>(items: T) -> Self {
        let mut list = Self::default();
        items.into_iter().for_each(|item| list.push(item));
        list
    }
}

impl std::ops::Deref for List {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// What is known of the sequence in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sequence {
    pub(super) table: Option<List>,
    /// Sources of copies that are not acknowledged.
    pub(super) held: List,
    /// Has stopped publishing.
    pub(super) is_stopped: bool,
    /// The epoch of its admission, or its parent's.
    pub(super) epoch: u8,
}

/// Everything that threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shared {
    pub(super) num_blocks: u8,
    pub(super) words: [Snapshot; MAX_BLOCKS],
    /// Topmost last.
    pub(super) stack: List,
    /// Oldest first, as are the next two.
    pub(super) inbox: List,
    pub(super) graveyard: List,
    pub(super) idle: List,
    pub(super) credits: u8,
    /// The thread that holds the mutex.
    pub(super) mutex: Option<u8>,
    /// The canonical block of each content.
    pub(super) tree: [Option<Block>; NUM_CONTENTS],
    /// Copies that read each block.
    pub(super) holds: [u8; MAX_BLOCKS],
    pub(super) sequences: [Sequence; NUM_PLACES],
    pub(super) epoch: u8,
}

impl Shared {
    /// Changes a word by a transition of the code.
    pub(super) fn word<T>(&mut self, block: Block, transition: impl FnOnce(&BlockWord) -> T) -> T {
        let word = BlockWord::from(self.words[usize::from(block)]);
        let answer = transition(&word);
        self.words[usize::from(block)] = word.snapshot();
        answer
    }

    pub(super) fn at(&self, block: Block) -> Snapshot {
        self.words[usize::from(block)]
    }

    /// Changes a word as no code does: for mutants.
    pub(super) fn force(&mut self, block: Block, count: u32, is_published: bool, is_queued: bool) {
        let generation = self.at(block).generation();
        self.words[usize::from(block)] = Snapshot::of(count, is_published, is_queued, generation);
    }

    pub(super) fn content_of(&self, block: Block) -> Option<usize> {
        self.tree
            .iter()
            .position(|&canonical| canonical == Some(block))
    }

    /// Published blocks strictly below a content, deepest first.
    pub(super) fn below(&self, content: usize) -> List {
        let mut below = List::default();
        for child in (0..NUM_CONTENTS).filter(|&child| PARENTS[child] == Some(content)) {
            self.below(child)
                .iter()
                .for_each(|&block| below.push(block));
            self.tree[child]
                .into_iter()
                .for_each(|block| below.push(block));
        }
        below
    }

    pub(super) fn tables(&self) -> impl Iterator<Item = &List> {
        self.sequences
            .iter()
            .filter_map(|sequence| sequence.table.as_ref())
    }
}

/// One thread: what it has still to do, the next step last, and what it has in hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) todo: Vec<Step>,
    pub(super) references: List,
    /// Credits taken whose blocks are not found yet.
    pub(super) promised: u8,
    /// Blocks on the way from the idle list to the stack, whose credits stay.
    pub(super) moving: u8,
}

impl Thread {
    pub(super) fn new(program: &[Step], references: List) -> Self {
        let mut thread = Self {
            todo: Vec::new(),
            references,
            promised: 0,
            moving: 0,
        };
        thread.then(program);
        thread
    }

    /// Does these steps next.
    pub(super) fn then(&mut self, steps: &[Step]) {
        self.todo.extend(steps.iter().rev());
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) shared: Shared,
    pub(super) threads: Vec<Thread>,
}

/// Where a new block goes: into a table, or into the thread's hands.
pub(super) type Target = Option<Place>;

/// What a thread does at once, seen by all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Lock,
    Unlock,
    // Without the mutex.
    Retain(Block),
    Release(Block),
    /// Releases what the thread holds, last first.
    ReleaseAll,
    /// Two steps in place of one: for a mutant.
    Mark(Block),
    PushToInbox(Block),
    PushToStack(Block),
    /// Without the credit: for a mutant.
    PushAlone(Block),
    Credit,
    Bury(Place),
    Take(u8),
    Pop(u8, Target),
    Claim(Block, Target),
    /// The thread holds so many blocks, or none.
    AllOrNothing(u8),
    // Under the mutex from here on.
    TakeLocked(u8),
    PopLocked(u8, Target),
    TakeIdle(u8, Target),
    Evict(Block, Target),
    DrainGraveyard,
    DrainInbox,
    Drain(Block),
    /// A drain in two steps: for a mutant.
    DrainSeen(Block, u32),
    Pin(Place, usize),
    // On a block by its number: the block that a hit, a publication or an invalidation means.
    HitBlock(Block),
    HitIdleBlock(Block),
    PublishBlock(Block),
    UnpublishBlock(Block),
    // On sequences.
    ReleaseSequence(Place),
    ReleaseTail(Place),
    ReleaseHead(Place),
    ReleaseReference(Block),
    End(Place),
    Acknowledge(Place),
    AcknowledgeAll(Place),
    Truncate(Place, usize),
    Fork(Place, Place),
    Share(Place, Block),
    /// Admission with so many new blocks.
    Admit(Place, u8),
    Hit(Place, Block, bool),
    Publish(Place, usize),
    AdoptShared(Place, usize, Block),
    AdoptIdle(Place, usize, Block),
    Unpublish(Block),
    /// All below a content and itself; top first if so.
    UnpublishTree(usize, bool),
    EvictSome(u8),
    Restack(Block),
    Write(Place, usize),
    HoldSource(Place, usize),
    Exchange(Place, usize),
}
