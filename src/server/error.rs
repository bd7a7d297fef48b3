//! The errors of binding a server.

use std::fmt;
use std::io;

use farcall_core::transport::Unavailable;

use crate::ConfigError;

/// Why a server could not be set up.
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// The address or the configuration is wrong.
    Config(ConfigError),
    /// The services can't be served together; the text says why. For example, two have the same name.
    Services(String),
    /// Bytes that [`with_descriptors`](crate::ServerBuilder::with_descriptors) got are no descriptors; the text says more.
    Descriptors(String),
    /// RDMA is required, and can't be had on this machine.
    Rdma(Unavailable),
    /// There is no tokio runtime, which the server's connections would run on.
    NoRuntime,
    /// The system refused to listen.
    Io(io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Services(why) | Self::Descriptors(why) => f.write_str(why),
            Self::Rdma(why) => write!(f, "transport = \"rdma\" is required and can't be had: {why}"),
            Self::NoRuntime => {
                f.write_str("the server must be bound within a tokio runtime, which its connections run on")
            }
            Self::Io(error) => error.fmt(f),
        }
    }
}

/// Its text has the texts of what is in it. So its source is that of the system's error.
impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl From<ConfigError> for BindError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<io::Error> for BindError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
