//! Scenarios of sequences: every choice of programs from the menu of a start.

use super::super::Rules;
use super::super::model::Step;
use super::{
    Program, Scenario, Start, acknowledge, admit, allocate, allocate_and_release, bury, commit,
    drop_content, drop_content_top_first, evict, fork, let_go, pin, release, truncate, write,
};

macro_rules! program {
    ($($part:expr),+) => { [$($part),+].concat() };
}

/// A start, and programs to choose from.
struct Setting {
    start: Start,
    menu: Vec<Vec<Step>>,
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn settings() -> Vec<Setting> {
    let setting = |name, num_blocks, tables, tree, idle, raw, menu| Setting {
        start: Start {
            name,
            num_blocks,
            tables,
            tree,
            idle,
            raw,
        },
        menu,
    };
    let (a, b, c, d) = (Some(0), Some(1), Some(2), None);
    vec![
        setting(
            "idle chain",
            4,
            [&[], &[]],
            [a, b, d, d],
            &[1, 0],
            &[],
            vec![
                program![admit(0, 1), release(0)],
                program![admit(1, 0), commit(1, 3), bury(1)],
                program![admit(2, 2), commit(2, 2), release(2)],
                allocate(2),
                allocate(1),
                allocate_and_release(2),
                drop_content(0),
                drop_content(1),
                evict(2),
                program![admit(3, 2), bury(3)],
                program![admit(0, 0), pin(0, 1), release(0), let_go()],
                program![
                    admit(1, 1),
                    commit(1, 3),
                    pin(1, 2),
                    pin(1, 0),
                    bury(1),
                    let_go()
                ],
            ],
        ),
        setting(
            "a descendant is held without its idle ancestor",
            4,
            [&[], &[]],
            [a, b, d, c],
            &[2, 0],
            &[1],
            vec![
                program![admit(0, 1), release(0)],
                program![admit(1, 0), commit(1, 3), bury(1)],
                program![admit(2, 1), commit(2, 2), release(2)],
                allocate(2),
                allocate(1),
                allocate_and_release(2),
                drop_content(0),
                drop_content(1),
                evict(1),
                evict(2),
                program![admit(3, 2), bury(3)],
                program![admit(0, 0), pin(0, 1), release(0), let_go()],
                program![admit(1, 0), pin(1, 1), bury(1), let_go()],
            ],
        ),
        setting(
            "duplicates of idle blocks",
            5,
            [&[2, 3], &[]],
            [a, b, d, d],
            &[1, 0],
            &[],
            vec![
                program![commit(0, 2), release(0)],
                program![commit(0, 2), bury(0)],
                program![admit(1, 0), release(1)],
                program![admit(1, 1), commit(1, 3), bury(1)],
                allocate(2),
                allocate(1),
                allocate_and_release(1),
                drop_content(0),
                drop_content_top_first(1),
                evict(1),
                program![fork(0, 3), commit(3, 2), release(3)],
                truncate(0, 1),
                program![commit(0, 2), pin(0, 1), release(0), let_go()],
                program![pin(0, 1), commit(0, 2), bury(0), let_go()],
            ],
        ),
        setting(
            "duplicates of blocks that threads hold",
            5,
            [&[2, 3], &[]],
            [a, b, d, d],
            &[],
            &[1, 0],
            vec![
                program![commit(0, 2), release(0)],
                program![commit(0, 2), bury(0)],
                program![admit(1, 0), release(1)],
                program![admit(1, 1), commit(1, 3), bury(1)],
                allocate(2),
                allocate(1),
                allocate_and_release(1),
                drop_content(0),
                drop_content(1),
                evict(1),
                program![fork(0, 3), commit(3, 2), release(3)],
                program![commit(0, 2), pin(0, 1), release(0), let_go()],
                program![pin(0, 1), commit(0, 2), bury(0), let_go()],
            ],
        ),
        setting(
            "duplicates of another sequence's blocks",
            5,
            [&[2, 3], &[0, 1]],
            [a, b, d, d],
            &[],
            &[],
            vec![
                program![commit(0, 2), release(0)],
                program![commit(0, 2), bury(0)],
                release(1),
                bury(1),
                program![truncate(1, 1), release(1)],
                program![admit(3, 1), commit(3, 3), bury(3)],
                allocate(2),
                allocate_and_release(1),
                drop_content(0),
                drop_content_top_first(1),
                evict(1),
                program![write(1, 1), acknowledge(1), release(1)],
                program![pin(1, 1), release(1), let_go()],
                program![pin(0, 1), commit(0, 2), bury(0), let_go()],
            ],
        ),
        setting(
            "fork and write",
            5,
            [&[0, 1], &[0, 1]],
            [a, d, d, d],
            &[],
            &[],
            vec![
                program![write(0, 1), commit(0, 2), release(0)],
                program![write(1, 1), commit(1, 2), bury(1)],
                program![write(0, 1), release(0)],
                program![write(1, 1), truncate(1, 1), bury(1)],
                program![fork(0, 3), write(3, 1), release(3)],
                allocate(2),
                allocate_and_release(2),
                drop_content(0),
                program![admit(2, 1), release(2)],
                program![commit(0, 2), release(0)],
                program![pin(0, 1), write(0, 1), commit(0, 2), release(0), let_go()],
            ],
        ),
        setting(
            "truncate and write",
            5,
            [&[0, 1, 2], &[]],
            [a, b, c, d],
            &[],
            &[],
            vec![
                program![truncate(0, 2), write(0, 1), commit(0, 2), release(0)],
                program![truncate(0, 2), write(0, 1), bury(0)],
                program![truncate(0, 2), write(0, 1), truncate(0, 0), release(0)],
                program![admit(1, 1), release(1)],
                program![admit(3, 0), commit(3, 3), bury(3)],
                program![fork(0, 3), release(3)],
                allocate(2),
                allocate_and_release(1),
                drop_content(0),
                drop_content_top_first(1),
                evict(2),
                program![pin(0, 2), truncate(0, 2), write(0, 1), bury(0), let_go()],
                program![pin(0, 1), truncate(0, 0), let_go()],
            ],
        ),
        setting(
            "a leaf and its parent are held, nothing is free",
            3,
            [&[], &[]],
            [a, b, c, d],
            &[0],
            &[2, 1],
            vec![
                program![admit(0, 0), release(0)],
                program![admit(1, 0), commit(1, 3), bury(1)],
                program![admit(2, 1), commit(2, 2), release(2)],
                allocate(2),
                allocate(1),
                allocate_and_release(1),
                drop_content(0),
                drop_content(1),
                drop_content_top_first(0),
                evict(1),
                program![admit(3, 1), bury(3)],
                program![admit(0, 0), pin(0, 2), release(0), let_go()],
            ],
        ),
        setting(
            "two threads hold a block of a sequence",
            3,
            [&[0, 1], &[]],
            [a, b, d, d],
            &[],
            &[1, 1],
            vec![
                release(0),
                bury(0),
                program![write(0, 1), acknowledge(0), release(0)],
                program![admit(1, 1), release(1)],
                program![admit(3, 0), bury(3)],
                allocate(2),
                allocate(1),
                allocate_and_release(1),
                drop_content(0),
                drop_content(1),
                evict(1),
                program![fork(0, 3), bury(3)],
                program![admit(1, 0), pin(1, 1), release(1), let_go()],
            ],
        ),
    ]
}

/// Every scenario of so many threads: those that hold blocks from the start, and programs from the menu, an allocation twice
/// among them.
pub(in super::super) fn large(num_threads: usize) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for setting in settings() {
        let num_raw = setting.start.raw.len();
        let Some(num_chosen) = num_threads
            .checked_sub(num_raw)
            .filter(|&chosen| chosen > 0)
        else {
            continue;
        };
        let mut choices = combinations(setting.menu.len(), num_chosen);
        let is_allocation = |at: &usize| matches!(setting.menu[*at][0], Step::Take(_));
        for twice in (0..setting.menu.len()).filter(is_allocation) {
            if let Some(rest) = num_chosen.checked_sub(2) {
                let others = combinations(setting.menu.len(), rest)
                    .into_iter()
                    .filter(|rest| !rest.contains(&twice));
                choices.extend(others.map(|rest| [vec![twice, twice], rest].concat()));
            }
        }
        for choice in choices {
            scenarios.extend(variants(&setting, &choice));
        }
    }
    scenarios
}

/// Holders that retain once more or do not, evictions that let go of the mutex or do not, epochs that are kept or are not.
fn variants(setting: &Setting, choice: &[usize]) -> Vec<Scenario> {
    let start = &setting.start;
    let pins = choice.iter().any(|&at| {
        setting.menu[at]
            .iter()
            .any(|step| matches!(step, Step::Pin(..)))
    });
    let invalidates = choice.iter().any(|&at| {
        setting.menu[at]
            .iter()
            .any(|step| matches!(step, Step::UnpublishTree(0, _)))
    });
    let mut scenarios = Vec::new();
    for retains in [false, true]
        .into_iter()
        .take(1 + usize::from(!start.raw.is_empty()))
    {
        let holders = start.raw.iter().map(|&block| {
            let twice = vec![Step::Retain(block), Step::Release(block), Step::ReleaseAll];
            (if retains { twice } else { let_go() }, vec![block])
        });
        let chosen = choice
            .iter()
            .map(|&at| (setting.menu[at].clone(), Vec::new()));
        let programs: Vec<Program> = holders.chain(chosen).collect();
        for lets_go in [false, true] {
            for keeps_epochs in [false, true].into_iter().take(1 + usize::from(invalidates)) {
                let rules = Rules {
                    has_raw_holders: pins || !start.raw.is_empty(),
                    lets_go,
                    keeps_epochs,
                    mutant: None,
                };
                scenarios.push(Scenario {
                    name: format!("{} {choice:?}", start.name),
                    start: start.state(&programs),
                    rules,
                });
            }
        }
    }
    scenarios
}

/// Every choice of so many different numbers below `limit`.
fn combinations(limit: usize, wanted: usize) -> Vec<Vec<usize>> {
    if wanted == 0 {
        return vec![Vec::new()];
    }
    (0..limit)
        .flat_map(|last| {
            let rest = combinations(last, wanted - 1);
            rest.into_iter().map(move |mut rest| {
                rest.push(last);
                rest
            })
        })
        .collect()
}

/// One scenario in so many.
pub(in super::super) fn sample(scenarios: Vec<Scenario>, one_in: usize) -> Vec<Scenario> {
    scenarios.into_iter().step_by(one_in).collect()
}
