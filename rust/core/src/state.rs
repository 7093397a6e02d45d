//! What a manager's mutex guards.

use crate::block_size::BlockSize;
use crate::holds::Holds;
use crate::prefix::Root;
use crate::prefix_cache::PrefixCache;
use crate::sequence::{PendingCopy, Sequence};
use crate::step::{Planned, PlannedCopy};
use crate::token_rows::TokenRows;
use crate::{BlockId, BlockPool, BlockTables, Config, Error};

/// What the mutex guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) block_size: BlockSize,
    /// Most tokens of a sequence.
    pub(crate) longest: u32,
    /// By place, as are the next four.
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) tables: BlockTables,
    pub(crate) tokens: TokenRows,
    pub(crate) pending: Vec<Option<PendingCopy>>,
    /// The namespace of each sequence that takes part in the prefix cache.
    pub(crate) roots: Vec<Option<Root>>,
    /// `None` without a prefix cache.
    pub(crate) cache: Option<PrefixCache>,
    pub(crate) free_places: Vec<u32>,
    pub(crate) holds: Holds,
    /// Number of the current call, for [`Sequence::last_call`].
    pub(crate) call: u64,
    /// Newest of all [`Sequence::table_epoch`]s; the first is 1.
    pub(crate) newest_epoch: u64,
    pub(crate) num_copies: u64,
    pub(crate) num_alive: u32,
    /// Tokens of admitted prompts that were in the cache, and tokens of these prompts, ever.
    pub(crate) num_hit_tokens: u64,
    pub(crate) num_looked_up: u64,
    /// Scratch of one call.
    pub(crate) hits: Vec<BlockId>,
    /// Scratch of one call.
    pub(crate) plan: Vec<Planned>,
    /// Scratch of one call.
    pub(crate) places: Vec<u32>,
    /// Scratch of a plain step: places, or rows, at the edge of a block. Room for all.
    pub(crate) edges: Box<[u32]>,
    /// Scratch of one call.
    pub(crate) planned_copies: Vec<PlannedCopy>,
    /// Scratch of one call.
    pub(crate) blocks: Vec<BlockId>,
}

impl State {
    /// The state of a manager without sequences, which may have `longest` tokens each.
    pub(crate) fn new(config: &Config, longest: u64) -> Self {
        let max_sequences = config.max_sequences();
        let num_places = max_sequences as usize;
        let block_size = BlockSize::new(config.block_size());
        // Fits: it is at most max_sequence_len.
        let row_len = u32::try_from(longest).unwrap_or(u32::MAX);
        let mut sequences = Vec::new();
        sequences.resize_with(num_places, Sequence::default);
        Self {
            block_size,
            longest: row_len,
            sequences,
            tables: BlockTables::new(num_places, block_size.blocks_for(row_len) as usize),
            tokens: TokenRows::new(num_places, row_len, block_size),
            pending: vec![None; num_places],
            roots: vec![None; num_places],
            cache: config
                .prefix_seed()
                .map(|seed| PrefixCache::new(config.num_blocks(), config.block_size(), seed)),
            hits: Vec::new(),
            num_hit_tokens: 0,
            num_looked_up: 0,
            free_places: (0..max_sequences).rev().collect(),
            holds: Holds::default(),
            call: 0,
            newest_epoch: 0,
            num_copies: 0,
            num_alive: 0,
            plan: Vec::new(),
            places: Vec::new(),
            edges: vec![0; num_places].into_boxed_slice(),
            planned_copies: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Fills a range of the scratch with blocks whose credits are taken.
    pub(crate) fn allocate(
        &mut self,
        pool: &BlockPool,
        range: std::ops::Range<usize>,
    ) -> Result<(), Error> {
        let blocks = &mut self.blocks[range];
        match &mut self.cache {
            Some(cache) => cache.allocate(pool, blocks),
            None if pool.pop_claimed(blocks)? == blocks.len() => Ok(()),
            None => Err(Error::Corrupt {
                message: format!(
                    "the free stack has fewer blocks than the {} promised",
                    blocks.len()
                ),
            }),
        }
    }

    /// Gives a fork its parent's root, for both to hold.
    pub(crate) fn share_root(&mut self, parent: usize, child: usize) {
        if let (Some(cache), Some(root)) = (&mut self.cache, self.roots[parent]) {
            // A root that was forgotten is of no more use to either.
            self.roots[child] = cache.tree.retain_root(root).is_ok().then_some(root);
        }
    }

    /// Appends the blocks in a range of the scratch to a table.
    pub(crate) fn append_blocks(&mut self, place: usize, range: std::ops::Range<usize>) {
        let sequence = &mut self.sequences[place];
        let blocks = &self.blocks[range];
        self.tables.append(place, sequence.num_blocks, blocks);
        sequence.num_blocks += u32::try_from(blocks.len()).unwrap_or(u32::MAX);
    }

    /// Notes that a table has changed otherwise than by growing.
    pub(crate) fn renew_table(&mut self, place: usize) {
        self.newest_epoch += 1;
        self.sequences[place].table_epoch = self.newest_epoch;
    }

    /// Brings [`Sequence::plain`] in line with a sequence that has changed.
    pub(crate) fn note_plain(&mut self, place: u32) {
        let sequence = &mut self.sequences[place as usize];
        sequence.plain = sequence.recount_plain(place, self.longest);
    }

    /// Finds the block that holds position `computed` anew.
    pub(crate) fn find_tail(&mut self, place: usize) {
        let sequence = &mut self.sequences[place];
        let column = self.block_size.column(sequence.computed);
        sequence.tail_start = column * self.block_size.tokens();
        sequence.tail = if column < sequence.num_blocks {
            self.tables.block(place, column)
        } else {
            BlockId::NULL
        };
    }
}
