//! Namespaces: different parts never have the same bytes, and the order of parts does not matter.

#![cfg(not(looseleaf_loom))]

use looseleaf_core::Error;
use looseleaf_core::prefix::{Namespace, NamespaceBuilder};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

/// A set of parts, as a caller thinks of it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Parts {
    salt: Option<Vec<u8>>,
    adapter: Option<(Vec<u8>, Vec<u8>)>,
    weight_epoch: Option<u64>,
    named: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Parts {
    /// One step per part, for a builder.
    fn steps(&self) -> Vec<Box<dyn Fn(NamespaceBuilder) -> NamespaceBuilder + '_>> {
        let mut steps: Vec<Box<dyn Fn(NamespaceBuilder) -> NamespaceBuilder>> = Vec::new();
        if let Some(salt) = &self.salt {
            steps.push(Box::new(move |builder| builder.salt(salt)));
        }
        if let Some((id, version)) = &self.adapter {
            steps.push(Box::new(move |builder| builder.adapter(id, version)));
        }
        if let Some(epoch) = self.weight_epoch {
            steps.push(Box::new(move |builder| builder.weight_epoch(epoch)));
        }
        for (name, value) in &self.named {
            steps.push(Box::new(move |builder| builder.named(name, value)));
        }
        steps
    }

    fn build(&self) -> Namespace {
        let steps = self.steps();
        let builder = steps
            .iter()
            .fold(Namespace::builder(), |builder, step| step(builder));
        builder.build().expect("no part stands twice")
    }
}

/// Reads the documented format. That it returns what was put in proves that no two sets of parts have the same bytes.
fn parse(bytes: &[u8]) -> Parts {
    fn field(rest: &mut &[u8]) -> Vec<u8> {
        let (length, after) = rest.split_at(8);
        let length = u64::from_le_bytes(length.try_into().expect("8 bytes"));
        let (content, after) = after.split_at(usize::try_from(length).expect("a short field"));
        *rest = after;
        content.to_vec()
    }

    let (version, mut rest) = bytes.split_first().expect("a version");
    assert_eq!(*version, 1);
    let mut parts = Parts::default();
    let mut last_tag = 0;
    while let Some((&tag, after)) = rest.split_first() {
        rest = after;
        assert!(tag >= last_tag, "parts in the order of their tags");
        last_tag = tag;
        match tag {
            1 => assert_eq!(parts.salt.replace(field(&mut rest)), None),
            2 => {
                let adapter = (field(&mut rest), field(&mut rest));
                assert_eq!(parts.adapter.replace(adapter), None);
            }
            3 => {
                let epoch = field(&mut rest).try_into().expect("8 bytes");
                assert_eq!(parts.weight_epoch.replace(u64::from_le_bytes(epoch)), None);
            }
            4 => parts.named.push((field(&mut rest), field(&mut rest))),
            _ => panic!("tag {tag} is not in the documentation"),
        }
    }
    parts
}

/// Few and short values, so that equal ones and ones that look like lengths or tags are frequent.
fn text() -> impl Strategy<Value = Vec<u8>> {
    vec(
        prop_oneof![Just(0), Just(1), Just(2), Just(b'a'), Just(b'b')],
        0..4,
    )
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        option::of(text()),
        option::of((text(), text())),
        option::of(prop_oneof![0..3_u64, Just(u64::MAX)]),
        btree_map(text(), text(), 0..4),
    )
        .prop_map(|(salt, adapter, weight_epoch, named)| Parts {
            salt,
            adapter,
            weight_epoch,
            named: named.into_iter().collect(), // sorted by name, as in the bytes
        })
}

proptest! {
    #[test]
    fn bytes_give_the_parts_back(parts in parts()) {
        prop_assert_eq!(parse(parts.build().as_bytes()), parts);
    }

    #[test]
    fn only_equal_parts_have_equal_bytes(a in parts(), b in parts()) {
        prop_assert_eq!(a == b, a.build() == b.build());
    }

    #[test]
    fn the_order_of_parts_does_not_matter(parts in parts(), keys in vec(any::<u32>(), 7)) {
        let mut steps: Vec<_> = parts.steps().into_iter().zip(keys).collect();
        steps.sort_by_key(|&(_, key)| key);
        let shuffled = steps.iter().fold(Namespace::builder(), |builder, (step, _)| step(builder));
        prop_assert_eq!(shuffled.build().expect("no part stands twice"), parts.build());
    }

    #[test]
    fn a_repeated_part_is_an_error(parts in parts(), index in any::<prop::sample::Index>()) {
        let steps = parts.steps();
        prop_assume!(!steps.is_empty());
        let builder = steps.iter().fold(Namespace::builder(), |builder, step| step(builder));
        let twice = index.get(&steps)(builder).build();
        let is_refused = matches!(twice, Err(Error::InvalidArgument { argument: "namespace", .. }));
        prop_assert!(is_refused);
    }
}

fn build(builder: NamespaceBuilder) -> Vec<u8> {
    builder
        .build()
        .expect("no part stands twice")
        .as_bytes()
        .to_vec()
}

#[test]
fn parts_that_look_alike_are_different_namespaces() {
    let builder = Namespace::builder;
    let alike = [
        build(builder()),
        build(builder().salt("S")),
        build(builder().salt("")),
        build(builder().adapter("S", "")),
        build(builder().adapter("", "S")),
        build(builder().adapter("", "")),
        build(builder().named("S", "")),
        build(builder().named("", "S")),
        build(builder().named("ab", "c")),
        build(builder().named("a", "bc")),
        build(builder().named("a", "b").named("c", "")),
        build(builder().weight_epoch(0)),
        build(builder().salt(0_u64.to_le_bytes())),
    ];
    for (index, namespace) in alike.iter().enumerate() {
        assert!(!alike[..index].contains(namespace), "namespace {index}");
    }
}

#[test]
fn bytes_are_those_of_the_documentation() {
    let namespace = Namespace::builder()
        .named("image", [0xff, 0x00])
        .weight_epoch(5)
        .adapter("sql", "3")
        .salt("tenant-7");
    let mut expected = vec![1];
    expected.extend([1, 8, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend(b"tenant-7");
    expected.extend([2, 3, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend(b"sql");
    expected.extend([1, 0, 0, 0, 0, 0, 0, 0, b'3']);
    expected.extend([3, 8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([4, 5, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend(b"image");
    expected.extend([2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0x00]);
    assert_eq!(build(namespace), expected);
    assert_eq!(Namespace::default().as_bytes(), [1]);
    assert_eq!(build(Namespace::builder()), [1]);
}

#[test]
fn a_salt_is_not_shown() {
    let builder = Namespace::builder().salt("secret");
    assert_eq!(format!("{builder:?}"), "NamespaceBuilder(1 parts)");
    let namespace = builder.build().expect("one part");
    assert_eq!(format!("{namespace:?}"), "Namespace(16 bytes)");
}
