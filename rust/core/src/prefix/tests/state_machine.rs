//! Random operations on small trees, compared after each with the oracle.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::coverage::Coverage;
use super::machine::Machine;
use super::operation::{Scenario, scenarios};

/// Operations of a scenario, at most; on average half of them.
const MAX_OPERATIONS: usize = 200;

/// What a run of a thousand scenarios cannot miss.
const SITUATIONS: [&str; 22] = [
    "a child",
    "a child of a root",
    "a full run",
    "a held root that is forgotten",
    "a hit of one block",
    "a hit of several blocks",
    "a miss",
    "a root that is dropped",
    "a run that grows",
    "a split",
    "a tail that goes",
    "content that exists",
    "descendants",
    "no blocks",
    "no descendants",
    "AlreadyPublished",
    "NotATail",
    "NotPublished",
    "OutsidePool",
    "RootNotEmpty",
    "StaleRoot",
    "WrongLength",
];

fn run(mut config: Config) -> Coverage {
    // Chosen here so that a failure can name it.
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    config.rng_seed = RngSeed::Fixed(seed);
    config.failure_persistence = None;
    let total = RefCell::new(Coverage::default());
    let answer = TestRunner::new(config).run(&scenarios(MAX_OPERATIONS), |scenario| {
        total.borrow_mut().add(&play(&scenario));
        Ok(())
    });
    if let Err(failure) = answer {
        panic!("with PROPTEST_RNG_SEED={seed}: {failure}");
    }
    total.into_inner()
}

fn play(scenario: &Scenario) -> Coverage {
    let mut machine = Machine::new(scenario);
    for operation in &scenario.operations {
        machine.apply(operation);
    }
    machine.coverage
}

#[test]
fn the_tree_finds_what_was_published() {
    run(Config::default());
}

/// About 1e6 operations: `make soak`.
#[test]
#[ignore = "several seconds, in a release build"]
fn the_tree_finds_what_was_published_after_a_million_operations() {
    let coverage = run(Config::with_cases(10_000));
    coverage.assert_met(&SITUATIONS);
}
