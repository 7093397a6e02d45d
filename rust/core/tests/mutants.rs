//! Faults in the code, by name, each of which a loom model must find. One build; this program runs its own models once for each
//! fault, which the environment names.
//!
//! `make mutants` runs it.
#![cfg(all(looseleaf_loom, looseleaf_mutants))]

use std::collections::BTreeSet;
use std::process::Command;

#[path = "loom_free_stack.rs"]
mod loom_free_stack;
#[path = "loom_graveyard.rs"]
mod loom_graveyard;
#[path = "loom_manager.rs"]
mod loom_manager;
#[path = "loom_pool.rs"]
mod loom_pool;

/// Each fault, and the model that must find it.
const FAULTS: [(&str, &str); 20] = [
    (
        "two-step release",
        "loom_manager::an_invalidation_beside_the_last_release_loses_no_block",
    ),
    ("early credit", "loom_pool::a_credit_always_finds_a_block"),
    (
        "requeue",
        "loom_manager::a_block_that_is_hit_on_its_way_to_the_inbox_is_settled_once",
    ),
    (
        "drain ignores unpublished",
        "loom_manager::an_invalidation_beside_the_last_release_loses_no_block",
    ),
    (
        "two-step drain",
        "loom_manager::a_block_that_is_hit_on_its_way_to_the_inbox_is_settled_once",
    ),
    (
        "hit without credit",
        "loom_manager::a_hit_beside_the_last_release_finds_the_content",
    ),
    ("no tag", "loom_free_stack::the_tag_stops_aba"),
    (
        "newest first",
        "loom_manager::an_allocation_beside_the_last_release_takes_whole_or_nothing",
    ),
    ("push: no Release", "loom_free_stack::the_tag_stops_aba"),
    (
        "pop begins: no Acquire",
        "loom_free_stack::the_tag_stops_aba",
    ),
    (
        "pop again: no Acquire",
        "loom_free_stack::the_tag_stops_aba",
    ),
    (
        "list push: no Release",
        "loom_graveyard::the_drain_sees_what_was_done_before_the_drop",
    ),
    (
        "list take: no Acquire",
        "loom_graveyard::the_drain_sees_what_was_done_before_the_drop",
    ),
    (
        "add credits: no Release",
        "loom_manager::the_next_owner_writes_after_a_transfer_and_a_sequence_have_let_go",
    ),
    (
        "take credits: no Acquire",
        "loom_manager::the_next_owner_writes_after_a_transfer_and_a_sequence_have_let_go",
    ),
    (
        "snapshot: no Acquire",
        "loom_pool::a_holder_that_counts_one_may_write_in_place",
    ),
    (
        "release: no Acquire",
        "loom_pool::the_next_owner_writes_after_every_former_holder_has_read",
    ),
    (
        "release: no Release",
        "loom_pool::the_next_owner_writes_after_every_former_holder_has_read",
    ),
    (
        "locked: no Acquire",
        "loom_manager::the_next_owner_writes_after_a_transfer_and_a_sequence_have_let_go",
    ),
    (
        "drain: no Acquire",
        "loom_manager::a_block_that_loses_its_content_on_its_way_to_the_inbox_is_free_after_all_holders",
    ),
];

/// Halves of orderings that no model misses, and why. They are no faults of the code, and not counted.
const NOT_SEEN: [(&str, &str); 6] = [
    (
        "pop ends: no Release",
        "keeps a walk from reading links of the future, which loom never shows",
    ),
    (
        "pop ends: no Acquire",
        "the load of the same head, tag and all, has acquired already",
    ),
    (
        "locked: no Release",
        "whoever takes the block next, or looks at its count, does so under the mutex, too",
    ),
    (
        "hit: no Acquire",
        "the new holder only reads; before it writes it takes a snapshot",
    ),
    (
        "unpublish: no Acquire",
        "what has made the block idle, a drain or a locked release, has acquired under the same mutex",
    ),
    ("evict: no Acquire", "as for unpublish"),
];

/// Whether a model passes while a fault is on, or none.
fn passes(fault: Option<&str>, model: &str) -> bool {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    command.args(["--exact", model]);
    match fault {
        Some(fault) => command.env("LOOSELEAF_MUTANT", fault),
        None => command.env_remove("LOOSELEAF_MUTANT"),
    };
    let output = command.output().expect("the program can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "there is no model {model}");
    output.status.success()
}

#[test]
fn every_fault_is_caught_by_its_model_and_without_it_the_model_passes() {
    let mut num_caught = 0;
    let models: BTreeSet<&str> = FAULTS.iter().map(|&(_, model)| model).collect();
    for model in models {
        assert!(passes(None, model), "{model} fails without a fault");
    }
    for (fault, model) in FAULTS {
        let survived = passes(Some(fault), model);
        num_caught += usize::from(!survived);
        eprintln!(
            "{fault}: {} {model}",
            if survived { "SURVIVED" } else { "caught by" }
        );
    }
    for (fault, reason) in NOT_SEEN {
        eprintln!("{fault}: not looked for: {reason}");
    }
    eprintln!("caught {num_caught} of {}", FAULTS.len());
    assert_eq!(num_caught, FAULTS.len());
}
