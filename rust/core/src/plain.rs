//! Whether a sequence's next call is the plainest one there is: a decode step, or the commit of it.
//!
//! A decode step asks of each sequence whether it is the one that the handle names and alive, owns its tail, may grow, and knows
//! the ids of what it has computed. Each answer stands in the sequence's line, but reading and branching on all of them takes
//! longer than the rest of the step. So one word says it all, and is compared with the handle. Everything that changes one of the
//! answers brings the word in line ([`State::note_plain`](crate::state::State::note_plain)), and a recount checks it
//! ([`validate`](crate::Locked::validate)).
//!
//! | word | the sequence |
//! |---|---|
//! | the handle | is ready for a plain step: owns its tail, is shorter than the longest, and known = reserved = computed |
//! | the complement of the handle | has such a step reserved: owns its tail, and known = reserved = computed + 1 |
//! | [`NEITHER`](Plain::NEITHER) | is neither, or not alive |
//!
//! A step changes the word as it goes, so a handle that stands twice does not match the second time.
//!
//! A word is compared only in the place that the low half of the handle names. There, a number that was never a handle matches
//! nothing: the low half of a word is the place, its complement, or neither.

/// The word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain(i64);

impl Plain {
    /// Its low half is above every place and below the complement of every place.
    pub(crate) const NEITHER: Self = Self(1 << 31);

    /// Of a sequence that owns its tail, with known = reserved = computed.
    #[inline]
    pub(crate) const fn before_step(handle: i64, may_grow: bool) -> Self {
        if may_grow {
            Self(handle)
        } else {
            Self::NEITHER
        }
    }

    /// Of such a sequence once its step is reserved.
    #[inline]
    pub(crate) const fn after_reserve(handle: i64) -> Self {
        Self(!handle)
    }
}

impl Default for Plain {
    fn default() -> Self {
        Self::NEITHER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeqId;

    #[test]
    fn a_word_matches_its_own_handle_alone() {
        let last = i32::MAX.cast_unsigned() - 1;
        for place in [0, 1, last] {
            for generation in [1, 2, SeqId::MAX_GENERATION] {
                let handle = SeqId::new(place, generation).map_or(0, SeqId::to_handle);
                let words = [
                    (Plain::before_step(handle, true), Some(handle), None),
                    (Plain::after_reserve(handle), None, Some(handle)),
                    (Plain::before_step(handle, false), None, None),
                    (Plain::default(), None, None),
                ];
                for upper in [0, 1, 2, i32::MAX, -1, -2, -3, i32::MIN] {
                    let number = i64::from(upper) << 32 | i64::from(place);
                    for (word, reserves, commits) in words {
                        assert_eq!(
                            word == Plain::before_step(number, true),
                            reserves == Some(number)
                        );
                        assert_eq!(
                            word == Plain::after_reserve(number),
                            commits == Some(number)
                        );
                    }
                }
            }
        }
    }
}
