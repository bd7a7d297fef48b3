//! Calls of services that a program learns of when it runs.
//!
//! The program encodes arguments and decodes answers itself. A [`ServiceInfo`] says which service, codec and signatures it means; a
//! server refuses a method whose fingerprint is another, as it does for clients that were generated.

use std::fmt;
use std::sync::Arc;

use farcall_proto::codec::{Codec, CodecError, Decode, Encode, Shape};
pub use farcall_proto::payload::Payload;

use crate::__private::{Items, argument, call_for_stream, call_with_stream, returned, streamed};
use crate::client::{Call, RawChannel, StreamCall, Stub};
use crate::payload::{Decoder, Encoder};
pub use crate::service::{Kind, Method, ServiceInfo};
use crate::status::Status;
use crate::stream::{Stream, StreamItem, Streaming};

/// A message as it is, of whatever codec.
#[derive(Debug)]
pub enum Whole {}

impl Codec for Whole {
    const NAME: &'static str = "whole";
    const ARGUMENTS: usize = 1;
}

impl Encode<Payload> for Whole {
    fn encode(value: &Payload, out: &mut Encoder) -> Result<(), CodecError> {
        out.put_slice(value.body());
        for attachment in value.attachments() {
            out.attach(attachment.clone());
        }
        Ok(())
    }
}

impl Decode<Payload> for Whole {
    fn decode(input: &mut Decoder) -> Result<Payload, CodecError> {
        let attachments = (0..).map_while(|index| input.attachment(index)).collect();
        let length = input.rest().len();
        let body = input.take(length).ok_or_else(|| CodecError::new("the message has changed"))?;
        Ok(Payload::new(body, attachments))
    }

    fn shape(shape: &mut Shape) {
        shape.opaque("whole");
    }
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub enum Failed {
    /// The status of a call that failed on its way, or whose method has no error type of its own.
    Status(Status),
    /// The error of the application, as the service's codec encodes it.
    Application(Payload),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => status.fmt(f),
            Self::Application(error) => write!(f, "an error of the application, of {} bytes", error.len()),
        }
    }
}

impl std::error::Error for Failed {}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl Encode<Failed> for Whole {
    fn encode(_: &Failed, _: &mut Encoder) -> Result<(), CodecError> {
        Err(CodecError::new("only servers send errors"))
    }
}

impl Decode<Failed> for Whole {
    fn decode(input: &mut Decoder) -> Result<Failed, CodecError> {
        <Self as Decode<Payload>>::decode(input).map(Failed::Application)
    }

    fn shape(shape: &mut Shape) {
        shape.opaque("whole");
    }
}

/// The answer of a call that is not a stream.
pub type Answer = Result<Payload, Failed>;

/// The stream that a call is answered with.
pub type Answers = Result<Streaming<Payload, Failed>, Failed>;

/// A client of a service that the program learned of when it runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client(Stub);

impl Client {
    /// Returns a client that calls on `channel`.
    ///
    /// # Panics
    ///
    /// If a method has a [refusal](Method::refusal).
    #[track_caller]
    pub fn new(channel: impl Into<RawChannel>, service: ServiceInfo) -> Self {
        Self(Stub::new(channel.into(), Arc::new(service)))
    }

    /// Calls the [unary](Kind::Unary) method with this index. The argument has all arguments of the method, encoded one after the other.
    pub fn unary(&self, method: usize, arguments: Payload) -> Call<Answer, Whole> {
        self.0.call(method, Ok(arguments))
    }

    /// Calls a method that [answers with a stream](Kind::ServerStreaming).
    pub fn server_streaming(&self, method: usize, arguments: Payload) -> StreamCall<Answers> {
        let (streamed, _, _) = streamed::<Answer, Whole, Whole, Failed, Whole, Failed>();
        call_for_stream(&self.0, method, Ok(arguments), None, streamed)
    }

    /// Calls a method that [takes a stream](Kind::ClientStreaming), each item as the codec encodes it.
    pub fn client_streaming(
        &self,
        method: usize,
        arguments: Payload,
        items: impl Stream<Item: StreamItem<Payload>> + Send + 'static,
    ) -> StreamCall<Answer> {
        let (returned, _) = returned::<Answer, Whole, Whole, Failed>();
        call_with_stream(&self.0, method, Ok(arguments), self.items(method, items), returned)
    }

    /// Calls a method with a [stream each way](Kind::BidiStreaming).
    pub fn bidi_streaming(
        &self,
        method: usize,
        arguments: Payload,
        items: impl Stream<Item: StreamItem<Payload>> + Send + 'static,
    ) -> StreamCall<Answers> {
        let (streamed, _, _) = streamed::<Answer, Whole, Whole, Failed, Whole, Failed>();
        call_for_stream(&self.0, method, Ok(arguments), Some(self.items(method, items)), streamed)
    }

    fn items(&self, method: usize, items: impl Stream<Item: StreamItem<Payload>> + Send + 'static) -> Items {
        Items::of(self.0.service(), method, items, argument::<Whole, Payload>())
    }
}
