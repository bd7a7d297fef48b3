//! The terms of a session: this side's configuration and the peer's HELLO.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use super::Role;
use crate::class::TrafficClass;
use crate::compress::{self, Compression, MIN};
use crate::payload::Payload;
use crate::proto::wire::Hello;
use crate::settings::Settings;
use crate::status::{Blame, Code, Executed, Status};

/// The terms of a session. Messages are checked against them before they are sent, and when they arrive.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) role: Role,
    pub(crate) settings: Arc<Settings>,
    /// The class on a client. A server learns it from HELLO.
    class: TrafficClass,
    /// The peer's address, where the transport has addresses.
    address: Option<SocketAddr>,
    peer: OnceLock<Hello>,
}

impl Terms {
    pub(crate) fn new(
        role: Role,
        class: TrafficClass,
        address: Option<SocketAddr>,
        settings: Arc<Settings>,
    ) -> Self {
        Self { role, settings, class, address, peer: OnceLock::new() }
    }

    /// Returns the peer's HELLO, once it has arrived.
    #[inline]
    pub(crate) fn peer(&self) -> Option<&Hello> {
        self.peer.get()
    }

    /// Sets the peer's HELLO. Returns false if there was one already.
    pub(crate) fn set_peer(&self, hello: Hello) -> bool {
        self.peer.set(hello).is_ok()
    }

    /// Returns the length of the longest message that the peer accepts, in bytes; 0 before its HELLO.
    #[inline]
    pub(crate) fn max_message(&self) -> u64 {
        self.peer().map_or(0, |peer| peer.max_message)
    }

    /// Whether the peer's HELLO announces these features.
    pub(crate) fn peer_has(&self, features: u64) -> bool {
        self.peer().is_some_and(|peer| peer.features & features != 0)
    }

    /// Returns the peer's address, where the transport has addresses.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the class of the connection.
    pub(crate) fn class(&self) -> TrafficClass {
        match (self.role, self.peer()) {
            (Role::Server, Some(hello)) => TrafficClass::from_wire(hello.class),
            _ => self.class,
        }
    }

    /// Returns an UNAVAILABLE that names the connection.
    pub(crate) fn status(&self, detail: impl fmt::Display, executed: Executed, blame: Blame) -> Status {
        let message = format!("{}{detail}", self.with_whom());
        Status::new(Code::Unavailable, message).with_executed(executed).with_blame(blame)
    }

    /// Returns a RESOURCE_EXHAUSTED: this side has no memory for what the peer has sent.
    pub(crate) fn no_memory(&self, what: impl fmt::Display, executed: Executed) -> Status {
        let (side, used_up) = match self.role {
            Role::Client => ("the client", "its process has no more"),
            Role::Server => ("the server", "limits.memory is used up, or its process has no more"),
        };
        let message = format!("{side} has no memory for {what}: {used_up}; give it more, or send less");
        Status::new(Code::ResourceExhausted, message).with_executed(executed).with_blame(Blame::Environment)
    }

    /// Returns the prefix of an UNAVAILABLE, which names the connection.
    pub(crate) fn with_whom(&self) -> String {
        self.address.map_or_else(String::new, |peer| match self.class() {
            TrafficClass::Normal => format!("connection with {peer}: "),
            class => format!("{class} connection with {peer}: "),
        })
    }

    /// Returns the owner of the limits for messages that this side sends, as a phrase.
    pub(crate) fn whose_limits(&self) -> &'static str {
        match self.role {
            Role::Client => "the server's",
            Role::Server => "the client's",
        }
    }

    /// Whether a message of `len` bytes is compressed by default.
    #[inline]
    pub(crate) fn compresses_by_default(&self, len: u32) -> bool {
        len as usize >= MIN && self.settings.calls.compress != Compression::None
    }

    /// Returns the compression to use, or `None` if the peer can't read it. `by`: `None` selects the configured one.
    fn compression(&self, by: Option<Compression>) -> Option<Compression> {
        let by = by.unwrap_or(self.settings.calls.compress);
        self.peer_has(by.feature()).then_some(by)
    }

    /// Whether a message with this choice is compressed at all.
    pub(crate) fn compresses(&self, by: Option<Compression>) -> bool {
        self.compression(by).is_some()
    }

    /// Compresses a payload, if that makes it shorter and the peer can read it.
    #[inline(never)]
    pub(crate) fn compress(&self, by: Option<Compression>, payload: Payload) -> Payload {
        let Some(by) = self.compression(by) else { return payload };
        // A payload that is too long for the peer is too long compressed, too.
        let fits = payload.len() >= MIN && payload.len() as u64 <= self.max_message();
        if fits { compress::pack(by, &payload).unwrap_or(payload) } else { payload }
    }
}
