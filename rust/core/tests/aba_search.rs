//! Every interleaving of a few pops and pushes, over a model of the free stack in which each access to shared memory is a
//! step (sequential consistency; loom looks at the orderings). With tags nothing is found; without, or with too few bits, the
//! search must find the block that two threads own.
#![cfg(not(looseleaf_loom))]

use std::collections::HashSet;

const NUM_BLOCKS: usize = 4;
const NIL: usize = 0;

/// What a thread calls, with a number of blocks.
#[derive(Debug, Clone, Copy)]
enum Call {
    Pop(usize),
    /// Of the blocks that the thread holds, those it has held longest.
    Push(usize),
}
use Call::{Pop, Push};

/// What a thread does next within its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Begin,
    /// Push: writes the link from this block of the chain to the next.
    Chain(usize),
    ReadHead,
    /// Pop: reads the link of a block.
    Walk(usize),
    /// Push: writes the link of the chain's last block.
    Hang,
    /// Makes a block the top, if the head is still what was read.
    Exchange(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Head {
    tag: u32,
    top: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Thread {
    num_calls_done: usize,
    step: Step,
    /// The head as this thread has read it, and the fewest blocks that the stack has had since.
    head: Head,
    fewest: usize,
    /// Pop: the blocks that the walk has passed.
    walked: Vec<usize>,
    held: Vec<usize>,
}

impl Thread {
    fn end_call(&mut self) {
        self.num_calls_done += 1;
        self.step = Step::Begin;
        self.walked.clear();
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    head: Head,
    links: [usize; NUM_BLOCKS + 1],
    num_free: usize,
    threads: Vec<Thread>,
    /// Pops that found too few blocks; of these, those during which there were always enough.
    num_refused: usize,
    num_refused_wrongly: usize,
}

impl State {
    fn new(num_threads: usize) -> Self {
        let head = Head { tag: 0, top: 1 };
        let thread = Thread {
            num_calls_done: 0,
            step: Step::Begin,
            head,
            fewest: NUM_BLOCKS,
            walked: Vec::new(),
            held: Vec::new(),
        };
        Self {
            head,
            links: std::array::from_fn(|block| if block < NUM_BLOCKS { block + 1 } else { NIL }),
            num_free: NUM_BLOCKS,
            threads: vec![thread; num_threads],
            num_refused: 0,
            num_refused_wrongly: 0,
        }
    }

    /// Takes one step of a thread; `false` if it has finished.
    fn advance(&mut self, index: usize, script: &[Call], num_tags: u32) -> bool {
        let thread = &mut self.threads[index];
        let Some(&call) = script.get(thread.num_calls_done) else {
            return false;
        };
        match (call, thread.step) {
            (Push(wanted), Step::Begin) if wanted > thread.held.len() => thread.end_call(), // refused before
            (Push(wanted), Step::Begin) if wanted > 1 => thread.step = Step::Chain(0),
            (Push(wanted), Step::Chain(position)) => {
                self.links[thread.held[position]] = thread.held[position + 1];
                let is_last = position + 2 == wanted;
                thread.step = if is_last {
                    Step::ReadHead
                } else {
                    Step::Chain(position + 1)
                };
            }
            (_, Step::Begin | Step::ReadHead) => {
                (thread.head, thread.fewest) = (self.head, self.num_free);
                thread.walked.clear();
                thread.step = match call {
                    Pop(_) => Step::Walk(self.head.top),
                    Push(_) => Step::Hang,
                };
            }
            (Pop(wanted), Step::Walk(NIL)) => {
                self.num_refused += 1;
                self.num_refused_wrongly += usize::from(thread.fewest >= wanted);
                thread.end_call();
            }
            (Pop(wanted), Step::Walk(block)) => {
                thread.walked.push(block);
                let below = self.links[block];
                let is_last = thread.walked.len() == wanted;
                thread.step = if is_last {
                    Step::Exchange(below)
                } else {
                    Step::Walk(below)
                };
            }
            (Push(wanted), Step::Hang) => {
                self.links[thread.held[wanted - 1]] = thread.head.top;
                thread.step = Step::Exchange(thread.held[0]);
            }
            (_, Step::Exchange(_)) if self.head != thread.head => thread.step = Step::ReadHead,
            (_, Step::Exchange(top)) => {
                self.head = Head {
                    tag: (self.head.tag + 1) % num_tags,
                    top,
                };
                match call {
                    Pop(wanted) => {
                        thread.held.append(&mut thread.walked);
                        self.num_free = self.num_free.saturating_sub(wanted);
                    }
                    Push(wanted) => {
                        thread.held.drain(..wanted);
                        self.num_free += wanted;
                    }
                }
                thread.end_call();
                for thread in &mut self.threads {
                    thread.fewest = thread.fewest.min(self.num_free);
                }
            }
            (call, step) => unreachable!("{step:?} in {call:?}"),
        }
        true
    }

    fn held(&self) -> Vec<usize> {
        self.threads
            .iter()
            .flat_map(|thread| thread.held.clone())
            .collect()
    }

    fn has_two_owners(&self) -> bool {
        let held = self.held();
        held.iter().collect::<HashSet<_>>().len() < held.len()
    }

    /// Whether, with all calls done, every block is held once or on the stack once.
    fn is_complete(&self) -> bool {
        let mut places = self.held();
        let mut cursor = self.head.top;
        while cursor != NIL && places.len() <= NUM_BLOCKS {
            places.push(cursor);
            cursor = self.links[cursor];
        }
        places.sort_unstable();
        places.into_iter().eq(1..=NUM_BLOCKS)
    }
}

/// In how many states a search has come across what.
#[derive(Debug, Default)]
struct Findings {
    all: usize,
    refused: usize,
    refused_wrongly: usize,
    two_owners: usize,
    lost_blocks: usize,
}

/// Visits every state that the scripts can reach, one for each thread.
fn search(name: &str, scripts: &[&[Call]], num_tags: u32) -> Findings {
    let mut findings = Findings::default();
    let mut seen = HashSet::new();
    let mut todo = vec![State::new(scripts.len())];
    while let Some(state) = todo.pop() {
        findings.refused += usize::from(state.num_refused > 0);
        findings.refused_wrongly += usize::from(state.num_refused_wrongly > 0);
        if state.has_two_owners() {
            findings.two_owners += 1;
            continue;
        }
        let mut has_finished = true;
        for (index, script) in scripts.iter().enumerate() {
            let mut next = state.clone();
            if next.advance(index, script, num_tags) {
                has_finished = false;
                if seen.insert(next.clone()) {
                    todo.push(next);
                }
            }
        }
        findings.lost_blocks += usize::from(has_finished && !state.is_complete());
    }
    findings.all = seen.len();
    eprintln!("{name}: {findings:?}");
    findings
}

/// More tags than a search makes exchanges, so that none comes back.
const UNBOUNDED: u32 = u32::MAX;
const UNTAGGED: u32 = 1;
const ONE_BIT: u32 = 2;

/// Pop 1, pop 2, push 1 back: the head is as the other thread has read it, its link is not.
const ABA: [&[Call]; 2] = [&[Pop(1), Pop(1)], &[Pop(1), Pop(1), Push(1)]];
/// The same with one exchange less, so that one bit of tag comes round.
const ABA_IN_TWO: [&[Call]; 2] = [&[Pop(1), Pop(1)], &[Pop(2), Push(1)]];
const LONG: [&[Call]; 2] = [
    &[Pop(1), Push(1), Pop(2), Push(2)],
    &[Pop(3), Push(1), Pop(1), Push(2), Push(1)],
];
const THREE: [&[Call]; 3] = [
    &[Pop(1), Push(1)],
    &[Pop(3), Push(1), Push(2)],
    &[Pop(2), Push(1)],
];

#[test]
fn with_tags_no_interleaving_gives_a_block_to_two_threads() {
    let scripts: [(&str, &[&[Call]]); 4] = [
        ("ABA", &ABA),
        ("ABA in two", &ABA_IN_TWO),
        ("long", &LONG),
        ("three threads", &THREE),
    ];
    for (name, scripts) in scripts {
        let findings = search(name, scripts, UNBOUNDED);
        assert!(findings.all > 100, "the search has hardly begun");
        assert_eq!((findings.two_owners, findings.lost_blocks), (0, 0));
    }
}

#[test]
fn a_pop_is_refused_only_if_the_stack_was_too_short() {
    let scripts: [(&str, &[&[Call]]); 2] = [("long", &LONG), ("three threads", &THREE)];
    for (name, scripts) in scripts {
        let findings = search(name, scripts, UNBOUNDED);
        assert!(findings.refused > 0, "no pop found too little");
        assert_eq!(findings.refused_wrongly, 0);
    }
}

#[test]
fn without_a_tag_the_search_finds_two_owners() {
    assert!(search("untagged, ABA", &ABA, UNTAGGED).two_owners > 0);
}

#[test]
fn with_one_bit_of_tag_the_search_finds_two_owners() {
    assert!(search("one bit, ABA in two", &ABA_IN_TWO, ONE_BIT).two_owners > 0);
    let findings = search("one bit, ABA in three", &ABA, ONE_BIT);
    assert_eq!(findings.two_owners, 0, "three exchanges leave another tag");
}
