//! The status of a call that failed.

mod causes;
mod code;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::code::Code;
use crate::metadata::{Metadata, MetadataError};

/// The result of a method that has no error type of its own.
pub type Result<T, E = Status> = std::result::Result<T, E>;

/// The key of the metadata by which a server says, beside a status, after how many milliseconds the call may be made again. Anything
/// but a number means: not at all.
pub const RETRY_AFTER: &str = "retry-after-ms";

/// The side at fault for a failure.
///
/// For a connection that failed: one that ended in order, because a side drained, was closed or found no version or
/// transport in common, and one that could not be made, are the [`Environment`](Self::Environment)'s; one that ended
/// without a word, or with a broken protocol, is the [`Peer`](Self::Peer)'s. Killed, frozen and vanished processes are
/// so alike, as are servers that are none of farcall's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Blame {
    /// The handler returned it: ask the application.
    Application = 0,
    /// The caller asked for something that it could have known to be refused.
    Caller = 1,
    /// The other process broke a promise, is gone, or gives no sign of life.
    Peer = 2,
    /// The network, a device, or how the two programs are configured and run.
    Environment = 3,
    /// farcall itself; please report it.
    Bug = 4,
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Application => "the application",
            Self::Caller => "the caller",
            Self::Peer => "the peer",
            Self::Environment => "the environment: network, device, limits, or how the programs are set up",
            Self::Bug => "farcall, a bug",
        })
    }
}

impl Blame {
    /// The blame with this number on the wire.
    pub fn from_wire(number: u8) -> Self {
        match number {
            1 => Self::Caller,
            2 => Self::Peer,
            3 => Self::Environment,
            4 => Self::Bug,
            _ => Self::Application,
        }
    }
}

/// Whether the handler of a call that failed may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Executed {
    /// It did not and will not run: the call can be repeated whatever it does.
    No = 0,
    /// It may have run, wholly or in part, or may still run: repeat the call only if it is idempotent.
    Maybe = 1,
    /// It ran to its end: it returned this, or something that could not be brought to the caller.
    Yes = 2,
}

impl Executed {
    /// The value with this number on the wire; an unknown one is `Maybe`, which promises least.
    pub fn from_wire(number: u8) -> Self {
        match number {
            0 => Self::No,
            2 => Self::Yes,
            _ => Self::Maybe,
        }
    }
}

/// Why a call failed: a code, a sentence for a person, whose fault it is, and whether the handler may have run.
///
/// Handlers return one to say no (`Err(Status::not_found("no such key"))`); farcall makes one when a
/// deadline passes, a limit is met or a connection is lost. One word in size, cheap to clone.
#[derive(Clone)]
pub struct Status(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    blame: Blame,
    executed: Executed,
    message: String,
    details: Bytes,
    metadata: Metadata,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl Status {
    /// Returns a status as a handler returns it: the application's fault, and executed. Middleware that refuses a call returns
    /// one, too: if the call has not been let through, its caller gets it as not executed.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            blame: Blame::Application,
            executed: Executed::Yes,
            message: message.into(),
            details: Bytes::new(),
            metadata: Metadata::new(),
            source: None,
        }))
    }

    /// Sets whose fault the failure is.
    #[must_use]
    pub fn with_blame(mut self, blame: Blame) -> Self {
        self.0.blame = blame;
        self
    }

    /// Sets whether the handler may have run.
    #[must_use]
    pub fn with_executed(mut self, executed: Executed) -> Self {
        self.0.executed = executed;
        self
    }

    /// Attaches bytes for a program to read, by convention a `google.rpc.Status`: [`with_detail`](Self::with_detail) makes it.
    #[must_use]
    pub fn with_details(mut self, details: Bytes) -> Self {
        self.0.details = details;
        self
    }

    /// Attaches metadata. Those of a status that a handler returns go with it, after the trailers that the handler has
    /// set by `Context::reply_trailers`; so do those of a status that it passes on from a call of its own. They
    /// do not travel in an error type of the application's.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.0.metadata = metadata;
        self
    }

    /// Attaches what caused it. Where a handler returns the status, the caller finds the texts of this, of its own source and
    /// so on as [`source`](Error::source)s of what it gets: up to 16, each cut to 1,024 bytes with a sign at its end, and as many as go with the answer
    /// without being too much for the client. A server whose callers should not know so much keeps them back:
    /// `calls.causes`. They do not travel in an error type of the application's.
    ///
    /// ```
    /// # mod farcall { pub use farcall_proto::status::{Code, Status}; }
    /// use farcall::{Code, Status};
    ///
    /// let why = std::io::Error::other("no space left on device");
    /// let status = Status::new(Code::Unavailable, "the order was not written").with_source(why);
    /// assert_eq!(status.to_string(), "UNAVAILABLE: the order was not written");
    /// assert_eq!(format!("{status:#}"), "UNAVAILABLE: the order was not written: no space left on device");
    /// ```
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns what happened and what to do about it, for a person. Not for programs: the words may change.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        self.0.blame
    }

    /// Whether the handler may have run.
    pub fn executed(&self) -> Executed {
        self.0.executed
    }

    /// Bytes for a program to read; empty if there are none.
    pub fn details(&self) -> &Bytes {
        &self.0.details
    }

    /// Returns the trailers that came with the status of a failed call.
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Replaces the message by what `edit` makes of it.
    #[must_use]
    pub fn map_message(mut self, edit: impl FnOnce(String) -> String) -> Self {
        self.0.message = edit(std::mem::take(&mut self.0.message));
        self
    }
}

macro_rules! constructors {
    ($($name:ident $code:ident $doc:literal;)*) => {
        /// A constructor for each code: `Status::not_found("no such key")` is
        /// `Status::new(Code::NotFound, "no such key")`.
        impl Status {$(
            #[doc = $doc]
            pub fn $name(message: impl Into<String>) -> Self {
                Self::new(Code::$code, message)
            }
        )*}
    };
}

constructors! {
    cancelled Cancelled "CANCELLED: the caller has given up.";
    unknown Unknown "UNKNOWN: an error of which nothing else is known.";
    invalid_argument InvalidArgument "INVALID_ARGUMENT: arguments that no state of the system makes valid.";
    deadline_exceeded DeadlineExceeded "DEADLINE_EXCEEDED: the time was not enough.";
    not_found NotFound "NOT_FOUND: something that was asked for does not exist.";
    already_exists AlreadyExists "ALREADY_EXISTS: something that was to be created exists.";
    permission_denied PermissionDenied "PERMISSION_DENIED: the caller is known and may not do this.";
    resource_exhausted ResourceExhausted "RESOURCE_EXHAUSTED: a quota or a limit is used up.";
    failed_precondition FailedPrecondition "FAILED_PRECONDITION: the system is in a state that forbids it; repeat it only after that has changed.";
    aborted Aborted "ABORTED: a conflict with other calls; repeat the whole transaction.";
    out_of_range OutOfRange "OUT_OF_RANGE: a position beyond the valid range, which may grow.";
    unimplemented Unimplemented "UNIMPLEMENTED: an operation that is not supported.";
    internal Internal "INTERNAL: a broken invariant.";
    unavailable Unavailable "UNAVAILABLE: something that is away for a moment; repeat the call later.";
    data_loss DataLoss "DATA_LOSS: data that are lost or damaged for good.";
    unauthenticated Unauthenticated "UNAUTHENTICATED: the caller is not known.";
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Status");
        s.field("code", &self.code()).field("message", &self.message());
        s.field("blame", &self.blame()).field("executed", &self.executed());
        if !self.details().is_empty() {
            s.field("details", &self.details().len());
        }
        if !self.metadata().is_empty() {
            s.field("metadata", self.metadata());
        }
        if let Some(source) = &self.0.source {
            s.field("source", source);
        }
        s.finish()
    }
}

/// `{:#}` adds its sources.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.message())?;
        match self.executed() {
            Executed::No => f.write_str(" (not executed)")?,
            Executed::Maybe => f.write_str(" (may have been executed)")?,
            Executed::Yes => {}
        }
        if f.alternate() {
            self.sources().try_for_each(|source| write!(f, ": {source}"))?;
        }
        Ok(())
    }
}

impl Error for Status {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_ref().map(|e| e.as_ref() as &(dyn Error + 'static))
    }
}

/// Two statuses are equal if a caller on another machine could not tell them apart: sources do not count.
impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        (a.code, a.blame, a.executed) == (b.code, b.blame, b.executed)
            && a.message == b.message
            && a.details == b.details
            && a.metadata == b.metadata
    }
}

impl Eq for Status {}

/// The form in which a status travels inside an application's own error type.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Status")]
struct Portable<'a> {
    code: u8,
    blame: u8,
    executed: u8,
    message: std::borrow::Cow<'a, str>,
    details: Bytes,
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        Portable {
            code: self.code() as u8,
            blame: self.blame() as u8,
            executed: self.executed() as u8,
            message: self.message().into(),
            details: self.details().clone(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let p = Portable::deserialize(deserializer)?;
        Ok(Self::new(Code::from_wire(p.code), p.message)
            .with_blame(Blame::from_wire(p.blame))
            .with_executed(Executed::from_wire(p.executed))
            .with_details(p.details))
    }
}

/// A status of the application's: INTERNAL, for its program is wrong.
impl From<MetadataError> for Status {
    fn from(error: MetadataError) -> Self {
        Self::new(Code::Internal, error.to_string())
    }
}

/// INTERNAL, with the error as its source. The kind of an I/O error on the server says nothing about what the caller asked for:
/// a handler for which it does, such as one that serves files, chooses the code itself.
impl From<std::io::Error> for Status {
    fn from(error: std::io::Error) -> Self {
        Self::new(Code::Internal, "an input or output of the handler failed").with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_their_numbers() {
        for n in 1..=16 {
            assert_eq!(Code::from_wire(n) as u8, n);
        }
        assert_eq!(Code::from_wire(0), Code::Unknown);
        assert_eq!(Code::from_wire(200), Code::Unknown);
    }

    #[test]
    fn a_status_survives_inside_an_applications_error() {
        let s = Status::new(Code::Unavailable, "peer is gone")
            .with_blame(Blame::Peer)
            .with_executed(Executed::Maybe)
            .with_details(Bytes::from_static(b"x"));
        let bytes = postcard::to_allocvec(&s).unwrap();
        assert_eq!(postcard::from_bytes::<Status>(&bytes).unwrap(), s);
        assert_eq!(s.to_string(), "UNAVAILABLE: peer is gone (may have been executed)");
    }

    #[test]
    fn a_status_is_one_word() {
        assert_eq!(size_of::<std::result::Result<(), Status>>(), size_of::<usize>());
    }
}
