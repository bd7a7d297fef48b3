//! A connection with one peer. It wires the parts of a session together, from its HELLO to its end.
//!
//! The parts have their own state and locks, and depend on each other only as follows:
//!
//! - `Sender` sends, by whichever link is in use. All other parts send through it.
//! - `Receiving` puts arriving frames in order.
//! - `Calls` are this side's calls, and `Dispatch` has the peer's.
//! - `StreamTable` has the streams of both.
//! - `Accesses` are to memory that either side lends.
//!
//! A connection has no task that moves data. A task that has something to send sends it. The link's task, or a caller
//! that polls for its answer, receives frames and polls handlers for the first time.
//!
//! Locks, in the order in which they may be taken:
//!
//! 1. receiving;
//! 2. one of the call table, the list of announced services and the running handlers;
//! 3. the stream table, or the streams of a call;
//! 4. the queue of what is sent.
//!
//! The lock of sending is taken while that of receiving is held, or with none, and under it only the queue's. No user
//! code runs under any of them.

mod batch;
mod context;
mod control;
mod ending;
mod keepalive;
mod link_receiver;
mod moved;
mod pending;
mod pings;
mod receive;
mod rendezvous;
mod retry;
mod setup;
mod upgrade;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Context as TaskContext;
use std::time::Duration;

use tokio::sync::watch;

pub(crate) use self::ending::Activity;
pub(crate) use self::moved::Moved;
pub(crate) use self::pending::{Line, Pending};
use crate::access::Accesses;
use crate::call_streams::StreamTable;
use crate::calls::{CallRequest, Calls, NotSent, SentRequest};
use crate::class::TrafficClass;
use crate::compress::Unpacking;
use crate::config::Limits;
use crate::dispatch::{Dispatch, Registry};
use crate::memory::{Account, Gauge, Use};
use crate::proto::inbox;
use crate::proto::wire::WireError;
pub(crate) use crate::session::Role;
pub use crate::session::Traffic;
use crate::session::{self, Owner, Sender, Terms};
use crate::settings::Settings;
use crate::slots::Place;
use crate::status::{Blame, Code, Executed, Status};
use crate::sync::{Mutex, rank};
use crate::transport::{Identity, Link, Reason, Unavailable};

/// The transport of a connection's calls, and the reason why it is not a better one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Transport {
    /// `tcp`, `rdma`, `unix` for a Unix-domain socket, `stream` for another stream of the application's, or `memory` in tests.
    pub name: &'static str,
    /// The device, where there is one, as in `rxe0 port 1 gid 1`.
    pub device: String,
    /// The reason why RDMA was lost, or could not be set up at first. `None` while it is in use, or not decided yet.
    pub why_not_rdma: Option<Unavailable>,
    /// The outcome of the latest further attempt, unless it is the same reason.
    pub why_not_again: Option<Unavailable>,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if !self.device.is_empty() {
            write!(f, " on {}", self.device)?;
        }
        if let Some(why) = &self.why_not_rdma {
            write!(f, " (not RDMA: {why}")?;
            if let Some(again) = &self.why_not_again {
                write!(f, "; when it was tried again: {again}")?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Phase {
    /// HELLO was sent.
    Greeting,
    Open,
    /// The peer or this side takes no more calls.
    Draining,
    Closed(Status),
}

/// The kind of a [`Phase`], for a cheap check on each call.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Stage {
    Greeting,
    Open,
    Draining,
    Closed,
}

impl Phase {
    fn stage(&self) -> Stage {
        match self {
            Self::Greeting => Stage::Greeting,
            Self::Open => Stage::Open,
            Self::Draining => Stage::Draining,
            Self::Closed(_) => Stage::Closed,
        }
    }
}

#[derive(Clone, Debug)]
enum Upgrading {
    Undecided,
    Stream {
        why: Unavailable,
        /// The outcome of a later attempt.
        again: Option<Unavailable>,
    },
    Upgraded,
}

/// The memory that a connection takes by itself, in bytes: its state, its tasks, and buffers that are in use most of the time.
const SESSION: usize = 32 << 10;

/// The memory that encryption of the stream link takes beside that, in bytes: keys and records.
const ENCRYPTION: usize = 32 << 10;

/// A session with one peer, which carries calls.
///
/// Use it to inspect a session and to [close](Self::close) or [drain](Self::drain) it. Calls are made on a channel, which makes
/// connections as it needs them. When a connection ends, its calls end, too, and their statuses say whether each may have been
/// executed. Holding a `Connection` keeps only its state in memory, not the session open.
pub struct Connection {
    me: Weak<Self>,
    runtime: tokio::runtime::Handle,
    sender: Arc<Sender>,
    receiving: Mutex<rank::Receiving, receive::Receiving>,
    /// Counts received batches, so that silence can be detected.
    heard: AtomicU64,
    /// Whether a call has found the peer silent, and nothing has come from it since.
    is_suspected: AtomicBool,

    calls: Calls,
    /// Set on a server.
    dispatch: Option<Arc<Dispatch>>,
    streams: Arc<StreamTable>,
    accesses: Arc<Accesses>,
    phase: watch::Sender<Phase>,
    /// The [`Stage`] of `phase`, written together with it.
    stage: AtomicU8,
    upgrading: watch::Sender<Upgrading>,
    retry: retry::Retry,
    /// Whether the stream link has ended, and sends no more.
    gone: watch::Sender<bool>,
    /// The memory of the connection itself.
    _gauge: Gauge,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("class", &self.class())
            .field("sender", &self.sender)
            .field("phase", &*self.phase.borrow())
            .field("stream_memory", &self.streams.grown())
            .finish_non_exhaustive()
    }
}

impl Connection {
    fn new(
        role: Role,
        class: TrafficClass,
        stream: Arc<dyn Link>,
        settings: Arc<Settings>,
        account: Arc<Account>,
        registry: Option<Arc<Registry>>,
    ) -> Arc<Self> {
        let Limits { max_message, max_assembly, .. } = settings.limits;
        let runtime = tokio::runtime::Handle::current();
        let limits = inbox::Limits { max_message, max_assembly };
        let unpacking = Unpacking::new(max_message, max_assembly);
        let terms = Terms::new(role, class, stream.description().peer, settings);
        Arc::new_cyclic(|me: &Weak<Self>| {
            let encryption = if stream.is_encrypted() { ENCRYPTION } else { 0 };
            let gauge = Gauge::holding(&account, Use::Session, SESSION + encryption);
            let receiving = Mutex::new(receive::Receiving::new(limits, &account));
            let sender = Sender::new(terms, stream, account, runtime.clone(), me.clone());
            let streams = StreamTable::new(sender.clone(), unpacking.clone());
            let accesses = Accesses::new(sender.clone(), runtime.clone());
            let calls = Calls::new(sender.clone(), streams.clone(), unpacking.clone(), accesses.clone());
            let dispatch = registry.map(|registry| {
                let (sender, streams) = (sender.clone(), streams.clone());
                Dispatch::new(registry, sender, streams, unpacking, &accesses, me.clone(), runtime.clone())
            });
            Self {
                me: me.clone(),
                runtime,
                sender,
                receiving,
                heard: AtomicU64::new(0),
                is_suspected: AtomicBool::new(false),
                calls,
                dispatch,
                streams,
                accesses,
                phase: watch::Sender::new(Phase::Greeting),
                stage: AtomicU8::new(Stage::Greeting as u8),
                upgrading: watch::Sender::new(Upgrading::Undecided),
                retry: retry::Retry::default(),
                gone: watch::Sender::new(false),
                _gauge: gauge,
            }
        })
    }

    fn role(&self) -> Role {
        self.sender.terms().role
    }

    fn settings(&self) -> &Settings {
        &self.sender.terms().settings
    }

    /// Sends a request; see [`Calls::send`].
    pub(crate) fn call(
        &self,
        asked: &CallRequest<'_>,
        place: Option<Place>,
        cx: &mut TaskContext<'_>,
    ) -> Result<SentRequest, NotSent> {
        self.calls.send(asked, place, cx)
    }

    /// Handles the end of an access: a session that is draining may have waited for it.
    fn access_ended(&self) {
        self.sender.progress().note();
        self.close_if_drained();
    }

    /// Returns the accesses to memory of either side.
    pub(crate) fn accesses(&self) -> &Arc<Accesses> {
        &self.accesses
    }

    /// Whether any call has been answered.
    pub(crate) fn was_of_use(&self) -> bool {
        self.calls.was_of_use()
    }

    fn stay_on_stream(&self, why: Unavailable) {
        log_once(&why, self.peer());
        self.note_on_stream(why);
    }

    fn note_on_stream(&self, why: Unavailable) {
        self.upgrading.send_modify(|upgrading| match upgrading {
            Upgrading::Stream { why: first, again } => *again = (*first != why).then_some(why),
            undecided_or_upgraded => *undecided_or_upgraded = Upgrading::Stream { why, again: None },
        });
    }

    /// Returns the link that calls go by now.
    fn link(&self) -> Arc<dyn Link> {
        let is_upgraded = matches!(*self.upgrading.borrow(), Upgrading::Upgraded);
        let upgraded = self.sender.inspect(|sending| sending.upgraded.as_ref().map(|(_, link)| link.clone()));
        upgraded.filter(|_| is_upgraded).unwrap_or_else(|| self.sender.stream().clone())
    }

    /// Returns the transport that calls go by now.
    pub fn transport(&self) -> Transport {
        let link = self.link();
        let description = link.description();
        let (why_not_rdma, why_not_again) = match self.upgrading.borrow().clone() {
            Upgrading::Stream { why, again } => (Some(why), again),
            _ => (None, None),
        };
        let (name, device) = (description.transport, description.device.clone());
        Transport { name, device, why_not_rdma, why_not_again }
    }

    /// Returns what the connection has moved so far, and how long it had to wait.
    pub fn traffic(&self) -> Traffic {
        self.sender.traffic()
    }

    /// Returns how many messages wait to be sent.
    pub fn unsent(&self) -> usize {
        self.sender.queued() + self.sender.backlog()
    }

    /// Returns how long a PING took to the peer and back, by the link that calls go by. `None`: it was not measured yet.
    ///
    /// If the last PING was sent more than a second ago, this sends another, for a later caller. While its PONG is late, the time so far
    /// counts.
    pub fn round_trip(&self) -> Option<Duration> {
        let link = self.link();
        if Arc::ptr_eq(&link, self.sender.stream()) { self.round_trip_of_stream() } else { link.round_trip() }
    }

    /// Returns how many more messages the peer has room for. `None`: calls go by TCP, which does not count them.
    pub fn credits(&self) -> Option<u32> {
        self.link().credits()
    }

    /// Returns the connection's number, which no other connection of this process has.
    pub fn number(&self) -> u64 {
        self.sender.account().number()
    }

    /// Returns the traffic class of the connection.
    pub fn class(&self) -> TrafficClass {
        self.sender.terms().class()
    }

    /// Returns the peer's address, where the transport has addresses.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.sender.terms().address()
    }

    /// Returns who the peer is: by its certificate on an encrypted connection, or by its process on a Unix-domain socket.
    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.sender.stream().identity()
    }

    /// Whether calls are encrypted on the link that they go by now.
    pub fn is_encrypted(&self) -> bool {
        self.link().is_encrypted()
    }

    /// Returns a status that names the connection.
    fn status(&self, detail: impl fmt::Display, executed: Executed, blame: Blame) -> Status {
        self.sender.terms().status(detail, executed, blame)
    }

    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    fn patience(&self) -> Duration {
        self.settings().liveness.connect()
    }
}

impl Owner for Connection {
    #[cold]
    fn on_sent(&self, mut calls: Vec<u64>) {
        let sent = calls.len();
        calls.retain(|number| !self.accesses.on_sent(*number));
        if calls.len() < sent {
            self.access_ended();
        }
        let replies = self.streams.on_sent(calls);
        let Some(dispatch) = self.dispatch.as_ref().filter(|_| !replies.is_empty()) else { return };
        for (call, reply) in replies {
            dispatch.complete(call, reply);
        }
        self.sender.flush_soon();
    }

    fn on_protocol_error(&self, error: &WireError) {
        self.protocol_error(error);
    }

    fn on_call_ended(&self) {
        self.close_if_drained();
    }
}

/// Returns the status for policy `rdma` when RDMA is unavailable.
pub(crate) fn required(why: &Unavailable) -> Status {
    let message = format!("transport = \"rdma\" is required and can't be had: {why}");
    Status::new(Code::Unavailable, message).with_executed(Executed::No).with_blame(Blame::Environment)
}

/// Logs why an expected link is not used: as a warning once for each reason, then for debugging only.
fn log_once(why: &Unavailable, peer: Option<SocketAddr>) {
    session::count_fallback(why);
    static SAID: [AtomicBool; 256] = [const { AtomicBool::new(false) }; 256];
    let expected = matches!(why.reason, Reason::Disabled | Reason::ShuttingDown);
    if !expected && !SAID[why.reason as usize].swap(true, Ordering::Relaxed) {
        tracing::warn!(?peer, %why, "calls go by the stream link; this reason is not logged again");
    } else {
        tracing::debug!(?peer, %why, "calls go by the stream link");
    }
}
