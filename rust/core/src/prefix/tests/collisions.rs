//! Colliding hashes cost time and nothing else.

use super::super::PrefixTree;
use super::fixture::{Fixture, Hash};
use crate::{Admit, BlockManager, Config, Counts, Error, LookupReason, Reserve};

const COLLIDING: [Hash; 2] = [Hash::Constant, Hash::SumModFour];

#[test]
fn a_colliding_prompt_is_no_hit() {
    for hash in COLLIDING {
        let mut fixture = Fixture::with_hash(8, 4, hash);
        fixture.publish(None, &[1, 2, 3, 4], [1]);
        assert_eq!(fixture.find(&[5, 6, 7, 8, 0]), []);
        assert_eq!(fixture.find(&[4, 3, 2, 1, 0]), []);
        assert_eq!(fixture.find(&[1, 2, 3, 4, 0]), [1]);
    }
}

#[test]
fn colliding_prompts_are_all_published_and_removed() {
    for hash in COLLIDING {
        let mut fixture = Fixture::with_hash(8, 4, hash);
        let prompts = [[1, 2, 3, 4], [5, 6, 7, 8], [4, 3, 2, 1]];
        for (block, prompt) in (1..).zip(&prompts) {
            fixture.publish(None, prompt, [block]);
        }
        // The same content behind each of them, too.
        for block in 1..=3 {
            fixture.publish(Some(block), &[1, 2, 3, 4], [block + 3]);
        }
        for (block, prompt) in (1..).zip(&prompts) {
            let longer = [&prompt[..], &[1, 2, 3, 4]].concat();
            assert_eq!(fixture.find(&longer), [block, block + 3]);
        }
        fixture.remove([5, 2]);
        assert_eq!(fixture.find(&[5, 6, 7, 8, 1, 2, 3, 4]), []);
        assert_eq!(fixture.find(&[1, 2, 3, 4, 1, 2, 3, 4]), [1, 4]);
        assert_eq!(fixture.find(&[4, 3, 2, 1, 1, 2, 3, 4]), [3, 6]);
        fixture.remove([4, 1, 6, 3]);
        assert_eq!(fixture.tree.arena.num_live(), 0);
    }
}

#[test]
fn namespaces_do_not_meet_in_a_collision() {
    for hash in COLLIDING {
        let mut fixture = Fixture::with_hash(8, 2, hash);
        fixture.publish(None, &[1, 2], [1]);
        let other = fixture.tree.open_root(b"other");
        assert_eq!(fixture.tree.find(other, &[1, 2], &mut Vec::new()), 0);
    }
}

/// Case D7, through the manager.
#[test]
fn a_manager_whose_hashes_collide_finds_what_it_finds_otherwise() -> Result<(), Error> {
    for hash in COLLIDING {
        let config = Config::new(8, 4, 4, 32)?.with_prefix_cache(0);
        let manager = BlockManager::new(config)?;
        let mut locked = manager.lock()?;
        if let Some(cache) = &mut locked.state.cache {
            let (function, seed) = hash.function();
            cache.tree = PrefixTree::with_hash(8, 4, 4, function, seed);
        }
        let prompts = [[1, 2, 3, 4, 9], [5, 6, 7, 8, 9], [4, 3, 2, 1, 9]];
        for (at, prompt) in prompts.iter().enumerate() {
            for (other, probe) in prompts.iter().enumerate() {
                let expected = if other < at {
                    (4, LookupReason::Capped)
                } else if at == 0 {
                    (0, LookupReason::Namespace)
                } else {
                    (0, LookupReason::NoEntry)
                };
                assert_eq!(
                    locked.lookup(&Admit::new(probe)),
                    Ok(expected),
                    "{probe:?}, {hash:?}"
                );
            }
            let admission = locked.admit(&Admit::new(prompt))?;
            assert_eq!(admission.num_cached, 0);
            let handles = [admission.id.to_handle()];
            locked.reserve(&Reserve::new(&handles), None)?;
            locked.commit(&handles, Counts::Default, None)?;
            locked.release(&handles)?;
            locked.validate()?;
        }
        assert_eq!(locked.evict(8)?, 3);
        locked.validate()?;
    }
    Ok(())
}
