//! The places of a manager's sequences: which handle stands in which, how one is opened, and how it becomes free.

use crate::manager::Locked;
use crate::sequence::Sequence;
use crate::{Error, SeqId};

impl Locked<'_> {
    /// Every call that may change something starts here: takes back what dropped handles left, and counts the call.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.state.call += 1;
        self.drain()
    }

    /// Takes back what dropped handles left, then what releases without the mutex left.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        if !self.graveyard.is_empty() {
            self.drain_graveyard()?;
        }
        match &mut self.state.cache {
            Some(cache) => cache.drain(self.pool),
            None => Ok(()),
        }
    }

    fn drain_graveyard(&mut self) -> Result<(), Error> {
        let graveyard = self.graveyard;
        let mut result = Ok(());
        graveyard.drain(|id| {
            // One that was released by name has left nothing but its place.
            if self.resolve(id.to_handle()).is_ok() {
                result = result.clone().and(self.end(id.index() as usize, true));
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

    /// Makes the next free place hold a new, empty sequence. Who gives it its lengths calls [`note_plain`](crate::state::State::note_plain) then.
    pub(crate) fn open(&mut self, id: SeqId) {
        self.state.free_places.pop();
        self.state.num_alive += 1;
        let place = id.index() as usize;
        self.state.tokens.open(place);
        let sequence = &mut self.state.sequences[place];
        *sequence = Sequence {
            last_call: sequence.last_call,
            generation: id.generation(),
            is_alive: true,
            owns_tail: true,
            ..Sequence::default()
        };
        // A batch may still show the place's former sequence.
        self.state.renew_table(place);
        self.graveyard.issue(id);
    }

    /// Lets a place be used again. One that has seen every generation stays empty: a handle never comes back.
    pub(crate) fn vacate(&mut self, id: SeqId) {
        if id.generation() < SeqId::MAX_GENERATION {
            self.state.free_places.push(id.index());
        }
    }
}
