//! Transitions in two steps where the code takes one: what rule 1 of the life cycle forbids.

use super::{BlockWord, QUEUED, Released, Settled, Snapshot};
use crate::sync::Ordering;

impl BlockWord {
    /// Counts down, then looks at the flags that it saw.
    pub(super) fn release_in_two_steps(&self) -> Released {
        let before = self.transition(Ordering::AcqRel, |now| {
            let may = now.count() > 0;
            (now, may.then(|| now.with_one_holder_less()))
        });
        match before.count() {
            0 => Released::NotHeld,
            1 if before.is_queued() => Released::StillHeld,
            1 if before.is_published() => self.transition(Ordering::AcqRel, |now| {
                (Released::PushToInbox, Some(Snapshot(now.0 | QUEUED)))
            }),
            1 => Released::PushToStack,
            _ => Released::StillHeld,
        }
    }

    /// Looks at the count, then clears QUEUED.
    pub(super) fn drain_in_two_steps(&self) -> Settled {
        let before = self.snapshot();
        self.transition(Ordering::Acquire, |now| {
            ((), Some(Snapshot(now.0 & !QUEUED)))
        });
        if !before.is_queued() {
            Settled::Refused(before)
        } else if before.count() > 0 {
            Settled::Elsewhere
        } else if before.is_published() {
            Settled::Idle
        } else {
            Settled::Free
        }
    }
}
