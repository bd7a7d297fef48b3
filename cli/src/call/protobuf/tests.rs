//! Random descriptors and messages: none of them makes the command panic.

use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions,
};

use super::*;

fn zoo() -> FileDescriptorSet {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protobuf");
    protox::compile(["zoo.proto"], [folder]).unwrap()
}

fn pool(set: &FileDescriptorSet) -> Result<DescriptorPool, String> {
    flat::pool(&[Bytes::from(set.encode_to_vec())])
}

fn file(messages: Vec<DescriptorProto>) -> FileDescriptorSet {
    FileDescriptorSet { file: vec![FileDescriptorProto { message_type: messages, ..Default::default() }] }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.into()), field, ..Default::default() }
}

fn field(name: &str, number: i32, label: Label, of: Type, type_name: &str) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(label.into()),
        r#type: Some(of.into()),
        type_name: (!type_name.is_empty()).then(|| type_name.into()),
        ..Default::default()
    }
}

/// Does with all messages what the command does with one.
fn use_all(pool: &DescriptorPool, random: &mut fastrand::Rng) {
    for message in pool.all_messages().filter(|message| !message.full_name().starts_with("google.protobuf."))
    {
        let example = message.example();
        definition::of(std::slice::from_ref(&message));
        if let Ok(encoded) = message.encode(&example) {
            let mut bytes = encoded.body().to_vec();
            let _ = message.decode(&encoded);
            for _ in 0..random.usize(..4).min(bytes.len()) {
                let place = random.usize(..bytes.len());
                bytes[place] = random.u8(..);
            }
            let _ = message.decode(&Payload::from_body(bytes.into()));
        }
    }
}

#[test]
fn no_descriptor_value_or_message_panics() {
    let mut random = fastrand::Rng::with_seed(1);
    let set = zoo();
    // Without protobuf's own, which nobody reads, and without comments.
    let files = set.file.into_iter().filter(|file| file.package() != "google.protobuf");
    let set = FileDescriptorSet {
        file: files.map(|file| FileDescriptorProto { source_code_info: None, ..file }).collect(),
    };
    let bytes = set.encode_to_vec();
    let mut understood = 0;
    for _ in 0..10_000 {
        let mut bytes = bytes.clone();
        for _ in 0..random.usize(1..4) {
            let place = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[place] = random.u8(..),
                1 => bytes[place] = bytes[random.usize(..bytes.len())],
                2 => bytes[place] = bytes[place].wrapping_add(1),
                _ => drop(bytes.remove(place)),
            }
        }
        let Ok(pool) = flat::pool(&[bytes.into()]) else { continue };
        understood += 1;
        use_all(&pool, &mut random);
    }
    assert!(understood > 1000, "{understood}");
}

#[test]
fn descriptors_that_no_compiler_writes_are_refused_or_do_no_harm() {
    let circle = |name: &str, imports: &str| FileDescriptorProto {
        name: Some(name.into()),
        dependency: vec![imports.into()],
        public_dependency: vec![0],
        ..Default::default()
    };
    let circle = FileDescriptorSet { file: vec![circle("a", "b"), circle("b", "a")] };
    assert!(pool(&circle).is_ok());

    let is_map = Some(MessageOptions { map_entry: Some(true), ..Default::default() });
    let keys = |key| {
        vec![field("key", 1, Label::Optional, key, ""), field("value", 2, Label::Optional, Type::Int32, "")]
    };
    for (fields, fits) in [(vec![], false), (keys(Type::Float), false), (keys(Type::String), true)] {
        let entry = DescriptorProto { options: is_map.clone(), ..message("Entry", fields) };
        let of = message("M", vec![field("map", 1, Label::Repeated, Type::Message, ".Entry")]);
        assert_eq!(pool(&file(vec![entry, of])).is_ok(), fits);
    }

    let broken = FieldDescriptorProto {
        default_value: Some("\\777\\xé".into()),
        ..field("f", 1, Label::Optional, Type::Bytes, "")
    };
    assert!(pool(&file(vec![message("M", vec![broken])])).is_ok());

    let editions = FileDescriptorProto { syntax: Some("editions".into()), ..Default::default() };
    let why = pool(&FileDescriptorSet { file: vec![editions] }).unwrap_err();
    assert!(why.contains("the syntax editions"), "{why}");

    let new = EnumDescriptorProto {
        name: Some("New".into()),
        value: vec![EnumValueDescriptorProto {
            name: Some("NEW".into()),
            number: Some(0),
            ..Default::default()
        }],
        ..Default::default()
    };
    let known = FileDescriptorProto {
        package: Some("google.protobuf".into()),
        enum_type: vec![new],
        message_type: vec![message(
            "Timestamp",
            vec![field("seconds", 1, Label::Optional, Type::String, "")],
        )],
        ..Default::default()
    };
    let all = pool(&FileDescriptorSet { file: vec![known] }).unwrap();
    let timestamp = all.get_message_by_name("google.protobuf.Timestamp").unwrap();
    assert_eq!(timestamp.fields().len(), 2);
    assert!(all.get_enum_by_name("google.protobuf.New").is_some());
}

#[test]
fn names_and_descriptors_have_limits() {
    let long = message(&"x".repeat(2000), vec![]);
    assert!(pool(&file(vec![long])).unwrap_err().contains("names are too long"));
    // Each name has those that it is within.
    let values = (0..100_000).map(|n| EnumValueDescriptorProto {
        name: Some(format!("{n:020}")),
        number: Some(n),
        ..Default::default()
    });
    let many = EnumDescriptorProto { name: Some("E".into()), value: values.collect(), ..Default::default() };
    let many =
        FileDescriptorProto { package: Some("p".repeat(1000)), enum_type: vec![many], ..Default::default() };
    assert!(pool(&FileDescriptorSet { file: vec![many] }).unwrap_err().contains("names are too long"));
    let huge = flat::pool(&[Bytes::from(vec![0; 9 << 20]), Bytes::from(vec![0; 9 << 20])]).unwrap_err();
    assert!(huge.contains("more than 16777216"), "{huge}");
}

#[test]
fn messages_within_any_have_a_limit() {
    let all = pool(&zoo()).unwrap();
    let any = all.get_message_by_name("google.protobuf.Any").unwrap();
    let nested = |depth: usize| {
        let mut value = json_any(Value::Null, "google.protobuf.Empty");
        for _ in 0..depth {
            value = json_any(value, "google.protobuf.Any");
        }
        value
    };
    let fits = any.encode(&nested(20)).unwrap();
    assert_eq!(any.decode(&fits).unwrap(), nested(20));
    // More than JSON's own nesting allows.
    let mut bytes = fits.body().to_vec();
    for _ in 0..10_000 {
        let url = "type.googleapis.com/google.protobuf.Any".to_owned();
        bytes = prost_reflect::prost_types::Any { type_url: url, value: bytes }.encode_to_vec();
    }
    let why = any.decode(&Payload::from_body(bytes.into())).unwrap_err();
    assert_eq!(why, "the message is nested too deep");
}

fn json_any(value: Value, name: &str) -> Value {
    let value = if value.is_null() { serde_json::json!({}) } else { value };
    serde_json::json!({ "@type": format!("type.googleapis.com/{name}"), "value": value })
}

#[test]
fn several_sets_can_have_one_file() {
    let set = Bytes::from(zoo().encode_to_vec());
    let all = flat::pool(&[set.clone(), set]).unwrap();
    let animal = all.get_message_by_name("zoo.v1.Animal").unwrap();
    let example = animal.example();
    assert!(animal.encode(&example).is_ok(), "{example}");
}

#[test]
fn a_type_that_can_be_two_messages_is_refused() {
    let message = serde_json::json!({ "rust_type": "kv::Item", "names": ["stock.Item", "stock.old.Item"] });
    let message: reflection::Message = serde_json::from_value(message).unwrap();
    let service = serde_json::json!({ "name": "Kv", "codec": "prost", "methods": [] });
    let service: Service = serde_json::from_value(service).unwrap();
    let messages = Messages::of(Ok(vec![Bytes::from(zoo().encode_to_vec())]));
    let why = messages.find(&service, &message).unwrap_err();
    let says = "Rust type `kv::Item` can be stock.Item or stock.old.Item: it must be in modules named as the package is";
    assert!(why.text().contains(says), "{}", why.text());
}
