//! Every interleaving of the life cycle of blocks, over a model whose words change by the transitions of the code.
//!
//! A step of the model is what one thread does at once: a transition of a word ([`crate::block`]), a push, a pop, a change of the
//! credits. What the mutex guards is changed under it. So this search finds what no order of the calls may do (sequential
//! consistency; loom looks at the orderings), in tables, tree, idle list and inbox together, with more threads and longer calls
//! than loom can run.
//!
//! - `model`: the state, and the steps there are;
//! - `step`, `blocks`, `sequences`: what a step does;
//! - `check`: what must be true;
//! - `scenarios`: what the threads do.
//!
//! A search that finds nothing proves nothing by itself, so each [`Mutant`], one rule of the protocol broken, must be found.

mod blocks;
mod check;
mod model;
mod scenarios;
mod sequences;
mod step;

use std::collections::HashSet;

use scenarios::{Scenario, large, sample, small};

/// What was found wrong, and where.
type Violation = String;

fn ensure(condition: bool, violation: impl FnOnce() -> Violation) -> Result<(), Violation> {
    if condition { Ok(()) } else { Err(violation()) }
}

/// One rule of the protocol, broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    TwoStepRelease,
    EarlyCredit,
    Requeue,
    DrainIgnoresUnpublished,
    TwoStepDrain,
    HitWithoutCredit,
    PartialTake,
    LockedReleaseIgnoresQueued,
    HoldsAfterCells,
    CellsHeadFirst,
    IdleHitsAreSpare,
    EvictBeforeUnlink,
    AdoptAsHeld,
    AdoptWithoutCredit,
    AdoptIgnoresSharers,
    EvictIgnoresDescendants,
    UnpublishQueuedToStack,
    RestackCredit,
    WriteIgnoresPublished,
    HoldWithoutCount,
    PublishIgnoresEpoch,
}

const SMALL_MUTANTS: [Mutant; 6] = [
    Mutant::TwoStepRelease,
    Mutant::EarlyCredit,
    Mutant::Requeue,
    Mutant::DrainIgnoresUnpublished,
    Mutant::TwoStepDrain,
    Mutant::HitWithoutCredit,
];

const LARGE_MUTANTS: [Mutant; 20] = [
    Mutant::TwoStepRelease,
    Mutant::EarlyCredit,
    Mutant::Requeue,
    Mutant::DrainIgnoresUnpublished,
    Mutant::TwoStepDrain,
    Mutant::PartialTake,
    Mutant::LockedReleaseIgnoresQueued,
    Mutant::HoldsAfterCells,
    Mutant::CellsHeadFirst,
    Mutant::IdleHitsAreSpare,
    Mutant::EvictBeforeUnlink,
    Mutant::AdoptAsHeld,
    Mutant::AdoptWithoutCredit,
    Mutant::AdoptIgnoresSharers,
    Mutant::EvictIgnoresDescendants,
    Mutant::UnpublishQueuedToStack,
    Mutant::RestackCredit,
    Mutant::WriteIgnoresPublished,
    Mutant::HoldWithoutCount,
    Mutant::PublishIgnoresEpoch,
];

/// What holds for one search.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    mutant: Option<Mutant>,
    /// Somebody holds blocks without a sequence, so that the idle order may be another.
    has_raw_holders: bool,
    /// An eviction of several blocks lets go of the mutex in between.
    lets_go: bool,
    /// What was admitted before an invalidation is not published after it.
    keeps_epochs: bool,
}

impl Rules {
    fn has(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// The contents of the sequence in a place.
fn path(place: usize) -> &'static [usize] {
    match place {
        2 => &[0, 3],
        _ => &[0, 1, 2],
    }
}

/// Visits every state that a scenario can reach; returns how many.
fn search(scenario: &Scenario, mutant: Option<Mutant>) -> Result<usize, Violation> {
    let rules = Rules {
        mutant,
        ..scenario.rules
    };
    scenario.start.check(rules)?;
    let mut seen = HashSet::from([scenario.start.clone()]);
    let mut todo = vec![scenario.start.clone()];
    while let Some(state) = todo.pop() {
        let (mut is_stuck, mut has_finished) = (true, true);
        for me in 0..state.threads.len() {
            if state.threads[me].todo.is_empty() {
                continue;
            }
            has_finished = false;
            if state.is_blocked(me) {
                continue;
            }
            is_stuck = false;
            let mut next = state.clone();
            next.advance(me, rules)?;
            if !seen.contains(&next) {
                next.check(rules)?;
                seen.insert(next.clone());
                todo.push(next);
            }
        }
        ensure(has_finished || !is_stuck, || {
            "all threads wait for the mutex".to_owned()
        })?;
        if has_finished {
            state.check_end(rules)?;
        }
    }
    Ok(seen.len())
}

fn search_all(name: &str, scenarios: &[Scenario]) {
    let mut num_states = 0;
    for scenario in scenarios {
        match search(scenario, None) {
            Ok(states) => num_states += states,
            Err(violation) => panic!("{}, {:?}: {violation}", scenario.name, scenario.rules),
        }
    }
    eprintln!(
        "{name}: {num_states} states in {} scenarios, no violation",
        scenarios.len()
    );
    assert!(
        num_states > 10 * scenarios.len(),
        "the searches have hardly begun"
    );
}

fn assert_caught(mutants: &[Mutant], scenarios: &[Scenario]) {
    let mut num_caught = 0;
    for &mutant in mutants {
        let caught = scenarios.iter().enumerate().find_map(|(at, scenario)| {
            let violation = search(scenario, Some(mutant)).err()?;
            Some(format!(
                "caught in scenario {at}, {}: {violation}",
                scenario.name
            ))
        });
        num_caught += usize::from(caught.is_some());
        eprintln!("{mutant:?}: {}", caught.as_deref().unwrap_or("SURVIVED"));
    }
    eprintln!("caught {num_caught} of {}", mutants.len());
    assert_eq!(num_caught, mutants.len());
}

#[test]
fn no_interleaving_of_a_few_calls_on_a_block_breaks_its_life_cycle() {
    for scenario in small() {
        let name = format!(
            "{} threads: {}",
            scenario.start.threads.len(),
            scenario.name
        );
        search_all(&name, &[scenario]);
    }
}

#[test]
fn every_mutant_of_the_life_cycle_of_a_block_is_caught() {
    assert_caught(&SMALL_MUTANTS, &small());
}

#[test]
fn no_interleaving_of_calls_on_sequences_breaks_the_life_cycle() {
    search_all("two threads", &large(2));
    search_all("three threads, one in 29", &sample(large(3), 29));
}

#[test]
#[ignore = "ten million states: make soak"]
fn no_interleaving_of_calls_of_three_threads_breaks_the_life_cycle() {
    search_all("three threads", &large(3));
}

#[test]
fn every_mutant_of_the_life_cycle_of_sequences_is_caught() {
    assert_caught(&LARGE_MUTANTS, &large(2));
}
