//! The errors of binding a server.

use std::fmt;
use std::io;

use farcall_core::explain::{Explanation, sentence};
use farcall_core::status::Blame;
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

const NO_RDMA: &str = "transport = \"rdma\" is required and can't be had";
const NO_RUNTIME: &str = "the server must be bound within a tokio runtime, which its connections run on";

/// Returns the explanations of all errors of binding a server.
pub(crate) fn explanations() -> impl Iterator<Item = Explanation> {
    let all = [
        (
            "Config",
            Blame::Environment,
            "the address or the configuration is wrong",
            "change the address or the setting that the message names",
        ),
        (
            "Services",
            Blame::Application,
            "the services can't be served together, for example because two have the same name",
            "leave one of them out, or give it another name",
        ),
        (
            "Descriptors",
            Blame::Application,
            "`with_descriptors` got bytes that are no file descriptor set",
            "give it the file descriptor set that protoc or protox has written",
        ),
        (
            "Rdma",
            Blame::Environment,
            NO_RDMA,
            "run `farcall doctor` here: its first line names the cause and the fix; or set `transport = \"auto\"`",
        ),
        (
            "NoRuntime",
            Blame::Application,
            NO_RUNTIME,
            "call `bind` from an async function, or within `Runtime::enter`",
        ),
        (
            "Io",
            Blame::Environment,
            "the system refused to listen, for example because another program has the port",
            "choose another port or path, or end the program that has it (`ss -ltnp`)",
        ),
    ];
    all.into_iter().map(|(name, blame, cause, remedy)| {
        Explanation::new("bind error", name, &sentence(cause), &sentence(remedy)).blaming(blame)
    })
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Services(why) | Self::Descriptors(why) => f.write_str(why),
            Self::Rdma(why) => write!(f, "{NO_RDMA}: {why}"),
            Self::NoRuntime => f.write_str(NO_RUNTIME),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfigErrorKind;

    #[test]
    fn every_error_is_explained() {
        // An error that is added to the enumeration has to be added here, too.
        let name = |error: BindError| match error {
            BindError::Config(_) => "Config",
            BindError::Services(_) => "Services",
            BindError::Descriptors(_) => "Descriptors",
            BindError::Rdma(_) => "Rdma",
            BindError::NoRuntime => "NoRuntime",
            BindError::Io(_) => "Io",
        };
        let errors = [
            BindError::Config(ConfigError::new(ConfigErrorKind::Setting, "x")),
            BindError::Services("x".to_owned()),
            BindError::Descriptors("x".to_owned()),
            BindError::Rdma(Unavailable::new(farcall_core::transport::Reason::NoDevice, "x")),
            BindError::NoRuntime,
            BindError::Io(io::ErrorKind::AddrInUse.into()),
        ];
        let explained: Vec<_> = explanations().map(|explanation| explanation.name).collect();
        assert_eq!(explained, errors.map(name));
        let all = crate::explain::explanations();
        assert_eq!(all.iter().filter(|known| known.group == "bind error").count(), explained.len());
    }
}
