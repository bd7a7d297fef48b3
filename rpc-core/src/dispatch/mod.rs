//! The calls of the peer: the services they call, and the handlers that run for them.

mod admission;
mod answers;
mod handler;
mod handler_limit;
mod jobs;
mod outgoing;
mod registry;
mod running;
mod serve;

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

pub(crate) use self::jobs::{ENOUGH, Jobs};
pub(crate) use self::registry::{Registry, RemoteServices};
use crate::access::Accesses;
use crate::admission::Share;
use crate::call_streams::{Ended, StreamTable};
use crate::compress::Unpacking;
use crate::context::ConnectionContext;
use crate::memory::{Gauge, Use};
use crate::session::{InOrder, Sender};
use crate::transport::Identity;

/// The calls of the peer that this side serves.
pub(crate) struct Dispatch {
    me: Weak<Self>,
    registry: Arc<Registry>,
    context: Arc<ConnectionContext>,
    sender: Arc<Sender>,
    streams: Arc<StreamTable>,
    unpacking: Arc<Unpacking>,
    running: running::Running,
    limit: Arc<handler_limit::HandlerLimit>,
    share: Arc<Share>,
    /// Counts the memory of the peer's identity.
    identity: OnceLock<Gauge>,
    /// Whether the peer's last call is settled, so that later ones are refused.
    refuses: AtomicBool,
    ended: AtomicBool,
    runtime: Handle,
}

impl Dispatch {
    pub(crate) fn new(
        registry: Arc<Registry>,
        sender: Arc<Sender>,
        streams: Arc<StreamTable>,
        unpacking: Arc<Unpacking>,
        accesses: &Arc<Accesses>,
        connection: Weak<dyn Any + Send + Sync>,
        runtime: Handle,
    ) -> Arc<Self> {
        let most = sender.terms().settings.limits.concurrent_calls as usize;
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            context: registry.drain().of_connection(sender.account(), Arc::downgrade(accesses), connection),
            registry,
            sender,
            streams,
            unpacking,
            running: running::Running::default(),
            limit: handler_limit::HandlerLimit::new(most),
            share: Arc::default(),
            identity: OnceLock::new(),
            refuses: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            runtime,
        })
    }

    /// Notes who the peer is, for its calls. A peer chooses the length of its certificates, so they count.
    pub(crate) fn set_identity(&self, identity: Arc<Identity>) {
        let gauge = Gauge::holding(self.sender.account(), Use::Session, identity.memory());
        // A connection has one HELLO.
        let _ = self.identity.set(gauge);
        self.context.set_identity(identity);
    }

    /// Tells running handlers that the connection drains.
    pub(crate) fn say_draining(&self) {
        self.context.begin_draining();
    }

    /// Tells the server that a message has arrived in part.
    #[cold]
    pub(crate) fn note_amid_message(&self) {
        self.registry.amid_message().notify_one();
    }

    /// Whether no handler runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_idle()
    }

    /// Refuses the calls that come after those received so far.
    pub(crate) fn refuse(&self, _: &mut InOrder) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    /// Drops every handler, because the connection is gone.
    pub(crate) fn end(&self) {
        // Set first. A handler that becomes a task after this sees it, and an earlier one is found below.
        self.ended.store(true, Ordering::Release);
        self.running.drop_all(&self.runtime, self.sender.account());
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Cancels a call that the peer no longer waits for. Removes what is left of its answer. Returns the task of a
    /// running handler, which must be dropped when no lock is held. This needs the order of messages, because the next
    /// REQUEST may take the call's place.
    pub(crate) fn cancel(
        &self,
        _: &mut InOrder,
        call: u64,
        wakers: &mut Vec<Waker>,
    ) -> Option<Option<AbortHandle>> {
        let running = self.running.take(call);
        let streams = self.streams.remove(call);
        if let Some(streams) = &streams {
            wakers.extend(streams.end(Ended::gave_up()));
        }
        // A running call without streams has nothing queued.
        if running.is_none() || streams.is_some() {
            self.sender.abandon_answer(call);
        }
        running
    }
}
