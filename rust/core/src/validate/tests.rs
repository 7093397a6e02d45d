//! Validation notices each kind of damage.

use crate::manager::Locked;
use crate::plain::Plain;
use crate::{Admit, BlockId, BlockManager, Config, Counts, Error, Reserve, SeqId};

type Damage = fn(&mut Locked<'_>);

/// Place 0 holds `1 2 3 4 5` and its fork in place 1 has a copy pending; place 2 is free after `7 8 9`, whose block is idle.
fn manager() -> Result<BlockManager, Error> {
    let config = Config::new(12, 2, 4, 16)?.with_prefix_cache(1);
    let manager = BlockManager::new(config)?;
    {
        let mut locked = manager.lock()?;
        let compute = |locked: &mut Locked<'_>, tokens: &[i32]| -> Result<i64, Error> {
            let handle = locked.admit(&Admit::new(tokens))?.id.to_handle();
            locked.reserve(&Reserve::new(&[handle]), None)?;
            locked.commit(&[handle], Counts::Default, None)?;
            Ok(handle)
        };
        let parent = compute(&mut locked, &[1, 2, 3, 4, 5])?;
        let child = locked.fork(parent)?.id.to_handle();
        let other = compute(&mut locked, &[7, 8, 9])?;
        locked.reserve(&Reserve::new(&[child]), None)?;
        locked.release(&[other])?;
        locked.validate()?;
    }
    Ok(manager)
}

fn damaged(damage: Damage) -> Result<(), Error> {
    let manager = manager()?;
    let mut locked = manager.lock()?;
    damage(&mut locked);
    locked.validate()
}

/// Each damage is refused with a text that contains what stands beside it.
fn assert_noticed(damages: &[(&str, Damage)]) {
    for &(expected, damage) in damages {
        match damaged(damage) {
            Err(Error::Corrupt { message }) => {
                assert!(
                    message.contains(expected),
                    "expected {expected:?}: {message}"
                );
            }
            answer => panic!("{expected:?} was not noticed: {answer:?}"),
        }
    }
    assert_eq!(damaged(|_| ()), Ok(()));
}

#[test]
fn damage_of_places_is_noticed() {
    assert_noticed(&[
        ("place 2 is free: false", |locked| {
            locked.state.free_places.pop();
        }),
        ("place 3 is free twice", |locked| {
            locked.state.free_places.push(3);
        }),
        ("place 9 is free twice, or there is none", |locked| {
            locked.state.free_places.push(9);
        }),
        ("place 0 is free: true, holds a sequence: true", |locked| {
            locked.state.free_places.push(0);
        }),
        ("the graveyard has generation 0", |locked| {
            assert!(locked.graveyard.close(SeqId::new(0, 1).expect("an id")));
        }),
        ("the graveyard has generation 5", |locked| {
            locked.graveyard.issue(SeqId::new(3, 5).expect("an id"));
        }),
        ("2 sequences, 3 counted", |locked| {
            locked.state.num_alive += 1;
        }),
        ("place 2 holds no sequence but blocks", |locked| {
            locked.state.sequences[2].num_blocks = 1;
        }),
    ]);
}

#[test]
fn damage_of_lengths_and_tables_is_noticed() {
    assert_noticed(&[
        ("lengths of place 0", |locked| {
            locked.state.sequences[0].computed = 7;
        }),
        ("place 0 has its tail in", |locked| {
            locked.state.sequences[0].tail_start += 2;
        }),
        ("place 0 has its tail in block 0", |locked| {
            locked.state.sequences[0].tail = BlockId::NULL;
        }),
        ("takes its tail for its own", |locked| {
            locked.state.sequences[0].owns_tail = true;
        }),
        ("place 0 has Plain(", |locked| {
            let sequence = &mut locked.state.sequences[0];
            sequence.plain = Plain::before_step(1 << 32, true);
        }),
        ("place 2 has Plain(", |locked| {
            let sequence = &mut locked.state.sequences[2];
            sequence.plain = Plain::before_step((1 << 32) + 2, true);
        }),
        ("has count", |locked| {
            let other = locked.state.tables.block(1, 0);
            locked.state.tables.exchange(0, 1, other);
        }),
    ]);
}

#[test]
fn damage_of_copies_and_holds_is_noticed() {
    assert_noticed(&[
        ("holds for 1 copies", |locked| {
            let source = locked.state.tables.block(0, 0);
            locked.state.holds.add(source, 1);
        }),
        ("is copied without a hold", |locked| {
            let source = locked.state.tables.block(0, 2);
            locked.state.holds.remove(source);
            let other = locked.state.tables.block(0, 1);
            locked.state.holds.add(other, 1);
        }),
        ("is not in its table", |locked| {
            let pending = locked.state.pending[1].as_mut().expect("a copy");
            pending.column = 9;
        }),
    ]);
}

#[test]
fn damage_of_the_pool_and_the_cache_is_noticed() {
    assert_noticed(&[
        ("credits for", |locked| locked.pool.add_credits(1)),
        ("in no place", |locked| {
            assert!(locked.pool.stack().pop(&mut [BlockId::NULL]));
        }),
        ("on the free stack", |locked| {
            let held = locked.state.tables.block(0, 0);
            locked.pool.stack().push(&[held]);
        }),
        ("has count 1", |locked| {
            let mut popped = [BlockId::NULL];
            assert_eq!(locked.pool.pop_claimed(&mut popped), Ok(1));
        }),
        ("in the idle list: false", |locked| {
            let cache = locked.state.cache.as_mut().expect("with a cache");
            let idle = cache.idle.oldest().next().expect("one is idle");
            cache.idle.remove(idle);
        }),
        ("in the idle list: true", |locked| {
            let held = locked.state.tables.block(0, 0);
            locked
                .state
                .cache
                .as_mut()
                .expect("with a cache")
                .idle
                .push(held);
        }),
        ("is published: true, in the tree: false", |locked| {
            let leaf = locked.state.tables.block(0, 1);
            let cache = locked.state.cache.as_mut().expect("with a cache");
            assert!(cache.tree.remove(leaf).is_ok());
        }),
    ]);
}

#[test]
fn a_place_that_waits_in_the_graveyard_is_accounted_for() -> Result<(), Error> {
    let manager = manager()?;
    let first = SeqId::new(0, 1).expect("an id");
    let mut locked = manager.lock()?;
    manager.bury(first);
    // By name while the drop waits: the place is neither alive nor free until the drain.
    locked.release(&[first.to_handle()])?;
    locked.validate()
}
