//! Descriptors of protobuf messages, and which of them a Rust type has.
//!
//! A signature of the codec `Prost` does not say what its messages have, and prost's types do not know their descriptors. Their paths
//! do: prost-build derives them from the names of the messages. `shop.v1.GetRequest.Filter` becomes `get_request::Filter`, in the
//! module that the application gives to the package.

use bytes::Bytes;
use prost::encoding::{WireType, decode_key, decode_varint};

use super::Message;

/// The names of the messages in sets of file descriptors.
#[derive(Debug)]
pub(super) struct Names(Vec<Name>);

/// The name of a message.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    full: String,
    /// How many bytes of it are the package.
    package: usize,
}

/// The package of the messages that clients know without descriptors.
const WELL_KNOWN: &str = "google.protobuf";

/// The messages of that package with a JSON form of their own.
const KNOWN: [&str; 17] = [
    "Any",
    "BoolValue",
    "BytesValue",
    "DoubleValue",
    "Duration",
    "Empty",
    "FieldMask",
    "FloatValue",
    "Int32Value",
    "Int64Value",
    "ListValue",
    "StringValue",
    "Struct",
    "Timestamp",
    "UInt32Value",
    "UInt64Value",
    "Value",
];

impl Names {
    /// Reads the sets. Fails with the reason if one can't be used.
    pub(super) fn read(sets: &[Bytes]) -> Result<Self, String> {
        let mut messages: Vec<_> = KNOWN
            .iter()
            .map(|name| Name { full: dotted(WELL_KNOWN, name), package: WELL_KNOWN.len() })
            .collect();
        for set in sets {
            names(set, &mut messages).ok_or_else(|| {
                format!(
                    "with_descriptors() got {} bytes that are no FileDescriptorSet: prost-build writes one to its \
                     `file_descriptor_set_path`, and protoc to its `--descriptor_set_out`",
                    set.len()
                )
            })?;
        }
        messages.sort_unstable();
        messages.dedup();
        Ok(Self(messages))
    }

    /// Returns the message that a Rust type of a service is, as far as its path tells. Where that leaves several, one in the package of
    /// the service counts more, as for names in a .proto file.
    pub(super) fn message(&self, service: &str, rust_type: &str) -> Message {
        let path = path(rust_type);
        let own = service.rsplit_once('.').map_or("", |(package, _)| package);
        let rank = |name: &Name| Some((name.fit(&path)?, name.package() == own));
        let best = self.0.iter().filter_map(rank).max();
        let names = self.0.iter().filter(|name| best.is_some() && rank(name) == best);
        Message { rust_type: rust_type.to_owned(), names: names.map(|name| name.full.clone()).collect() }
    }
}

impl Name {
    /// Returns how many parts of the name the path ends with, if the type can be this message.
    fn fit(&self, path: &[String]) -> Option<usize> {
        let parts = self.full.split('.').map(plain);
        let fit = parts.rev().zip(path.iter().rev()).take_while(|(part, of)| part == *of).count();
        let own = self.full[self.package..].split('.').filter(|part| !part.is_empty()).count();
        // An application may have a `Duration` of its own. Protobuf's is in a module `protobuf`.
        let least = own + usize::from(self.package() == WELL_KNOWN);
        (fit >= least).then_some(fit)
    }

    fn package(&self) -> &str {
        &self.full[..self.package]
    }
}

/// Returns the parts of a Rust type's path, as they are compared.
fn path(rust_type: &str) -> Vec<String> {
    let mut rust_type = rust_type;
    while let Some(inner) = rust_type.strip_prefix("alloc::boxed::Box<") {
        rust_type = inner.strip_suffix('>').unwrap_or(inner);
    }
    // Messages that prost has as Rust's own types.
    let rust_type = match rust_type {
        "()" => "protobuf::Empty",
        "bool" => "protobuf::BoolValue",
        "u32" => "protobuf::UInt32Value",
        "u64" => "protobuf::UInt64Value",
        "i32" => "protobuf::Int32Value",
        "i64" => "protobuf::Int64Value",
        "f32" => "protobuf::FloatValue",
        "f64" => "protobuf::DoubleValue",
        "alloc::string::String" => "protobuf::StringValue",
        "alloc::vec::Vec<u8>" | "bytes::bytes::Bytes" => "protobuf::BytesValue",
        other => other,
    };
    rust_type.split("::").map(plain).collect()
}

/// Returns a name without what prost-build changes: `HTTPHeaders` becomes the struct `HttpHeaders` and the module `http_headers`, and
/// `Self` becomes `Self_`.
fn plain(name: &str) -> String {
    let name = name.strip_prefix("r#").unwrap_or(name);
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// Adds the names of the messages in a `FileDescriptorSet`. Source: protobuf's descriptor.proto.
fn names(set: &[u8], to: &mut Vec<Name>) -> Option<()> {
    const FILE: u32 = 1;
    const PACKAGE: u32 = 2;
    const MESSAGES: u32 = 4;
    let files = fields(set)?;
    if files.is_empty() {
        return None;
    }
    for (field, file) in files {
        if field != FILE {
            return None;
        }
        let file = fields(file)?;
        let package = text(&file, PACKAGE)?;
        for (_, message) in file.iter().filter(|(field, _)| *field == MESSAGES) {
            names_in(message, package, package.len(), DEEPEST, to)?;
        }
    }
    Some(())
}

/// Messages within messages, of which prost reads no more.
const DEEPEST: usize = 100;

/// Adds the names of a message and of those in it.
fn names_in(message: &[u8], scope: &str, package: usize, depth: usize, to: &mut Vec<Name>) -> Option<()> {
    const NAME: u32 = 1;
    const MESSAGES: u32 = 3;
    let depth = depth.checked_sub(1)?;
    let message = fields(message)?;
    let full = dotted(scope, text(&message, NAME).filter(|name| !name.is_empty())?);
    for (_, inner) in message.iter().filter(|(field, _)| *field == MESSAGES) {
        names_in(inner, &full, package, depth, to)?;
    }
    to.push(Name { full, package });
    Some(())
}

fn dotted(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

/// Returns a field of text. It is empty if it is missing.
fn text<'a>(fields: &[(u32, &'a [u8])], number: u32) -> Option<&'a str> {
    let bytes = fields.iter().rfind(|(field, _)| *field == number).map_or(&[][..], |(_, bytes)| bytes);
    str::from_utf8(bytes).ok()
}

/// Returns the fields of a message that are messages, texts or bytes.
fn fields(mut message: &[u8]) -> Option<Vec<(u32, &[u8])>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let (field, kind) = decode_key(&mut message).ok()?;
        match kind {
            WireType::Varint => drop(decode_varint(&mut message).ok()?),
            WireType::ThirtyTwoBit => drop(message.split_off(..4)?),
            WireType::SixtyFourBit => drop(message.split_off(..8)?),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
                fields.push((field, message.split_off(..length)?));
            }
            WireType::StartGroup | WireType::EndGroup => return None,
        }
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

    use super::*;

    fn message(name: &str, inner: &[&str]) -> DescriptorProto {
        let nested_type = inner.iter().map(|name| message(name, &[])).collect();
        DescriptorProto { name: Some(name.into()), nested_type, ..Default::default() }
    }

    fn file(package: &str, messages: Vec<DescriptorProto>) -> FileDescriptorProto {
        let package = (!package.is_empty()).then(|| package.to_owned());
        FileDescriptorProto { package, message_type: messages, ..Default::default() }
    }

    fn read(files: Vec<FileDescriptorProto>) -> Names {
        Names::read(&[Bytes::from(FileDescriptorSet { file: files }.encode_to_vec())]).unwrap()
    }

    #[test]
    fn a_type_is_the_message_whose_name_its_path_ends_with() {
        let names = read(vec![
            file("shop.v1", vec![message("GetRequest", &["Filter", "HTTPHeaders"]), message("Self", &[])]),
            file("shop.v2", vec![message("GetRequest", &[])]),
            file("", vec![message("Bare", &[]), message("Duration", &[])]),
            file("google.protobuf", vec![message("Timestamp", &[])]),
            file("stock", vec![message("Item", &[])]),
            file("stock.old", vec![message("Item", &[])]),
        ]);
        for (rust_type, expected) in [
            ("kv::shop::v1::GetRequest", &["shop.v1.GetRequest"][..]),
            ("kv::v2::GetRequest", &["shop.v2.GetRequest"]),
            // In the package of the service.
            ("kv::proto::GetRequest", &["shop.v1.GetRequest"]),
            ("kv::proto::Item", &["stock.Item", "stock.old.Item"]),
            ("kv::stock::Item", &["stock.Item"]),
            ("alloc::boxed::Box<kv::v2::GetRequest>", &["shop.v2.GetRequest"]),
            ("kv::get_request::Filter", &["shop.v1.GetRequest.Filter"]),
            ("kv::r#get_request::HttpHeaders", &["shop.v1.GetRequest.HTTPHeaders"]),
            ("kv::Filter", &[]),
            ("kv::proto::Self_", &["shop.v1.Self"]),
            ("kv::proto::Bare", &["Bare"]),
            ("kv::proto::Duration", &["Duration"]),
            ("prost_types::protobuf::Timestamp", &["google.protobuf.Timestamp"]),
            ("prost_types::protobuf::Duration", &["google.protobuf.Duration"]),
            ("()", &["google.protobuf.Empty"]),
            (std::any::type_name::<String>(), &["google.protobuf.StringValue"]),
            (std::any::type_name::<Bytes>(), &["google.protobuf.BytesValue"]),
            (std::any::type_name::<Vec<u8>>(), &["google.protobuf.BytesValue"]),
            (std::any::type_name::<prost_types::Any>(), &["google.protobuf.Any"]),
        ] {
            assert_eq!(names.message("shop.v1.Kv", rust_type).names, expected, "{rust_type}");
        }
    }

    #[test]
    fn bytes_that_are_no_set_are_refused() {
        let mut deep = message("Deep", &[]);
        for _ in 0..DEEPEST {
            deep = DescriptorProto { nested_type: vec![deep], ..message("Deep", &[]) };
        }
        let deep = FileDescriptorSet { file: vec![file("", vec![deep])] }.encode_to_vec();
        let bare = FileDescriptorSet { file: vec![file("", vec![message("", &[])])] }.encode_to_vec();
        for set in [&b""[..], b"hello", b"\x0a\x7f", &[0xff; 20], &deep, &bare] {
            let why = Names::read(&[Bytes::copy_from_slice(set)]).unwrap_err();
            assert!(
                why.contains("no FileDescriptorSet") && why.contains("file_descriptor_set_path"),
                "{why}"
            );
        }
    }
}
