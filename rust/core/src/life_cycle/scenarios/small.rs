//! Nine scenarios around one block of content 0.

use super::super::Rules;
use super::super::model::{Block, Step};
use super::{Program, Scenario, Start};

fn drop_one(block: Block) -> Program {
    (vec![Step::Release(block)], vec![block])
}

fn allocate() -> Program {
    (vec![Step::Take(1)], Vec::new())
}

fn hit(block: Block) -> Program {
    (
        vec![
            Step::Lock,
            Step::HitBlock(block),
            Step::Unlock,
            Step::ReleaseAll,
        ],
        Vec::new(),
    )
}

fn publish(block: Block) -> Program {
    (
        vec![
            Step::Lock,
            Step::PublishBlock(block),
            Step::Unlock,
            Step::Release(block),
        ],
        vec![block],
    )
}

fn unpublish(block: Block) -> Program {
    (
        vec![Step::Lock, Step::UnpublishBlock(block), Step::Unlock],
        Vec::new(),
    )
}

fn fork(block: Block) -> Program {
    (
        vec![
            Step::Retain(block),
            Step::Release(block),
            Step::Release(block),
        ],
        vec![block],
    )
}

/// Block 1 is held by a thread that does nothing.
fn hold(block: Block) -> Program {
    (Vec::new(), vec![block])
}

pub(in super::super) fn small() -> Vec<Scenario> {
    let start = |num_blocks, is_published, idle| Start {
        name: "",
        num_blocks,
        tables: [&[], &[]],
        tree: [is_published, None, None, None],
        idle,
        raw: &[],
    };
    let (private, published, idle) = (
        start(2, None, &[]),
        start(2, Some(0), &[]),
        start(2, Some(0), &[0]),
    );
    let (one_private, one_published) = (start(1, None, &[]), start(1, Some(0), &[]));
    let cases = [
        (
            "two holders drop, hit, allocate",
            published,
            vec![drop_one(0), drop_one(0), hit(0), allocate(), hold(1)],
        ),
        (
            "drop, unpublish, hit, allocate",
            published,
            vec![drop_one(0), unpublish(0), hit(0), allocate(), hold(1)],
        ),
        (
            "idle: two hits, two allocations",
            idle,
            vec![hit(0), hit(0), allocate(), allocate()],
        ),
        (
            "idle: hit, unpublish, two allocations",
            idle,
            vec![hit(0), unpublish(0), allocate(), allocate()],
        ),
        (
            "publish by one holder, drop by the other, hit, allocate",
            private,
            vec![publish(0), drop_one(0), hit(0), allocate(), hold(1)],
        ),
        (
            "fork and drops, hit, allocate, drop",
            published,
            vec![fork(0), hit(0), allocate(), drop_one(1)],
        ),
        (
            "two private drops, two allocations",
            private,
            vec![drop_one(0), drop_one(1), allocate(), allocate()],
        ),
        (
            "drop, two hits, unpublish, allocate",
            one_published,
            vec![drop_one(0), hit(0), hit(0), unpublish(0), allocate()],
        ),
        (
            "publish, unpublish, hit, allocate",
            one_private,
            vec![publish(0), unpublish(0), hit(0), allocate()],
        ),
    ];
    cases
        .into_iter()
        .map(|(name, start, programs)| Scenario {
            name: name.to_owned(),
            start: start.state(&programs),
            rules: Rules {
                has_raw_holders: true,
                ..Rules::default()
            },
        })
        .collect()
}
