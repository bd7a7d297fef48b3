//! A session with one peer: the glue between the protocol, its links, the calls waiting on this side and the
//! handlers running on it.
//!
//! A connection has no task of its own for moving data. Whoever has something to send sends it
//! ([`Connection::submit`]); what arrives is delivered by the link's task, which also runs the handlers' first
//! poll. Locks, in the order in which they may be taken: `receiving`, then `sending`, then any of the small ones
//! (`queue`, the call table, the running handlers), which are leaves. No user code runs under any of them.

mod calls;
mod keeper;
mod receive;
mod send;
mod serve;
mod upgrade;

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{Notify, watch};

pub(crate) use calls::{Asked, Pending};
pub(crate) use serve::Registry;

use crate::config::{Limits, Liveness, Policy};
use crate::proto::inbox;
use crate::proto::message::{Frame, Message};
use crate::proto::wire::{self, Close, CloseCode, FrameType, Goaway, Hello};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::{Counters, Link, Unavailable, Upgrade};

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// What both ends of all connections of a channel or server share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What this side accepts.
    pub limits: Limits,
    /// How long it waits.
    pub liveness: Liveness,
    /// Which transport it wants.
    pub policy: Policy,
    /// What a session can be moved to, or why there is nothing.
    pub upgrade: Result<Arc<dyn Upgrade>, Unavailable>,
}

impl Settings {
    /// Settings for a transport that there is nothing better than.
    pub fn plain(limits: Limits, liveness: Liveness, why: Unavailable) -> Self {
        Self { limits, liveness, policy: Policy::Auto, upgrade: Err(why) }
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
    /// Why RDMA is not used; `None` while it is, or while that is being found out.
    pub why_not_rdma: Option<Unavailable>,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if !self.device.is_empty() {
            write!(f, " on {}", self.device)?;
        }
        if let Some(why) = &self.why_not_rdma {
            write!(f, " (not RDMA: {why})")?;
        }
        Ok(())
    }
}

/// What a connection has moved, by link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// By the stream link: TCP.
    pub stream: Counters,
    /// By the upgraded link: RDMA. All zero if there never was one.
    pub upgraded: Counters,
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

#[derive(Clone, Debug)]
enum Upgrading {
    Undecided,
    Stream(Unavailable),
    Upgraded,
}

/// A session with one peer.
pub struct Connection {
    me: Weak<Self>,
    role: Role,
    settings: Arc<Settings>,
    registry: Option<Arc<Registry>>,
    runtime: tokio::runtime::Handle,
    stream: Arc<dyn Link>,
    peer_hello: OnceLock<Hello>,

    /// Messages on their way to the outbox. `queued` is true while there may be some.
    queue: Mutex<VecDeque<Message>>,
    queued: AtomicBool,
    sending: Mutex<send::Sending>,
    receiving: Mutex<receive::Receiving>,
    /// The inbox's `rx_seq`, for the headers of what is sent meanwhile.
    rx_seq: AtomicU32,
    /// The `rx_seq` of the last header that left.
    stamped: AtomicU32,
    /// Whether a timer runs that will acknowledge.
    acknowledging: AtomicBool,
    /// Counts what arrives, so that silence can be noticed.
    heard: AtomicU64,

    calls: calls::Calls,
    running: serve::Running,
    phase: watch::Sender<Phase>,
    upgrading: watch::Sender<Upgrading>,
    keeper: Notify,
    /// How many messages wait in the outbox, as of the last time that it was fed from.
    backlog: AtomicUsize,
    /// An upgraded link has been used: something may be kept for the peer's acknowledgement.
    retaining: AtomicBool,
    /// Somebody waits on `left` for everything to have left.
    draining: AtomicBool,
    left: Notify,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.role)
            .field("stream", &self.stream)
            .field("phase", &*self.phase.borrow())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Begins a session as its client: sends HELLO and returns when the server's has arrived. Must be called within
    /// a tokio runtime. Dropping the future gives the connection up.
    pub(crate) async fn connect(stream: Arc<dyn Link>, settings: Arc<Settings>) -> Result<Arc<Self>, Status> {
        let connection = Self::start(Role::Client, stream, settings, None);
        let guard = CloseOnDrop(Some(connection));
        guard.greeted().await?;
        guard.decided().await?;
        Ok(guard.keep())
    }

    /// Begins a session as its server, with calls going to `registry`.
    pub(crate) async fn accept(
        stream: Arc<dyn Link>,
        settings: Arc<Settings>,
        registry: Arc<Registry>,
    ) -> Result<Arc<Self>, Status> {
        let connection = Self::start(Role::Server, stream, settings, Some(registry));
        let guard = CloseOnDrop(Some(connection));
        guard.greeted().await?;
        Ok(guard.keep())
    }

    fn start(
        role: Role,
        stream: Arc<dyn Link>,
        settings: Arc<Settings>,
        registry: Option<Arc<Registry>>,
    ) -> Arc<Self> {
        let limits = &settings.limits;
        let inbox_limits =
            inbox::Limits { max_message: limits.max_message, max_assembly: limits.max_assembly };
        let connection = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            role,
            registry,
            runtime: tokio::runtime::Handle::current(),
            stream,
            peer_hello: OnceLock::new(),
            queue: Mutex::default(),
            queued: AtomicBool::new(false),
            sending: Mutex::new(send::Sending::new()),
            receiving: Mutex::new(receive::Receiving::new(inbox_limits)),
            rx_seq: AtomicU32::new(0),
            stamped: AtomicU32::new(0),
            acknowledging: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            calls: calls::Calls::new(),
            running: serve::Running::default(),
            phase: watch::Sender::new(Phase::Greeting),
            upgrading: watch::Sender::new(Upgrading::Undecided),
            keeper: Notify::new(),
            backlog: AtomicUsize::new(0),
            retaining: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            left: Notify::new(),
            settings,
        });
        connection.runtime.spawn(connection.clone().greet());
        connection.runtime.spawn(keeper::keep(connection.clone()));
        connection
    }

    /// Sends HELLO and starts to listen. A task, because finding out what to announce may take a moment.
    async fn greet(self: Arc<Self>) {
        let upgrade = match (&self.settings.upgrade, self.settings.policy) {
            (Ok(upgrade), Policy::Auto | Policy::Rdma) => {
                let (reason, data) = match upgrade.announce().await {
                    Ok(data) => (0, data),
                    Err(why) => {
                        let number = why.reason as u8;
                        self.stay_on_stream(why);
                        (number, bytes::Bytes::new())
                    }
                };
                vec![wire::Upgrade { name: upgrade.name().into(), reason, data }]
            }
            (Ok(upgrade), Policy::Tcp) => {
                let why = Unavailable::new(crate::transport::Reason::Disabled, "");
                let announced = wire::Upgrade {
                    name: upgrade.name().into(),
                    reason: why.reason as u8,
                    data: bytes::Bytes::new(),
                };
                self.stay_on_stream(why);
                vec![announced]
            }
            (Err(why), _) => {
                let announced = wire::Upgrade {
                    name: "rdma".into(),
                    reason: why.reason as u8,
                    data: bytes::Bytes::new(),
                };
                self.stay_on_stream(why.clone());
                vec![announced]
            }
        };
        let limits = &self.settings.limits;
        let hello = Hello {
            version_min: wire::VERSION,
            version_max: wire::VERSION,
            features: 0,
            max_frame: self.stream.max_frame() as u32,
            max_message: limits.max_message,
            max_assembly: limits.max_assembly,
            max_calls: limits.concurrent_calls,
            max_metadata: limits.max_metadata,
            class: 0,
            security: 0,
            instance: instance(),
            upgrades: upgrade,
            auth: bytes::Bytes::new(),
        };
        self.send_link(FrameType::HELLO, |out| hello.encode(out));
        let handler = receive::Handler::stream(self.clone());
        self.stream.clone().start(Arc::new(handler));
    }

    /// Waits for the peer's HELLO.
    async fn greeted(&self) -> Result<(), Status> {
        let mut phase = self.phase.subscribe();
        let greeted = phase.wait_for(|p| !matches!(p, Phase::Greeting));
        let patience = self.settings.liveness.connect();
        let phase = match tokio::time::timeout(patience, greeted).await {
            Ok(phase) => phase.map(|p| p.clone()),
            Err(_) => {
                let detail = format!(
                    "the peer accepted the connection but sent no HELLO within {patience:?} (liveness.connect_ms); \
                     is it a farcall server?"
                );
                let status = self.status(detail, Executed::No, Blame::Peer);
                self.close(CloseCode::Silent, status.clone());
                return Err(status);
            }
        };
        match phase {
            Ok(Phase::Closed(status)) => Err(status),
            _ => Ok(()),
        }
    }

    /// Client: waits until it is known what calls will travel by; under policy `rdma`, fails if not by RDMA.
    async fn decided(&self) -> Result<(), Status> {
        let mut upgrading = self.upgrading.subscribe();
        let mut phase = self.phase.subscribe();
        let decision = tokio::select! {
            decision = upgrading.wait_for(|u| !matches!(u, Upgrading::Undecided)) => decision.map(|u| u.clone()),
            closed = phase.wait_for(|p| matches!(p, Phase::Closed(_))) => {
                return match closed.map(|p| p.clone()) {
                    Ok(Phase::Closed(status)) => Err(status),
                    _ => Ok(()),
                };
            }
        };
        if let (Ok(Upgrading::Stream(why)), Policy::Rdma) = (decision, self.settings.policy) {
            let status = required(&why);
            self.close(CloseCode::Required, status.clone());
            return Err(status);
        }
        Ok(())
    }

    fn stay_on_stream(&self, why: Unavailable) {
        self.upgrading.send_replace(Upgrading::Stream(why));
    }

    /// What calls travel by now.
    pub fn transport(&self) -> Transport {
        let upgrading = self.upgrading.borrow().clone();
        let upgraded = lock(&self.sending).upgraded.as_ref().map(|(_, link)| link.clone());
        let link = match (&upgrading, upgraded) {
            (Upgrading::Upgraded, Some(link)) => link,
            _ => self.stream.clone(),
        };
        let description = link.description();
        let why_not_rdma = match upgrading {
            Upgrading::Stream(why) => Some(why),
            _ => None,
        };
        Transport { name: description.transport, device: description.device.clone(), why_not_rdma }
    }

    /// What it has moved so far.
    pub fn traffic(&self) -> Traffic {
        let sending = lock(&self.sending);
        let mut traffic = Traffic { stream: self.stream.counters(), upgraded: sending.retired };
        if let Some((_, link)) = &sending.upgraded {
            traffic.upgraded += link.counters();
        }
        traffic
    }

    /// The peer's address, where the transport has addresses.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.stream.description().peer
    }

    /// Whether new calls may be started on it.
    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Open)
    }

    /// Why it takes no new calls; nothing of such a call was executed.
    pub(crate) fn why_not_open(&self) -> Status {
        match &*self.phase.borrow() {
            Phase::Closed(status) => status.clone().with_executed(Executed::No),
            _ => self.status("it takes no new calls", Executed::No, Blame::Environment),
        }
    }

    /// Resolves when the connection has ended, with why.
    pub(crate) async fn closed(&self) -> Status {
        let mut phase = self.phase.subscribe();
        match phase.wait_for(|p| matches!(p, Phase::Closed(_))).await.map(|p| p.clone()) {
            Ok(Phase::Closed(status)) => status,
            _ => Status::new(Code::Unavailable, "the connection is gone"),
        }
    }

    /// Takes no more calls, finishes those that were taken, then closes. Returns when it has.
    pub(crate) async fn drain(&self, reason: &str) {
        self.start_draining();
        self.send_message(FrameType::GOAWAY, 0, |out| {
            Goaway { last_call: u64::MAX >> 1, reason: reason.to_owned() }.encode(out);
        });
        self.flush();
        // By the answer the peer has probably read the GOAWAY. A call that comes later all the same is refused as not
        // executed, so this only spares some a detour.
        let patience = self.settings.liveness.ping();
        let _ = tokio::time::timeout(patience, self.ping()).await;
        let last_call = lock(&self.receiving).last_call();
        self.send_message(FrameType::GOAWAY, 0, |out| {
            Goaway { last_call, reason: reason.to_owned() }.encode(out);
        });
        self.flush();
        let finished = async {
            self.running.idle().await;
            self.all_left().await;
        };
        tokio::select! {
            () = finished => {}
            _ = self.closed() => return,
        }
        let status = self.status(format!("this side drained: {reason}"), Executed::No, Blame::Environment);
        self.close(CloseCode::Done, status);
    }

    fn start_draining(&self) {
        self.phase.send_if_modified(|phase| {
            let open = matches!(phase, Phase::Open);
            if open {
                *phase = Phase::Draining;
            }
            open
        });
    }

    /// Ends the connection: says why to the peer, fails the calls that wait, drops the handlers that run.
    pub(crate) fn close(&self, code: CloseCode, status: Status) {
        let reason = status.message().to_owned();
        self.end(status);
        self.send_link(FrameType::CLOSE, |out| Close { code, reason }.encode(out));
        self.stream.close();
    }

    /// Client: nobody can make a call on it any more.
    pub(crate) fn close_for_want_of_callers(&self) {
        let status = self.status("closed by this side", Executed::No, Blame::Caller);
        self.close(CloseCode::Done, status);
    }

    /// Server: ends it without waiting for what runs.
    pub(crate) fn close_by_server(&self) {
        let status = self.status("the server was closed", Executed::Maybe, Blame::Environment);
        self.close(CloseCode::Done, status);
    }

    /// The session is over on this side; the first to say why is right.
    fn end(&self, status: Status) {
        let first = self.phase.send_if_modified(|phase| {
            let first = !matches!(phase, Phase::Closed(_));
            if first {
                *phase = Phase::Closed(status.clone());
            }
            first
        });
        if !first {
            return;
        }
        let upgraded = lock(&self.sending).upgraded.take();
        if let Some((_, link)) = upgraded {
            link.close();
        }
        self.running.drop_all();
        self.fail_calls(&status);
        self.stay_on_stream_if_undecided();
        self.keeper.notify_one();
    }

    fn stay_on_stream_if_undecided(&self) {
        self.upgrading.send_if_modified(|u| {
            let undecided = matches!(u, Upgrading::Undecided);
            if undecided {
                *u = Upgrading::Stream(Unavailable::new(crate::transport::Reason::ShuttingDown, ""));
            }
            undecided
        });
    }

    /// A status that says which connection it is about.
    fn status(&self, detail: impl fmt::Display, executed: Executed, blame: Blame) -> Status {
        let message = match self.peer() {
            Some(peer) => format!("connection with {peer}: {detail}"),
            None => detail.to_string(),
        };
        Status::new(Code::Unavailable, message).with_executed(executed).with_blame(blame)
    }

    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    fn patience(&self) -> Duration {
        self.settings.liveness.connect()
    }

    /// Sends a link frame by the stream link, before any session frame that waits.
    fn send_link(&self, kind: FrameType, encode: impl FnOnce(&mut BytesMut)) {
        let mut payload = BytesMut::new();
        encode(&mut payload);
        lock(&self.sending).control.push_back(Frame::link(kind, payload.freeze()));
        self.flush_anyway();
    }

    /// Queues a session message that has no payload but what `encode` writes.
    fn send_message(&self, kind: FrameType, call: u64, encode: impl FnOnce(&mut BytesMut)) {
        let mut head = BytesMut::new();
        encode(&mut head);
        self.enqueue(Message::new(kind, call, head.freeze()));
    }
}

/// The error of policy `rdma` when there is none.
pub(crate) fn required(why: &Unavailable) -> Status {
    let message = format!("transport = \"rdma\" is required and can't be had: {why}");
    Status::new(Code::Unavailable, message).with_executed(Executed::No).with_blame(Blame::Environment)
}

/// A number for this process in HELLO: only to tell processes apart in logs.
fn instance() -> u64 {
    static INSTANCE: OnceLock<u64> = OnceLock::new();
    use std::hash::{BuildHasher, RandomState};
    *INSTANCE.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// Closes a connection whose set-up was given up.
struct CloseOnDrop(Option<Arc<Connection>>);

impl CloseOnDrop {
    fn keep(mut self) -> Arc<Connection> {
        self.0.take().expect("taken once, here")
    }
}

impl std::ops::Deref for CloseOnDrop {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.as_deref().expect("present until it is kept")
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            let status = connection.status("given up while connecting", Executed::No, Blame::Caller);
            connection.close(CloseCode::Done, status);
        }
    }
}

/// Locks, also after a panic: nothing under our locks is left half changed by one, because no user code runs there.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
