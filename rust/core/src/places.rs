//! The places of a manager's sequences: which handle stands in which, how one is opened, and what it gives up when it ends.

use crate::manager::{Locked, State};
use crate::sequence::Sequence;
use crate::{BlockId, Error, SeqId};

impl Locked<'_> {
    /// Every call that may change something starts here: takes back what dropped handles left, and counts the call.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.state.call += 1;
        self.drain()
    }

    /// Takes back what dropped handles left.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        if self.graveyard.is_empty() {
            return Ok(());
        }
        let graveyard = self.graveyard;
        let mut result = Ok(());
        graveyard.drain(|id| {
            // One that was released by name has left nothing but its place.
            if self.resolve(id.to_handle()).is_ok() {
                result = result.clone().and(self.end(id.index() as usize));
            }
            self.vacate(id);
        });
        result
    }

    pub(crate) fn resolve(&self, handle: i64) -> Result<usize, Error> {
        let unknown = Error::UnknownSequence { handle };
        let Some(id) = SeqId::from_handle(handle) else {
            return Err(unknown);
        };
        let index = id.index() as usize;
        match self.state.sequences.get(index) {
            Some(sequence) if id.generation() == sequence.generation && sequence.is_alive => {
                Ok(index)
            }
            Some(sequence) if id.generation() <= sequence.generation => {
                Err(Error::StaleSequence { handle })
            }
            _ => Err(unknown),
        }
    }

    /// Notes that the current call names this sequence.
    pub(crate) fn mark(&mut self, index: usize, handle: i64) -> Result<(), Error> {
        let call = self.state.call;
        let sequence = &mut self.state.sequences[index];
        if sequence.last_call == call {
            return Err(Error::DuplicateSequence { handle });
        }
        sequence.last_call = call;
        Ok(())
    }

    pub(crate) fn check_length(&self, num_tokens: u64) -> Result<(), Error> {
        if num_tokens <= self.longest {
            Ok(())
        } else {
            Err(self.too_long(num_tokens))
        }
    }

    pub(crate) fn too_long(&self, num_tokens: u64) -> Error {
        let max_sequence_len = self.config.max_sequence_len();
        if num_tokens > u64::from(max_sequence_len) {
            return Error::SequenceTooLong {
                requested: num_tokens,
                max_sequence_len,
            };
        }
        Error::NeverFits {
            requested: num_tokens.div_ceil(u64::from(self.config.block_size())),
            capacity: self.config.num_blocks(),
        }
    }

    /// The sequence that the next admission opens.
    pub(crate) fn next_place(&self) -> Result<SeqId, Error> {
        let next = self.state.free_places.last().and_then(|&place| {
            SeqId::new(place, self.state.sequences[place as usize].generation + 1)
        });
        next.ok_or(Error::TooManySequences {
            max_sequences: self.config.max_sequences(),
        })
    }

    /// Makes the next free place hold a new, empty sequence.
    pub(crate) fn open(&mut self, id: SeqId) {
        self.state.free_places.pop();
        self.state.num_alive += 1;
        let place = id.index() as usize;
        self.state.tokens.open(place);
        let sequence = &mut self.state.sequences[place];
        // The epoch goes on: a batch may still show the place's former sequence.
        *sequence = Sequence {
            last_call: sequence.last_call,
            table_epoch: sequence.table_epoch,
            generation: id.generation(),
            is_alive: true,
            owns_tail: true,
            ..Sequence::default()
        };
        self.graveyard.issue(id);
    }

    /// Lets a place be used again. One that has seen every generation stays empty: a handle never comes back.
    pub(crate) fn vacate(&mut self, id: SeqId) {
        if id.generation() < SeqId::MAX_GENERATION {
            self.state.free_places.push(id.index());
        }
    }

    pub(crate) fn end(&mut self, index: usize) -> Result<(), Error> {
        self.state.num_alive -= 1;
        self.state.sequences[index].is_alive = false;
        self.give_up_blocks(index, 0)
    }

    /// Gives up the blocks from column `keep` on, and the copy into one of them: the hold first, then the cells.
    pub(crate) fn give_up_blocks(&mut self, index: usize, keep: u32) -> Result<(), Error> {
        let State {
            sequences,
            tables,
            pending,
            holds,
            blocks,
            ..
        } = &mut *self.state;
        let sequence = &mut sequences[index];
        if let Some(pending) = pending[index].take_if(|pending| pending.column >= keep) {
            holds.remove(pending.source);
            self.pool.release(&[pending.source])?;
        }
        if keep >= sequence.num_blocks {
            return Ok(());
        }
        blocks.clear();
        blocks.extend(
            tables
                .blocks(index, sequence.num_blocks)
                .skip(keep as usize),
        );
        sequence.num_blocks = keep;
        sequence.capacity = keep * self.block_size.tokens();
        sequence.table_epoch += 1;
        self.pool.release(blocks)
    }
}

impl State {
    /// Appends the blocks in a range of the scratch to a table.
    pub(crate) fn append_blocks(&mut self, place: usize, range: std::ops::Range<usize>) {
        let sequence = &mut self.sequences[place];
        let blocks = &self.blocks[range];
        self.tables.append(place, sequence.num_blocks, blocks);
        sequence.num_blocks += u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        sequence.capacity = sequence.num_blocks * self.block_size.tokens();
    }

    /// Finds the block that holds position `computed` anew.
    pub(crate) fn find_tail(&mut self, place: usize) {
        let sequence = &mut self.sequences[place];
        let column = self.block_size.column(sequence.computed);
        sequence.tail = if column < sequence.num_blocks {
            self.tables.block(place, column)
        } else {
            BlockId::NULL
        };
    }
}
