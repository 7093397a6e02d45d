//! Every interleaving of a few pops and pushes, over a model of the free stack in which each access to shared memory is a
//! step (sequential consistency; loom looks at the orderings). With tags nothing is found; without, or with too few bits, the
//! search must find the block that two threads own.
#![cfg(not(looseleaf_loom))]

use std::collections::HashSet;

const NUM_BLOCKS: usize = 3;
const NIL: usize = 0;

/// Blocks on one call.
#[derive(Debug, Clone, Copy)]
enum Call {
    Pop(usize),
    /// Of the blocks that the thread holds, those it has held longest.
    Push(usize),
}
use Call::{Pop, Push};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Head {
    tag: u32,
    top: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Thread {
    num_calls_done: usize,
    step: Step,
    held: Vec<usize>,
}

/// What a thread does next within its call.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Step {
    Begin,
    /// Push: writes the link of `held[position]`, within the chain.
    Chain {
        position: usize,
    },
    ReadHead,
    /// Pop: reads the link of `cursor`.
    Walk {
        head: Head,
        taken: Vec<usize>,
        cursor: usize,
    },
    /// Push: writes the link of the last block.
    Link {
        head: Head,
    },
    Exchange {
        head: Head,
        taken: Vec<usize>,
        top: usize,
    },
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    head: Head,
    links: [usize; NUM_BLOCKS + 1],
    threads: Vec<Thread>,
}

impl State {
    fn new(num_threads: usize) -> Self {
        let thread = Thread {
            num_calls_done: 0,
            step: Step::Begin,
            held: Vec::new(),
        };
        let below = |block| if block < NUM_BLOCKS { block + 1 } else { NIL };
        Self {
            head: Head { tag: 0, top: 1 },
            links: std::array::from_fn(below),
            threads: vec![thread; num_threads],
        }
    }

    /// Takes one step of a thread; `false` if it has finished.
    fn advance(&mut self, index: usize, script: &[Call], num_tags: u32) -> bool {
        let thread = &mut self.threads[index];
        let Some(&call) = script.get(thread.num_calls_done) else {
            return false;
        };
        let step = std::mem::replace(&mut thread.step, Step::ReadHead);
        let end_call = |thread: &mut Thread| {
            thread.num_calls_done += 1;
            thread.step = Step::Begin;
        };
        match (call, step) {
            (Push(wanted), Step::Begin) if wanted > thread.held.len() => end_call(thread), // an earlier pop failed
            (Push(wanted), Step::Begin) if wanted > 1 => thread.step = Step::Chain { position: 0 },
            (Push(wanted), Step::Chain { position }) => {
                self.links[thread.held[position]] = thread.held[position + 1];
                if position + 2 < wanted {
                    thread.step = Step::Chain {
                        position: position + 1,
                    };
                }
            }
            (Pop(_), Step::Begin | Step::ReadHead) => {
                let head = self.head;
                thread.step = Step::Walk {
                    head,
                    taken: Vec::new(),
                    cursor: head.top,
                };
            }
            (Push(_), Step::Begin | Step::ReadHead) => thread.step = Step::Link { head: self.head },
            (
                Pop(_),
                Step::Walk {
                    head, cursor: NIL, ..
                },
            ) => {
                // Too short, if the head is still the same.
                if self.head == head {
                    end_call(thread);
                }
            }
            (
                Pop(wanted),
                Step::Walk {
                    head,
                    mut taken,
                    cursor,
                },
            ) => {
                taken.push(cursor);
                let below = self.links[cursor];
                thread.step = if taken.len() < wanted {
                    Step::Walk {
                        head,
                        taken,
                        cursor: below,
                    }
                } else {
                    Step::Exchange {
                        head,
                        taken,
                        top: below,
                    }
                };
            }
            (Push(wanted), Step::Link { head }) => {
                let taken = thread.held[..wanted].to_vec();
                self.links[taken[wanted - 1]] = head.top;
                let top = taken[0];
                thread.step = Step::Exchange { head, taken, top };
            }
            (call, Step::Exchange { head, taken, top }) => {
                if self.head == head {
                    self.head = Head {
                        tag: (head.tag + 1) % num_tags,
                        top,
                    };
                    match call {
                        Pop(_) => thread.held.extend(taken),
                        Push(wanted) => drop(thread.held.drain(..wanted)),
                    }
                    end_call(thread);
                }
            }
            (call, _) => unreachable!("no such step in {call:?}"),
        }
        true
    }

    /// Whether two threads hold the same block.
    fn has_two_owners(&self) -> bool {
        let held: Vec<usize> = self
            .threads
            .iter()
            .flat_map(|thread| thread.held.clone())
            .collect();
        held.iter().collect::<HashSet<_>>().len() < held.len()
    }

    /// Whether, with all calls done, every block is held once or on the stack once.
    fn is_complete(&self) -> bool {
        let mut places: Vec<usize> = self
            .threads
            .iter()
            .flat_map(|thread| thread.held.clone())
            .collect();
        let mut cursor = self.head.top;
        while cursor != NIL && places.len() <= NUM_BLOCKS {
            places.push(cursor);
            cursor = self.links[cursor];
        }
        places.sort_unstable();
        places == [1, 2, 3]
    }
}

/// Visits every state that the scripts can reach; returns how many, and what was wrong in the first bad one.
fn search(scripts: &[&[Call]], num_tags: u32) -> (usize, Option<&'static str>) {
    let mut seen = HashSet::new();
    let mut todo = vec![State::new(scripts.len())];
    while let Some(state) = todo.pop() {
        if state.has_two_owners() {
            return (seen.len(), Some("two owners"));
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
        if has_finished && !state.is_complete() {
            return (seen.len(), Some("a block is lost or listed twice"));
        }
    }
    (seen.len(), None)
}

/// More tags than a search makes exchanges, so that none comes back.
const UNBOUNDED: u32 = u32::MAX;
const UNTAGGED: u32 = 1;
const ONE_BIT: u32 = 2;

/// Pop 1, pop 2, push 1 back: the head is as the other thread has read it, its link is not.
const ABA: [&[Call]; 2] = [&[Pop(1), Pop(1)], &[Pop(1), Pop(1), Push(1)]];
/// The same with one exchange less, so that one bit of tag comes round.
const ABA_IN_TWO: [&[Call]; 2] = [&[Pop(1), Pop(1)], &[Pop(2), Push(1)]];

#[test]
fn with_tags_no_interleaving_gives_a_block_to_two_threads() {
    let three_threads: [&[Call]; 3] = [&[Pop(1), Push(1)], &[Pop(2), Push(1)], &[Pop(1), Push(1)]];
    let long: [&[Call]; 2] = [
        &[Pop(1), Push(1), Pop(2), Push(2)],
        &[Pop(2), Push(1), Pop(1), Push(2)],
    ];
    for (name, scripts) in [
        ("ABA", &ABA[..]),
        ("ABA in two exchanges", &ABA_IN_TWO[..]),
        ("long", &long[..]),
        ("three threads", &three_threads[..]),
    ] {
        let (num_states, found) = search(scripts, UNBOUNDED);
        eprintln!("tagged, {name}: {num_states} states, {found:?}");
        assert_eq!(found, None);
        assert!(
            num_states > 100,
            "the search looked at {num_states} states only"
        );
    }
}

#[test]
fn without_a_tag_the_search_finds_two_owners() {
    let (num_states, found) = search(&ABA, UNTAGGED);
    eprintln!("untagged, ABA: {num_states} states, {found:?}");
    assert_eq!(found, Some("two owners"));
}

#[test]
fn with_one_bit_of_tag_the_search_finds_two_owners() {
    let (num_states, found) = search(&ABA_IN_TWO, ONE_BIT);
    eprintln!("one bit, ABA in two exchanges: {num_states} states, {found:?}");
    assert_eq!(found, Some("two owners"));
    let (num_states, found) = search(&ABA, ONE_BIT);
    eprintln!("one bit, ABA in three exchanges: {num_states} states, {found:?}");
    assert_eq!(found, None, "three exchanges leave another tag");
}
