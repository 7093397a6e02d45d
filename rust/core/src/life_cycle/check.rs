//! What must be true: in every state, whenever nobody holds the mutex, and when all threads have finished.

use super::model::{Block, List, PARENTS, Shared, State, Step, Thread};
use super::{Rules, Violation, ensure, path};

impl State {
    pub(super) fn check(&self, rules: Rules) -> Result<(), Violation> {
        let shared = &self.shared;
        self.check_places()?;
        for block in 0..shared.num_blocks {
            let in_tables: usize = shared.tables().map(|table| table.count(block)).sum();
            let in_copies: usize = shared
                .sequences
                .iter()
                .map(|sequence| sequence.held.count(block))
                .sum();
            let in_hands: usize = self
                .threads
                .iter()
                .map(|thread| thread.references.count(block))
                .sum();
            let (count, references) = (shared.at(block).count(), in_tables + in_copies + in_hands);
            ensure(count as usize == references, || {
                format!("block {block} counts {count}, has {references} references")
            })?;
        }
        let moving: u8 = self.threads.iter().map(|thread| thread.moving).sum();
        let promised: u8 = self.threads.iter().map(|thread| thread.promised).sum();
        let to_be_found = shared.stack.len() + shared.idle.len() + usize::from(moving);
        ensure(
            to_be_found >= usize::from(shared.credits + promised),
            || "credits exceed the blocks to be found".to_owned(),
        )?;
        match shared.mutex {
            Some(_) => Ok(()),
            None => shared.check_tree(rules),
        }
    }

    fn check_places(&self) -> Result<(), Violation> {
        let shared = &self.shared;
        for block in 0..shared.num_blocks {
            let lists = [&shared.stack, &shared.inbox, &shared.idle];
            let places: usize = lists.iter().map(|list| list.count(block)).sum();
            ensure(places <= 1, || format!("block {block} in {places} places"))?;
        }
        let is_free = |word: crate::block::Snapshot| {
            word.count() == 0 && !word.is_published() && !word.is_queued()
        };
        for &block in &*shared.stack {
            let word = shared.at(block);
            ensure(is_free(word), || {
                format!("block {block} on the stack has {word:?}")
            })?;
        }
        for &block in &*shared.idle {
            let word = shared.at(block);
            ensure(word.is_idle(), || {
                format!("block {block} in the idle list has {word:?}")
            })?;
        }
        for &block in &*shared.inbox {
            let word = shared.at(block);
            ensure(word.is_queued(), || {
                format!("block {block} in the inbox has {word:?}")
            })?;
        }
        Ok(())
    }

    /// All threads have finished: one more call drains what is left, then every block is in its place and credited.
    pub(super) fn check_end(&self, rules: Rules) -> Result<(), Violation> {
        let mut state = self.clone();
        let drain = [
            Step::Lock,
            Step::DrainGraveyard,
            Step::DrainInbox,
            Step::Unlock,
        ];
        state.threads.push(Thread::new(&drain, List::default()));
        let last = state.threads.len() - 1;
        while state.advance(last, rules)? {}
        state.check(rules)?;
        let shared = &state.shared;
        ensure(
            usize::from(shared.credits) == shared.stack.len() + shared.idle.len(),
            || {
                format!(
                    "{} credits at rest, {} free, {} idle",
                    shared.credits,
                    shared.stack.len(),
                    shared.idle.len()
                )
            },
        )?;
        for block in 0..shared.num_blocks {
            let is_somewhere = shared.at(block).count() > 0
                || shared.stack.contains(&block)
                || shared.idle.contains(&block);
            ensure(is_somewhere, || format!("block {block} is lost"))?;
            let holds: usize = shared
                .sequences
                .iter()
                .map(|sequence| sequence.held.count(block))
                .sum();
            ensure(
                holds == usize::from(shared.holds[usize::from(block)]),
                || format!("the holds of block {block} are miscounted"),
            )?;
        }
        Ok(())
    }
}

impl Shared {
    /// The tree, the tables and the idle order, between two calls.
    fn check_tree(&self, rules: Rules) -> Result<(), Violation> {
        for (content, canonical) in self.tree.iter().enumerate() {
            let Some(block) = *canonical else { continue };
            ensure(self.at(block).is_published(), || {
                format!("the tree names block {block}, which is not published")
            })?;
            let is_orphan = PARENTS[content].is_some_and(|parent| self.tree[parent].is_none());
            ensure(!is_orphan, || format!("content {content} has no parent"))?;
        }
        for block in 0..self.num_blocks {
            let is_known = !self.at(block).is_published() || self.content_of(block).is_some();
            ensure(is_known, || {
                format!("published block {block} is not in the tree")
            })?;
        }
        for (place, sequence) in self.sequences.iter().enumerate() {
            let mut still = true;
            for (column, &block) in sequence
                .table
                .iter()
                .flat_map(|table| table.iter().enumerate())
            {
                let is_published = self.at(block).is_published();
                ensure(still || !is_published, || {
                    format!("sequence {place} holds published block {block} without its ancestors")
                })?;
                still = is_published;
                let is_content = !is_published
                    || path(place)
                        .get(column)
                        .is_none_or(|&content| self.tree[content] == Some(block));
                ensure(is_content, || {
                    format!("column {column} of sequence {place} is published with other content")
                })?;
            }
        }
        if !rules.has_raw_holders {
            self.check_order()?;
        }
        Ok(())
    }

    /// A block is younger than all that stand behind it in the tree, so that the oldest is always a tail.
    fn check_order(&self) -> Result<(), Violation> {
        for (at, &block) in self.idle.iter().enumerate() {
            let below = self
                .content_of(block)
                .map(|content| self.below(content))
                .unwrap_or_default();
            let is_older = |descendant: &Block| self.idle[..at].contains(descendant);
            ensure(below.iter().all(is_older), || {
                format!("block {block} is older than one of its descendants {below:?}")
            })?;
        }
        Ok(())
    }
}
