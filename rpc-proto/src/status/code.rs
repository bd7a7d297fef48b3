//! The kinds of failure.

use std::fmt;
use std::str::FromStr;

/// gRPC's status codes, with gRPC's numbers.
///
/// farcall itself ends calls only with `Cancelled`, `Unknown`, `DeadlineExceeded`, `ResourceExhausted`,
/// `FailedPrecondition` (a changed method signature), `Unimplemented`, `Internal` and `Unavailable`; the
/// others are the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Code {
    /// The caller gave up, or the handler was told that it had.
    Cancelled = 1,
    /// An error that says no more.
    Unknown = 2,
    /// The arguments are wrong whatever the state of the system.
    InvalidArgument = 3,
    /// The deadline passed before the call was done.
    DeadlineExceeded = 4,
    /// The requested thing does not exist.
    NotFound = 5,
    /// The thing to be made exists already.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A limit or a quota is used up.
    ResourceExhausted = 8,
    /// The system is not in the state the call needs.
    FailedPrecondition = 9,
    /// A conflict; try again from further up.
    Aborted = 10,
    /// Past the valid range.
    OutOfRange = 11,
    /// The peer does not have this service or method.
    Unimplemented = 12,
    /// An invariant is broken: a bug on either side.
    Internal = 13,
    /// The peer can't be reached now.
    Unavailable = 14,
    /// Data is lost or corrupt.
    DataLoss = 15,
    /// The caller did not say, or prove, who it is.
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number on the wire; a number that this version does not know is `Unknown`.
    pub fn from_wire(number: u8) -> Self {
        const CODES: [Code; 16] = [
            Code::Cancelled,
            Code::Unknown,
            Code::InvalidArgument,
            Code::DeadlineExceeded,
            Code::NotFound,
            Code::AlreadyExists,
            Code::PermissionDenied,
            Code::ResourceExhausted,
            Code::FailedPrecondition,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unimplemented,
            Code::Internal,
            Code::Unavailable,
            Code::DataLoss,
            Code::Unauthenticated,
        ];
        CODES.get(usize::from(number).wrapping_sub(1)).copied().unwrap_or(Self::Unknown)
    }

    /// The name gRPC has for it, as in `DEADLINE_EXCEEDED`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// Reads the name that gRPC has for a code.
impl FromStr for Code {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = (1..=16).map(Self::from_wire);
        let found = all.into_iter().find(|code| code.name() == name);
        found.ok_or_else(|| format!("`{name}` is no name of a status; there are names such as UNAVAILABLE"))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
