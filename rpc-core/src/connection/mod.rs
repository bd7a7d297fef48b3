//! A session with one peer: the glue between the protocol, its links, the calls waiting on this side and the
//! handlers running on it.
//!
//! A connection has no task of its own for moving data. Whoever has something to send sends it
//! (`flush`); what arrives is delivered by the link's task, which also runs the handlers' first
//! poll, or by a caller that looks for its answer (`help`). Locks, in the order in which they may be taken: `receiving`, then `sending`; the call table, the list of
//! services and the running handlers, of which none is taken with another or with `sending` held; then the queue of
//! `sending`, a leaf. No user code runs under any of them.

mod alive;
mod answers;
mod batch;

mod calls;
mod control;
mod ending;
mod handler;
mod help;
mod keeper;
mod metadata;
mod packing;
mod pending;
mod receive;
mod registry;
mod rendezvous;
mod retry;
mod running;
mod serve;
mod setup;
mod slots;
mod streams;
mod upgrade;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

pub(crate) use crate::session::Role;
pub use crate::session::Traffic;
pub(crate) use calls::{Answered, Asked, NotSent, Rare, Received};
pub(crate) use packing::give_way;
pub(crate) use pending::{Line, Pending, Place};
pub(crate) use registry::Registry;
pub(crate) use streams::{CallStreams, Encoded, Ended, ItemsBy, Next, Pump, Pumped, Reader, Source};

use crate::class::TrafficClass;
use crate::config::{Calls, Limits, Liveness, Policy};
use crate::proto::inbox;
use crate::session::{self, Sender};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::{Link, Reason, Unavailable, Upgrade};

/// What both ends of all connections of a channel or server share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What this side accepts.
    pub limits: Limits,
    /// How long it waits.
    pub liveness: Liveness,
    /// How it makes calls, and answers them.
    pub calls: Calls,
    /// Which transport it wants.
    pub policy: Policy,
    /// What a session can be moved to, or why there is nothing.
    pub upgrade: Result<Arc<dyn Upgrade>, Unavailable>,
}

impl Settings {
    /// Settings for a transport that there is nothing better than.
    pub fn plain(limits: Limits, liveness: Liveness, why: Unavailable) -> Self {
        Self { limits, liveness, calls: Calls::default(), policy: Policy::Auto, upgrade: Err(why) }
    }
}

/// What a connection's calls travel by, and why not by something better.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Transport {
    /// `tcp`, `rdma`, or `memory` in tests.
    pub name: &'static str,
    /// The device, where there is one, as in `rxe0 port 1 gid 1`.
    pub device: String,
    /// Why RDMA is not used: why it was lost, or could not be had at first; `None` while it is used, or while that is being
    /// found out.
    pub why_not_rdma: Option<Unavailable>,
    /// Why it has not come back: what the latest further attempt came to, unless that is the same.
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
    /// The peer, or this side, takes no more calls.
    Draining,
    Closed(Status),
}

/// Which phase it is, for who looks at each call.
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
        /// What another attempt came to since.
        again: Option<Unavailable>,
    },
    Upgraded,
}

/// A session with one peer: what calls travel by.
///
/// For looking at: calls are made on a channel, which makes connections as it needs them. When a connection ends, so do
/// its calls, each saying whether it may have been executed. Keeping one of these does not keep it open, only in memory.
pub struct Connection {
    me: Weak<Self>,
    role: Role,
    /// The client's; a server is told by HELLO.
    class: TrafficClass,
    settings: Arc<Settings>,
    registry: Option<Arc<Registry>>,
    runtime: tokio::runtime::Handle,
    sender: Arc<Sender>,
    receiving: Mutex<receive::Receiving>,
    /// The peer's last call is settled. Changed under the lock of `receiving`.
    refuses: AtomicBool,
    /// Counts what arrives, so that silence can be noticed.
    heard: AtomicU64,

    calls: calls::Calls,
    streams: streams::Streams,
    running: running::Running,
    living: Arc<alive::Living>,
    unpacking: Arc<packing::Unpacking>,
    phase: watch::Sender<Phase>,
    /// The [`Stage`] of `phase`, which it is written with.
    stage: AtomicU8,
    upgrading: watch::Sender<Upgrading>,
    retry: retry::Retry,
    /// The stream link has ended.
    gone: watch::Sender<bool>,
    /// A call has begun, or one whose deadline comes before those of all others.
    keeper: Notify,
    deadlines: Notify,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.role)
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
        registry: Option<Arc<Registry>>,
    ) -> Arc<Self> {
        let Limits { max_message, max_assembly, concurrent_calls, .. } = settings.limits;
        let runtime = tokio::runtime::Handle::current();
        let upgraded = settings.upgrade.as_ref().ok().map(|upgrade| upgrade.name());
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            role,
            class,
            registry,
            sender: Sender::new(role, stream, upgraded, runtime.clone(), me.clone()),
            runtime,
            receiving: Mutex::new(receive::Receiving::new(inbox::Limits { max_message, max_assembly })),
            refuses: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            calls: calls::Calls::new(),
            streams: streams::Streams::default(),
            running: running::Running::default(),
            living: alive::Living::new(concurrent_calls as usize),
            unpacking: packing::Unpacking::new(&settings.limits),
            phase: watch::Sender::new(Phase::Greeting),
            stage: AtomicU8::new(Stage::Greeting as u8),
            upgrading: watch::Sender::new(Upgrading::Undecided),
            retry: retry::Retry::default(),
            gone: watch::Sender::new(false),
            keeper: Notify::new(),
            deadlines: Notify::new(),
            settings,
        })
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

    /// What calls travel by now.
    pub fn transport(&self) -> Transport {
        let upgrading = self.upgrading.borrow().clone();
        let upgraded = self.sender.inspect(|sending| sending.upgraded.as_ref().map(|(_, link)| link.clone()));
        let link = match (&upgrading, upgraded) {
            (Upgrading::Upgraded, Some(link)) => link,
            _ => self.sender.stream().clone(),
        };
        let description = link.description();
        let (why_not_rdma, why_not_again) = match upgrading {
            Upgrading::Stream { why, again } => (Some(why), again),
            _ => (None, None),
        };
        let (name, device) = (description.transport, description.device.clone());
        Transport { name, device, why_not_rdma, why_not_again }
    }

    /// What it has moved so far.
    pub fn traffic(&self) -> Traffic {
        self.sender.traffic()
    }

    /// What everything of the connection sends by.
    pub(crate) fn sender(&self) -> &Arc<Sender> {
        &self.sender
    }

    /// What its client has it for.
    pub fn class(&self) -> TrafficClass {
        match (self.role, self.sender.peer()) {
            (Role::Server, Some(hello)) => TrafficClass::from_wire(hello.class),
            _ => self.class,
        }
    }

    /// The peer's address, where the transport has addresses.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.sender.stream().description().peer
    }

    /// A status that says which connection it is about.
    fn status(&self, detail: impl fmt::Display, executed: Executed, blame: Blame) -> Status {
        let message = format!("{}{detail}", self.with_whom());
        Status::new(Code::Unavailable, message).with_executed(executed).with_blame(blame)
    }

    /// What such a status begins with.
    fn with_whom(&self) -> String {
        self.peer().map_or_else(String::new, |peer| match self.class() {
            TrafficClass::Normal => format!("connection with {peer}: "),
            class => format!("{class} connection with {peer}: "),
        })
    }

    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    fn patience(&self) -> Duration {
        self.settings.liveness.connect()
    }
}

/// The error of policy `rdma` when there is none.
pub(crate) fn required(why: &Unavailable) -> Status {
    let message = format!("transport = \"rdma\" is required and can't be had: {why}");
    Status::new(Code::Unavailable, message).with_executed(Executed::No).with_blame(Blame::Environment)
}

/// Says why a link is not used that could be expected: once for each reason, then only to who debugs.
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
