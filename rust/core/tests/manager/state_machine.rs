//! Random operations on small pools, compared after each with the oracle.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use proptest::test_runner::{Config as ProptestConfig, RngSeed, TestRunner};

use crate::coverage::Coverage;
use crate::machine::Machine;
use crate::operation::{Scenario, scenarios};

/// Operations of a scenario, at most; on average half of them.
const MAX_OPERATIONS: usize = 200;

/// What a run of a thousand scenarios cannot miss.
const SITUATIONS: [&str; 30] = [
    "a call that succeeds",
    "a commit of unknown tokens",
    "a copy emitted again",
    "a copy on write",
    "a dropped handle",
    "a handle dropped late",
    "a partial commit",
    "a step that fails",
    "a write above a hold",
    "a write below a hold",
    "fork with a pending copy",
    "one new token before a pending copy has run",
    "fork within a step",
    "several copies in a step",
    "truncate below a pending copy",
    "truncate into a pending copy",
    "two sharers in a step",
    // Errors, and the arguments that InvalidArgument names.
    "BatchTooSmall",
    "DuplicateSequence",
    "EmptyPrompt",
    "NeverFits",
    "OutOfBlocks",
    "SequenceTooLong",
    "StaleSequence",
    "TooManySequences",
    "UnknownSequence",
    "length",
    "num_computed",
    "num_new",
    "tokens",
];

fn run(mut config: ProptestConfig, play: impl Fn(&Scenario) -> Coverage) -> Coverage {
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

/// One in so many of the cases that proptest runs otherwise, 256 or `PROPTEST_CASES`.
fn fraction(divisor: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    let cases = config.cases.div_ceil(divisor);
    ProptestConfig { cases, ..config }
}

fn play(scenario: &Scenario) -> Coverage {
    let mut machine = Machine::new(scenario);
    for operation in &scenario.operations {
        machine.apply(operation);
    }
    machine.finish()
}

#[test]
fn every_sequence_reads_its_own_tokens() {
    run(fraction(2), play);
}

#[test]
fn the_same_operations_hand_out_the_same_blocks() {
    run(fraction(16), |scenario| {
        let (mut first, mut second) = (Machine::new(scenario), Machine::new(scenario));
        for operation in &scenario.operations {
            first.apply(operation);
            second.apply(operation);
            assert_eq!(first.observed(), second.observed());
        }
        first.finish()
    });
}

/// About 1e6 operations: `cargo test --release --test manager -- --ignored`.
#[test]
#[ignore = "a million operations, for a release build: make soak"]
fn every_sequence_reads_its_own_tokens_after_a_million_operations() {
    let coverage = run(ProptestConfig::with_cases(10_000), play);
    coverage.assert_met(&SITUATIONS);
}
