//! A server's descriptors, made safe.
//!
//! prost-reflect trusts descriptors to come from a compiler: it follows imports in circles, and panics for a map without keys or a
//! default with a broken escape. Those of a server may be anything. So all that JSON does not need is left out, imports among
//! them: one file has all messages, each with its whole name.

use std::collections::{HashMap, HashSet};

use farcall::Bytes;
use farcall::codec::{Payload, Prost, from_payload};
use prost_reflect::DescriptorPool;
use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumOptions, EnumValueDescriptorProto, FieldDescriptorProto,
    FieldOptions, FileDescriptorProto, FileDescriptorSet, MessageOptions, OneofDescriptorProto,
};

/// Bytes of all descriptors.
const LONGEST: usize = 16 << 20;

/// Bytes of all names, each with those that it is within. prost-reflect keeps them several times.
const LONGEST_NAMES: usize = 64 << 20;

/// Bytes that a name counts with beside its own: what it names takes memory, too.
const NAMED: usize = 128;

/// Bytes of a package's or type's name. prost-reflect looks a name up in each package that it can be in.
const LONGEST_NAME: usize = 1024;

/// Reads sets of descriptors, which may be anything.
pub(super) fn pool(sets: &[Bytes]) -> Result<DescriptorPool, String> {
    let length: usize = sets.iter().map(Bytes::len).sum();
    if length > LONGEST {
        return Err(format!("they have {length} bytes, more than {LONGEST}"));
    }
    let known = DescriptorPool::global();
    let mut flat = Flat {
        known: &known,
        seen: HashSet::new(),
        left: LONGEST_NAMES,
        messages: Vec::new(),
        enums: HashMap::new(),
    };
    for set in sets {
        let set: FileDescriptorSet =
            from_payload::<Prost, _>(Payload::from_body(set.clone())).map_err(|why| why.to_string())?;
        set.file.into_iter().try_for_each(|file| flat.add_file(file))?;
    }
    let mut pool = known.clone();
    pool.add_file_descriptor_protos(flat.files()).map_err(|why| why.to_string())?;
    Ok(pool)
}

/// The messages and enums of all files.
struct Flat<'a> {
    /// Protobuf's own messages.
    known: &'a DescriptorPool,
    /// The messages and enums so far: several sets can have the same file.
    seen: HashSet<String>,
    /// How many bytes of names may still come.
    left: usize,
    messages: Vec<DescriptorProto>,
    /// The enums of each package that are in no message.
    enums: HashMap<String, Vec<EnumDescriptorProto>>,
}

impl Flat<'_> {
    fn add_file(&mut self, file: FileDescriptorProto) -> Result<(), String> {
        let is_packed = match file.syntax() {
            "" | "proto2" => false,
            "proto3" => true,
            other => return Err(format!("{} has the syntax {other}, not proto2 or proto3", file.name())),
        };
        let package = file.package().to_owned();
        self.spend("", &package)?;
        for message in file.message_type {
            self.add_message(&package, message, is_packed)?;
        }
        let enums = self.new_enums(&package, file.enum_type)?;
        if !enums.is_empty() {
            self.enums.entry(package).or_default().extend(enums);
        }
        Ok(())
    }

    /// Returns the files: one with all messages, and one for the enums of each package, to which the names of their values belong.
    fn files(self) -> Vec<FileDescriptorProto> {
        let enums = self.enums.into_iter().map(|(package, enum_type)| FileDescriptorProto {
            name: Some(format!("enums of {package}")),
            package: Some(package),
            enum_type,
            ..Default::default()
        });
        let mut files: Vec<_> = enums.collect();
        let known = self.known.files().map(|file| file.name().to_owned());
        let messages = FileDescriptorProto {
            name: Some("messages".to_owned()),
            dependency: files.iter().map(|file| file.name().to_owned()).chain(known).collect(),
            message_type: self.messages,
            ..Default::default()
        };
        files.push(messages);
        files
    }

    /// Counts a name, and returns it with what it is within.
    fn spend(&mut self, scope: &str, name: &str) -> Result<String, String> {
        let name = if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") };
        let left = self.left.checked_sub(name.len() + NAMED).filter(|_| name.len() <= LONGEST_NAME);
        self.left = left.ok_or("their names are too long")?;
        Ok(name)
    }

    /// Whether a message or enum was not there before.
    fn is_new(&mut self, name: &str) -> bool {
        let is_known =
            self.known.get_message_by_name(name).is_some() || self.known.get_enum_by_name(name).is_some();
        !is_known && self.seen.insert(name.to_owned())
    }

    /// Adds a message, and those within it. prost has limited how deep they are.
    fn add_message(&mut self, scope: &str, message: DescriptorProto, is_packed: bool) -> Result<(), String> {
        let name = self.spend(scope, message.name())?;
        if !self.is_new(&name) {
            return Ok(());
        }
        let is_map = message.options.as_ref().is_some_and(MessageOptions::map_entry);
        if is_map && !is_map_entry(&message) {
            return Err(format!("{name} is no map"));
        }
        for message in message.nested_type {
            self.add_message(&name, message, is_packed)?;
        }
        let enum_type = self.new_enums(&name, message.enum_type)?;
        let fields = message.field.into_iter().map(|field| self.field(&name, field, is_packed));
        let field = fields.collect::<Result<_, _>>()?;
        let oneofs = message.oneof_decl.into_iter().map(|oneof| {
            self.spend(&name, oneof.name())?;
            Ok(OneofDescriptorProto { name: oneof.name, options: None })
        });
        let oneof_decl = oneofs.collect::<Result<_, String>>()?;
        let options = is_map.then(|| MessageOptions { map_entry: Some(true), ..Default::default() });
        self.messages.push(DescriptorProto {
            name: Some(name),
            field,
            enum_type,
            oneof_decl,
            options,
            ..Default::default()
        });
        Ok(())
    }

    fn field(
        &mut self,
        scope: &str,
        field: FieldDescriptorProto,
        is_packed: bool,
    ) -> Result<FieldDescriptorProto, String> {
        self.spend(scope, field.name())?;
        self.spend("", field.type_name())?;
        self.spend("", field.json_name())?;
        let is_packed = field.options.as_ref().and_then(|options| options.packed).unwrap_or(is_packed);
        Ok(FieldDescriptorProto {
            options: Some(FieldOptions { packed: Some(is_packed), ..Default::default() }),
            extendee: None,
            default_value: None,
            ..field
        })
    }

    fn new_enums(
        &mut self,
        scope: &str,
        enums: Vec<EnumDescriptorProto>,
    ) -> Result<Vec<EnumDescriptorProto>, String> {
        let mut new = Vec::new();
        for of in enums {
            let name = self.spend(scope, of.name())?;
            if !self.is_new(&name) {
                continue;
            }
            let values = of.value.into_iter().map(|value| {
                self.spend(scope, value.name())?;
                Ok(EnumValueDescriptorProto { options: None, ..value })
            });
            new.push(EnumDescriptorProto {
                name: of.name,
                value: values.collect::<Result<_, String>>()?,
                options: Some(EnumOptions { allow_alias: Some(true), ..Default::default() }),
                ..Default::default()
            });
        }
        Ok(new)
    }
}

/// Whether a message that says so is an entry of a map. Source: protobuf's descriptor.proto, `map_entry`.
fn is_map_entry(message: &DescriptorProto) -> bool {
    let is_key = |field: &FieldDescriptorProto| {
        let no_keys = [Type::Double, Type::Float, Type::Bytes, Type::Enum, Type::Message, Type::Group];
        field.type_name().is_empty() && !no_keys.contains(&field.r#type())
    };
    let is_single =
        |field: &FieldDescriptorProto| field.label() == Label::Optional && field.oneof_index.is_none();
    match &message.field[..] {
        [key, value] => {
            key.number() == 1 && value.number() == 2 && is_key(key) && [key, value].into_iter().all(is_single)
        }
        _ => false,
    }
}
