//! The hash tells blocks apart well enough that searches are short.

use std::collections::HashSet;

use super::super::hash::multiply_mix;
use super::super::node::Anchor;
use super::fixture::id;

const NUM_HASHES: usize = 1 << 16;

/// Of `NUM_HASHES` random 32-bit numbers, half a pair is equal on average, and hardly ever more than 8.
fn assert_spread(hashes: impl Iterator<Item = u32>) {
    let hashes: Vec<u32> = hashes.collect();
    assert_eq!(hashes.len(), NUM_HASHES);
    let distinct: HashSet<u32> = hashes.iter().copied().collect();
    assert!(
        distinct.len() >= NUM_HASHES - 8,
        "{} distinct",
        distinct.len()
    );
    // In the low 16 bits alone, random numbers take 63 % of the values.
    let low: HashSet<u32> = hashes.iter().map(|hash| hash & 0xffff).collect();
    assert!(low.len() > NUM_HASHES / 100 * 62, "{} distinct", low.len());
}

#[test]
fn blocks_that_differ_little_have_different_hashes() {
    for block_size in [1, 3, 4, 16] {
        for place in [0, block_size / 2, block_size - 1] {
            assert_spread((0..1 << 16).map(|token| {
                let mut tokens = vec![7; block_size];
                tokens[place] = token;
                multiply_mix(1, Anchor::block(id(3)), &tokens)
            }));
        }
    }
}

#[test]
fn equal_blocks_behind_different_ones_have_different_hashes() {
    let tokens = [0; 16];
    assert_spread((1..=1 << 16).map(|block| multiply_mix(1, Anchor::block(id(block)), &tokens)));
    assert_spread((0..1 << 16).map(|place| multiply_mix(1, Anchor::root(place), &tokens)));
}

#[test]
fn another_seed_gives_other_hashes() {
    let tokens = [0; 16];
    assert_spread((0..1 << 16).map(|seed| multiply_mix(seed, Anchor::root(0), &tokens)));
}
