//! The end of a stream, and what it means.

use super::ReadError;
use crate::call_streams::Ended;
use crate::codec::CodecError;
use crate::metadata::AnswerMetadata;
use crate::payload::Payload;
use crate::proto::wire::{self, decode_status};
use crate::refusal::undecodable;
use crate::reply::Sent;
use crate::status::{Blame, Code, Executed, Status};

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The sender has sent all of it.
    Completed,
    /// The sender or the receiver has given it up.
    Cancelled,
    /// The deadline of the call has passed. A handler that fails with DEADLINE_EXCEEDED before that ends with
    /// [`Status`](Self::Status).
    Deadline,
    /// The connection was lost.
    ConnectionLost,
    /// The sender has failed: the last item was the error.
    Status,
}

/// How a stream has ended, as reported to [`Response::on_end`](crate::middleware::Response::on_end).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamEnd {
    /// The reason. If a client drops its stream, and so the call, the reason is `Cancelled`.
    pub reason: EndReason,
    /// The code of the status that it has ended with, if it ended with one.
    pub code: Option<Code>,
    /// Whether this side could not decode what was sent, which says nothing of the sender.
    pub(crate) is_unreadable: bool,
}

impl StreamEnd {
    pub(crate) fn new(reason: EndReason) -> Self {
        Self { reason, code: None, is_unreadable: false }
    }

    /// Returns the end of a stream that its reader gives up.
    pub(crate) fn cancelled() -> Self {
        Self { code: Some(Code::Cancelled), ..Self::new(EndReason::Cancelled) }
    }

    /// Returns how the stream has ended in a word: `OK`, the name of a status, or `APPLICATION` for an error of the
    /// application's own type.
    pub fn outcome(&self) -> &'static str {
        match (self.code, self.reason) {
            (Some(code), _) => code.name(),
            (None, EndReason::Completed) => "OK",
            (None, EndReason::Cancelled) => Code::Cancelled.name(),
            (None, EndReason::Deadline) => Code::DeadlineExceeded.name(),
            (None, EndReason::ConnectionLost) => Code::Unavailable.name(),
            (None, EndReason::Status) => "APPLICATION",
        }
    }
}

/// A callback that runs when a stream ends.
pub(crate) type OnEnd = Box<dyn FnOnce(&StreamEnd) + Send>;

impl EndReason {
    /// Returns how a stream has ended that this side sent.
    pub(crate) fn of(sent: &Sent) -> Self {
        match sent.reason() {
            wire::EndReason::Completed => Self::Completed,
            wire::EndReason::Deadline => Self::Deadline,
            _ => Self::Cancelled,
        }
    }
}

/// The end of a stream, as it was read.
pub(super) struct End<E> {
    pub(super) reason: EndReason,
    /// The error that is read as the last item, if the stream has not ended well.
    pub(super) error: Option<E>,
    /// The code of the status that the error was made from.
    pub(super) code: Option<Code>,
    /// Whether this side could not decode what was sent.
    pub(super) is_unreadable: bool,
    pub(super) metadata: AnswerMetadata,
}

impl<E> End<E> {
    fn new(reason: EndReason, error: Option<E>) -> Self {
        Self { reason, error, code: None, is_unreadable: false, metadata: AnswerMetadata::default() }
    }
}

impl<E: From<Status>> End<E> {
    pub(super) fn failed(reason: EndReason, status: Status) -> Self {
        Self { code: Some(status.code()), ..Self::new(reason, Some(E::from(status))) }
    }

    /// Returns the end that the reader reports. `error` decodes the application's error. `is_late` means that the
    /// call's deadline has passed.
    #[cold]
    pub(super) fn of(ended: Ended, error: ReadError<E>, is_late: bool) -> Box<Self> {
        Box::new(match ended {
            Ended::Lost(status) => Self::failed(EndReason::ConnectionLost, status),
            Ended::GivenUp(status) if status.code() == Code::DeadlineExceeded => {
                Self::failed(EndReason::Deadline, status)
            }
            Ended::GivenUp(status) => Self::failed(EndReason::Cancelled, status),
            Ended::Said { reason, payload, metadata } => {
                let end = Self::said(reason, payload, &metadata, error, is_late);
                Self { metadata, ..end }
            }
        })
    }

    fn said(
        reason: wire::EndReason,
        payload: Payload,
        metadata: &AnswerMetadata,
        error: ReadError<E>,
        is_late: bool,
    ) -> Self {
        match reason {
            wire::EndReason::Completed => Self::new(EndReason::Completed, None),
            wire::EndReason::Cancelled => {
                let status = Status::new(Code::Cancelled, "the stream was given up by its sender");
                let status = status.with_executed(Executed::Maybe).with_blame(Blame::Peer);
                Self::failed(EndReason::Cancelled, status)
            }
            wire::EndReason::Deadline => Self::failed(EndReason::Deadline, deadline_passed()),
            wire::EndReason::Status => {
                let (body, _) = payload.into_parts();
                let status = decode_status(body).unwrap_or_else(|error| malformed(error.to_string()));
                // A server may relay the stream of another one with the same deadline, and then passes that server's
                // status on.
                let reason = match status.code() {
                    Code::DeadlineExceeded if is_late => EndReason::Deadline,
                    _ => EndReason::Status,
                };
                Self::failed(reason, status.received_with(metadata))
            }
            wire::EndReason::Error => match error(payload) {
                Ok(error) => Self::new(EndReason::Status, Some(error)),
                Err(error) => {
                    let message = format!("the stream's error can't be decoded: {error}");
                    Self { is_unreadable: true, ..Self::failed(EndReason::Status, malformed(message)) }
                }
            },
        }
    }
}

pub(super) fn deadline_passed() -> Status {
    Status::new(Code::DeadlineExceeded, "the deadline of the call passed before its stream had ended")
        .with_executed(Executed::Maybe)
        .with_blame(Blame::Caller)
}

#[cold]
pub(super) fn undecoded<E: From<Status>>(error: &CodecError) -> Box<End<E>> {
    let status = undecodable("an item of the stream can't be decoded", error, Executed::Yes);
    Box::new(End { is_unreadable: true, ..End::failed(EndReason::Status, status) })
}

fn malformed(message: String) -> Status {
    Status::new(Code::Internal, message).with_executed(Executed::Yes).with_blame(Blame::Peer)
}
