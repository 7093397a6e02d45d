//! A block that was removed leaves nothing behind, and the tail is what goes first.

use super::super::TreeError;
use super::fixture::{Fixture, id, ids};

#[test]
fn a_recycled_block_forgets_its_content() {
    let mut fixture = Fixture::new(3, 4);
    fixture.publish(None, &[1, 2, 3, 4], [1]);
    assert_eq!(fixture.find(&[1, 2, 3, 4, 5]), [1]);
    fixture.remove([1]);
    assert!(!fixture.tree.is_published(id(1)));
    fixture.publish(None, &[9; 12], [1, 2, 3]);
    fixture.remove([3, 2, 1]);
    assert_eq!(fixture.find(&[1, 2, 3, 4, 5]), []);
    assert_eq!(fixture.find(&[9; 12]), []);
}

#[test]
fn a_recycled_block_has_no_old_children() {
    let mut fixture = Fixture::new(4, 1);
    fixture.publish(None, &[1, 2, 3], [1, 2, 3]);
    fixture.publish(Some(1), &[4], [4]);
    fixture.remove([4, 3, 2, 1]);
    // Block 1 in another place, then a prompt that would have followed its old content.
    fixture.publish(None, &[5, 1], [2, 1]);
    assert_eq!(fixture.find(&[5, 1, 2]), [2, 1]);
    assert_eq!(fixture.find(&[5, 1, 4]), [2, 1]);
    assert_eq!(fixture.find(&[1, 2, 3]), []);
}

#[test]
fn only_tails_are_removed() {
    let mut fixture = Fixture::new(5, 2);
    fixture.publish(None, &[1, 1, 2, 2, 3, 3], [1, 2, 3]);
    fixture.publish(Some(2), &[4, 4], [4]);
    for block in ids([1, 2]) {
        assert_eq!(fixture.tree.remove(block), Err(TreeError::NotATail(block)));
        fixture.validate();
    }
    assert_eq!(fixture.find(&[1, 1, 2, 2, 4, 4]), [1, 2, 4]);
    assert_eq!(
        fixture.tree.remove(id(5)),
        Err(TreeError::NotPublished(id(5)))
    );
    fixture.remove([3, 4, 2, 1]);
}

#[test]
fn without_its_tail_a_prompt_is_found_up_to_there() {
    let tokens: Vec<i32> = (1..=12).collect();
    for shuffle in 0..200_u32 {
        let mut fixture = Fixture::new(200, 4);
        let blocks = [7, 11, 13].map(|step| 1 + shuffle * step % 199);
        let [first, second, third] = blocks;
        if first == second || second == third || first == third {
            continue;
        }
        fixture.publish(None, &tokens, blocks);
        fixture.remove([third]);
        assert_eq!(fixture.find(&tokens), [first, second]);
    }
}
