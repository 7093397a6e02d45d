//! Steps on sequences: admission, publication, forks, copies, and the ways back. All under the mutex.

use super::model::{Block, List, PARENTS, Place, State, Step};
use super::{Mutant, Rules, Violation, ensure, path};
use crate::block::BlockWord;

impl State {
    /// Finds the cached prefix and takes credits for what is new and what is idle, all or nothing.
    pub(super) fn admit(
        &mut self,
        me: usize,
        place: Place,
        num_new: u8,
        rules: Rules,
    ) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        if shared.sequences[place].table.is_some() {
            return Ok(());
        }
        let hits: Vec<Block> = path(place)
            .iter()
            .map_while(|&content| shared.tree[content])
            .collect();
        for &block in &hits {
            ensure(shared.at(block).is_published(), || {
                format!("found block {block}, which is not published")
            })?;
        }
        let hits: Vec<Step> = hits
            .iter()
            .map(|&block| Step::Hit(place, block, shared.idle.contains(&block)))
            .collect();
        let num_idle = hits
            .iter()
            .filter(|hit| matches!(hit, Step::Hit(_, _, true)))
            .count();
        let num_idle = if rules.has(Mutant::IdleHitsAreSpare) {
            0
        } else {
            u8::try_from(num_idle).unwrap_or(0)
        };
        let needed = num_idle + num_new;
        if shared.credits < needed {
            return Ok(());
        }
        shared.credits -= needed;
        thread.promised += needed;
        let sequence = &mut shared.sequences[place];
        sequence.table = Some(List::default());
        sequence.is_stopped = false;
        sequence.epoch = shared.epoch;
        if rules.has(Mutant::EvictBeforeUnlink) {
            thread.then(&hits);
            thread.then(&[Step::PopLocked(num_new, Some(place))]);
        } else {
            thread.then(&[Step::PopLocked(num_new, Some(place))]);
            thread.then(&hits);
        }
        Ok(())
    }

    /// Publishes the block in a column, or adopts the canonical one, or stops publishing.
    pub(super) fn publish(
        &mut self,
        me: usize,
        place: Place,
        column: usize,
        rules: Rules,
    ) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        let sequence = shared.sequences[place];
        let Some(table) = sequence
            .table
            .filter(|table| column < table.len() && !sequence.is_stopped)
        else {
            return Ok(());
        };
        let (own, content) = (table[column], path(place)[column]);
        let predecessor = column.checked_sub(1).map(|before| table[before]);
        let is_broken = predecessor.is_some_and(|block| !shared.at(block).is_published());
        let is_stale = sequence.epoch != shared.epoch;
        if is_broken || (is_stale && rules.keeps_epochs && !rules.has(Mutant::PublishIgnoresEpoch))
        {
            shared.sequences[place].is_stopped = true;
            return Ok(());
        }
        let expected = PARENTS[content].and_then(|parent| shared.tree[parent]);
        ensure(predecessor == expected || predecessor.is_none(), || {
            "a published predecessor is not canonical".to_owned()
        })?;
        let Some(canonical) = shared.tree[content] else {
            ensure(!(is_stale && rules.keeps_epochs), || {
                format!("sequence {place} published what an invalidation dropped")
            })?;
            ensure(shared.word(own, BlockWord::publish), || {
                format!("block {own} was published elsewhere")
            })?;
            shared.tree[content] = Some(own);
            return Ok(());
        };
        if canonical == own {
            return Ok(());
        }
        let num_sharers = shared.at(own).count() - u32::from(shared.holds[usize::from(own)]);
        if num_sharers > 1 && !rules.has(Mutant::AdoptIgnoresSharers) {
            shared.sequences[place].is_stopped = true;
        } else if !shared.idle.contains(&canonical) || rules.has(Mutant::AdoptAsHeld) {
            thread.then(&[Step::AdoptShared(place, column, canonical)]);
        } else if shared.credits > 0 || rules.has(Mutant::AdoptWithoutCredit) {
            if !rules.has(Mutant::AdoptWithoutCredit) {
                shared.credits -= 1;
            }
            thread.promised += 1;
            thread.then(&[Step::AdoptIdle(place, column, canonical)]);
        } else {
            shared.sequences[place].is_stopped = true;
        }
        Ok(())
    }

    pub(super) fn adopt(
        &mut self,
        me: usize,
        place: Place,
        column: usize,
        canonical: Block,
        was_idle: bool,
        rules: Rules,
    ) -> Result<(), Violation> {
        if rules.has(Mutant::AdoptAsHeld) {
            let word = self.shared.at(canonical);
            self.shared.force(
                canonical,
                word.count() + 1,
                word.is_published(),
                word.is_queued(),
            );
        } else {
            self.hit(me, canonical, was_idle)?;
        }
        if let Some(table) = &mut self.shared.sequences[place].table {
            let own = table.replace(column, canonical);
            let thread = &mut self.threads[me];
            thread.references.push(own);
            thread.then(&[Step::ReleaseReference(own)]);
        }
        Ok(())
    }

    pub(super) fn release_sequence(&mut self, me: usize, place: Place, rules: Rules) {
        let Some(table) = self.shared.sequences[place].table else {
            return;
        };
        let cell = if rules.has(Mutant::CellsHeadFirst) {
            Step::ReleaseHead(place)
        } else {
            Step::ReleaseTail(place)
        };
        let cells = vec![cell; table.len()];
        let holds = vec![Step::Acknowledge(place); self.shared.sequences[place].held.len()];
        let thread = &mut self.threads[me];
        thread.then(&[Step::End(place)]);
        let (first, second) = if rules.has(Mutant::HoldsAfterCells) {
            (cells, holds)
        } else {
            (holds, cells)
        };
        thread.then(&second);
        thread.then(&first);
    }

    pub(super) fn release_cell(
        &mut self,
        me: usize,
        place: Place,
        is_tail: bool,
        rules: Rules,
    ) -> Result<(), Violation> {
        let Some(table) = &mut self.shared.sequences[place].table else {
            return Ok(());
        };
        let cell = if is_tail { table.last() } else { table.first() };
        let Some(&block) = cell else { return Ok(()) };
        if is_tail {
            table.pop();
        } else {
            table.remove(block);
        }
        self.release_locked(me, block, rules)
    }

    /// A copy has run, or is given up: its source is held no longer.
    pub(super) fn acknowledge(
        &mut self,
        me: usize,
        place: Place,
        rules: Rules,
    ) -> Result<(), Violation> {
        let held = &mut self.shared.sequences[place].held;
        let Some(&source) = held.first() else {
            return Ok(());
        };
        held.remove(source);
        self.shared.holds[usize::from(source)] -= 1;
        if rules.has(Mutant::HoldWithoutCount) {
            return Ok(());
        }
        self.release_locked(me, source, rules)
    }

    pub(super) fn truncate(&mut self, me: usize, place: Place, keep: usize) {
        let sequence = &self.shared.sequences[place];
        let Some(table) = sequence.table else { return };
        let thread = &mut self.threads[me];
        thread.then(&vec![
            Step::ReleaseTail(place);
            table.len().saturating_sub(keep)
        ]);
        thread.then(&vec![Step::Acknowledge(place); sequence.held.len()]);
    }

    pub(super) fn fork(&mut self, me: usize, parent: Place, child: Place) {
        let sequences = &mut self.shared.sequences;
        let Some(table) = sequences[parent].table else {
            return;
        };
        if sequences[child].table.is_some() || !sequences[parent].held.is_empty() {
            return;
        }
        sequences[child].table = Some(List::default());
        sequences[child].is_stopped = sequences[parent].is_stopped;
        sequences[child].epoch = sequences[parent].epoch;
        for &block in table.iter().rev() {
            self.threads[me].then(&[Step::Share(child, block)]);
        }
    }

    /// A write into a column: in place where the block is the sequence's own, else into a copy.
    pub(super) fn write(
        &mut self,
        me: usize,
        place: Place,
        column: usize,
        rules: Rules,
    ) -> Result<(), Violation> {
        let (shared, thread) = (&mut self.shared, &mut self.threads[me]);
        let Some(&block) = shared.sequences[place]
            .table
            .as_ref()
            .and_then(|table| table.get(column))
        else {
            return Ok(());
        };
        let word = shared.at(block);
        let is_shared = word.count() - u32::from(shared.holds[usize::from(block)]) > 1;
        if is_shared || (word.is_published() && !rules.has(Mutant::WriteIgnoresPublished)) {
            if shared.credits > 0 {
                shared.credits -= 1;
                thread.promised += 1;
                thread.then(&[Step::PopLocked(1, None), Step::HoldSource(place, column)]);
            }
            return Ok(());
        }
        let num_cells: usize = shared.tables().map(|table| table.count(block)).sum();
        ensure(num_cells == 1 && !word.is_published(), || {
            format!("block {block} is written in place, {num_cells} tables have it, {word:?}")
        })
    }

    pub(super) fn hold_source(
        &mut self,
        me: usize,
        place: Place,
        column: usize,
        rules: Rules,
    ) -> Result<(), Violation> {
        let Some(&source) = self.shared.sequences[place]
            .table
            .as_ref()
            .and_then(|table| table.get(column))
        else {
            return Err(format!("column {column} of sequence {place} has gone"));
        };
        self.shared.holds[usize::from(source)] += 1;
        self.shared.sequences[place].held.push(source);
        if !rules.has(Mutant::HoldWithoutCount) {
            self.retain(source)?;
        }
        self.threads[me].then(&[Step::Exchange(place, column)]);
        Ok(())
    }

    /// The copy takes the place of its source in the table.
    pub(super) fn exchange(
        &mut self,
        me: usize,
        place: Place,
        column: usize,
    ) -> Result<(), Violation> {
        let thread = &mut self.threads[me];
        let (Some(table), Some(copy)) = (
            &mut self.shared.sequences[place].table,
            thread.references.pop(),
        ) else {
            return Err("no copy to exchange".to_owned());
        };
        let source = table.replace(column, copy);
        thread.references.push(source);
        thread.then(&[Step::ReleaseReference(source)]);
        Ok(())
    }

    /// Drops a content and all below it, in either order.
    pub(super) fn unpublish_tree(&mut self, me: usize, content: usize, is_top_first: bool) {
        let shared = &mut self.shared;
        let below = shared.below(content);
        let mut blocks: Vec<Step> = below
            .iter()
            .copied()
            .chain(shared.tree[content])
            .map(Step::Unpublish)
            .collect();
        if is_top_first {
            blocks.reverse();
        }
        shared.epoch += u8::from(content == 0);
        self.threads[me].then(&blocks);
    }

    /// Drops the content of the oldest idle blocks.
    pub(super) fn evict_some(&mut self, me: usize, wanted: u8) -> Result<(), Violation> {
        let Some(&oldest) = self.shared.idle.first() else {
            return Ok(());
        };
        let content = self.shared.content_of(oldest);
        let content = content.ok_or_else(|| format!("idle block {oldest} is not in the tree"))?;
        let below = self.shared.below(content);
        let thread = &mut self.threads[me];
        if wanted > 1 {
            thread.then(&[Step::EvictSome(wanted - 1)]);
        }
        thread.then(&[Step::Unpublish(oldest)]);
        for &descendant in below.iter().rev() {
            thread.then(&[Step::Unpublish(descendant)]);
        }
        Ok(())
    }
}
