//! What the tests of the prefix cache write into blocks, and the random numbers that they choose by.

/// xorshift64*: the same sequence on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let mixed = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(mixed).expect("31 bits") % limit
    }

    /// One of two tokens, mostly the same: prefixes are shared, split and shared again.
    pub(crate) fn token(&mut self) -> i32 {
        i32::from(self.below(6) == 0)
    }
}

/// What a slot holds: the last token of a prefix, as all tokens before it make it.
pub(crate) fn fingerprint(prefix: &[i32]) -> u64 {
    prefix.iter().fold(17, |hash, &token| {
        (hash ^ u64::from(token.cast_unsigned()))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(23)
    })
}

/// Runs rounds of 500 operations, as many as `LOOSELEAF_OPERATIONS` says (default 20,000), each from a seed of its own that a
/// failure names.
pub(crate) fn rounds(first_seed: u64, run: fn(seed: u64, operations: u32)) {
    const PER_ROUND: u32 = 500;
    let operations: u64 = std::env::var("LOOSELEAF_OPERATIONS")
        .map_or(20_000, |text| text.parse().expect("a number"));
    let num_rounds = operations / u64::from(PER_ROUND);
    assert!(num_rounds > 0, "one round takes {PER_ROUND} operations");
    for round in 0..num_rounds {
        let seed = first_seed + round * 104_729;
        let outcome = std::panic::catch_unwind(|| run(seed, PER_ROUND));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
