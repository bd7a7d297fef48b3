//! JSON as Postcard, and back, by the types of a signature.
//!
//! Structs are objects, enums are as serde_json has them (`"A"`, `{"B": 5}`), maps with keys of text are objects and others lists of
//! pairs. Bytes are text, a list of numbers, or `{"hex": "00ff"}`. Integers that JSON's numbers can't hold are text.

mod decode;
mod encode;
mod example;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use farcall::Bytes;
use farcall::dynamic::{Kind, Payload};
use farcall::reflection::Method;
use serde_json::Value;

use super::form::{Form, Forms};
use super::signature::{Described, Plain, Signature, Type};
use crate::output::Failure;

/// Returns the forms of a method of the codec `Postcard`.
pub(super) fn forms(method: &Method) -> Result<Forms, Failure> {
    Signature::of(method).map(forms_of)
}

/// Returns the forms of a method of the codec `Raw`: bytes, and nothing else.
pub(super) fn raw(method: &Method) -> Result<Forms, Failure> {
    if method.kind() != Kind::Unary {
        return Err(Failure::no("`farcall call` makes unary calls of the codec raw"));
    }
    let bytes = Described { root: Type::Plain(Plain::Rest), named: Vec::new() };
    let arguments = vec![("data".to_owned(), bytes.clone())];
    Ok(forms_of(Signature { arguments, requests: None, answer: bytes, error: None, stream_error: None }))
}

fn forms_of(signature: Signature) -> Forms {
    let value = |described| -> Arc<dyn Form> { Arc::new(described) };
    Forms {
        nothing: signature.arguments.is_empty().then(|| Value::Array(Vec::new())),
        arguments: Arc::new(Arguments(signature.arguments)),
        requests: signature.requests.map(value),
        answer: value(signature.answer),
        error: signature.error.map(value),
        stream_error: signature.stream_error.map(value),
        definitions: String::new(),
    }
}

/// A message of one value.
impl Form for Described {
    fn encode(&self, value: &Value) -> Result<Payload, String> {
        let mut out = Vec::new();
        let why = |why: String| why.trim_start_matches(['.', ':', ' ']).to_owned();
        encode::encode(self, value, "", &mut out).map_err(why)?;
        Ok(Payload::from_body(Bytes::from(out)))
    }

    fn decode(&self, message: &Payload) -> Result<Value, String> {
        decode::decode(self, message)
    }

    fn example(&self) -> Value {
        example::value(self)
    }
}

/// A message of several values, each with its name: an object, or a list.
#[derive(Debug)]
struct Arguments(Vec<(String, Described)>);

impl Form for Arguments {
    fn encode(&self, value: &Value) -> Result<Payload, String> {
        let mut out = Vec::new();
        match value {
            Value::Object(given) => {
                if let Some(unknown) =
                    given.keys().find(|name| !self.0.iter().any(|(known, _)| known == *name))
                {
                    return Err(format!("there is no argument `{unknown}`"));
                }
                for (name, described) in &self.0 {
                    let value = match (given.get(name), &described.root) {
                        (Some(value), _) => value,
                        (None, Type::Option(_)) => &Value::Null,
                        (None, _) => return Err(format!("the argument `{name}` is missing")),
                    };
                    encode::encode(described, value, name, &mut out)?;
                }
            }
            Value::Array(given) if given.len() == self.0.len() => {
                for ((name, described), value) in self.0.iter().zip(given) {
                    encode::encode(described, value, name, &mut out)?;
                }
            }
            _ => return Err(format!("{} arguments are expected", self.0.len())),
        }
        Ok(Payload::from_body(Bytes::from(out)))
    }

    fn decode(&self, message: &Payload) -> Result<Value, String> {
        decode::decode_all(self.0.iter().map(|(_, described)| described), message).map(Value::Array)
    }

    fn example(&self) -> Value {
        Value::Object(
            self.0.iter().map(|(name, described)| (name.clone(), example::value(described))).collect(),
        )
    }
}
