//! A server of a balanced channel, and the tasks that keep it connected.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::ejection::Ejection;
use super::health::Health;
use super::load::Load;
use super::{Balancer, Endpoint};
use crate::class::TrafficClass;
use crate::client::connector::Shared;
use crate::client::request_memory;
use crate::connection::Connection;
use crate::settings::Settings;
use crate::status::{Code, Status};
use crate::stream::{EndReason, StreamEnd};

/// The state of a server, as a channel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// It is not connected, and no call needs it. Only channels that do not balance have this state: others keep their connections.
    Idle,
    /// The channel connects for the first time, or again after a connection has ended.
    Connecting,
    /// It is connected. Calls go to it.
    Ready,
    /// It is connected, and has failed several calls in a row. Calls go elsewhere for a while.
    Ejected,
    /// It is connected, but a call has ended at its deadline, and nothing was received since that call was sent. Calls go elsewhere until
    /// it answers a PING.
    Suspected,
    /// It is connected, and says that it does not serve. Calls go elsewhere until it says otherwise.
    NotServing,
    /// The last attempt to connect failed. The channel tries again after a pause, see [`EndpointState::next_attempt`].
    Failing(Status),
}

/// A member of the set that a channel balances over.
pub(super) struct Member {
    pub(super) name: Arc<str>,
    weight: AtomicU32,
    tier: AtomicU32,
    locality: Mutex<Arc<str>>,
    /// One for each connection.
    lanes: Vec<Arc<Shared>>,
    next: AtomicUsize,
    load: Arc<Load>,
    /// The room that the arguments of its calls in progress take, for each class.
    held: [AtomicU32; TrafficClass::ALL.len()],
    /// The room that they may take before other servers are preferred.
    share: u32,
    readiness: Mutex<Readiness>,
    ejection: Ejection,
    /// `None`: it is not asked.
    health: Option<Arc<Health>>,
    balancer: Weak<Balancer>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Member {
    pub(super) fn new(
        endpoint: Endpoint,
        settings: &Arc<Settings>,
        runtime: &tokio::runtime::Handle,
        balancer: &Weak<Balancer>,
    ) -> Arc<Self> {
        let Endpoint { name, weight, tier, locality, connector, health } = endpoint;
        let lane = |_| Shared::new(Arc::clone(&connector), Arc::clone(settings), Some(runtime.clone()));
        let lanes = (0..settings.balance.connections.max(1)).map(lane).collect();
        Arc::new(Self {
            name,
            weight: AtomicU32::new(weight),
            tier: AtomicU32::new(tier),
            locality: Mutex::new(locality),
            lanes,
            next: AtomicUsize::new(0),
            load: Arc::new(Load::new()),
            held: Default::default(),
            share: request_memory::share(settings.limits.request_memory),
            readiness: Mutex::new(Readiness::Connecting),
            ejection: Ejection::default(),
            health: health.map(|by| Arc::new(Health::new(by))),
            balancer: Weak::clone(balancer),
            tasks: Mutex::default(),
        })
    }

    /// Begins to keep its connections.
    pub(super) fn start(self: &Arc<Self>, runtime: &tokio::runtime::Handle) {
        let tasks = self.lanes.iter().map(|lane| {
            let kept = keep(Arc::clone(lane), Arc::downgrade(self), self.health.clone());
            runtime.spawn(kept).abort_handle()
        });
        *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks.collect();
    }

    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(super) fn tier(&self) -> u32 {
        self.tier.load(Ordering::Relaxed)
    }

    pub(super) fn locality(&self) -> Arc<str> {
        Arc::clone(&self.locality.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes over the weight, the tier and the locality of this endpoint, which has this member's name.
    pub(super) fn set_place(&self, endpoint: &Endpoint) {
        self.weight.store(endpoint.weight, Ordering::Relaxed);
        self.tier.store(endpoint.tier, Ordering::Relaxed);
        *self.locality.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&endpoint.locality);
    }

    pub(super) fn readiness(&self) -> Readiness {
        let readiness = self.readiness.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match readiness {
            Readiness::Ready if self.connections().any(|connection| connection.is_suspected()) => {
                Readiness::Suspected
            }
            Readiness::Ready if self.health.as_ref().is_some_and(|health| health.says_no()) => {
                Readiness::NotServing
            }
            Readiness::Ready if self.ejection.is_ejected() => Readiness::Ejected,
            readiness => readiness,
        }
    }

    /// Returns its state, for watchers.
    pub(super) fn state(&self) -> EndpointState {
        let readiness = self.readiness();
        let attempts = self
            .lanes
            .iter()
            .filter_map(|lane| lane.classes[TrafficClass::default() as usize].next_attempt());
        let next_attempt = if matches!(readiness, Readiness::Failing(_)) { attempts.min() } else { None };
        EndpointState { name: Arc::clone(&self.name), readiness, next_attempt }
    }

    pub(super) fn ejection(&self) -> &Ejection {
        &self.ejection
    }

    /// Notes a call that has ended.
    fn note(self: &Arc<Self>, failure: Option<Code>) {
        if self.ejection.note(failure)
            && let Some(balancer) = self.balancer.upgrade()
        {
            balancer.eject(self);
        }
    }

    /// Suspects it to be gone, until all of its connections have shown a sign of life or ended.
    fn suspect(self: &Arc<Self>) {
        let Some(balancer) = self.balancer.upgrade() else { return };
        let connected = self.connections().filter(|connection| connection.is_open());
        let suspicions: Vec<_> = connected.filter_map(|connection| connection.suspect()).collect();
        if suspicions.is_empty() {
            return;
        }
        balancer.changed();
        for suspicion in suspicions {
            let balancer_of_it = Weak::clone(&self.balancer);
            balancer.spawn(async move {
                suspicion.await;
                if let Some(balancer) = balancer_of_it.upgrade() {
                    balancer.changed();
                }
            });
        }
    }

    /// Returns what another call would cost, by weight.
    pub(super) fn cost(&self, now: Instant) -> f64 {
        self.load.cost(now) / f64::from(self.weight())
    }

    /// Whether the arguments of its calls of this class take its share of the room for them, or more.
    #[inline]
    pub(super) fn is_full(&self, class: TrafficClass) -> bool {
        self.held[class as usize].load(Ordering::Relaxed) >= self.share
    }

    /// Returns a connection that takes calls of this class. `None`: the server is not connected. `Some(None)`: not for this class yet.
    #[inline]
    pub(super) fn takes(&self, class: TrafficClass) -> Option<Option<Arc<Connection>>> {
        let connected = match &self.lanes[..] {
            [lane] => lane.classes[class as usize].connected(),
            _ => self.turn().find_map(|lane| lane.classes[class as usize].connected()),
        };
        if connected.is_some() || self.is_connected() { Some(connected) } else { None }
    }

    /// Whether it takes calls, although perhaps not of all classes yet.
    pub(super) fn is_connected(&self) -> bool {
        self.lanes.iter().any(|lane| lane.classes[TrafficClass::default() as usize].is_connected())
    }

    /// Returns its connections of all classes, some of which may take no more calls.
    fn connections(&self) -> impl Iterator<Item = Arc<Connection>> {
        let all = self.lanes.iter().flat_map(|lane| &lane.classes);
        all.filter_map(|of_class| of_class.current())
    }

    /// Returns the lanes, each time beginning with another.
    fn turn(&self) -> impl Iterator<Item = &Arc<Shared>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        self.lanes[first..].iter().chain(&self.lanes[..first])
    }

    /// Connects for calls of this class.
    pub(super) async fn connect(&self, class: TrafficClass) -> Result<Arc<Connection>, Status> {
        let lane = self.turn().next().cloned();
        let lane = lane.ok_or_else(crate::client::connector::gone)?;
        lane.connection(class).await
    }

    /// Ends the pauses between attempts to connect. A server that can't be reached counts as connecting until the next attempt fails.
    pub(super) fn end_pauses(&self) {
        let mut readiness = self.readiness.lock().unwrap_or_else(PoisonError::into_inner);
        if let Readiness::Failing(_) = *readiness {
            *readiness = Readiness::Connecting;
        }
        drop(readiness);
        self.lanes.iter().for_each(|lane| lane.end_pauses());
    }

    fn set_readiness(&self, readiness: Readiness) {
        *self.readiness.lock().unwrap_or_else(PoisonError::into_inner) = readiness;
    }

    /// Retires its connections: calls in progress finish there, and new ones go elsewhere. Resolves when the last connection has ended.
    pub(super) async fn retire(self: Arc<Self>) {
        self.stop();
        let connections: Vec<_> = self.connections().collect();
        for connection in &connections {
            connection.retire();
        }
        for connection in connections {
            connection.closed().await;
        }
    }

    fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Member").field(&self.name).finish()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Keeps a connection: connects, and again when the connection has ended, after pauses if it fails.
async fn keep(lane: Arc<Shared>, member: Weak<Member>, health: Option<Arc<Health>>) {
    let class = TrafficClass::default();
    let changed = || {
        if let Some(balancer) = member.upgrade().and_then(|member| member.balancer.upgrade()) {
            balancer.changed();
        }
    };
    let tell = |readiness: Readiness| {
        let Some(member) = member.upgrade() else { return };
        // Another connection may be there still.
        let readiness = if member.is_connected() { Readiness::Ready } else { readiness };
        member.set_readiness(readiness);
        changed();
    };
    loop {
        match lane.connection(class).await {
            Ok(connection) => {
                tell(Readiness::Ready);
                match &health {
                    // Boxed, so that the tasks of channels that do not ask are short.
                    Some(health) => Box::pin(health.ask(&lane, &connection, changed)).await,
                    None => connection.not_open().await,
                }
                tell(Readiness::Connecting);
            }
            Err(status) => {
                tell(Readiness::Failing(status));
                lane.classes[class as usize].pause(false, &lane).await;
            }
        }
    }
}

/// The server that a call has gone to.
#[derive(Debug)]
pub(in crate::client) struct Picked {
    member: Arc<Member>,
    /// Whether the call counts as load, as it does if loads decide.
    is_load: bool,
    /// The time when it began to count, until its answer is there.
    began: Option<Instant>,
    /// The room that the call's arguments take there, in its class.
    held: u32,
    class: TrafficClass,
    /// Whether the server's part in the attempt is noted, or it had none.
    is_noted: bool,
}

impl Picked {
    pub(super) fn new(member: Arc<Member>, began: Option<Instant>, class: TrafficClass) -> Self {
        if began.is_some() {
            member.load.begin();
        }
        Self { member, is_load: began.is_some(), began, held: 0, class, is_noted: false }
    }

    /// Returns the server.
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Returns the server as one that a further attempt should avoid.
    pub(in crate::client) fn again(&self) -> Self {
        Self {
            member: Arc::clone(&self.member),
            is_load: false,
            began: None,
            held: 0,
            class: self.class,
            is_noted: true,
        }
    }

    /// Notes that the call is sent there with arguments that take so much room.
    pub(in crate::client) fn hold(&mut self, room: u32) {
        if self.held == 0 {
            self.held = room;
            self.member.held[self.class as usize].fetch_add(room, Ordering::Relaxed);
        }
    }

    /// Suspects the server to be gone, because it has sent nothing since the call was sent there.
    pub(in crate::client) fn suspect(&self) {
        self.member.suspect();
    }

    /// Notes that the attempt was not made, because its connection takes no calls any more. The server is not ready until it takes calls
    /// again, so this is no failure of its own.
    pub(in crate::client) fn was_not_made(&mut self) {
        self.is_noted = true;
    }

    /// Notes that an attempt has failed there. A pause before the next one is not the server's time.
    pub(in crate::client) fn failed(&mut self, status: &Status) {
        if !std::mem::replace(&mut self.is_noted, true) {
            self.member.note(Some(status.code()));
        }
        self.leave();
    }

    /// Notes that the call has ended, and its last attempt there, unless that is noted.
    #[inline]
    pub(in crate::client) fn ended(mut self, failure: Option<&Status>) {
        if !self.is_noted {
            if failure.is_none() {
                self.answered();
            }
            self.member.note(failure.map(Status::code));
        }
    }

    /// Notes that the call was answered with a stream, which is load until it ends, however long it takes.
    pub(in crate::client) fn begun(mut self) -> PickedStream {
        self.answered();
        let load = std::mem::take(&mut self.is_load).then(|| Arc::clone(&self.member.load));
        PickedStream { load, member: Arc::downgrade(&self.member) }
    }

    #[inline]
    fn answered(&mut self) {
        if let Some(began) = self.began.take() {
            self.member.load.measure(began, true);
        }
    }

    /// Takes the call from what the server has to do.
    #[inline]
    fn leave(&mut self) {
        if std::mem::take(&mut self.is_load) {
            if let Some(began) = self.began.take() {
                self.member.load.measure(began, false);
            }
            self.member.load.end();
        }
        let held = std::mem::take(&mut self.held);
        if held > 0 {
            self.member.held[self.class as usize].fetch_sub(held, Ordering::Relaxed);
        }
    }
}

/// The stream by which a server answers a call. Unlike [`Picked`] it keeps no connection to the server: it may last for days.
pub(in crate::client) struct PickedStream {
    /// The load that it is a part of, if loads decide.
    load: Option<Arc<Load>>,
    member: Weak<Member>,
}

impl PickedStream {
    /// Notes how the stream has ended, unless that says nothing of the server. A client may drop a stream at any time, and a deadline may
    /// have been meant to end it. A broken connection ends all of its streams, however good the server is.
    pub(in crate::client) fn ended(self, end: &StreamEnd) {
        use EndReason::{Cancelled, ConnectionLost, Deadline};
        if !end.is_unreadable
            && !matches!(end.reason, Cancelled | Deadline | ConnectionLost)
            && let Some(member) = self.member.upgrade()
        {
            member.note(end.code);
        }
    }
}

impl Drop for PickedStream {
    fn drop(&mut self) {
        if let Some(load) = &self.load {
            load.end();
        }
    }
}

impl Drop for Picked {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The sender of the servers' states.
pub(super) type States = watch::Sender<Arc<[EndpointState]>>;

/// A server and its state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointState {
    /// The server's name, as its [`Endpoint`] has it.
    pub name: Arc<str>,
    /// Whether calls go to it, or why not.
    pub readiness: Readiness,
    /// The time of the next attempt to connect, if the last one failed. A channel that does not balance then connects when a call needs it.
    pub next_attempt: Option<Instant>,
}
