//! Where runs are split, continued and cut off, and what they weigh.

use super::super::PrefixTree;
use super::fixture::{Fixture, id};
use crate::BlockId;

#[test]
fn a_run_is_split_where_prompts_part() {
    let mut fixture = Fixture::new(9, 1);
    fixture.publish(None, &[1, 2, 3, 4], [1, 2, 3, 4]);
    fixture.publish(Some(2), &[5], [5]);
    assert_eq!(fixture.runs(), [vec![1, 2], vec![5], vec![3, 4]]);
    // The children of the split run stay behind its end.
    fixture.publish(Some(4), &[6], [6]);
    fixture.publish(Some(3), &[7], [7]);
    assert_eq!(
        fixture.runs(),
        [vec![1, 2], vec![5], vec![3], vec![7], vec![4, 6]]
    );
    assert_eq!(fixture.find(&[1, 2, 3, 4, 6]), [1, 2, 3, 4, 6]);
}

#[test]
fn children_stay_behind_a_run_that_is_split() {
    let mut fixture = Fixture::new(9, 1);
    fixture.publish(None, &[1, 2], [1, 2]);
    fixture.publish(Some(2), &[3], [3]);
    fixture.publish(Some(2), &[4], [4]); // splits behind 2: 3 becomes a child
    fixture.publish(Some(1), &[5], [5]); // splits in front of 2, which has two children
    assert_eq!(
        fixture.runs(),
        [vec![1], vec![5], vec![2], vec![4], vec![3]]
    );
    assert_eq!(fixture.find(&[1, 2, 3]), [1, 2, 3]);
    assert_eq!(fixture.find(&[1, 2, 4]), [1, 2, 4]);
}

#[test]
fn a_run_goes_on_once_its_children_are_gone() {
    let mut fixture = Fixture::new(9, 1);
    fixture.publish(None, &[1, 2], [1, 2]);
    fixture.publish(Some(1), &[3], [3]);
    fixture.remove([3, 2]);
    fixture.publish(Some(1), &[4], [4]);
    assert_eq!(fixture.runs(), [[1, 4]]);
}

#[test]
fn a_full_run_is_continued_by_a_child() {
    let mut fixture = Fixture::new(9, 1); // runs of 4
    fixture.publish(
        None,
        &[1, 2, 3, 4, 5, 6, 7, 8, 9],
        [1, 2, 3, 4, 5, 6, 7, 8, 9],
    );
    assert_eq!(
        fixture.runs(),
        [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9]]
    );
    fixture.remove([9, 8]);
    fixture.publish(Some(7), &[8, 9], [8, 9]);
    assert_eq!(
        fixture.runs(),
        [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9]]
    );
}

#[test]
fn a_short_run_is_moved_to_grow_and_a_long_one_is_continued_by_a_child() {
    for (num_at_once, expected_nodes) in [(31, 1), (32, 2), (40, 2)] {
        let mut tree = PrefixTree::new(100, 16, 1);
        let root = tree.open_root(b"");
        let blocks: Vec<BlockId> = (1..=60).map(id).collect();
        let (prompt, answer) = blocks.split_at(num_at_once);
        let mut predecessor = None;
        for step in [prompt].into_iter().chain(answer.chunks(1)) {
            let published = tree.publish(root, predecessor, &vec![7; step.len() * 16], step);
            assert_eq!(published.map(|published| published.num_new), Ok(step.len()));
            predecessor = step.last().copied();
            if step == &answer[..1] {
                assert_eq!(tree.arena.num_live(), expected_nodes);
            }
        }
        assert_eq!(tree.validate(), Ok(60));
        let mut found = Vec::new();
        assert_eq!(tree.find(root, &[7; 60 * 16], &mut found), 60);
        assert_eq!(found, blocks);
    }
}

#[test]
fn a_prompt_ends_anywhere() {
    let mut fixture = Fixture::new(9, 2);
    fixture.publish(None, &[1, 1, 2, 2, 3, 3], [1, 2, 3]);
    assert_eq!(fixture.find(&[]), []);
    assert_eq!(fixture.find(&[1]), []);
    assert_eq!(fixture.find(&[1, 1]), [1]);
    assert_eq!(fixture.find(&[1, 1, 2]), [1]);
    assert_eq!(fixture.find(&[1, 1, 2, 2, 3]), [1, 2]);
    assert_eq!(fixture.find(&[1, 1, 2, 2, 3, 3]), [1, 2, 3]);
    assert_eq!(fixture.find(&[1, 1, 2, 2, 3, 3, 4, 4]), [1, 2, 3]);
}

/// Block size 16: 64 bytes of tokens, 4 of id, 8 of home, and a tenth more for nodes and unused room.
#[test]
fn a_block_of_16_tokens_takes_84_bytes_at_most() {
    let num_blocks = 1 << 14;
    let mut tree = PrefixTree::new(num_blocks, 16, 1);
    let root = tree.open_root(b"");
    let mut numbers = 1..=num_blocks;
    // Prompts of 20 blocks behind one of four system prompts, answered block by block with 10 more.
    for prompt in 0..i32::MAX {
        let blocks: Vec<BlockId> = numbers.by_ref().take(30).map(id).collect();
        let mut predecessor = None;
        if prompt >= 4 {
            let system = u32::try_from(prompt).expect("few prompts") % 4 * 30 + 15;
            predecessor = Some(id(system));
        }
        for (index, step) in [20, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1].into_iter().enumerate() {
            let done = if index == 0 { 0 } else { 19 + index };
            let Some(blocks) = blocks.get(done..done + step) else {
                continue;
            };
            let published = tree.publish(root, predecessor, &vec![prompt; step * 16], blocks);
            assert_eq!(published.map(|published| published.num_new), Ok(step));
            predecessor = blocks.last().copied();
        }
        if blocks.len() < 30 {
            break;
        }
    }
    let num_published = tree.validate().expect("a sound tree");
    assert!(num_published > 16_000);
    let bytes = tree.memory_bytes() / num_published;
    assert!(bytes <= 84, "{bytes} bytes per block");
}

#[test]
fn memory_is_given_back_as_blocks_go() {
    let mut tree = PrefixTree::new(1000, 16, 1);
    let root = tree.open_root(b"");
    let blocks: Vec<BlockId> = (1..=1000).map(id).collect();
    let empty = tree.memory_bytes();
    let published = tree.publish(root, None, &vec![7; 16_000], &blocks);
    assert_eq!(published.map(|published| published.num_new), Ok(1000));
    let full = tree.memory_bytes() - empty;
    for &block in blocks[200..].iter().rev() {
        assert_eq!(tree.remove(block), Ok(()));
    }
    assert!(tree.memory_bytes() - empty < full / 3);
}
