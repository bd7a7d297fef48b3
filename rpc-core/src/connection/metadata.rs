//! Metadata on their way: what the peer takes of them, and what this side does.

use bytes::Bytes;

use super::Connection;
use super::registry::{Found, refusal};
use crate::metadata::{AnswerMetadata, Metadata};
use crate::proto::wire::{WireError, decode_answer_metadata, decode_metadata};
use crate::status::{Blame, Code, Executed, Status};

impl Connection {
    /// Reads the metadata of a call. More than this side takes makes it a call that is refused.
    #[cold]
    pub(super) fn read_metadata(
        &self,
        block: Bytes,
        found: &mut Result<Found, Status>,
    ) -> Result<Metadata, WireError> {
        let max = self.settings.limits.max_metadata;
        if block.len() <= max as usize {
            return decode_metadata(block);
        }
        if found.is_ok() {
            *found = Err(refusal(
                Code::ResourceExhausted,
                too_much("the call's", block.len(), max, "the server's"),
            ));
        }
        Ok(Metadata::new())
    }

    /// Reads the metadata of an answer. `Err` in it: more than this side takes, which the peer was told.
    #[cold]
    pub(super) fn read_answer_metadata(
        &self,
        block: Bytes,
    ) -> Result<Result<AnswerMetadata, Status>, WireError> {
        let max = self.settings.limits.max_metadata;
        if block.len() <= max as usize {
            return decode_answer_metadata(block).map(Ok);
        }
        let message = too_much("the answer's", block.len(), max, "the client's");
        let status = Status::new(Code::ResourceExhausted, message);
        Ok(Err(status.with_executed(Executed::Maybe).with_blame(Blame::Peer)))
    }
}

/// What is said of metadata beyond what a side takes.
fn too_much(of: &str, len: usize, max: u32, whose: &str) -> String {
    format!(
        "{of} metadata: {len} bytes, but {whose} limits.max_metadata is {max}; raise it there, or send less"
    )
}
