//! What happened in a run, so that a test can assert that it looked at something.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Coverage(BTreeMap<&'static str, usize>);

impl Coverage {
    pub(super) fn note(&mut self, situation: &'static str) {
        *self.0.entry(situation).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (situation, count) in &other.0 {
            *self.0.entry(situation).or_default() += count;
        }
    }

    pub(super) fn assert_met(&self, situations: &[&str]) {
        for situation in situations {
            assert!(
                self.0.contains_key(situation),
                "never met: {situation}; met: {:?}",
                self.0
            );
        }
    }
}
