//! Metadata of calls and answers, and each side's limit on their size.

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
    /// Encodes an answer's metadata. Empty if the client does not support metadata. Fails if they exceed its limit.
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

    /// Encodes a call's metadata. Fails if the server does not support metadata, or if they exceed its limit.
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

    /// Decodes the metadata of a call. An inner `Err` means that they exceed this side's limit, for which the call is
    /// refused.
    pub(crate) fn read_metadata(&self, block: Bytes) -> Result<Result<Metadata, Status>, WireError> {
        let max = self.settings.limits.max_metadata;
        if block.len() <= max as usize {
            return decode_metadata(block).map(Ok);
        }
        let message = too_much("the call's", block.len(), max, "the server's");
        Ok(Err(refusal(Code::ResourceExhausted, message)))
    }

    /// Decodes the metadata of an answer. An inner `Err` means that they exceed this side's limit, which the peer
    /// knows.
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

/// Returns the message for metadata that exceed a side's limit.
fn too_much(of: &str, len: usize, max: u32, whose: &str) -> String {
    format!(
        "{of} metadata: {len} bytes, but {whose} limits.max_metadata is {max}; raise it there, or send less"
    )
}
