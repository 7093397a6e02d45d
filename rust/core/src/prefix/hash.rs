//! The hash that leads to a child. It only speeds a search up: whoever follows it compares the tokens.

use super::node::Anchor;

/// Hash of the first block of a node and of what stands before it.
pub(super) type BlockHash = fn(seed: u64, anchor: Anchor, tokens: &[i32]) -> u32;

/// Multiplies and mixes, four tokens a step.
///
/// The seed goes into both factors of every product. Whoever does not know it cannot make a factor 0, which would wipe out what
/// was mixed before, nor choose tokens that collide.
pub(super) fn multiply_mix(seed: u64, anchor: Anchor, tokens: &[i32]) -> u32 {
    let key = seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15;
    let mut state = seed ^ u64::from(anchor.number());
    let (quads, rest) = tokens.as_chunks();
    for &[a, b, c, d] in quads {
        state = folded_product(state ^ pair(a, b), key ^ pair(c, d));
    }
    for &token in rest {
        state = folded_product(state ^ pair(token, 0), key);
    }
    let hash = folded_product(state, key);
    u32::try_from(hash >> 32).unwrap_or_default() // 32 bits always fit
}

fn pair(low: i32, high: i32) -> u64 {
    u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned())
}

/// Both halves of the 128-bit product, so that every bit of the factors reaches every bit of the result.
fn folded_product(a: u64, b: u64) -> u64 {
    let (low, high) = a.carrying_mul(b, 0);
    low ^ high
}
