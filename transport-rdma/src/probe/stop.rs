//! Why a device did not do what it was asked for.

use std::fmt;
use std::time::Duration;

use crate::device::{CreateQpError, DeviceError, ExposeError, PostError, Unavailable, WcError};

/// The reason why a request or a step failed.
#[derive(Debug)]
pub(super) enum Stop {
    Unavailable(Unavailable),
    Completion(WcError),
    Other(String),
}

impl From<Unavailable> for Stop {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Self {
        Self::Unavailable(error.into())
    }
}

impl From<PostError> for Stop {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Device(error) => error.into(),
            error => Self::Other(format!("a request was not posted: {error:?}")),
        }
    }
}

impl From<ExposeError> for Stop {
    fn from(error: ExposeError) -> Self {
        Self::Other(format!("memory was not exposed: {error:?}"))
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<CreateQpError> for Stop {
    fn from(error: CreateQpError) -> Self {
        match error {
            CreateQpError::Device(error) => error.into(),
            CreateQpError::CqBudget => Self::Other("the completion queue has no room".to_owned()),
        }
    }
}

impl Stop {
    /// Returns the reason for a device that completed nothing for so long.
    pub(super) fn silent(limit: Duration) -> Self {
        Self::Other(format!("the device said nothing for {} s", limit.as_secs()))
    }

    /// Returns the reason for registered memory that is too small.
    pub(super) fn no_memory() -> Self {
        Self::Other("the memory is used up".to_owned())
    }
}

/// The reason, and what to do about it.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(unavailable) => write!(f, "{unavailable}; {}", unavailable.remedy()),
            Self::Completion(error) => write!(f, "{error}; {}", error.status.remedy()),
            Self::Other(why) => f.write_str(why),
        }
    }
}
