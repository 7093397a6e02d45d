//! What the documentation says a manager holds: plain lists, no counts, no epochs. Which block an allocation hands out is the
//! manager's choice; the oracle takes the choice over after it has checked that the block was free.

use std::collections::BTreeMap;

use looseleaf_core::{Config, Error, Lengths, PoolStats, Stats};

use crate::memory::Content;

/// A copy that a step has to run first, into the block in `column` of its sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCopy {
    pub(crate) column: usize,
    pub(crate) source: u32,
    /// Slots of the source that the copy is for.
    pub(crate) slots: u32,
}

/// The reserved slots of the newest step that named the sequence, and what it writes there. The engine may commit them.
#[derive(Clone, Debug)]
pub(crate) struct InStep {
    pub(crate) number: u64,
    pub(crate) contents: Vec<Content>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<i32>,
    pub(crate) reserved: u32,
    pub(crate) computed: u32,
    pub(crate) cached: u32,
    pub(crate) blocks: Vec<u32>,
    pub(crate) pending: Option<PendingCopy>,
    /// Of the computed positions.
    pub(crate) contents: Vec<Content>,
    pub(crate) in_step: Option<InStep>,
}

/// What a reserve is to do to one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedRow {
    pub(crate) handle: i64,
    pub(crate) end: u32,
    /// Blocks in the table afterwards.
    pub(crate) num_blocks: u32,
    /// The first written block is shared, or held as a source of slots that the step writes.
    pub(crate) must_copy: bool,
    /// It is held for other slots; to copy it costs a block and is otherwise right.
    pub(crate) may_copy: bool,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) config: Config,
    pub(crate) live: BTreeMap<i64, Sequence>,
    pub(crate) ended: Vec<i64>,
    /// Most slots that any copy from a block has needed since the block was last without one.
    hold_marks: BTreeMap<u32, u32>,
    num_copies: u64,
    num_allocated: u64,
    num_released: u64,
    peak_in_use: u32,
}

impl Sequence {
    pub(crate) fn known(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("short sequences")
    }

    pub(crate) fn lengths(&self) -> Lengths {
        Lengths {
            known: self.known(),
            reserved: self.reserved,
            computed: self.computed,
            cached: self.cached,
        }
    }

    /// The block that holds the computed tokens of a column, whether or not the copy into the table's block has run.
    pub(crate) fn source_of_truth(&self, column: usize) -> u32 {
        match self.pending {
            Some(pending) if pending.column == column => pending.source,
            _ => self.blocks[column],
        }
    }

    fn forget_past(&mut self, length: u32) {
        self.tokens.truncate(length as usize);
        self.reserved = self.reserved.min(length);
        self.computed = self.computed.min(length);
        self.cached = self.cached.min(length);
        self.contents.truncate(length as usize);
        if let Some(in_step) = &mut self.in_step {
            let kept = self.reserved - self.computed;
            in_step.contents.truncate(kept as usize);
        }
    }
}

impl Oracle {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            live: BTreeMap::new(),
            ended: Vec::new(),
            hold_marks: BTreeMap::new(),
            num_copies: 0,
            num_allocated: 0,
            num_released: 0,
            peak_in_use: 0,
        }
    }

    pub(crate) fn blocks_for(&self, num_tokens: u32) -> u32 {
        num_tokens.div_ceil(self.config.block_size())
    }

    /// One bit per block that some table or some pending copy names.
    pub(crate) fn used(&self) -> u64 {
        let mut used = 0;
        for sequence in self.live.values() {
            for block in &sequence.blocks {
                used |= 1 << block;
            }
            if let Some(pending) = sequence.pending {
                used |= 1 << pending.source;
            }
        }
        used
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.config.num_blocks() - self.used().count_ones()
    }

    pub(crate) fn resolve(&self, handle: i64) -> Result<&Sequence, Error> {
        self.live.get(&handle).ok_or_else(|| {
            if self.ended.contains(&handle) {
                Error::StaleSequence { handle }
            } else {
                Error::UnknownSequence { handle }
            }
        })
    }

    /// Tables that have this block.
    pub(crate) fn num_sharers(&self, block: u32) -> usize {
        let tables = self.live.values();
        tables.filter(|row| row.blocks.contains(&block)).count()
    }

    /// Most slots that a pending copy from this block needs.
    pub(crate) fn held_slots(&self, block: u32) -> u32 {
        let pending = self.live.values().filter_map(|row| row.pending);
        pending
            .filter(|copy| copy.source == block)
            .map(|copy| copy.slots)
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn hold_mark(&self, block: u32) -> u32 {
        self.hold_marks.get(&block).copied().unwrap_or(0)
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            num_idle: 0,
            num_evicted: 0,
            num_hit_tokens: 0,
            num_looked_up: 0,
            pool: PoolStats {
                num_blocks: self.config.num_blocks(),
                num_free: self.num_free(),
                peak_in_use: self.peak_in_use,
                num_allocated: self.num_allocated,
                num_released: self.num_released,
            },
            num_sequences: u32::try_from(self.live.len()).expect("few sequences"),
            num_copies: self.num_copies,
        }
    }

    pub(crate) fn admitted(&mut self, handle: i64, tokens: &[i32], blocks: &[u32]) {
        self.check_new_handle(handle);
        let used = self.used();
        let sequence = Sequence {
            tokens: tokens.to_vec(),
            blocks: blocks.to_vec(),
            ..Sequence::default()
        };
        self.live.insert(handle, sequence);
        self.allocated(used, blocks);
    }

    pub(crate) fn forked(&mut self, parent: i64, child: i64) {
        self.check_new_handle(child);
        let parent = &self.live[&parent];
        let num_shared = self.blocks_for(parent.computed) as usize;
        let sequence = Sequence {
            tokens: parent.tokens.clone(),
            reserved: parent.computed,
            computed: parent.computed,
            cached: parent.computed,
            blocks: (0..num_shared)
                .map(|column| parent.source_of_truth(column))
                .collect(),
            pending: None,
            contents: parent.contents.clone(),
            in_step: None,
        };
        self.live.insert(child, sequence);
    }

    pub(crate) fn truncated(&mut self, handle: i64, length: u32) {
        let used = self.used();
        let keep = self.blocks_for(length) as usize;
        let sequence = self.live.get_mut(&handle).expect("checked");
        sequence.forget_past(length);
        sequence.blocks.truncate(keep);
        sequence.pending.take_if(|pending| pending.column >= keep);
        self.released(used);
    }

    pub(crate) fn ended(&mut self, handle: i64) {
        let used = self.used();
        if self.live.remove(&handle).is_some() {
            self.ended.push(handle);
        }
        self.released(used);
    }

    /// Takes over what a reserve has done: `tables` are the sequences' blocks now.
    pub(crate) fn reserved(&mut self, rows: &[PlannedRow], tables: &[Vec<u32>], given: &[i32]) {
        let used = self.used();
        let mut given = given.iter().copied();
        let mut new_blocks = Vec::new();
        for (row, table) in rows.iter().zip(tables) {
            let block_size = self.config.block_size();
            let sequence = self.live.get_mut(&row.handle).expect("checked");
            let first = (sequence.computed / block_size) as usize;
            let old = std::mem::replace(&mut sequence.blocks, table.clone());
            assert_eq!(
                table.len(),
                row.num_blocks as usize,
                "blocks of {row:?}: {table:?}"
            );
            for (column, (&before, &now)) in old.iter().zip(table).enumerate() {
                if before == now {
                    assert!(!(row.must_copy && column == first), "no copy for {row:?}");
                    continue;
                }
                assert!(
                    row.may_copy && column == first,
                    "column {column} of {row:?} changed"
                );
                sequence.pending = Some(PendingCopy {
                    column,
                    source: before,
                    slots: sequence.computed % block_size,
                });
                new_blocks.push(now);
                self.num_copies += 1;
                let mark = self.hold_marks.entry(before).or_default();
                *mark = (*mark).max(sequence.computed % block_size);
            }
            new_blocks.extend_from_slice(&table[old.len()..]);
            sequence.reserved = row.end;
            if sequence.known() >= sequence.computed {
                let unknown = row.end.saturating_sub(sequence.known()) as usize;
                sequence.tokens.extend(given.by_ref().take(unknown));
            }
        }
        self.allocated(used, &new_blocks);
    }

    pub(crate) fn committed(&mut self, ends: &[(i64, u32)], given: &[i32]) {
        let used = self.used();
        let mut given = given.iter().copied();
        for &(handle, end) in ends {
            let sequence = self.live.get_mut(&handle).expect("checked");
            let unknown = end.saturating_sub(sequence.known()) as usize;
            sequence.tokens.extend(given.by_ref().take(unknown));
            let num_new = (end - sequence.computed) as usize;
            if let Some(in_step) = &mut sequence.in_step {
                sequence.contents.extend(in_step.contents.drain(..num_new));
            }
            sequence.computed = end;
            sequence.pending = None;
        }
        self.released(used);
    }

    fn check_new_handle(&self, handle: i64) {
        let unknown = Error::UnknownSequence { handle };
        assert_eq!(self.resolve(handle).err(), Some(unknown), "handle reused");
    }

    /// Checks and counts blocks that were handed out to somebody who has them now; `used_before` are those in use before.
    fn allocated(&mut self, used_before: u64, blocks: &[u32]) {
        for (place, &block) in blocks.iter().enumerate() {
            assert!(
                (1..=self.config.num_blocks()).contains(&block),
                "block {block} is not of the pool"
            );
            assert!(used_before >> block & 1 == 0, "block {block} was in use");
            assert!(
                !blocks[..place].contains(&block),
                "block {block} handed out twice"
            );
        }
        self.num_allocated += blocks.len() as u64;
        self.peak_in_use = self.peak_in_use.max(self.used().count_ones());
    }

    /// Counts the blocks that were in use and are not.
    fn released(&mut self, used_before: u64) {
        self.num_released += u64::from((used_before & !self.used()).count_ones());
        let live = &self.live;
        self.hold_marks.retain(|&block, _| {
            live.values()
                .any(|row| row.pending.is_some_and(|copy| copy.source == block))
        });
    }
}
