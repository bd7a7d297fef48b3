//! Statuses of calls that one side refuses, can't send or can't read.

use std::fmt;

use crate::codec::CodecError;
use crate::status::{Blame, Code, Executed, Status};

/// Returns the status of a call that was not given to a handler, or that can't be sent. It blames the caller; other
/// code may replace the blame.
pub(crate) fn refusal(code: Code, message: impl Into<String>) -> Status {
    Status::new(code, message).with_executed(Executed::No).with_blame(Blame::Caller)
}

/// Returns the status of a message that is longer than its receiver accepts. `whose` is a phrase like `the server's`.
pub(crate) fn too_large(what: &str, len: usize, max: u64, whose: &str) -> Status {
    let message =
        format!("{what}: {len} bytes, but {whose} limits.max_message is {max}; raise it there, or send less");
    refusal(Code::ResourceExhausted, message)
}

/// Returns the status of a message that can't be decoded, which blames the peer.
#[cold]
pub(crate) fn undecodable(what: impl fmt::Display, why: &CodecError, executed: Executed) -> Status {
    let status = if why.is_too_large() {
        Status::new(Code::ResourceExhausted, format!("{what}: {why}"))
    } else {
        Status::new(Code::Internal, format!("{what}: {why}; do both sides have the same types?"))
    };
    status.with_executed(executed).with_blame(Blame::Peer)
}
