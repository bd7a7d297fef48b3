//! What a caller asks for, and what it gets.

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

/// An answer, or why there is none.
pub(crate) type Answered = Result<(ResponseKind, Payload), Status>;

/// What a call asks for.
#[derive(Debug)]
pub(crate) struct CallRequest<'a> {
    pub(crate) service: &'a Arc<ServiceInfo>,
    pub(crate) method: usize,
    pub(crate) arguments: &'a Payload,
    pub(crate) deadline: Option<Instant>,
    /// How long that is from now.
    pub(crate) left: Option<Duration>,
    pub(crate) attempt: u8,
    pub(crate) options: Option<&'a CallOptions>,
}

/// What most calls lack: in a box, so that it costs these no more than to look for it.
pub(crate) struct CallOptions {
    pub(crate) kind: Kind,
    pub(crate) metadata: Metadata,
    /// The stream of arguments, until it is sent.
    pub(crate) items: Option<Box<dyn Source>>,
    /// `None`: as its caller does.
    pub(crate) waits_for_ready: Option<bool>,
    /// Why there is no connection that the call waits for.
    pub(crate) not_connected: Option<Status>,
    /// What it is made for, unless that is the handler that polls it.
    pub(crate) parent: Option<Parent>,
    /// By when it must be over, besides its timeout.
    pub(crate) deadline: Option<Instant>,
    /// `None`: as its channel is set.
    pub(crate) compression: Option<Compression>,
}

/// What came with an answer.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) metadata: AnswerMetadata,
    pub(crate) compression: Compression,
}

impl CallOptions {
    /// Of a call that is unary and has no more.
    pub(crate) const fn none() -> Self {
        Self {
            kind: Kind::Unary,
            metadata: Metadata::new(),
            items: None,
            waits_for_ready: None,
            not_connected: None,
            parent: None,
            deadline: None,
            compression: None,
        }
    }

    /// What a call has of it, or is to have.
    pub(crate) fn of(options: &mut Option<Box<Self>>) -> &mut Self {
        options.get_or_insert_with(|| Box::new(Self::none()))
    }

    /// Whether the request says something of it.
    pub(crate) fn is_sent(&self) -> bool {
        self.kind != Kind::Unary || !self.metadata.is_empty() || self.compression.is_some()
    }

    /// Returns the options for another attempt of the call, which lack the stream.
    pub(crate) fn without_items(&self) -> Self {
        let Self { kind, waits_for_ready, compression, .. } = *self;
        Self { kind, waits_for_ready, compression, metadata: self.metadata.clone(), ..Self::none() }
    }
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions").field("kind", &self.kind).finish_non_exhaustive()
    }
}
