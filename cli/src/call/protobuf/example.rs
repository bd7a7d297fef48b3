//! Values to begin from, by the descriptors of messages.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

/// Returns a value of a message.
pub(super) fn of(message: &MessageDescriptor) -> Value {
    Maker { open: Vec::new(), left: MOST }.message(message)
}

/// The most values of an example, and the most messages within messages. A hostile server can describe types of any size.
const MOST: usize = 4096;
const DEEPEST: usize = 32;

struct Maker {
    /// The messages that a value is within. A field that is within itself is left out.
    open: Vec<MessageDescriptor>,
    left: usize,
}

impl Maker {
    fn message(&mut self, message: &MessageDescriptor) -> Value {
        if let Some(value) = well_known(message.full_name()) {
            return value;
        }
        self.open.push(message.clone());
        let mut fields = Map::new();
        for field in message.fields() {
            // Of those that exclude each other, the first.
            let is_other =
                field.containing_oneof().is_some_and(|oneof| oneof.fields().next() != Some(field.clone()));
            if let Some(value) = (!is_other).then(|| self.field(&field)).flatten() {
                fields.insert(field.json_name().to_owned(), value);
            }
        }
        self.open.pop();
        Value::Object(fields)
    }

    fn field(&mut self, field: &FieldDescriptor) -> Option<Value> {
        // Names take memory, too.
        self.left = self.left.checked_sub(1 + field.json_name().len() / 64)?;
        let of = field.kind();
        match of.as_message() {
            Some(entry) if field.is_map() => {
                let key = match entry.map_entry_key_field().kind() {
                    Kind::String => "key",
                    Kind::Bool => "true",
                    _ => "1",
                };
                let value = self.value(&entry.map_entry_value_field().kind())?;
                Some(json!({ key: value }))
            }
            _ if field.is_list() => self.value(&of).map(|value| Value::Array(vec![value])),
            _ => self.value(&of),
        }
    }

    fn value(&mut self, of: &Kind) -> Option<Value> {
        Some(match of {
            Kind::Message(message) if self.open.contains(message) || self.open.len() == DEEPEST => {
                return None;
            }
            Kind::Message(message) => self.message(message),
            Kind::Enum(of) if of.full_name() == "google.protobuf.NullValue" => Value::Null,
            Kind::Enum(of) => of.values().next().map_or(Value::Null, |value| value.name().into()),
            Kind::Bool => false.into(),
            Kind::Double | Kind::Float => 0.5.into(),
            Kind::String => "text".into(),
            // "text", as base64.
            Kind::Bytes => "dGV4dA==".into(),
            Kind::Int64 | Kind::Uint64 | Kind::Sint64 | Kind::Fixed64 | Kind::Sfixed64 => "0".into(),
            Kind::Int32 | Kind::Uint32 | Kind::Sint32 | Kind::Fixed32 | Kind::Sfixed32 => 0.into(),
        })
    }
}

/// Returns a value of a message that JSON has in a form of its own.
fn well_known(name: &str) -> Option<Value> {
    Some(match name.strip_prefix("google.protobuf.")? {
        "Any" => json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": "text" }),
        "Timestamp" => "2000-01-01T00:00:00Z".into(),
        "Duration" => "1.500s".into(),
        "FieldMask" => "name,place".into(),
        "Struct" => json!({ "key": "any JSON" }),
        "Value" => "any JSON".into(),
        "ListValue" => json!(["any JSON"]),
        "Empty" => json!({}),
        "BoolValue" => false.into(),
        "DoubleValue" | "FloatValue" => 0.5.into(),
        "Int32Value" | "UInt32Value" => 0.into(),
        "Int64Value" | "UInt64Value" => "0".into(),
        "StringValue" => "text".into(),
        "BytesValue" => "dGV4dA==".into(),
        _ => return None,
    })
}
