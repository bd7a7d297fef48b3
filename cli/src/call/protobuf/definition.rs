//! Messages as a .proto file has them, for people.

use std::collections::HashSet;
use std::fmt::Write;

use prost_reflect::{Cardinality, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, OneofDescriptor};

use crate::output::foreign;

/// Bytes of text, after which people have seen enough. A hostile server can describe types of any size.
const LONGEST: usize = 256 << 10;

/// Returns the definitions of messages, and of what is in them.
pub(super) fn of(messages: &[MessageDescriptor]) -> String {
    let mut writer = Writer { text: String::new(), seen: HashSet::new(), queue: Vec::new() };
    messages.iter().for_each(|message| writer.refer(&Kind::Message(message.clone())));
    let mut next = 0;
    while let Some(of) = writer.queue.get(next).cloned() {
        if writer.text.len() > LONGEST {
            writer.text += "// and more\n";
            break;
        }
        match of {
            Kind::Message(message) => writer.message(&message),
            Kind::Enum(of) => writer.enumeration(&of),
            _ => {}
        }
        next += 1;
    }
    foreign(&writer.text)
}

struct Writer {
    text: String,
    /// The names of those that were or will be written.
    seen: HashSet<String>,
    queue: Vec<Kind>,
}

impl Writer {
    /// Has a type written, unless everybody knows it.
    fn refer(&mut self, of: &Kind) {
        let name = match of {
            Kind::Message(message) => message.full_name(),
            Kind::Enum(of) => of.full_name(),
            _ => return,
        };
        if !name.starts_with("google.protobuf.") && self.seen.insert(name.to_owned()) {
            self.queue.push(of.clone());
        }
    }

    fn line(&mut self, depth: usize, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{:1$}{text}", "", 2 * depth);
    }

    fn begin(&mut self, text: std::fmt::Arguments<'_>) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(0, text);
    }

    fn message(&mut self, message: &MessageDescriptor) {
        self.begin(format_args!("message {} {{", message.full_name()));
        let mut written: Vec<OneofDescriptor> = Vec::new();
        for field in message.fields() {
            match field.containing_oneof().filter(|_| !is_optional(&field)) {
                None => self.field(1, &field),
                Some(oneof) if written.contains(&oneof) => {}
                Some(oneof) => {
                    self.line(1, format_args!("oneof {} {{", oneof.name()));
                    oneof.fields().for_each(|field| self.field(2, &field));
                    self.line(1, format_args!("}}"));
                    written.push(oneof);
                }
            }
        }
        self.line(0, format_args!("}}"));
    }

    fn field(&mut self, depth: usize, field: &FieldDescriptor) {
        let of = field.kind();
        let map = of.as_message().filter(|_| field.is_map());
        let (label, name) = match (map, field.cardinality()) {
            (Some(entry), _) => {
                let value = entry.map_entry_value_field().kind();
                self.refer(&value);
                ("", format!("map<{}, {}>", name(&entry.map_entry_key_field().kind()), name(&value)))
            }
            (None, cardinality) => {
                self.refer(&of);
                let label = match cardinality {
                    Cardinality::Repeated => "repeated ",
                    Cardinality::Required => "required ",
                    Cardinality::Optional if is_optional(field) => "optional ",
                    Cardinality::Optional => "",
                };
                (label, name(&of))
            }
        };
        self.line(depth, format_args!("{label}{name} {} = {};", field.name(), field.number()));
    }

    fn enumeration(&mut self, of: &EnumDescriptor) {
        self.begin(format_args!("enum {} {{", of.full_name()));
        for value in of.values() {
            self.line(1, format_args!("{} = {};", value.name(), value.number()));
        }
        self.line(0, format_args!("}}"));
    }
}

fn is_optional(field: &FieldDescriptor) -> bool {
    field.field_descriptor_proto().proto3_optional()
}

fn name(of: &Kind) -> String {
    // The debug output of prost-reflect is the name that a .proto file has.
    format!("{of:?}")
}
