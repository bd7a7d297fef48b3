use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::codec::{Decode, Postcard, Shape};
#[cfg(feature = "prost")]
use crate::codec::{Prost, Raw};

fn text<T>() -> String
where
    Postcard: Decode<T>,
{
    let mut shape = Shape::default();
    <Postcard as Decode<T>>::shape(&mut shape);
    shape.text().to_owned()
}

macro_rules! types {
    ($($item:item)*) => {$(#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)] $item)*};
}

types! {
    struct Unit;
    struct Id(u64);
    struct Pair(Id, Id);
    struct Row {
        id: Id,
        name: String,
        tags: Vec<String>,
    }
    enum Event {
        Started,
        Row(Row),
        Moved(i32, i32),
        Failed { code: u16, row: Option<Row> },
    }
    struct Tree {
        left: Option<Box<Self>>,
        right: Option<Box<Self>>,
        value: u8,
    }
    enum Expression {
        Add(Box<Self>, Box<Self>),
        Not(Box<Self>),
        Call { name: String, arguments: Vec<Self> },
        Literal(i64),
    }
    struct Page<T> {
        items: Vec<T>,
        next: Option<u32>,
    }
}

#[test]
fn plain_types() {
    assert_eq!(text::<()>(), "unit");
    assert_eq!(text::<(bool, char, String, f32, f64)>(), "(bool, char, string, f32, f64)");
    assert_eq!(text::<(i8, i16, i32, i64, i128)>(), "(i8, i16, i32, i64, i128)");
    assert_eq!(text::<(u8, u16, u32, u64, u128)>(), "(u8, u16, u32, u64, u128)");
    assert_eq!(text::<(usize, isize)>(), "(u64, i64)");
    assert_eq!(text::<[u8; 32]>(), "[u8; 32]");
    assert_eq!(text::<(u8,)>(), "(u8)");
}

#[test]
fn containers() {
    assert_eq!(text::<Vec<Option<u8>>>(), "[option<u8>]");
    assert_eq!(text::<HashMap<String, HashSet<u64>>>(), "{string: [u64]}");
    assert_eq!(text::<BTreeMap<u8, Box<str>>>(), "{u8: string}");
    assert_eq!(text::<Result<u8, String>>(), "Result[Ok(u8) | Err(string)]");
    assert_eq!(text::<Box<std::cell::Cell<u8>>>(), "u8");
}

#[test]
fn byte_strings() {
    assert_eq!(text::<Bytes>(), "attachment");
    assert_eq!(text::<Option<Bytes>>(), "option<attachment>");
    assert_eq!(text::<Vec<Bytes>>(), "[attachment]");
    assert_eq!(text::<(Bytes,)>(), "(bytes)");

    #[derive(Serialize, Deserialize)]
    struct Blob {
        #[serde(with = "crate::codec::attachment")]
        beside: Option<Bytes>,
        inside: Bytes,
    }
    assert_eq!(text::<Blob>(), "Blob { beside: option<attachment>, inside: bytes }");
}

#[test]
fn structs_and_enums() {
    assert_eq!(text::<Unit>(), "Unit");
    assert_eq!(text::<Pair>(), "Pair(Id(u64), Id#1)");
    assert_eq!(text::<Row>(), "Row { id: Id(u64), name: string, tags: [string] }");
    assert_eq!(
        text::<Event>(),
        "Event[Started | Row(Row { id: Id(u64), name: string, tags: [string] }) | Moved(i32, i32) | \
         Failed { code: u16, row: option<Row#1> }]"
    );
}

#[test]
fn recursive_types() {
    assert_eq!(text::<Tree>(), "Tree { left: option<Tree#0>, right: option<Tree#0>, value: u8 }");
    assert_eq!(
        text::<Expression>(),
        "Expression[Add(Expression#0, Expression#0) | Not(Expression#0) | \
         Call { name: string, arguments: [Expression#0] } | Literal(i64)]"
    );

    #[derive(Serialize, Deserialize)]
    enum Statement {
        Block(Vec<Self>),
        If(Box<Condition>, Box<Self>),
        Stop,
    }
    #[derive(Serialize, Deserialize)]
    enum Condition {
        After(Statement),
        Always,
        Both(Box<(Self, Self)>),
    }
    assert_eq!(
        text::<Statement>(),
        "Statement[Block([Statement#0]) | If(Condition[After(Statement#0) | Always | \
         Both((Condition#1, Condition#1))], Statement#0) | Stop]"
    );
}

#[test]
fn instances_of_a_generic_type_are_different_types() {
    assert_eq!(
        text::<(Page<u8>, Page<Id>, Page<u8>)>(),
        "(Page { items: [u8], next: option<u32> }, Page { items: [Id(u64)], next: option<u32> }, Page#0)"
    );
}

#[test]
fn every_variant_of_enums_side_by_side_is_seen() {
    macro_rules! wide {
        ($name:ident) => {
            #[derive(Serialize, Deserialize)]
            enum $name {
                A(Event),
                B(Option<Event>),
                C,
                D { e: Event },
            }
        };
    }
    wide!(X);
    wide!(Y);
    wide!(Z);
    let text = text::<(X, Y, Z)>();
    assert_eq!(text.matches("A(Event").count(), 3);
    assert_eq!(text.matches("D { e: Event#1 }").count(), 3);
    assert!(!text.contains('?'), "{text}");
}

#[test]
fn types_of_the_standard_library_that_refuse_samples() {
    assert_eq!(text::<NonZeroU32>(), "u32");
    assert_eq!(text::<Duration>(), "Duration { secs: u64, nanos: u32 }");
    assert_eq!(text::<SystemTime>(), "SystemTime { secs_since_epoch: u64, nanos_since_epoch: u32 }");
    assert_eq!(text::<IpAddr>(), "IpAddr[V4([u8; 4]) | V6([u8; 16])]");
    assert!(!text::<SocketAddr>().contains('?'));
    assert_eq!(text::<std::path::PathBuf>(), "string");
}

/// A type that accepts of another what `$valid` accepts.
macro_rules! validated {
    ($name:ident($inner:ty): $valid:expr) => {
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
        struct $name($inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let valid: fn(&$inner) -> bool = $valid;
                let inner = <$inner>::deserialize(deserializer)?;
                if valid(&inner) { Ok(Self(inner)) } else { Err(serde::de::Error::custom("invalid")) }
            }
        }
    };
}

validated!(Zero(u64): |n| *n == 0);
validated!(Address(String): |s| s.parse::<IpAddr>().is_ok());
validated!(Digest(Vec<u8>): |b| b.len() == 32);
validated!(Never(String): |_| false);

#[test]
fn validating_types_are_given_other_samples() {
    types! {
        struct Host {
            zero: Zero,
            address: Address,
            others: HashMap<Address, Option<Zero>>,
            digest: Digest,
            after: u8,
        }
    }
    assert_eq!(
        text::<Host>(),
        "Host { zero: u64, address: string, others: {string: option<u64>}, digest: [u8], after: u8 }"
    );
}

#[test]
fn a_type_that_refuses_every_sample_hides_little() {
    #[derive(Serialize, Deserialize)]
    struct Contained {
        option: Option<Never>,
        list: Vec<Never>,
        map: BTreeMap<String, Never>,
        after: u8,
    }
    assert_eq!(
        text::<Contained>(),
        "Contained { option: option<string>, list: [string], map: {string: string}, after: u8 }"
    );

    #[derive(Serialize, Deserialize)]
    enum Choice {
        First(u8),
        Hidden { never: Never, after: u8 },
        Last(u16),
    }
    assert_eq!(text::<Choice>(), "Choice[First(u8) | Hidden { never: string, after: ? } | Last(u16)]");

    #[derive(Serialize, Deserialize)]
    struct Bare {
        before: u8,
        never: Never,
        after: u8,
    }
    assert_eq!(text::<Bare>(), "Bare { before: u8, never: string, after: ? }");
}

#[test]
fn types_without_a_finite_value_end() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Endless(Box<Self>);
    assert_eq!(text::<Endless>(), "Endless(Endless#0)");

    #[derive(Serialize, Deserialize)]
    enum Uninhabited {}
    assert_eq!(text::<Uninhabited>(), "Uninhabited[]");
    assert_eq!(text::<Option<Uninhabited>>(), "option<Uninhabited[]>");
}

#[test]
fn a_type_that_the_codec_can_not_carry_is_named() {
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u8),
    }
    assert_eq!(text::<Untagged>(), "any");
}

#[test]
fn renamed_fields_and_variants_appear_under_their_new_names() {
    #[derive(Serialize, Deserialize)]
    #[serde(rename = "Old", rename_all = "camelCase")]
    struct New {
        long_name: u8,
        #[serde(skip)]
        _local: u8,
    }
    assert_eq!(text::<New>(), "Old { longName: u8 }");
}

#[test]
fn another_encoding_has_another_description() {
    mod old {
        types! { pub(super) struct Row { a: u32, b: u32 } pub(super) enum E { A, B } }
    }
    mod swapped {
        types! { pub(super) struct Row { b: u32, a: u32 } pub(super) enum E { B, A } }
    }
    mod retyped {
        types! { pub(super) struct Row { a: u32, b: i32 } pub(super) enum E { A, B(u8) } }
    }
    mod longer {
        types! { pub(super) struct Row { a: u32, b: u32, c: u32 } pub(super) enum E { A, B, C } }
    }
    let rows = [text::<old::Row>(), text::<swapped::Row>(), text::<retyped::Row>(), text::<longer::Row>()];
    assert_eq!(HashSet::from(rows).len(), 4);
    let enums = [text::<old::E>(), text::<swapped::E>(), text::<retyped::E>(), text::<longer::E>()];
    assert_eq!(HashSet::from(enums).len(), 4);
}

#[cfg(feature = "prost")]
#[test]
fn codecs_whose_messages_evolve_by_rules_of_their_own_say_only_that() {
    let mut shape = Shape::default();
    <Prost as Decode<String>>::shape(&mut shape);
    shape.opaque(" ");
    <Raw as Decode<Bytes>>::shape(&mut shape);
    assert_eq!(shape.text(), "protobuf raw");
}
