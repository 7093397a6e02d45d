//! Every error of this crate. A call that returns one has changed nothing.

/// What went wrong, with the numbers that a caller needs to react.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not enough blocks now: wait, preempt or evict, then try again.
    #[error("need {requested} blocks, {free} free, {evictable} evictable")]
    OutOfBlocks {
        /// Blocks that the call needed.
        requested: u32,
        /// Blocks that can be allocated at once.
        free: u32,
        /// Cached blocks without holders.
        evictable: u32,
    },

    /// The request is larger than the whole pool: do not retry.
    #[error("need {requested} blocks, the pool has {capacity}")]
    NeverFits {
        /// Blocks that the request needs.
        requested: u64,
        /// Blocks that the pool has.
        capacity: u32,
    },

    /// A sequence needs at least one token.
    #[error("tokens is empty; a sequence needs at least 1 token")]
    EmptyPrompt,

    /// The sequence would outgrow its block table row.
    #[error("the sequence would hold {requested} tokens, max_sequence_len is {max_sequence_len}")]
    SequenceTooLong {
        /// Tokens that the sequence would hold.
        requested: u64,
        /// Tokens that a sequence may hold.
        max_sequence_len: u32,
    },

    /// Every sequence slot is taken: release one, then try again.
    #[error("all {max_sequences} sequences (max_sequences) are alive")]
    TooManySequences {
        /// Sequences that can be alive at once.
        max_sequences: u32,
    },

    /// A sequence was used after its release.
    #[error("sequence handle {handle} was released")]
    StaleSequence {
        /// The handle that was used.
        handle: i64,
    },

    /// A handle that this manager never issued.
    #[error("sequence handle {handle} was never issued by this manager")]
    UnknownSequence {
        /// The handle that was used.
        handle: i64,
    },

    /// The same sequence stands twice in one call.
    #[error("sequence handle {handle} stands twice in one call")]
    DuplicateSequence {
        /// The handle that stands twice.
        handle: i64,
    },

    /// The call does not fit the buffers that it writes.
    #[error("the call needs {what} >= {requested}, the buffers have {limit}")]
    BatchTooSmall {
        /// The dimension that is too small, such as `max_batch_tokens`.
        what: &'static str,
        /// What the call needs.
        requested: u64,
        /// What the buffers hold.
        limit: u64,
    },

    /// An argument has a value that is not allowed.
    #[error("{argument} {message}")]
    InvalidArgument {
        /// Name of the argument.
        argument: &'static str,
        /// What it was and what is allowed, such as `is 0, must be in 1..=65536`.
        message: String,
    },

    /// A block was retained or released that nobody holds.
    #[error("block {block} is held by nobody")]
    NotHeld {
        /// Id of the block.
        block: u32,
    },

    /// A count or a list disagrees with the others: a bug in this crate or in its user.
    #[error("corrupt state: {message}")]
    Corrupt {
        /// What disagrees with what.
        message: String,
    },

    /// The system does not give so much memory.
    #[error("the manager's arrays need {requested_bytes} bytes, which the system refuses")]
    OutOfMemory {
        /// Bytes that the manager would have taken.
        requested_bytes: u64,
    },

    /// A thread panicked inside the manager; its state is unknown.
    #[error("a thread panicked inside the manager; build a new one")]
    Poisoned,
}
