//! What one thread can see of the free stack, at its limits.
#![cfg(not(looseleaf_loom))]

use looseleaf_core::{BlockId, FreeStack};

fn block(id: u32) -> BlockId {
    BlockId::new(id).expect("a block id")
}

fn pop(stack: &FreeStack, num_blocks: usize) -> Option<Vec<u32>> {
    let mut blocks = vec![BlockId::NULL; num_blocks];
    stack
        .pop(&mut blocks)
        .then(|| blocks.into_iter().map(BlockId::get).collect())
}

fn at_rest(stack: &FreeStack) -> Vec<u32> {
    let blocks = stack.blocks_at_rest().expect("no cycle");
    blocks.into_iter().map(BlockId::get).collect()
}

#[test]
fn a_new_stack_hands_out_ascending_ids() {
    let stack = FreeStack::new(5);
    assert_eq!(at_rest(&stack), [1, 2, 3, 4, 5]);
    assert_eq!(pop(&stack, 2), Some(vec![1, 2]));
    assert_eq!(pop(&stack, 3), Some(vec![3, 4, 5]));
    assert_eq!(at_rest(&stack), []);
}

#[test]
fn a_batch_is_popped_whole_or_not_at_all() {
    let stack = FreeStack::new(3);
    assert_eq!(pop(&stack, 0), Some(vec![]));
    assert_eq!(pop(&stack, 4), None);
    assert_eq!(at_rest(&stack), [1, 2, 3]);
    assert_eq!(pop(&stack, 3), Some(vec![1, 2, 3]));
    assert_eq!(pop(&stack, 1), None);
    assert_eq!(pop(&stack, 0), Some(vec![]));
}

#[test]
fn what_is_pushed_is_popped_in_the_same_order() {
    let stack = FreeStack::new(4);
    assert!(pop(&stack, 4).is_some());
    stack.push(&[]);
    assert_eq!(at_rest(&stack), []);
    stack.push(&[block(3)]);
    stack.push(&[block(4), block(1)]);
    assert_eq!(at_rest(&stack), [4, 1, 3]);
    assert_eq!(pop(&stack, 3), Some(vec![4, 1, 3]));
}

#[test]
fn one_block_goes_round() {
    let stack = FreeStack::new(1);
    for _ in 0..3 {
        assert_eq!(pop(&stack, 2), None);
        assert_eq!(pop(&stack, 1), Some(vec![1]));
        assert_eq!(pop(&stack, 1), None);
        stack.push(&[block(1)]);
    }
}

#[test]
fn an_empty_stack_stays_empty() {
    let stack = FreeStack::new(0);
    assert_eq!(pop(&stack, 0), Some(vec![]));
    assert_eq!(pop(&stack, 1), None);
    assert_eq!(at_rest(&stack), []);
}

#[test]
fn a_block_pushed_twice_is_found_at_rest() {
    let stack = FreeStack::new(2);
    stack.push(&[block(2)]); // 2 is on the stack already: 2 -> 1 -> 2
    assert!(stack.blocks_at_rest().is_err());
}

#[test]
#[should_panic(expected = "index out of bounds")]
fn a_block_outside_the_pool_is_not_pushed() {
    FreeStack::new(2).push(&[block(3)]);
}
