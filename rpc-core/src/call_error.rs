//! The method error [`CallError`], for errors that are types of another crate.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::status::Status;

/// The error of a method: the application's own error, of type `E`, or the [`Status`] of a call that failed otherwise.
///
/// A method's own error type is `From<Status>`, because every call can fail on its way. A type of another crate can't
/// get that implementation. `CallError` has it, so `Result<T, CallError<E>>` is the result of such a method. A type of
/// your own crate needs no `CallError`.
///
/// An `E` travels as the method's error, just as if the method returned `Result<T, E>`. A status travels as a status.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # mod farcall { pub use farcall_core::{call_error::CallError, client, status::*}; }
/// use std::net::IpAddr;
///
/// use farcall::CallError;
///
/// /// The error type of another crate: here the address that is taken.
/// type Taken = IpAddr;
///
/// fn lease(address: IpAddr, is_taken: bool) -> Result<u32, CallError<Taken>> {
///     if is_taken { Err(CallError::App(address)) } else { Ok(7) }
/// }
///
/// let error = lease([10, 0, 0, 1].into(), true).unwrap_err();
/// assert_eq!(error.app(), Some(&IpAddr::from([10, 0, 0, 1])));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError<E> {
    /// The application's error, as the handler returned it.
    App(E),
    /// The call failed for another reason, for example at its deadline.
    Status(Status),
}

impl<E> CallError<E> {
    /// Returns the application's error, if it is one.
    pub fn app(&self) -> Option<&E> {
        match self {
            Self::App(error) => Some(error),
            Self::Status(_) => None,
        }
    }

    /// Returns the status, if it is one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::App(_) => None,
            Self::Status(status) => Some(status),
        }
    }
}

impl<E> From<Status> for CallError<E> {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// Displays the error or the status without a prefix.
impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::App(error) => error.fmt(f),
            Self::Status(status) => status.fmt(f),
        }
    }
}

/// Passes on the source of the error or of the status.
impl<E: Error> Error for CallError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::App(error) => error.source(),
            Self::Status(status) => status.source(),
        }
    }
}

impl<E: Serialize> Serialize for CallError<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::App(error) => error.serialize(serializer),
            // The server sends a status as such and never serializes it here.
            Self::Status(_) => {
                Err(serde::ser::Error::custom("a status is not part of an application's error"))
            }
        }
    }
}

impl<'de, E: Deserialize<'de>> Deserialize<'de> for CallError<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        E::deserialize(deserializer).map(Self::App)
    }
}
