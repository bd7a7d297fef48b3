//! The forms of a method's messages: how JSON becomes a message, and a message JSON.

use std::fmt;
use std::sync::Arc;

use farcall::dynamic::Payload;
use farcall::reflection::{Method, Service};
use serde_json::Value;

use super::{postcard, protobuf};
use crate::describe::Told;
use crate::output::Failure;

/// The form of a message: how JSON becomes the message, and the message JSON.
pub(crate) trait Form: fmt::Debug + Send + Sync {
    /// Returns the message of a value. Fails with where the value does not fit, and what would.
    fn encode(&self, value: &Value) -> Result<Payload, String>;
    /// Returns the value of a message, which may be anything.
    fn decode(&self, message: &Payload) -> Result<Value, String>;
    /// Returns a value to begin from.
    fn example(&self) -> Value;
}

/// The forms of a method's messages.
#[derive(Debug)]
pub(crate) struct Forms {
    /// All arguments but the stream.
    pub(crate) arguments: Arc<dyn Form>,
    /// The arguments that stand for none, if the method has none.
    pub(crate) nothing: Option<Value>,
    /// The items of the argument that is a stream.
    pub(crate) requests: Option<Arc<dyn Form>>,
    /// The result, or the items of the stream.
    pub(crate) answer: Arc<dyn Form>,
    /// The error in place of the answer. `None`: a status.
    pub(crate) error: Option<Arc<dyn Form>>,
    /// The error that a stream ends with. `None`: a status.
    pub(crate) stream_error: Option<Arc<dyn Form>>,
    /// The types for people, as a .proto file has them. Empty where the signature says all.
    pub(crate) definitions: String,
}

impl Forms {
    /// Returns the forms of a method of this server.
    pub(crate) fn of(told: &Told, service: &Service, method: &Method) -> Result<Self, Failure> {
        match service.codec.as_str() {
            "postcard" => postcard::forms(method),
            "raw" => postcard::raw(method),
            "prost" => protobuf::forms(&told.messages, service, method),
            codec => Err(Failure::no(format!(
                "{} has the codec {codec}; `farcall call` makes calls of `postcard`, `prost` and `raw`",
                service.name
            ))),
        }
    }
}
