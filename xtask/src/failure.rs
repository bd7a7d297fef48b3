//! Failures that end a chore early, and the exit status that tells the kinds apart.

use std::fmt;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// An error that the caller of `cargo xtask` reads: a message for people, a status for programs.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// A chore did what it was asked and the outcome is bad, or the host refused something ordinary.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { status: 1, message: message.into() }
    }

    /// The command line makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { status: 2, message: message.into() }
    }

    /// This machine lacks something; the message says what to do about it.
    pub(crate) fn cannot_run(message: impl Into<String>) -> Self {
        Self { status: 3, message: message.into() }
    }

    /// The command took too long. The number is that of `timeout(1)`.
    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self { status: 124, message: message.into() }
    }

    /// The machine itself failed, not the command in it. The number is that of `docker run`.
    pub(crate) fn machine(message: impl Into<String>) -> Self {
        Self { status: 125, message: message.into() }
    }

    /// A signal asked this process to end. The number is that of a shell.
    pub(crate) fn interrupted(signal: usize) -> Self {
        let status = u8::try_from(128 + signal).unwrap_or(u8::MAX);
        Self { status, message: format!("ended by signal {signal}") }
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Adds what was being done when the host refused it.
pub(crate) trait Context<T> {
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure::failed(format!("{doing}: {error}")))
    }
}
