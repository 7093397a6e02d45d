//! The same random numbers in every run.

/// Xorshift.
pub struct Random(u64);

impl Random {
    /// Numbers that a seed decides; it must not be 0.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap_or(0)
    }

    /// Token ids of a vocabulary of 50,000.
    pub fn tokens(&mut self, num_tokens: usize) -> Vec<i32> {
        let token = |_| i32::try_from(self.below(50_000)).unwrap_or(0);
        (0..num_tokens).map(token).collect()
    }

    /// Takes one of the items, at random.
    pub fn take<T>(&mut self, items: &mut Vec<T>) -> Option<T> {
        let limit = items.len();
        (limit > 0).then(|| items.swap_remove(self.below(limit)))
    }

    /// Puts the items into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }
}
