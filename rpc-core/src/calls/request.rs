//! The request of a caller, and its answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::call_streams::Source;
use crate::compress::Compression;
use crate::context::Parent;
use crate::interface::{Kind, ServiceInfo};
use crate::metadata::{AnswerMetadata, Metadata};
use crate::payload::Payload;
use crate::proto::wire::ResponseKind;
use crate::status::Status;

/// A server's word on when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushBack {
    After(Duration),
    /// A value that is no number of milliseconds forbids another attempt, as with gRPC.
    Never,
}

/// An answer, or the status that replaces it.
pub(crate) type Answered = Result<(ResponseKind, Payload), Status>;

/// The request of a call.
#[derive(Debug)]
pub(crate) struct CallRequest<'a> {
    pub(crate) service: &'a Arc<ServiceInfo>,
    pub(crate) method: usize,
    pub(crate) arguments: &'a Payload,
    /// When the caller is to be woken, unless the call has ended.
    pub(crate) alarm: Option<Instant>,
    /// The time until the call's deadline, from now.
    pub(crate) left: Option<Duration>,
    pub(crate) attempt: u8,
    pub(crate) options: Option<&'a CallOptions>,
}

/// Options that most calls lack. They are boxed, so that other calls only check for their absence.
pub(crate) struct CallOptions {
    pub(crate) kind: Kind,
    pub(crate) metadata: Metadata,
    /// The stream of arguments, until it is sent.
    pub(crate) items: Option<Box<dyn Source>>,
    /// `None`: as the channel is configured.
    pub(crate) waits_for_ready: Option<bool>,
    /// `None`: as the channel is configured.
    pub(crate) waits_for_room: Option<bool>,
    /// The status of the last attempt to connect, if the call waits for a connection.
    pub(crate) not_connected: Option<Status>,
    /// The word of the server that refused the last attempt. Noted for attempts beside others only.
    pub(crate) push_back: Option<PushBack>,
    /// The parent of the call, unless that is the handler that polls it.
    pub(crate) parent: Option<Parent>,
    /// The call's deadline besides its timeout.
    pub(crate) deadline: Option<Instant>,
    /// How long nothing of the call may move. `None`: as the channel is configured.
    pub(crate) progress: Option<Duration>,
    /// `None`: as the channel is configured.
    pub(crate) compression: Option<Compression>,
    /// The hash of the key by which a server is chosen.
    pub(crate) key: Option<u64>,
    /// Whether the call may be executed more than once. `None`: as its method says.
    pub(crate) idempotent: Option<bool>,
}

/// The metadata and compression of an answer.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) metadata: AnswerMetadata,
    pub(crate) compression: Compression,
}

impl CallOptions {
    /// Returns the options of a unary call without any settings.
    pub(crate) const fn none() -> Self {
        Self {
            kind: Kind::Unary,
            metadata: Metadata::new(),
            items: None,
            waits_for_ready: None,
            waits_for_room: None,
            not_connected: None,
            push_back: None,
            parent: None,
            deadline: None,
            progress: None,
            compression: None,
            key: None,
            idempotent: None,
        }
    }

    /// Returns the options of a call, and creates them if there are none.
    pub(crate) fn of(options: &mut Option<Box<Self>>) -> &mut Self {
        options.get_or_insert_with(|| Box::new(Self::none()))
    }

    /// Whether any of the options are part of the request.
    pub(crate) fn is_sent(&self) -> bool {
        self.kind != Kind::Unary || !self.metadata.is_empty() || self.compression.is_some()
    }

    /// Returns the options for another attempt of the call, without the stream.
    pub(crate) fn without_items(&self) -> Self {
        let Self { kind, waits_for_ready, waits_for_room, progress, compression, key, idempotent, .. } =
            *self;
        let metadata = self.metadata.clone();
        Self {
            kind,
            waits_for_ready,
            waits_for_room,
            progress,
            compression,
            key,
            idempotent,
            metadata,
            ..Self::none()
        }
    }
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions").field("kind", &self.kind).finish_non_exhaustive()
    }
}
