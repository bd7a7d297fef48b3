//! What is known of a call besides its result.

use std::fmt;
use std::sync::Arc;

use crate::compress::Compression;
use crate::connection::Connection;
use crate::metadata::Metadata;
use crate::status::{Code, Status};

/// A result, and how it came.
#[non_exhaustive]
pub struct Response<T> {
    /// The result.
    pub value: T,
    /// The connection that it came by.
    pub connection: Arc<Connection>,
    /// How often the request was sent. Above 1, it was certainly not executed before.
    pub attempts: u8,
    /// The initial metadata of the answer.
    pub metadata: Metadata,
    /// The trailing metadata of the answer.
    pub trailers: Metadata,
    /// How the result was compressed on its way. Of a stream, [its items](crate::stream::Streaming::compression) say it.
    pub compression: Compression,
}

/// What is known of a call besides its result.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Parts {
    /// The connection that it was last sent by; `None` if it ended unsent.
    pub connection: Option<Arc<Connection>>,
    /// How often the request was sent, or was about to be. Above 1, it was certainly not executed before.
    pub attempts: u8,
    /// The initial metadata of the answer.
    pub metadata: Metadata,
    /// The trailing metadata of the answer. If the call failed with a status, [`Status::metadata`] has them, too.
    pub trailers: Metadata,
    /// How result or error were compressed on their way.
    pub compression: Compression,
}

impl Parts {
    /// With a result there is a connection that it came by.
    pub(crate) fn of_result<T>(self, value: T) -> Result<Response<T>, Status> {
        let Self { connection, attempts, metadata, trailers, compression } = self;
        match connection {
            Some(connection) => Ok(Response { value, connection, attempts, metadata, trailers, compression }),
            None => Err(Status::new(Code::Internal, "an answer came by no connection")),
        }
    }
}

/// The value, and of the connection what tells it from others.
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
