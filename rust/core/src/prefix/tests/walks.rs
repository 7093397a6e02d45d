//! Up to the root and down to the tails.

use super::fixture::{Fixture, id, ids};

/// `[1 2]` with the children `[3 4]`, behind which `[6]` and `[7]` stand, and `[5]`.
fn bushy() -> Fixture {
    let mut fixture = Fixture::new(8, 1);
    fixture.publish(None, &[1, 2, 3, 4, 6], [1, 2, 3, 4, 6]);
    fixture.publish(Some(2), &[5], [5]);
    fixture.publish(Some(4), &[7], [7]);
    fixture
}

#[test]
fn descendants_come_deepest_first() {
    let fixture = bushy();
    for (block, expected) in [
        (1, &ids([6, 7, 4, 3, 5, 2])[..]),
        (2, &ids([6, 7, 4, 3, 5])),
        (3, &ids([6, 7, 4])),
        (5, &[]),
        (8, &[]),
    ] {
        let mut found = Vec::new();
        fixture.tree.descendants(id(block), &mut found);
        assert_eq!(found, expected, "of block {block}");
    }
}

#[test]
fn a_path_is_the_whole_prefix() {
    let fixture = bushy();
    for (block, expected) in [
        (1, &[1][..]),
        (4, &[1, 2, 3, 4]),
        (7, &[1, 2, 3, 4, 7]),
        (8, &[]),
    ] {
        let mut tokens = Vec::new();
        fixture.tree.path_tokens(id(block), &mut tokens);
        assert_eq!(tokens, expected, "of block {block}");
    }
}
