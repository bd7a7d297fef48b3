//! The terms of a session: what this side is configured for, and what the peer's HELLO says.

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

/// The terms of a session. Messages are held against them before they are sent, and when they have come.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) role: Role,
    pub(crate) settings: Arc<Settings>,
    /// The client's; a server is told by HELLO.
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

    /// Sets the peer's HELLO. False: there was one.
    pub(crate) fn set_peer(&self, hello: Hello) -> bool {
        self.peer.set(hello).is_ok()
    }

    /// Returns the length of the longest message that the peer takes, in bytes; 0 before its HELLO.
    #[inline]
    pub(crate) fn max_message(&self) -> u64 {
        self.peer().map_or(0, |peer| peer.max_message)
    }

    /// Returns whether the peer's HELLO announces these features.
    pub(crate) fn peer_has(&self, features: u64) -> bool {
        self.peer().is_some_and(|peer| peer.features & features != 0)
    }

    /// Returns the peer's address, where the transport has addresses.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns what the client has the connection for.
    pub(crate) fn class(&self) -> TrafficClass {
        match (self.role, self.peer()) {
            (Role::Server, Some(hello)) => TrafficClass::from_wire(hello.class),
            _ => self.class,
        }
    }

    /// Returns an UNAVAILABLE that says which connection it is about.
    pub(crate) fn status(&self, detail: impl fmt::Display, executed: Executed, blame: Blame) -> Status {
        let message = format!("{}{detail}", self.with_whom());
        Status::new(Code::Unavailable, message).with_executed(executed).with_blame(blame)
    }

    /// Returns what such a status begins with.
    pub(crate) fn with_whom(&self) -> String {
        self.address.map_or_else(String::new, |peer| match self.class() {
            TrafficClass::Normal => format!("connection with {peer}: "),
            class => format!("{class} connection with {peer}: "),
        })
    }

    /// Returns whose limits a message is held against that this side sends.
    pub(crate) fn whose_limits(&self) -> &'static str {
        match self.role {
            Role::Client => "the server's",
            Role::Server => "the client's",
        }
    }

    /// Returns whether a message of so many bytes is compressed though nobody has said so of this one.
    #[inline]
    pub(crate) fn compresses_by_default(&self, len: u32) -> bool {
        len as usize >= MIN && self.settings.calls.compress != Compression::None
    }

    /// Returns what is compressed by, of what is to be so: nothing that the peer can't read. `by`: `None` is as the settings
    /// have it.
    fn compression(&self, by: Option<Compression>) -> Option<Compression> {
        let by = by.unwrap_or(self.settings.calls.compress);
        self.peer_has(by.feature()).then_some(by)
    }

    /// Returns whether anything is compressed that is to be compressed so.
    pub(crate) fn compresses(&self, by: Option<Compression>) -> bool {
        self.compression(by).is_some()
    }

    /// Compresses a payload that is to be compressed, if that makes it shorter and the peer can read it.
    #[inline(never)]
    pub(crate) fn compress(&self, by: Option<Compression>, payload: Payload) -> Payload {
        let Some(by) = self.compression(by) else { return payload };
        // A payload that is too long for the peer is too long compressed, too.
        let fits = payload.len() >= MIN && payload.len() as u64 <= self.max_message();
        if fits { compress::pack(by, &payload).unwrap_or(payload) } else { payload }
    }
}
