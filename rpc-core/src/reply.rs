//! The answer of a handler before it is sent.

use std::any::Any;

use crate::compress::Compression;
use crate::context::SetForAnswer;
use crate::metadata::AnswerMetadata;
use crate::payload::Payload;
use crate::proto::wire::EndReason;
use crate::status::{Blame, Code, Executed, Status};

/// The answer of a handler.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reply {
    /// The result.
    Ok(Payload),
    /// The application's own error.
    Err(Payload),
    /// A status. UNAVAILABLE from a handler that ran never counts as not executed, because the handler may have passed
    /// it on from a call of its own.
    Status(Status),
    /// The status of a call for which certainly no handler has run.
    Refused(Status),
    /// The end of a stream, complete or not, as returned by [`Streams::answer`](crate::call_streams::Streams::answer).
    End(Sent),
    /// Any of these, with the metadata or compression that the handler has set in its context.
    With(Box<WithMetadata>),
}

impl Reply {
    /// Marks a status that a handler passes on from a call of its own as executed. Otherwise the caller would repeat this
    /// call.
    #[inline]
    pub(crate) fn judge(&mut self) {
        if let Self::Status(status) = self
            && (status.code(), status.executed()) == (Code::Unavailable, Executed::No)
        {
            *status = status.clone().with_executed(Executed::Yes);
        }
    }

    /// Adds what the handler has set in its context, if anything.
    #[inline]
    pub(crate) fn add(&mut self, set: Option<Box<SetForAnswer>>) {
        if let Some(set) = set {
            self.add_set(*set);
        }
    }

    #[cold]
    fn add_set(&mut self, set: SetForAnswer) {
        let SetForAnswer { mut metadata, compression } = set;
        *self = match std::mem::replace(self, Self::Ok(Payload::default())) {
            Self::With(mut with) => {
                metadata.extend(&with.metadata);
                with.metadata = metadata;
                with.compression = compression.or(with.compression);
                Self::With(with)
            }
            reply => Self::With(Box::new(WithMetadata { reply, metadata, compression })),
        };
    }
}

/// A [`Reply`] with its metadata and compression.
#[derive(Debug)]
pub struct WithMetadata {
    pub(crate) reply: Reply,
    pub(crate) metadata: AnswerMetadata,
    /// `None`: as the server is configured.
    pub(crate) compression: Option<Compression>,
}

/// The end of a stream that was sent, complete or not.
#[derive(Debug)]
pub struct Sent(EndReason);

impl Sent {
    /// Returns the end of a stream that ended for this reason.
    pub(crate) fn new(reason: EndReason) -> Self {
        Self(reason)
    }

    /// Returns the end of a stream whose call's deadline has passed.
    pub(crate) fn late() -> Self {
        Self(EndReason::Deadline)
    }

    pub(crate) fn reason(&self) -> EndReason {
        self.0
    }
}

/// Logs a panic of the application's code, and returns the answer that replaces its result.
#[cold]
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Reply {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("(no text)"), "a handler panicked");
    let status = Status::new(Code::Internal, "the handler panicked; the server's log says where");
    Reply::Status(status.with_executed(Executed::Maybe).with_blame(Blame::Application))
}
