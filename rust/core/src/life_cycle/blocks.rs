//! Steps on blocks: references, the stack, the inbox, credits, allocation, the drain.

use super::model::{Block, List, State, Step, Target};
use super::{Mutant, Rules, Violation, ensure};
use crate::block::{BlockWord, Claimed, Hit, Released, Retained, Settled, Unpublished};

pub(super) const DRAIN: [Step; 2] = [Step::DrainGraveyard, Step::DrainInbox];

impl State {
    /// A release without the mutex.
    pub(super) fn release(
        &mut self,
        me: usize,
        block: Block,
        rules: Rules,
    ) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        thread.references.remove(block);
        let before = shared.at(block);
        let (count, is_published, is_queued) =
            (before.count(), before.is_published(), before.is_queued());
        if rules.has(Mutant::TwoStepRelease) && count > 0 {
            shared.force(block, count - 1, is_published, is_queued);
            match (count, is_queued, is_published) {
                (1, false, true) => thread.then(&[Step::Mark(block)]),
                (1, false, false) => thread.then(&[Step::PushToStack(block)]),
                _ => {}
            }
            return Ok(());
        }
        match shared.word(block, BlockWord::release) {
            Released::NotHeld => return Err(format!("block {block} released below zero")),
            Released::StillHeld if rules.has(Mutant::Requeue) && count == 1 => {
                thread.then(&[Step::PushToInbox(block)]);
            }
            Released::StillHeld => {}
            Released::PushToInbox => thread.then(&[Step::PushToInbox(block)]),
            Released::PushToStack if rules.has(Mutant::EarlyCredit) => {
                shared.credits += 1;
                thread.then(&[Step::PushAlone(block)]);
            }
            Released::PushToStack => thread.then(&[Step::PushToStack(block)]),
        }
        Ok(())
    }

    /// A release by who holds the mutex.
    pub(super) fn release_locked(
        &mut self,
        me: usize,
        block: Block,
        rules: Rules,
    ) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        let before = shared.at(block);
        match shared.word(block, BlockWord::release_locked) {
            Settled::Refused(word) => return Err(format!("block {block} released with {word:?}")),
            Settled::Elsewhere
                if rules.has(Mutant::LockedReleaseIgnoresQueued) && before.count() == 1 =>
            {
                shared.idle.push(block);
                thread.then(&[Step::Credit]);
            }
            Settled::Elsewhere => {}
            Settled::Free => thread.then(&[Step::PushToStack(block)]),
            Settled::Idle => {
                shared.idle.push(block);
                thread.then(&[Step::Credit]);
            }
        }
        Ok(())
    }

    /// A block that was taken from the inbox.
    pub(super) fn drain(&mut self, me: usize, block: Block, rules: Rules) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        if rules.has(Mutant::TwoStepDrain) {
            let count = shared.at(block).count();
            thread.then(&[Step::DrainSeen(block, count)]);
            return Ok(());
        }
        match shared.word(block, BlockWord::drain) {
            Settled::Refused(word) => return Err(format!("block {block} drained with {word:?}")),
            Settled::Elsewhere => {}
            Settled::Free if !rules.has(Mutant::DrainIgnoresUnpublished) => {
                thread.then(&[Step::PushToStack(block)]);
            }
            Settled::Free | Settled::Idle => {
                shared.idle.push(block);
                thread.then(&[Step::Credit]);
            }
        }
        Ok(())
    }

    /// The second half of a drain that has looked first.
    pub(super) fn drain_seen(&mut self, me: usize, block: Block, count_seen: u32) {
        let word = self.shared.at(block);
        self.shared
            .force(block, word.count(), word.is_published(), false);
        if count_seen == 0 {
            self.shared.idle.push(block);
            self.threads[me].then(&[Step::Credit]);
        }
    }

    /// Takes credits without the mutex; where they do not suffice, drains and takes again.
    pub(super) fn take(&mut self, me: usize, wanted: u8, rules: Rules) {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        if shared.credits >= wanted {
            shared.credits -= wanted;
            thread.promised += wanted;
            thread.then(&[Step::Pop(wanted, None)]);
        } else if rules.has(Mutant::PartialTake) && shared.credits > 0 {
            let taken = std::mem::take(&mut shared.credits);
            thread.promised += taken;
            thread.then(&[Step::Pop(taken, None), Step::Take(wanted - taken)]);
        } else {
            thread.then(&[
                Step::Lock,
                DRAIN[0],
                DRAIN[1],
                Step::TakeLocked(wanted),
                Step::Unlock,
            ]);
        }
    }

    /// Pops up to `wanted` blocks; their number is no longer promised, they are claimed one by one.
    fn pop_up_to(&mut self, me: usize, wanted: u8) -> List {
        let mut popped = List::default();
        while popped.len() < usize::from(wanted)
            && let Some(block) = self.shared.stack.pop()
        {
            popped.push(block);
            self.threads[me].promised -= 1;
        }
        popped
    }

    /// Pops what the stack has, and takes the rest from the idle list: under the mutex, which may have to be taken for it.
    pub(super) fn pop(&mut self, me: usize, wanted: u8, target: Target, is_locked: bool) {
        let popped = self.pop_up_to(me, wanted);
        let missing = wanted - u8::try_from(popped.len()).unwrap_or(0);
        let thread = &mut self.threads[me];
        if missing > 0 && is_locked {
            thread.then(&[Step::TakeIdle(missing, target)]);
        } else if missing > 0 {
            thread.then(&[
                Step::Lock,
                DRAIN[0],
                DRAIN[1],
                Step::TakeIdle(missing, target),
                Step::Unlock,
            ]);
        }
        for &block in popped.iter().rev() {
            thread.then(&[Step::Claim(block, target)]);
        }
    }

    /// The oldest idle block gives way; where there is none, the promised blocks have come to the stack.
    pub(super) fn take_idle(
        &mut self,
        me: usize,
        wanted: u8,
        target: Target,
        rules: Rules,
    ) -> Result<(), Violation> {
        if wanted == 0 {
            return Ok(());
        }
        let Some(&oldest) = self.shared.idle.first() else {
            let popped = self.pop_up_to(me, wanted);
            ensure(popped.len() == usize::from(wanted), || {
                "a credit without a block".to_owned()
            })?;
            for &block in popped.iter().rev() {
                self.threads[me].then(&[Step::Claim(block, target)]);
            }
            return Ok(());
        };
        let content = self.shared.content_of(oldest);
        let content = content.ok_or_else(|| format!("idle block {oldest} is not in the tree"))?;
        let mut below = self.shared.below(content);
        if rules.has(Mutant::EvictIgnoresDescendants) {
            below = List::default();
        }
        for descendant in &*below {
            let is_in_use = self.shared.tables().any(|table| table.contains(descendant));
            ensure(!is_in_use, || {
                format!("block {descendant} is in a table while its ancestor {oldest} is evicted")
            })?;
            ensure(rules.has_raw_holders, || {
                format!("the oldest block {oldest} is no tail")
            })?;
        }
        let thread = &mut self.threads[me];
        thread.then(&[Step::TakeIdle(wanted - 1, target)]);
        if rules.lets_go && wanted > 1 {
            thread.then(&[Step::Unlock, Step::Lock, DRAIN[0], DRAIN[1]]);
        }
        thread.then(&[Step::Evict(oldest, target)]);
        for &descendant in below.iter().rev() {
            thread.then(&[Step::Unpublish(descendant)]);
        }
        Ok(())
    }

    pub(super) fn evict(
        &mut self,
        me: usize,
        block: Block,
        target: Target,
    ) -> Result<(), Violation> {
        ensure(self.shared.idle.first() == Some(&block), || {
            "the oldest changed under the mutex".to_owned()
        })?;
        if let Claimed::NotFree(word) = self.shared.word(block, BlockWord::evict) {
            return Err(format!("block {block} evicted with {word:?}"));
        }
        self.shared.idle.remove(block);
        if let Some(content) = self.shared.content_of(block) {
            self.shared.tree[content] = None;
        }
        self.threads[me].promised -= 1;
        self.give(me, block, target);
        Ok(())
    }

    pub(super) fn claim(
        &mut self,
        me: usize,
        block: Block,
        target: Target,
    ) -> Result<(), Violation> {
        if let Claimed::NotFree(word) = self.shared.word(block, BlockWord::claim) {
            return Err(format!("popped block {block} has {word:?}"));
        }
        self.give(me, block, target);
        Ok(())
    }

    fn give(&mut self, me: usize, block: Block, target: Target) {
        match target.and_then(|place| self.shared.sequences[place].table.as_mut()) {
            Some(table) => table.push(block),
            None => self.threads[me].references.push(block),
        }
    }

    pub(super) fn retain(&mut self, block: Block) -> Result<(), Violation> {
        let retained = self.shared.word(block, BlockWord::retain);
        ensure(retained == Retained::Done, || {
            format!("retained free block {block}")
        })
    }

    /// One holder more of a block that the tree leads to; an idle one leaves the list, and its credit is taken.
    pub(super) fn hit(&mut self, me: usize, block: Block, was_idle: bool) -> Result<(), Violation> {
        match self.shared.word(block, BlockWord::hit) {
            Hit::Shared if !was_idle => Ok(()),
            Hit::WasIdle if was_idle => {
                ensure(self.shared.idle.remove(block), || {
                    format!("idle block {block} is not in the list")
                })?;
                let promised = &mut self.threads[me].promised;
                *promised = promised.saturating_sub(1);
                Ok(())
            }
            answer => Err(format!(
                "block {block} was idle: {was_idle}; the hit says {answer:?}"
            )),
        }
    }

    pub(super) fn unpublish(
        &mut self,
        me: usize,
        block: Block,
        rules: Rules,
    ) -> Result<(), Violation> {
        let before = self.shared.at(block);
        let Some(content) = self.shared.content_of(block) else {
            return Err(format!("unpublished block {block} is not in the tree"));
        };
        self.shared.tree[content] = None;
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        match shared.word(block, BlockWord::unpublish) {
            Unpublished::Refused(word) => {
                return Err(format!("block {block} unpublished with {word:?}"));
            }
            Unpublished::Held
                if rules.has(Mutant::UnpublishQueuedToStack) && before.count() == 0 => {}
            Unpublished::Held => return Ok(()),
            Unpublished::WasIdle => {
                ensure(shared.idle.remove(block), || {
                    format!("idle block {block} is not in the list")
                })?;
            }
        }
        thread.moving += 1;
        thread.then(&[Step::Restack(block)]);
        Ok(())
    }
}
