//! The answer of a call, on its way back.

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

/// The answer of a call on its way through the middleware of a client or a server: its result, which is encoded, or an error
/// of the application's own type, or a stream. That a call has failed in another way is a [`Status`].
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
    /// On a client: a stream that has begun.
    Begun(Box<Begun>),
    /// On a server: one that was sent.
    Sent(Sent),
}

impl Response {
    /// What a client got.
    pub(crate) fn received(answer: Answered, begun: Option<Begun>, parts: Parts) -> Result<Self, Status> {
        let (kind, payload) = answer?;
        let Parts { connection, attempts, metadata, trailers, compression } = parts;
        let body = begun.map_or(Body::Once(kind, payload), |begun| Body::Begun(Box::new(begun)));
        Ok(Self { body, connection, attempts, metadata, trailers, compression })
    }

    /// What it is for the call above the middleware.
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

    /// What a handler has answered, and the metadata that it has set. Those that are initial stay behind of a status.
    pub(super) fn answered(reply: Reply, set: AnswerMetadata) -> Result<Self, (Status, Metadata)> {
        let AnswerMetadata { initial: mut metadata, trailing: mut trailers, .. } = set;
        let mut reply = reply;
        let body = loop {
            match reply {
                Reply::Ok(payload) => break Body::Once(ResponseKind::Ok, payload),
                Reply::Err(payload) => break Body::Once(ResponseKind::Err, payload),
                Reply::End(sent) => break Body::Sent(sent),
                Reply::Status(status) => {
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

    /// What it is for the server.
    pub(super) fn into_reply(self) -> Reply {
        let Self { body, metadata, trailers, .. } = self;
        let reply = match body {
            Body::Once(ResponseKind::Ok, payload) => Reply::Ok(payload),
            Body::Once(_, payload) => Reply::Err(payload),
            Body::Sent(sent) => Reply::End(sent),
            Body::Begun(_) => {
                let message = "a client's stream is not an answer: have the handler pass it on";
                Reply::Status(Status::new(Code::Internal, message))
            }
        };
        let metadata = AnswerMetadata { initial: metadata, trailing: trailers, ..AnswerMetadata::default() };
        if metadata.is_empty() {
            return reply;
        }
        Reply::With(Box::new(WithMetadata { reply, metadata, compression: None }))
    }

    /// Whether it is an error of the application's own type.
    pub fn is_error(&self) -> bool {
        matches!(self.body, Body::Once(ResponseKind::Err, _))
    }

    /// Whether it is a stream: on a client one that has begun, on a server one that was sent.
    pub fn is_stream(&self) -> bool {
        matches!(self.body, Body::Begun(_) | Body::Sent(_))
    }

    /// How many bytes result or error have; 0 of a stream.
    pub fn size(&self) -> usize {
        match &self.body {
            Body::Once(_, payload) => payload.len(),
            Body::Begun(_) | Body::Sent(_) => 0,
        }
    }

    /// What the handler has sent that it knew before the result. On a server those of a stream have been sent, and what is
    /// added to them goes with its end.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the metadata that come with the answer or before a stream, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// What it knew when it had the result; of a stream that has just begun, none.
    pub fn trailers(&self) -> &Metadata {
        &self.trailers
    }

    /// Returns the metadata that come after the answer, to be changed.
    pub fn trailers_mut(&mut self) -> &mut Metadata {
        &mut self.trailers
    }

    /// How often the request was sent; 1 on a server.
    pub fn attempts(&self) -> u8 {
        self.attempts
    }

    /// What a client's answer came by.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref()
    }

    /// Has `f` told, once, how the stream ends: also when whoever reads it drops it. If it is none, or has ended, at once. `f`
    /// runs in the task that reads, and should be quick.
    pub fn on_end(&mut self, f: impl FnOnce(&StreamEnd) + Send + 'static) {
        match (self.end(), &mut self.body) {
            (None, Body::Begun(begun)) => begun.on_end.push(Box::new(f)),
            (end, _) => f(&end.unwrap_or(StreamEnd { reason: EndReason::Completed, code: None })),
        }
    }

    /// How it has ended; `None` of a stream that has just begun.
    pub fn end(&self) -> Option<StreamEnd> {
        let reason = match &self.body {
            Body::Begun(_) => return None,
            Body::Once(ResponseKind::Ok, _) => EndReason::Completed,
            Body::Once(..) => EndReason::Status,
            Body::Sent(sent) => EndReason::of(sent),
        };
        Some(StreamEnd { reason, code: None })
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
