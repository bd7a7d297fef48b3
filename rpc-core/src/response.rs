//! Metadata and other facts about a call that accompany its result.

use std::fmt;
use std::sync::Arc;

use crate::compress::Compression;
use crate::connection::Connection;
use crate::metadata::Metadata;
use crate::status::{Code, Status};

/// A result, with the metadata and other facts about its call.
#[non_exhaustive]
pub struct Response<T> {
    /// The result.
    pub value: T,
    /// The connection that the result came by.
    pub connection: Arc<Connection>,
    /// How often the request was sent. If it is more than 1, the earlier attempts were certainly not executed.
    pub attempts: u8,
    /// The initial metadata of the answer.
    pub metadata: Metadata,
    /// The trailing metadata of the answer.
    pub trailers: Metadata,
    /// How the result was compressed on its way. For a stream, see
    /// [`Streaming::compression`](crate::stream::Streaming::compression).
    pub compression: Compression,
}

/// Metadata and other facts about a call, whether it succeeded or not.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Parts {
    /// The connection that the request was last sent by. `None` if it was never sent.
    pub connection: Option<Arc<Connection>>,
    /// How often the request was sent, or was about to be. If it is more than 1, the earlier attempts were certainly
    /// not executed.
    pub attempts: u8,
    /// The initial metadata of the answer.
    pub metadata: Metadata,
    /// The trailing metadata of the answer. If the call failed with a status, [`Status::metadata`] has them, too.
    pub trailers: Metadata,
    /// How the result or error was compressed on its way.
    pub compression: Compression,
}

impl Parts {
    /// Adds the result. Fails INTERNAL without a connection, because every result comes by one.
    pub(crate) fn of_result<T>(self, value: T) -> Result<Response<T>, Status> {
        let Self { connection, attempts, metadata, trailers, compression } = self;
        match connection {
            Some(connection) => Ok(Response { value, connection, attempts, metadata, trailers, compression }),
            None => Err(Status::new(Code::Internal, "an answer came by no connection")),
        }
    }
}

/// Shows the value, the metadata, and the peer and transport of the connection.
impl<T: fmt::Debug> fmt::Debug for Response<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("value", &self.value)
            .field("peer", &self.connection.peer())
            .field("transport", &self.connection.transport().name)
            .field("attempts", &self.attempts)
            .field("metadata", &self.metadata)
            .field("trailers", &self.trailers)
            .finish()
    }
}
