//! Metadata of calls and answers: what the peer takes of them, and what this side does.

use bytes::Bytes;

use super::Terms;
use crate::metadata::{AnswerMetadata, Metadata};
use crate::proto::wire::{
    Hello, WireError, decode_answer_metadata, decode_metadata, encode_answer_metadata, encode_metadata,
    features,
};
use crate::refusal::refusal;
use crate::status::{Blame, Code, Executed, Status};

impl Terms {
    /// The block of an answer's metadata; empty, where the client takes none. `Err`: they are more than it takes.
    pub(crate) fn block_of_answer(&self, metadata: &AnswerMetadata) -> Result<Bytes, Status> {
        let Some(peer) = self.peer().filter(|peer| takes_metadata(peer)) else {
            return Ok(Bytes::new());
        };
        let block = encode_answer_metadata(metadata);
        if block.len() <= peer.max_metadata as usize {
            return Ok(block);
        }
        let message = too_much("the answer's", block.len(), peer.max_metadata, "the client's");
        Err(Status::new(Code::ResourceExhausted, message).with_blame(Blame::Peer))
    }

    /// The block of a call's metadata. `Err`: the server takes none, or not so many.
    pub(crate) fn block_of_call(&self, metadata: &Metadata) -> Result<Bytes, Status> {
        if metadata.is_empty() {
            return Ok(Bytes::new());
        }
        let Some(server) = self.peer().filter(|server| takes_metadata(server)) else {
            let message = "the call has metadata, and the server is of a version that takes none; upgrade it";
            return Err(refusal(Code::FailedPrecondition, message).with_blame(Blame::Environment));
        };
        let max = server.max_metadata;
        if metadata.size() > max as usize {
            let message = too_much("the call's", metadata.size(), max, "the server's");
            return Err(refusal(Code::ResourceExhausted, message));
        }
        Ok(encode_metadata(metadata))
    }

    /// Reads the metadata of a call. `Err` in it: more than this side takes, for which the call is refused.
    pub(crate) fn read_metadata(&self, block: Bytes) -> Result<Result<Metadata, Status>, WireError> {
        let max = self.settings.limits.max_metadata;
        if block.len() <= max as usize {
            return decode_metadata(block).map(Ok);
        }
        let message = too_much("the call's", block.len(), max, "the server's");
        Ok(Err(refusal(Code::ResourceExhausted, message)))
    }

    /// Reads the metadata of an answer. `Err` in it: more than this side takes, which the peer was told.
    #[cold]
    pub(crate) fn read_answer_metadata(
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

fn takes_metadata(peer: &Hello) -> bool {
    peer.features & features::METADATA != 0
}

/// What is said of metadata beyond what a side takes.
fn too_much(of: &str, len: usize, max: u32, whose: &str) -> String {
    format!(
        "{of} metadata: {len} bytes, but {whose} limits.max_metadata is {max}; raise it there, or send less"
    )
}
