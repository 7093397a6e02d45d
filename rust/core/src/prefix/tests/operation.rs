//! Operations as numbers that mean something in any state.

use proptest::collection::vec;
use proptest::prelude::*;

use super::fixture::Hash;

pub(super) const NUM_NAMESPACES: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    None,
    /// A block of the call is in the tree.
    Published,
    /// A block stands twice in the call.
    Twice,
    NullBlock,
    OutsidePool,
    /// One token too few.
    Short,
    StaleRoot,
    Predecessor,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Publish {
        namespace: usize,
        /// Which of the namespace's blocks is the predecessor; 0: none.
        behind: u8,
        tokens: Vec<i32>,
        num_blocks: usize,
        fault: Fault,
    },
    Find {
        namespace: usize,
        tokens: Vec<i32>,
    },
    /// Any block, also one that has descendants.
    Remove(u8),
    /// A block with all that stands behind it.
    RemoveTree(u8),
    /// Everything of a namespace, then its root.
    Forget(usize),
    Open(usize),
    Release(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) hash: Hash,
    pub(super) num_blocks: u32,
    pub(super) block_size: u32,
    pub(super) max_run: usize,
    pub(super) operations: Vec<Operation>,
}

fn hashes() -> impl Strategy<Value = Hash> {
    prop_oneof![
        any::<u64>().prop_map(Hash::Mix),
        Just(Hash::Constant),
        Just(Hash::SumModFour),
    ]
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        20 => Just(Fault::None),
        1 => Just(Fault::Published),
        1 => Just(Fault::Twice),
        1 => Just(Fault::NullBlock),
        1 => Just(Fault::OutsidePool),
        1 => Just(Fault::Short),
        1 => Just(Fault::StaleRoot),
        1 => Just(Fault::Predecessor),
    ]
}

fn operations(alphabet: i32) -> impl Strategy<Value = Operation> {
    let namespace = prop_oneof![4 => Just(0), 1 => 1..NUM_NAMESPACES];
    let tokens = vec(0..alphabet, 0..24);
    let publish = (
        namespace.clone(),
        any::<u8>(),
        vec(0..alphabet, 24),
        prop_oneof![4 => 1..3_usize, 1 => 0..7_usize],
        faults(),
    );
    prop_oneof![
        8 => publish.prop_map(|(namespace, behind, tokens, num_blocks, fault)| {
            Operation::Publish { namespace, behind, tokens, num_blocks, fault }
        }),
        4 => (namespace.clone(), tokens).prop_map(|(namespace, tokens)| {
            Operation::Find { namespace, tokens }
        }),
        4 => any::<u8>().prop_map(Operation::Remove),
        1 => any::<u8>().prop_map(Operation::RemoveTree),
        1 => (0..NUM_NAMESPACES).prop_map(Operation::Forget),
        1 => namespace.clone().prop_map(Operation::Open),
        1 => namespace.prop_map(Operation::Release),
    ]
}

/// Small alphabets, blocks and runs, so that splits, shared prefixes and full runs are frequent.
pub(super) fn scenarios(max_operations: usize) -> impl Strategy<Value = Scenario> {
    (
        hashes(),
        1..32_u32,
        1..5_u32,
        prop_oneof![1..4_usize, Just(100)],
        2..4_i32,
    )
        .prop_flat_map(move |(hash, num_blocks, block_size, max_run, alphabet)| {
            vec(operations(alphabet), 0..max_operations).prop_map(move |operations| Scenario {
                hash,
                num_blocks,
                block_size,
                max_run,
                operations,
            })
        })
}
