//! Limits of ids and sizes.
#![cfg(not(looseleaf_loom))]

use looseleaf_core::{BlockId, Config, Error, SeqId};

#[test]
fn a_block_id_fits_int32() {
    assert_eq!(BlockId::new(0), Some(BlockId::NULL));
    let largest = BlockId::new(i32::MAX.cast_unsigned()).expect("fits");
    assert_eq!((largest, largest.as_i32()), (BlockId::MAX, i32::MAX));
    assert_eq!(BlockId::new(i32::MIN.cast_unsigned()), None);
    assert_eq!(BlockId::new(u32::MAX), None);
    assert_eq!(
        format!("{:?} {}", BlockId::NULL, largest),
        "block 0 block 2147483647"
    );
}

#[test]
fn a_handle_is_positive_and_comes_back_as_its_sequence() {
    for index in [0, 1, i32::MAX.cast_unsigned(), u32::MAX] {
        for generation in [1, 2, SeqId::MAX_GENERATION] {
            let sequence = SeqId::new(index, generation).expect("in range");
            assert!(sequence.to_handle() > 0);
            assert_eq!(SeqId::from_handle(sequence.to_handle()), Some(sequence));
        }
    }
    for generation in [0, SeqId::MAX_GENERATION + 1] {
        assert_eq!(SeqId::new(0, generation), None);
    }
    for handle in [i64::MIN, -1, 0, i64::from(u32::MAX)] {
        assert_eq!(SeqId::from_handle(handle), None);
    }
}

#[test]
fn sizes_are_checked_one_by_one() {
    let largest = i32::MAX.cast_unsigned();
    assert!(Config::new(1, 1, 1, 1).is_ok());
    assert!(Config::new(largest - 1, 1 << 16, largest, largest).is_ok());
    let refused = [
        ("num_blocks", Config::new(0, 1, 1, 1)),
        ("num_blocks", Config::new(largest, 1, 1, 1)),
        ("block_size", Config::new(1, 0, 1, 1)),
        ("block_size", Config::new(1, (1 << 16) + 1, 1, 1)),
        ("max_sequences", Config::new(1, 1, 0, 1)),
        ("max_sequences", Config::new(1, 1, largest + 1, 1)),
        ("max_sequence_len", Config::new(1, 1, 1, 0)),
        ("max_sequence_len", Config::new(1, 1, 1, largest + 1)),
    ];
    for (name, config) in refused {
        let Err(Error::InvalidArgument { argument, .. }) = config else {
            panic!("{name} was accepted: {config:?}");
        };
        assert_eq!(argument, name);
    }
    let error = Config::new(1, 0, 1, 1).expect_err("block_size is 0");
    assert_eq!(error.to_string(), "block_size is 0, must be in 1..=65536");
}

#[test]
fn a_row_has_a_cell_for_every_block_begun() {
    for (max_sequence_len, cells) in [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)] {
        let config = Config::new(8, 16, 1, max_sequence_len).expect("valid sizes");
        assert_eq!(config.max_blocks_per_sequence(), cells);
    }
}
