//! Operations of the state machine, as numbers that mean something in any state.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use looseleaf_core::{Config, Counts};

/// A handle that must be refused, added to a call's handles.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    None,
    Duplicate,
    Ended,
    Unknown(u8),
}

/// Live sequences, by the bits of a mask, in an order that changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) mask: u8,
    pub(crate) rotation: u8,
    pub(crate) fault: Fault,
}

/// `num_new` of a reserve, `num_computed` of a commit.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    Default,
    Same(u8),
    /// Taken in turn.
    Each(Vec<u8>),
    WrongLength,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    Nothing,
    Exactly,
    OneMore,
    OneLess,
    Negative,
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Admit {
        num_tokens: u8,
        reserve: Option<u8>,
        is_negative: bool,
    },
    CanAdmit(u8),
    Reserve {
        rows: Rows,
        num_new: Numbers,
        tokens: Given,
        lookahead: u8,
        /// One of the two batches, or none.
        batch: Option<bool>,
    },
    Commit {
        rows: Rows,
        num_computed: Numbers,
        tokens: Given,
    },
    Fork(Rows),
    Truncate(Rows, u8),
    Release(Rows),
    /// A dropped handle, once or twice, of a live sequence or of one that has ended.
    Bury(Rows),
    /// The oldest step runs.
    Run,
    /// The newest step fails half-way.
    Fail {
        with_copies: bool,
        num_writes: u8,
    },
}

/// A manager and what is done with it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) config: Config,
    pub(crate) max_batch_tokens: u8,
    /// Steps that are reserved before the oldest one runs.
    pub(crate) lag: u8,
    pub(crate) operations: Vec<Operation>,
}

pub(crate) fn scenarios(max_operations: usize) -> impl Strategy<Value = Scenario> {
    let sizes = (
        1_u32..=32,
        prop::sample::select(vec![1_u32, 2, 3, 4, 8]),
        1_u32..=6,
        1_u32..=40,
    );
    (
        sizes,
        2_u8..=24,
        0_u8..=2,
        vec(operations(), 1..=max_operations),
    )
        .prop_map(|(sizes, max_batch_tokens, lag, operations)| {
            let (num_blocks, block_size, max_sequences, max_sequence_len) = sizes;
            Scenario {
                config: Config::new(num_blocks, block_size, max_sequences, max_sequence_len)
                    .expect("sizes in range"),
                max_batch_tokens,
                lag,
                operations,
            }
        })
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (0_u8..24, option::weighted(0.3, 0_u8..32), prop::bool::weighted(0.05)).prop_map(
            |(num_tokens, reserve, is_negative)| Operation::Admit { num_tokens, reserve, is_negative }
        ),
        1 => (0_u8..48).prop_map(Operation::CanAdmit),
        20 => (rows(), numbers(), given(), lookaheads(), option::weighted(0.9, any::<bool>())).prop_map(
            |(rows, num_new, tokens, lookahead, batch)| Operation::Reserve { rows, num_new, tokens, lookahead, batch }
        ),
        // The step that an engine takes most.
        12 => (rows(), decode_tokens(), any::<bool>()).prop_map(|(rows, tokens, batch)| Operation::Reserve {
            rows,
            num_new: Numbers::Same(1),
            tokens,
            lookahead: 0,
            batch: Some(batch),
        }),
        18 => (rows(), numbers(), given()).prop_map(
            |(rows, num_computed, tokens)| Operation::Commit { rows, num_computed, tokens }
        ),
        8 => rows().prop_map(Operation::Fork),
        6 => (rows(), 0_u8..48).prop_map(|(rows, length)| Operation::Truncate(rows, length)),
        3 => rows().prop_map(Operation::Release),
        3 => rows().prop_map(Operation::Bury),
        3 => Just(Operation::Run),
        3 => (any::<bool>(), 0_u8..8).prop_map(
            |(with_copies, num_writes)| Operation::Fail { with_copies, num_writes }
        ),
    ]
}

fn rows() -> impl Strategy<Value = Rows> {
    let fault = prop_oneof![
        24 => Just(Fault::None),
        1 => Just(Fault::Duplicate),
        1 => Just(Fault::Ended),
        1 => any::<u8>().prop_map(Fault::Unknown),
    ];
    (any::<u8>(), 0_u8..6, fault).prop_map(|(mask, rotation, fault)| Rows {
        mask,
        rotation,
        fault,
    })
}

fn numbers() -> impl Strategy<Value = Numbers> {
    prop_oneof![
        8 => Just(Numbers::Default),
        6 => (0_u8..6).prop_map(Numbers::Same),
        8 => vec(0_u8..16, 6).prop_map(Numbers::Each),
        1 => Just(Numbers::WrongLength),
    ]
}

fn given() -> impl Strategy<Value = Given> {
    prop_oneof![
        8 => Just(Given::Nothing),
        8 => Just(Given::Exactly),
        1 => Just(Given::OneMore),
        1 => Just(Given::OneLess),
        1 => Just(Given::Negative),
    ]
}

fn decode_tokens() -> impl Strategy<Value = Given> {
    prop_oneof![
        16 => Just(Given::Exactly),
        1 => Just(Given::OneMore),
        1 => Just(Given::OneLess),
        1 => Just(Given::Negative),
    ]
}

fn lookaheads() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(0_u8), 1 => 1_u8..20, 1 => Just(u8::MAX)]
}

/// Numbers of a call, in its own type.
pub(crate) enum OwnedCounts {
    Default,
    Same(u32),
    Each(Vec<u32>),
}

impl OwnedCounts {
    /// `of_row` turns one of the numbers into that of a row.
    pub(crate) fn new(
        numbers: &Numbers,
        num_rows: usize,
        of_row: impl Fn(usize, u32) -> u32,
    ) -> Self {
        match numbers {
            Numbers::Default => Self::Default,
            Numbers::Same(number) => Self::Same(u32::from(*number)),
            Numbers::Each(numbers) => {
                let in_turn = numbers.iter().cycle().take(num_rows).enumerate();
                Self::Each(
                    in_turn
                        .map(|(row, &number)| of_row(row, u32::from(number)))
                        .collect(),
                )
            }
            Numbers::WrongLength => Self::Each(vec![1; num_rows + 1]),
        }
    }

    pub(crate) fn as_counts(&self) -> Counts<'_> {
        match self {
            Self::Default => Counts::Default,
            Self::Same(number) => Counts::Same(*number),
            Self::Each(numbers) => Counts::Each(numbers),
        }
    }
}
