//! Forks: a sequence that goes on from another's computed tokens.

use crate::manager::Locked;
use crate::sequence::Sequence;
use crate::state::State;
use crate::{Admission, Error};

impl Locked<'_> {
    /// Begins a sequence that shares all computed tokens of another. Copies nothing: the first write into a shared block does.
    ///
    /// # Errors
    /// [`Error::StaleSequence`], [`Error::UnknownSequence`] or [`Error::TooManySequences`]; nothing has changed then.
    pub fn fork(&mut self, handle: i64) -> Result<Admission, Error> {
        self.begin()?;
        let parent = self.resolve(handle)?;
        let id = self.next_place()?;
        let State {
            sequences,
            tables,
            pending,
            blocks,
            ..
        } = &mut *self.state;
        let &Sequence {
            known,
            computed,
            num_published,
            publishes,
            ..
        } = &sequences[parent];
        let num_shared = self.block_size.blocks_for(computed);
        blocks.clear();
        blocks.extend(tables.blocks(parent, num_shared));
        // What the parent has computed lies in the source until its copy has run: share that, not the destination.
        if let Some(pending) = pending[parent]
            && pending.column < num_shared
        {
            blocks[pending.column as usize] = pending.source;
        }
        self.pool.retain(blocks)?;
        self.open(id);
        self.state.share_root(parent, id.index() as usize);
        let child = id.index() as usize;
        let state = &mut *self.state;
        state.sequences[parent].owns_tail = false;
        let sequence = &mut state.sequences[child];
        sequence.known = known;
        sequence.num_cached = computed;
        sequence.computed = computed;
        sequence.reserved = computed;
        sequence.num_published = num_published.min(num_shared);
        sequence.publishes = publishes;
        sequence.owns_tail = false;
        state.tokens.copy(parent, child, known);
        state.append_blocks(child, 0..num_shared as usize);
        state.find_tail(child);
        state.note_plain(id.index());
        // Fits: it is a place.
        state.note_plain(u32::try_from(parent).unwrap_or(u32::MAX));
        Ok(Admission {
            id,
            num_cached: computed,
        })
    }
}
