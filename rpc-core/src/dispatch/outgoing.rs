//! A handler's reply, taken apart to be sent.

use std::error::Error as _;

use bytes::Bytes;

use crate::compress::Compression;
use crate::metadata::AnswerMetadata;
use crate::proto::wire::encode_status;
use crate::reply::{Reply, WithMetadata};
use crate::session::Terms;
use crate::status::Status;

/// A handler's answer, taken apart to be sent.
pub(super) struct OutgoingAnswer {
    /// The reply without its metadata.
    pub(super) reply: Reply,
    /// The encoded metadata.
    pub(super) metadata: Bytes,
    /// The compression that the handler has chosen.
    pub(super) compression: Option<Compression>,
}

/// At least the bytes in front of metadata and status in an answer.
const BEFORE_STATUS: u64 = 32;

impl OutgoingAnswer {
    /// Takes a reply apart. Metadata above the client's limit turn it into a status.
    pub(super) fn new(terms: &Terms, reply: Reply) -> Self {
        let WithMetadata { reply, mut metadata, compression } = match reply {
            Reply::With(with) => *with,
            reply => WithMetadata { reply, metadata: AnswerMetadata::default(), compression: None },
        };
        if let Reply::Status(status) | Reply::Refused(status) = &reply {
            metadata.trailing.extend(status.metadata());
            if terms.settings.calls.causes && status.source().is_some() {
                let room = room_for_causes(terms, status, &metadata);
                metadata.causes = status.causes(room);
            }
        }
        match terms.block_of_answer(&metadata) {
            Ok(metadata) => Self { reply, metadata, compression },
            Err(status) => Self { reply: Reply::Status(status), metadata: Bytes::new(), compression: None },
        }
    }
}

/// Returns how many bytes of causes fit into an answer without making it fail.
fn room_for_causes(terms: &Terms, status: &Status, metadata: &AnswerMetadata) -> usize {
    let Some(peer) = terms.peer() else { return 0 };
    let others = metadata.initial.size() + 1 + metadata.trailing.size();
    let message = peer.max_message.saturating_sub(BEFORE_STATUS + encode_status(status).len() as u64);
    message.min(peer.max_metadata.into()).saturating_sub(others as u64) as usize
}
