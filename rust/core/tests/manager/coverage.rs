//! Which situations a run has met: a run that meets none of the interesting ones proves nothing.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Coverage {
    counts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub(crate) fn note(&mut self, situation: &'static str) {
        *self.counts.entry(situation).or_default() += 1;
    }

    pub(crate) fn note_if(&mut self, met: bool, situation: &'static str) {
        if met {
            self.note(situation);
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (situation, count) in &other.counts {
            *self.counts.entry(situation).or_default() += count;
        }
    }

    pub(crate) fn assert_met(&self, situations: &[&str]) {
        let missed: Vec<_> = situations
            .iter()
            .filter(|&&situation| !self.counts.contains_key(situation))
            .collect();
        assert!(missed.is_empty(), "never met: {missed:?}; met: {self:#?}");
    }
}
