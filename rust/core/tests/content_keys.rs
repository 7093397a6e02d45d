//! Content keys: known answers, and what makes two keys differ.

#![cfg(not(looseleaf_loom))]

use looseleaf_core::prefix::{ContentKey, Namespace, content_keys};
use proptest::collection::vec;
use proptest::prelude::*;

const EXTREMES: [i32; 4] = [-1, 0, i32::MAX, i32::MIN];

fn tenant() -> Namespace {
    Namespace::builder()
        .salt("tenant-7")
        .adapter("sql", "3")
        .weight_epoch(5)
        .named("image", [0xff, 0x00])
        .build()
        .expect("no part stands twice")
}

fn key_of(namespace: &Namespace, block_size: u32, tokens: &[i32]) -> ContentKey {
    let root = ContentKey::of_root(namespace, block_size);
    content_keys(&root, tokens, block_size)
        .last()
        .expect("a whole block")
}

/// The expected values were computed with Python's `hashlib` and `struct` from the documented format.
#[test]
fn keys_are_those_of_another_implementation() {
    let root = ContentKey::of_root(&Namespace::default(), 4);
    let first = root.child(&[1, 2, 3, 4]);
    let second = first.child(&EXTREMES);
    let expected = [
        "7ae35cf86ee4b4d27ed9b3d38c44f59f24a506785f284aaa743437660e747203",
        "54eab076741692ae643bce5f09e1c2bdf88a40abbaa82d8a099e50e1142bcf9b",
        "787718e2b7d960bf19dcd3337a5a3eced3aac0ab2faa014d588e7e78e6bdb35e",
    ];
    assert_eq!([root, first, second].map(|key| key.to_string()), expected);
    assert_eq!(first.low64(), 693_080_320_297_914_267);
    assert_eq!(second.low64(), 6_381_176_779_762_938_718);

    let root = ContentKey::of_root(&tenant(), 4);
    let first = root.child(&[1, 2, 3, 4]);
    let second = first.child(&EXTREMES);
    let expected = [
        "2958a3eb9169a1ed5414a0978927247ee9aa3e84f474345e711365c8e0cd0404",
        "09adb899d967e7c0b9438b00769a4e5d3c677db18c0299aa5f1ccf362925479f",
        "dab0aec6e5af648e2d974a2aac4b0021d3c336452dea91fb3e6da3c19e6c0b8e",
    ];
    assert_eq!([root, first, second].map(|key| key.to_string()), expected);
    assert_eq!(second.low64(), 4_498_431_654_794_890_126);

    let tokens: Vec<i32> = (0..16).collect();
    assert_eq!(
        key_of(&Namespace::default(), 16, &tokens).to_string(),
        "17fababfd8a6894842a962960b58396f34151ab4d33ca2177048a70be8d6e16c"
    );
}

#[test]
fn low64_is_the_end_of_the_display() {
    let key = key_of(&tenant(), 2, &[1, 2]);
    let digits = key.to_string();
    assert_eq!(digits.len(), 64);
    assert_eq!(u64::from_str_radix(&digits[48..], 16), Ok(key.low64()));
}

#[test]
fn keys_of_other_namespaces_and_block_sizes_differ() {
    let tokens = [7; 4];
    let keys = [
        key_of(&Namespace::default(), 4, &tokens),
        key_of(&Namespace::default(), 2, &tokens),
        key_of(&Namespace::default(), 1, &tokens),
        key_of(&tenant(), 4, &tokens),
    ];
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "key {index}");
    }
}

proptest! {
    #[test]
    fn a_key_stands_for_its_whole_prefix(
        tokens in vec(0..2, 0..12),
        other in vec(0..2, 0..12),
        block_size in 1..4_u32,
    ) {
        let root = ContentKey::of_root(&Namespace::default(), block_size);
        let keys: Vec<_> = content_keys(&root, &tokens, block_size).collect();
        prop_assert_eq!(keys.len(), tokens.len() / block_size as usize);
        for (index, key) in content_keys(&root, &other, block_size).enumerate() {
            let end = (index + 1) * block_size as usize;
            let is_same = tokens.get(..end) == Some(&other[..end]);
            prop_assert_eq!(keys.get(index) == Some(&key), is_same);
        }
    }

    #[test]
    fn a_chain_can_be_continued(tokens in vec(any::<i32>(), 12), at in 0..=4_usize) {
        let root = ContentKey::of_root(&Namespace::default(), 3);
        let whole: Vec<_> = content_keys(&root, &tokens, 3).collect();
        let (head, tail) = tokens.split_at(at * 3);
        let mut parts: Vec<_> = content_keys(&root, head, 3).collect();
        let middle = *parts.last().unwrap_or(&root);
        parts.extend(content_keys(&middle, tail, 3));
        prop_assert_eq!(parts, whole);
    }
}
