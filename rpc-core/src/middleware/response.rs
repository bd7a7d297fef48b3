//! The answer of a call on its way through middleware.

use std::fmt;
use std::sync::Arc;

use crate::calls::Answered;
use crate::compress::Compression;
use crate::connection::Connection;
use crate::metadata::{AnswerMetadata, Metadata};
use crate::payload::Payload;
use crate::proto::wire::ResponseKind;
use crate::reply::Sent;
use crate::response::Parts;
use crate::service::{Reply, WithMetadata};
use crate::status::{Blame, Code, Executed, Status};
use crate::stream::{Begun, EndReason, StreamEnd};

/// The answer of a call on its way through the middleware of a client or a server. It is an encoded result, an encoded
/// error of the application's own type, or a stream. Any other failure is a [`Status`] instead.
pub struct Response {
    body: Body,
    connection: Option<Arc<Connection>>,
    attempts: u8,
    metadata: Metadata,
    trailers: Metadata,
    compression: Compression,
}

enum Body {
    Once(ResponseKind, Payload),
    /// A stream that has begun, on a client.
    Begun(Box<Begun>),
    /// A stream that was sent, on a server.
    Sent(Sent),
}

impl Response {
    /// Returns the response that a client has received.
    pub(crate) fn received(answer: Answered, begun: Option<Begun>, parts: Parts) -> Result<Self, Status> {
        let (kind, payload) = answer?;
        let Parts { connection, attempts, metadata, trailers, compression } = parts;
        let body = begun.map_or(Body::Once(kind, payload), |begun| Body::Begun(Box::new(begun)));
        Ok(Self { body, connection, attempts, metadata, trailers, compression })
    }

    /// Returns the parts of the response for the call above the middleware.
    pub(crate) fn into_received(self) -> (Answered, Option<Begun>, Parts) {
        let Self { body, connection, attempts, metadata, trailers, compression } = self;
        let (answer, begun) = match body {
            Body::Once(kind, payload) => (Ok((kind, payload)), None),
            Body::Begun(begun) => (
                Ok((ResponseKind::Ok, Payload::default())),
                Some(Begun { metadata: metadata.clone(), ..*begun }),
            ),
            Body::Sent(_) => {
                let status = Status::new(Code::Internal, "a server's response was given to a client");
                (Err(status.with_executed(Executed::Maybe).with_blame(Blame::Caller)), None)
            }
        };
        (answer, begun, Parts { connection, attempts, metadata, trailers, compression })
    }

    /// Returns a handler's answer with the metadata that it has set. A status comes with the initial metadata beside
    /// it.
    pub(super) fn answered(reply: Reply, set: AnswerMetadata) -> Result<Self, (Status, Metadata)> {
        let AnswerMetadata { initial: mut metadata, trailing: mut trailers, .. } = set;
        let mut reply = reply;
        let body = loop {
            match reply {
                Reply::Ok(payload) => break Body::Once(ResponseKind::Ok, payload),
                Reply::Err(payload) => break Body::Once(ResponseKind::Err, payload),
                Reply::End(sent) => break Body::Sent(sent),
                Reply::Status(status) | Reply::Refused(status) => {
                    trailers.extend(status.metadata());
                    return Err((status.with_metadata(trailers), metadata));
                }
                Reply::With(with) => {
                    metadata.extend(&with.metadata.initial);
                    trailers.extend(&with.metadata.trailing);
                    reply = with.reply;
                }
            }
        };
        let compression = Compression::None;
        Ok(Self { body, connection: None, attempts: 1, metadata, trailers, compression })
    }

    /// Returns the response as a reply for the server.
    pub(super) fn into_reply(self) -> Reply {
        let Self { body, metadata, trailers, .. } = self;
        let reply = match body {
            Body::Once(ResponseKind::Ok, payload) => Reply::Ok(payload),
            Body::Once(_, payload) => Reply::Err(payload),
            Body::Sent(sent) => Reply::End(sent),
            Body::Begun(_) => {
                let message = "a client's stream is not an answer: return it from the handler instead";
                Reply::Status(Status::new(Code::Internal, message))
            }
        };
        let metadata = AnswerMetadata { initial: metadata, trailing: trailers, ..AnswerMetadata::default() };
        if metadata.is_empty() {
            return reply;
        }
        Reply::With(Box::new(WithMetadata { reply, metadata, compression: None }))
    }

    /// Whether the response is an error of the application's own type.
    pub fn is_error(&self) -> bool {
        matches!(self.body, Body::Once(ResponseKind::Err, _))
    }

    /// Whether the response is a stream: on a client one that has begun, on a server one that was sent.
    pub fn is_stream(&self) -> bool {
        matches!(self.body, Body::Begun(_) | Body::Sent(_))
    }

    /// Returns the result, or the error of the application, as the codec has encoded it. `None`: it is a stream.
    pub fn answer(&self) -> Option<Result<&Payload, &Payload>> {
        match &self.body {
            Body::Once(ResponseKind::Ok, payload) => Some(Ok(payload)),
            Body::Once(_, payload) => Some(Err(payload)),
            Body::Begun(_) | Body::Sent(_) => None,
        }
    }

    /// Returns the size of the encoded result or error in bytes; 0 for a stream.
    pub fn size(&self) -> usize {
        match &self.body {
            Body::Once(_, payload) => payload.len(),
            Body::Begun(_) | Body::Sent(_) => 0,
        }
    }

    /// Returns the initial metadata that the handler has set. On a server, a stream's initial metadata were sent
    /// already; any that are added now go with its end.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the metadata that come with the answer or before a stream, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Returns the trailing metadata of the answer. Empty for a stream that has just begun.
    pub fn trailers(&self) -> &Metadata {
        &self.trailers
    }

    /// Returns the metadata that come after the answer, to be changed.
    pub fn trailers_mut(&mut self) -> &mut Metadata {
        &mut self.trailers
    }

    /// Returns how often the request was sent; 1 on a server.
    pub fn attempts(&self) -> u8 {
        self.attempts
    }

    /// Returns the connection that a client's answer came by.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref()
    }

    /// Calls `f` once when the stream ends, even if its reader drops it. Calls it at once if the response is not a
    /// stream, or the stream has ended. `f` runs in the task that reads, and should be quick.
    pub fn on_end(&mut self, f: impl FnOnce(&StreamEnd) + Send + 'static) {
        match (self.end(), &mut self.body) {
            (None, Body::Begun(begun)) => begun.unread.on_end(Box::new(f)),
            (end, _) => f(&end.unwrap_or_else(|| StreamEnd::new(EndReason::Completed))),
        }
    }

    /// Returns how the call has ended. `None` for a stream that has just begun.
    pub fn end(&self) -> Option<StreamEnd> {
        let reason = match &self.body {
            Body::Begun(_) => return None,
            Body::Once(ResponseKind::Ok, _) => EndReason::Completed,
            Body::Once(..) => EndReason::Status,
            Body::Sent(sent) => EndReason::of(sent),
        };
        Some(StreamEnd::new(reason))
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("is_error", &self.is_error())
            .field("is_stream", &self.is_stream())
            .field("size", &self.size())
            .field("metadata", &self.metadata)
            .field("trailers", &self.trailers)
            .finish_non_exhaustive()
    }
}
