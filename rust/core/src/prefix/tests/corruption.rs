//! Validation notices each kind of damage.

use super::super::node::{Anchor, Home, NodeId};
use super::super::tree::PrefixTree;
use super::fixture::{Fixture, id};
use crate::Error;

type Damage = fn(&mut PrefixTree);

/// `[1 2]` with the children `[3 4]` and `[5]`, and block 6 unpublished.
fn damaged(damage: Damage) -> String {
    let mut fixture = Fixture::new(6, 1);
    fixture.publish(None, &[1, 2, 3, 4], [1, 2, 3, 4]);
    fixture.publish(Some(2), &[5], [5]);
    damage(&mut fixture.tree);
    match fixture.tree.validate() {
        Err(Error::Corrupt { message }) => message,
        answer => panic!("not noticed: {answer:?}"),
    }
}

fn node_of(tree: &PrefixTree, block: u32) -> NodeId {
    tree.home(id(block)).expect("published").node
}

#[test]
fn every_damage_is_noticed() {
    let cases: [(&str, Damage); 12] = [
        ("the home of block 2", |tree| tree.homes[2].index = 0),
        ("the home of block 3", |tree| tree.homes[3] = Home::NIL),
        ("blocks with a home", |tree| tree.homes[6] = tree.homes[5]),
        ("blocks with a home", |tree| tree.homes[6] = Home::CLAIMED),
        ("published blocks", |tree| tree.num_published += 1),
        ("not found by its content", |tree| {
            let node = node_of(tree, 5);
            tree.arena[node].tokens[0] = 6;
        }),
        ("not found by its content", |tree| {
            let node = node_of(tree, 5);
            tree.children.remove(&tree.arena, node);
        }),
        ("entries of the child table", |tree| {
            let node = node_of(tree, 5);
            tree.children.insert(node, Anchor::block(id(1)), &[9]);
        }),
        ("listed in the wrong place", |tree| {
            let node = node_of(tree, 5);
            tree.arena[node].anchor = Anchor::block(id(1));
        }),
        ("live nodes", |tree| {
            // A subtree that is lost.
            let (parent, child) = (node_of(tree, 1), node_of(tree, 3));
            tree.arena[parent].first_child = child;
            tree.arena[child].previous_sibling = NodeId::NIL;
            tree.homes[5] = Home::NIL;
            tree.num_published -= 1;
        }),
        ("is empty", |tree| {
            let node = node_of(tree, 5);
            tree.arena[node].blocks.clear();
            tree.arena[node].tokens.clear();
        }),
        ("names and roots", |tree| {
            let root = tree.open_root(b"other");
            tree.roots.at_mut(root.place()).num_holders = 0;
        }),
    ];
    for (expected, damage) in cases {
        let message = damaged(damage);
        assert!(
            message.contains(expected),
            "{message}, expected: {expected}"
        );
    }
}
