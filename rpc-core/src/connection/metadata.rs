//! Metadata on their way: what the peer takes of them, and what this side does.

use std::error::Error as _;

use bytes::Bytes;

use super::Connection;
use super::registry::{Found, refusal};
use crate::compress::Compression;
use crate::metadata::{AnswerMetadata, Metadata};
use crate::proto::wire::{
    Hello, WireError, decode_answer_metadata, decode_metadata, encode_answer_metadata, encode_metadata,
    encode_status, features,
};
use crate::service::{Reply, WithMetadata};
use crate::status::{Blame, Code, Executed, Status};

/// What a handler has answered, on its way out.
pub(super) struct Outgoing {
    /// Without its metadata.
    pub(super) reply: Reply,
    /// Their block.
    pub(super) metadata: Bytes,
    /// What the handler wants it compressed by.
    pub(super) compression: Option<Compression>,
}

/// No less than stands before metadata and status in an answer.
const BEFORE_STATUS: u64 = 32;

impl Connection {
    /// Takes a reply apart. Where its metadata are more than the client takes, that is the answer.
    pub(super) fn outgoing(&self, reply: Reply) -> Outgoing {
        let WithMetadata { reply, mut metadata, compression } = match reply {
            Reply::With(with) => *with,
            reply => WithMetadata { reply, metadata: AnswerMetadata::default(), compression: None },
        };
        if let Reply::Status(status) = &reply {
            metadata.trailing.extend(status.metadata());
            if self.settings.calls.causes && status.source().is_some() {
                let room = self.room_for_causes(status, &metadata);
                metadata.causes = status.causes(room);
            }
        }
        match self.block_of_answer(&metadata) {
            Ok(metadata) => Outgoing { reply, metadata, compression },
            Err(status) => {
                Outgoing { reply: Reply::Status(status), metadata: Bytes::new(), compression: None }
            }
        }
    }

    /// How many bytes of causes an answer may have that must not fail for them.
    fn room_for_causes(&self, status: &Status, metadata: &AnswerMetadata) -> usize {
        let Some(peer) = self.sender.peer() else { return 0 };
        let others = metadata.initial.size() + 1 + metadata.trailing.size();
        let message = peer.max_message.saturating_sub(BEFORE_STATUS + encode_status(status).len() as u64);
        message.min(peer.max_metadata.into()).saturating_sub(others as u64) as usize
    }

    /// The block of an answer's metadata; empty, where the client takes none. `Err`: they are more than it takes.
    pub(super) fn block_of_answer(&self, metadata: &AnswerMetadata) -> Result<Bytes, Status> {
        let Some(peer) = self.sender.peer().filter(|peer| takes_metadata(peer)) else {
            return Ok(Bytes::new());
        };
        let block = encode_answer_metadata(metadata);
        if block.len() <= peer.max_metadata as usize {
            return Ok(block);
        }
        let message = too_much("the answer's", block.len(), peer.max_metadata, "the client's");
        Err(Status::new(Code::ResourceExhausted, message).with_blame(Blame::Peer))
    }

    /// Reads the metadata of a call. More than this side takes makes it a call that is refused.
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

/// The block of a call's metadata, if the server takes them.
pub(super) fn block_of_call(metadata: &Metadata, server: &Hello) -> Result<Bytes, Status> {
    let max = server.max_metadata;
    if metadata.is_empty() {
        Ok(Bytes::new())
    } else if !takes_metadata(server) {
        let message = "the call has metadata, and the server is of a version that takes none; upgrade it";
        Err(refusal(Code::FailedPrecondition, message).with_blame(Blame::Environment))
    } else if metadata.size() > max as usize {
        let message = too_much("the call's", metadata.size(), max, "the server's");
        Err(refusal(Code::ResourceExhausted, message))
    } else {
        Ok(encode_metadata(metadata))
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
