//! What one thread can see of the pool, at its limits and after errors.
#![cfg(not(looseleaf_loom))]

use looseleaf_core::{BlockId, BlockPool, Config, Error};

fn block(id: u32) -> BlockId {
    BlockId::new(id).expect("a block id")
}

fn pool(num_blocks: u32) -> BlockPool {
    BlockPool::new(num_blocks).expect("a valid size")
}

fn allocate(pool: &BlockPool, num_blocks: usize) -> Result<Vec<BlockId>, Error> {
    let mut blocks = vec![BlockId::NULL; num_blocks];
    pool.allocate(&mut blocks).map(|()| blocks)
}

#[test]
fn a_pool_has_at_least_one_block() {
    for num_blocks in [0, Config::MAX_BLOCKS + 1] {
        let refused = BlockPool::new(num_blocks).map(|_| ());
        assert!(matches!(
            refused,
            Err(Error::InvalidArgument {
                argument: "num_blocks",
                ..
            })
        ));
    }
    let pool = pool(1);
    assert_eq!(allocate(&pool, 1), Ok(vec![block(1)]));
    assert_eq!(pool.validate(&[0, 1]), Ok(()));
}

#[test]
fn every_block_is_handed_out_once_and_the_next_is_refused() -> Result<(), Error> {
    let pool = pool(3);
    assert_eq!(allocate(&pool, 0), Ok(vec![]));
    assert_eq!(allocate(&pool, 2)?, [block(1), block(2)]);
    let refused = Error::OutOfBlocks {
        requested: 2,
        free: 1,
        evictable: 0,
    };
    assert_eq!(allocate(&pool, 2), Err(refused));
    assert_eq!(pool.num_free(), 1);
    assert_eq!(allocate(&pool, 1)?, [block(3)]);
    let refused = Error::OutOfBlocks {
        requested: 1,
        free: 0,
        evictable: 0,
    };
    assert_eq!(allocate(&pool, 1), Err(refused));
    assert_eq!(allocate(&pool, 0), Ok(vec![]));
    pool.validate(&[0, 1, 1, 1])
}

#[test]
fn more_than_the_pool_has_never_fits() -> Result<(), Error> {
    let pool = pool(3);
    assert_eq!(
        allocate(&pool, 4),
        Err(Error::NeverFits {
            requested: 4,
            capacity: 3
        })
    );
    assert_eq!(allocate(&pool, 3)?.len(), 3);
    assert_eq!(
        allocate(&pool, 4),
        Err(Error::NeverFits {
            requested: 4,
            capacity: 3
        })
    );
    pool.validate(&[0, 1, 1, 1])
}

#[test]
fn released_blocks_are_allocated_again_in_the_same_order() -> Result<(), Error> {
    let pool = pool(4);
    allocate(&pool, 4)?;
    pool.release(&[block(3), block(1), block(4)])?;
    assert_eq!(allocate(&pool, 3)?, [block(3), block(1), block(4)]);
    pool.validate(&[0, 1, 1, 1, 1])
}

#[test]
fn a_shared_block_is_free_after_its_last_holder() -> Result<(), Error> {
    let pool = pool(2);
    let shared = allocate(&pool, 1)?;
    pool.retain(&shared)?;
    assert_eq!(pool.count(shared[0]), 2);
    pool.release(&shared)?;
    assert_eq!((pool.count(shared[0]), pool.num_free()), (1, 1));
    pool.release(&shared)?;
    assert_eq!((pool.count(shared[0]), pool.num_free()), (0, 2));
    pool.validate(&[0, 0, 0])
}

#[test]
fn every_allocation_begins_a_generation() -> Result<(), Error> {
    let pool = pool(1);
    assert_eq!(pool.generation(block(1)), 0);
    for generation in 1..=3 {
        let blocks = allocate(&pool, 1)?;
        assert_eq!(pool.generation(block(1)), generation);
        pool.release(&blocks)?;
        assert_eq!(pool.generation(block(1)), generation);
    }
    pool.validate(&[0, 0])
}

#[test]
fn a_block_named_twice_in_one_release_is_not_freed_twice() -> Result<(), Error> {
    let pool = pool(8);
    let blocks = allocate(&pool, 1)?;
    let twice = [blocks[0], blocks[0]];
    assert_eq!(pool.release(&twice), Err(Error::NotHeld { block: 1 }));
    assert_eq!((pool.count(blocks[0]), pool.num_free()), (1, 7));
    pool.validate(&[0, 1, 0, 0, 0, 0, 0, 0, 0])?;

    pool.release(&blocks)?;
    let mut all: Vec<u32> = allocate(&pool, 8)?.into_iter().map(BlockId::get).collect();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(matches!(allocate(&pool, 1), Err(Error::OutOfBlocks { .. })));
    Ok(())
}

#[test]
fn a_block_named_twice_loses_two_holders() -> Result<(), Error> {
    let pool = pool(2);
    let blocks = allocate(&pool, 2)?;
    pool.retain(&[blocks[0], blocks[0], blocks[1]])?;
    pool.validate(&[0, 3, 2])?;
    pool.release(&[blocks[0], blocks[0], blocks[1]])?;
    pool.validate(&[0, 1, 1])
}

#[test]
fn a_release_that_fails_has_changed_nothing() -> Result<(), Error> {
    let pool = pool(4);
    let blocks = allocate(&pool, 3)?;
    pool.retain(&blocks[..1])?;
    let expected = [0, 2, 1, 1, 0];
    for bad in [BlockId::NULL, block(4), block(5), BlockId::MAX] {
        let call = [blocks[0], blocks[1], bad, blocks[2]];
        assert_eq!(
            pool.release(&call),
            Err(Error::NotHeld { block: bad.get() })
        );
        pool.validate(&expected)?;
    }
    for (call, id) in [
        ([blocks[1], blocks[2], blocks[0], blocks[2]], 3), // the second release of 3
        ([blocks[0], blocks[0], blocks[1], blocks[0]], 1), // the third of 1, which two hold
        ([blocks[1], blocks[1], blocks[1], blocks[1]], 2),
    ] {
        assert_eq!(pool.release(&call), Err(Error::NotHeld { block: id }));
        pool.validate(&expected)?;
    }
    pool.release(&[blocks[0], blocks[0], blocks[1], blocks[2]])?;
    pool.validate(&[0; 5])
}

#[test]
fn a_retain_that_fails_has_changed_nothing() -> Result<(), Error> {
    let pool = pool(4);
    let blocks = allocate(&pool, 2)?;
    for bad in [BlockId::NULL, block(3), block(5), BlockId::MAX] {
        let call = [blocks[0], blocks[1], blocks[0], bad];
        assert_eq!(pool.retain(&call), Err(Error::NotHeld { block: bad.get() }));
        pool.validate(&[0, 1, 1, 0, 0])?;
    }
    pool.retain(&[])?;
    pool.release(&[])?;
    pool.validate(&[0, 1, 1, 0, 0])
}

#[test]
fn the_null_block_and_blocks_outside_have_no_holders() {
    let pool = pool(2);
    for id in [0, 3, i32::MAX.cast_unsigned()] {
        assert_eq!((pool.count(block(id)), pool.generation(block(id))), (0, 0));
    }
}

#[test]
fn stats_count_what_happened() -> Result<(), Error> {
    let pool = pool(5);
    let first = allocate(&pool, 3)?;
    pool.retain(&first)?;
    pool.release(&first)?; // nobody's last
    pool.release(&first[..2])?;
    allocate(&pool, 1)?;
    let stats = pool.stats();
    assert_eq!(
        (stats.num_blocks, stats.num_free, stats.peak_in_use),
        (5, 3, 3)
    );
    assert_eq!((stats.num_allocated, stats.num_released), (4, 2));
    Ok(())
}

#[test]
fn validate_names_the_block_whose_count_disagrees() -> Result<(), Error> {
    let pool = pool(2);
    allocate(&pool, 1)?;
    let found = pool.validate(&[0, 1, 1]);
    let message = "block 2 has count 0, generation 0, expected count 1".to_owned();
    assert_eq!(found, Err(Error::Corrupt { message }));
    assert!(matches!(
        pool.validate(&[0, 1]),
        Err(Error::InvalidArgument { .. })
    ));
    pool.validate(&[0, 1, 0])
}
