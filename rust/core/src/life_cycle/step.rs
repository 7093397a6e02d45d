//! Takes one step of one thread.

use super::model::{State, Step};
use super::{Mutant, Rules, Violation, ensure};
use crate::block::BlockWord;

impl State {
    /// Whether the thread's next step has to wait for the mutex.
    pub(super) fn is_blocked(&self, me: usize) -> bool {
        self.shared.mutex.is_some() && self.threads[me].todo.last() == Some(&Step::Lock)
    }

    /// Takes the next step of a thread that is not blocked; `false` if it has finished.
    pub(super) fn advance(&mut self, me: usize, rules: Rules) -> Result<bool, Violation> {
        let Some(step) = self.threads[me].todo.pop() else {
            return Ok(false);
        };
        self.take_step(me, step, rules).map(|()| true)
    }

    fn take_step(&mut self, me: usize, step: Step, rules: Rules) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        match step {
            Step::Lock => shared.mutex = u8::try_from(me).ok(),
            Step::Unlock => shared.mutex = None,
            Step::Retain(block) => {
                self.retain(block)?;
                self.threads[me].references.push(block);
            }
            Step::Release(block) => self.release(me, block, rules)?,
            Step::ReleaseAll => {
                if let Some(&block) = thread.references.last() {
                    thread.then(&[Step::ReleaseAll]);
                    self.release(me, block, rules)?;
                }
            }
            Step::Mark(block) => {
                let word = shared.at(block);
                shared.force(block, word.count(), word.is_published(), true);
                thread.then(&[Step::PushToInbox(block)]);
            }
            Step::PushToInbox(block) => shared.inbox.push(block),
            Step::PushToStack(block) => {
                shared.stack.push(block);
                thread.then(&[Step::Credit]);
            }
            Step::PushAlone(block) => shared.stack.push(block),
            Step::Credit => shared.credits += 1,
            Step::Bury(place) => shared.graveyard.push(u8::try_from(place).unwrap_or(0)),
            Step::Take(wanted) => self.take(me, wanted, rules),
            Step::Pop(wanted, target) => self.pop(me, wanted, target, false),
            Step::Claim(block, target) => self.claim(me, block, target)?,
            Step::AllOrNothing(wanted) => {
                let num_held = thread.references.len();
                ensure(num_held == 0 || num_held == usize::from(wanted), || {
                    format!("{num_held} of {wanted} blocks")
                })?;
            }
            Step::TakeLocked(wanted) => {
                if shared.credits >= wanted {
                    shared.credits -= wanted;
                    thread.promised += wanted;
                    thread.then(&[Step::PopLocked(wanted, None)]);
                }
            }
            Step::PopLocked(wanted, target) => self.pop(me, wanted, target, true),
            Step::TakeIdle(wanted, target) => self.take_idle(me, wanted, target, rules)?,
            Step::Evict(block, target) => self.evict(me, block, target)?,
            Step::DrainGraveyard => {
                let places = std::mem::take(&mut shared.graveyard);
                for &place in places.iter().rev() {
                    thread.then(&[Step::ReleaseSequence(usize::from(place))]);
                }
            }
            Step::DrainInbox => {
                let blocks = std::mem::take(&mut shared.inbox);
                let steps: Vec<Step> = blocks.iter().map(|&block| Step::Drain(block)).collect();
                thread.then(&steps);
            }
            Step::Drain(block) => self.drain(me, block, rules)?,
            Step::DrainSeen(block, count) => self.drain_seen(me, block, count),
            Step::Pin(place, column) => {
                let table = shared.sequences[place].table;
                if let Some(&block) = table.as_ref().and_then(|table| table.get(column)) {
                    self.retain(block)?;
                    self.threads[me].references.push(block);
                }
            }
            Step::HitBlock(_)
            | Step::HitIdleBlock(_)
            | Step::PublishBlock(_)
            | Step::UnpublishBlock(_) => self.on_block(me, step, rules)?,
            _ => self.on_sequence(me, step, rules)?,
        }
        Ok(())
    }

    /// Steps of the small scenarios, where block and content have the same number.
    fn on_block(&mut self, me: usize, step: Step, rules: Rules) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        match step {
            Step::HitBlock(block) if !shared.at(block).is_published() => {}
            Step::HitBlock(block) if shared.at(block).is_idle() => {
                let is_free = rules.has(Mutant::HitWithoutCredit);
                if is_free || shared.credits > 0 {
                    shared.credits -= u8::from(!is_free);
                    thread.promised += u8::from(!is_free);
                    thread.then(&[Step::HitIdleBlock(block)]);
                }
            }
            Step::HitBlock(block) => {
                self.hit(me, block, false)?;
                self.threads[me].references.push(block);
            }
            Step::HitIdleBlock(block) => {
                self.hit(me, block, true)?;
                self.threads[me].references.push(block);
            }
            Step::PublishBlock(block) => {
                ensure(shared.word(block, BlockWord::publish), || {
                    format!("block {block} is not to be published")
                })?;
                shared.tree[usize::from(block)] = Some(block);
            }
            Step::UnpublishBlock(block) if shared.at(block).is_published() => {
                self.unpublish(me, block, rules)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn on_sequence(&mut self, me: usize, step: Step, rules: Rules) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        match step {
            Step::ReleaseSequence(place) => self.release_sequence(me, place, rules),
            Step::ReleaseTail(place) => self.release_cell(me, place, true, rules)?,
            Step::ReleaseHead(place) => self.release_cell(me, place, false, rules)?,
            Step::ReleaseReference(block) => {
                thread.references.remove(block);
                self.release_locked(me, block, rules)?;
            }
            Step::End(place) => shared.sequences[place].table = None,
            Step::Acknowledge(place) => self.acknowledge(me, place, rules)?,
            Step::AcknowledgeAll(place) => {
                let num_held = shared.sequences[place].held.len();
                thread.then(&vec![Step::Acknowledge(place); num_held]);
            }
            Step::Truncate(place, keep) => self.truncate(me, place, keep),
            Step::Fork(parent, child) => self.fork(me, parent, child),
            Step::Share(child, block) => {
                self.retain(block)?;
                if let Some(table) = &mut self.shared.sequences[child].table {
                    table.push(block);
                }
            }
            Step::Admit(place, num_new) => self.admit(me, place, num_new, rules)?,
            Step::Hit(place, block, was_idle) => {
                self.hit(me, block, was_idle)?;
                if let Some(table) = &mut self.shared.sequences[place].table {
                    table.push(block);
                }
            }
            Step::Publish(place, column) => self.publish(me, place, column, rules)?,
            Step::AdoptShared(place, column, block) => {
                self.adopt(me, place, column, block, false, rules)?;
            }
            Step::AdoptIdle(place, column, block) => {
                self.adopt(me, place, column, block, true, rules)?;
            }
            Step::Unpublish(block) => self.unpublish(me, block, rules)?,
            Step::UnpublishTree(content, is_top_first) => {
                self.unpublish_tree(me, content, is_top_first);
            }
            Step::EvictSome(wanted) => self.evict_some(me, wanted)?,
            Step::Restack(block) => {
                shared.stack.push(block);
                shared.credits += u8::from(rules.has(Mutant::RestackCredit));
                thread.moving -= 1;
            }
            Step::Write(place, column) => self.write(me, place, column, rules)?,
            Step::HoldSource(place, column) => self.hold_source(me, place, column, rules)?,
            Step::Exchange(place, column) => self.exchange(me, place, column)?,
            other => unreachable!("{other:?} is no step on a sequence"),
        }
        Ok(())
    }
}
