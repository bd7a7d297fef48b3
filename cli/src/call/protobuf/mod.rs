//! JSON as protobuf, and back, by the descriptors of a server.
//!
//! A message is as protobuf's JSON has it (protobuf.dev, "ProtoJSON Format"): 64-bit integers are text, bytes are base64, a
//! `Timestamp` is text.

mod definition;
mod example;
mod flat;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use farcall::Bytes;
use farcall::dynamic::Payload;
use farcall::reflection::{self, Method, Service};
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage, Value as Field};
use serde_json::{Map, Value};

use super::form::{Form, Forms};
use super::signature::Signature;
use crate::output::{Failure, foreign};

/// The messages of a server.
#[derive(Debug)]
pub(crate) struct Messages {
    /// Whether the server tells of any.
    are_told: bool,
    /// The messages, or why they can't be used.
    all: Result<DescriptorPool, String>,
}

impl Messages {
    /// Reads the sets of descriptors that a server tells, which may be anything, or why it does not tell them.
    pub(crate) fn of(sets: Result<Vec<Bytes>, String>) -> Self {
        let are_told = sets.as_ref().map_or(true, |sets| !sets.is_empty());
        Self { are_told, all: sets.and_then(|sets| flat::pool(&sets)) }
    }

    /// Finds the message of a signature.
    fn find(&self, service: &Service, message: &reflection::Message) -> Result<MessageDescriptor, Failure> {
        let all = self.all.as_ref().map_err(|why| {
            Failure::no(format!("the descriptors of the server's messages can't be used: {}", foreign(why)))
        })?;
        let rust_type = &message.rust_type;
        let name = match &message.names[..] {
            [name] => name,
            [] if !self.are_told => {
                return Err(Failure::no(format!(
                    "the server does not say what the messages of {} have: it needs `Server::builder().with_descriptors(set)`, \
                     where `set` is the file that prost-build writes to its `file_descriptor_set_path`",
                    service.name
                )));
            }
            [] => {
                return Err(Failure::no(format!(
                    "the server's descriptors have no message for the Rust type `{rust_type}`: it needs \
                     `with_descriptors(set)` with those of the .proto file that the type was made from"
                )));
            }
            several => {
                return Err(Failure::no(format!(
                    "the server's Rust type `{rust_type}` can be {}: it must be in modules named as the package is, as in the \
                     file that prost-build's `include_file` writes",
                    several.join(" or ")
                )));
            }
        };
        let unknown =
            || Failure::no(format!("the descriptors that the server tells have no message `{name}`"));
        all.get_message_by_name(name).ok_or_else(unknown)
    }
}

/// Returns the forms of a method of the codec `Prost`.
pub(super) fn forms(messages: &Messages, service: &Service, method: &Method) -> Result<Forms, Failure> {
    let signature = Signature::of(method)?;
    let found: Vec<_> =
        method.messages.iter().map(|message| messages.find(service, message)).collect::<Result<_, _>>()?;
    let definitions = definition::of(&found);
    let mut found = found.into_iter();
    let not_named =
        || Failure::no(format!("the server does not name all messages of `{}`", method.signature));
    // In the order in which the signature has them.
    let mut next = || -> Result<Arc<dyn Form>, Failure> { Ok(Arc::new(found.next().ok_or_else(not_named)?)) };
    let mut if_any = |any: bool| any.then(&mut next).transpose();
    let arguments = if_any(!signature.arguments.is_empty())?;
    let requests = if_any(signature.requests.is_some())?;
    let answer = if_any(true)?;
    let stream_error = if_any(signature.stream_error.is_some())?;
    let error = if_any(signature.error.is_some())?;
    let answer = answer.ok_or_else(not_named)?;
    Ok(Forms {
        nothing: arguments.is_none().then(|| Value::Object(Map::new())),
        arguments: arguments.unwrap_or_else(|| Arc::new(Nothing)),
        requests,
        answer,
        error,
        stream_error,
        definitions,
    })
}

/// The arguments of a method that has none.
#[derive(Debug)]
struct Nothing;

impl Form for Nothing {
    fn encode(&self, value: &Value) -> Result<Payload, String> {
        let is_nothing =
            value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
        if is_nothing { Ok(Payload::default()) } else { Err("the method has no arguments".to_owned()) }
    }

    fn decode(&self, _: &Payload) -> Result<Value, String> {
        Ok(self.example())
    }

    fn example(&self) -> Value {
        Value::Object(Map::new())
    }
}

impl Form for MessageDescriptor {
    fn encode(&self, value: &Value) -> Result<Payload, String> {
        let mut track = serde_path_to_error::Track::new();
        let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
        let message = DynamicMessage::deserialize(self.clone(), tracked).map_err(|why| {
            let path = track.path().to_string();
            if path == "." { why.to_string() } else { format!("{path}: {why}") }
        })?;
        Ok(Payload::from_body(Bytes::from(message.encode_to_vec())))
    }

    fn decode(&self, message: &Payload) -> Result<Value, String> {
        let message = DynamicMessage::decode(self.clone(), message.body()).map_err(|why| why.to_string())?;
        check(&message, DEEPEST)?;
        serde_json::to_value(&message).map_err(|why| why.to_string())
    }

    fn example(&self) -> Value {
        example::of(self)
    }
}

/// Messages within messages, those within an `Any` among them.
const DEEPEST: usize = 128;

/// Refuses a message that is nested too deep. prost limits that for a message, but an `Any` has the bytes of another.
fn check(message: &DynamicMessage, left: usize) -> Result<(), String> {
    let left = left.checked_sub(1).ok_or("the message is nested too deep")?;
    if let Some(within) = within_any(message) {
        return check(&within, left);
    }
    message.fields().try_for_each(|(_, field)| check_field(field, left))
}

fn check_field(field: &Field, left: usize) -> Result<(), String> {
    match field {
        Field::Message(message) => check(message, left),
        Field::List(fields) => fields.iter().try_for_each(|field| check_field(field, left)),
        Field::Map(fields) => fields.values().try_for_each(|field| check_field(field, left)),
        _ => Ok(()),
    }
}

/// Returns the message within an `Any`, if its type is known.
fn within_any(message: &DynamicMessage) -> Option<DynamicMessage> {
    let descriptor = message.descriptor();
    if descriptor.full_name() != "google.protobuf.Any" {
        return None;
    }
    let url = message.get_field_by_name("type_url")?;
    let (_, name) = url.as_str()?.rsplit_once('/')?;
    let within = descriptor.parent_pool().get_message_by_name(name)?;
    DynamicMessage::decode(within, message.get_field_by_name("value")?.as_bytes()?.clone()).ok()
}
