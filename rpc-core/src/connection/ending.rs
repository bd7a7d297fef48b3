//! The end of a connection: draining and closing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Connection, Phase, Role, Stage, Traffic, Upgrading};
use crate::freeing::free_in_steps;
use crate::proto::wire::{Close, CloseCode, FrameType, Goaway};
use crate::status::{Blame, Executed, Status};
use crate::transport::{Reason, Unavailable};

/// How long a client that has used memory of the server by itself may take to close a connection that the server drains.
const LAST_ACCESSES: Duration = Duration::from_secs(10);

/// The activity of a server's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// A message has arrived in part, and the rest of it is due.
    AmidMessage,
    /// Nothing is called, and the peer's device may use nothing.
    Idle,
    /// A message has arrived in part, and this side does not read on for lack of memory.
    HeldBack,
    /// Calls are served, or the peer's device may use memory unseen.
    Busy,
}

impl Activity {
    /// Whether a message has arrived in part.
    pub(crate) fn is_amid_message(self) -> bool {
        matches!(self, Self::AmidMessage | Self::HeldBack)
    }
}

impl Connection {
    /// Whether the connection accepts new calls.
    pub(crate) fn is_open(&self) -> bool {
        self.stage.load(Ordering::Acquire) == Stage::Open as u8
    }

    /// Whether the connection finishes its calls and accepts no new ones.
    pub(super) fn is_draining(&self) -> bool {
        self.stage.load(Ordering::Acquire) == Stage::Draining as u8
    }

    pub(super) fn is_closed(&self) -> bool {
        self.stage.load(Ordering::Acquire) == Stage::Closed as u8
    }

    /// Changes the phase to the next one, if there is one. Returns whether it did.
    pub(super) fn enter(&self, next: impl FnOnce(&Phase) -> Option<Phase>) -> bool {
        self.phase.send_if_modified(|phase| {
            let Some(next) = next(phase) else { return false };
            *phase = next;
            self.stage.store(phase.stage() as u8, Ordering::Release);
            true
        })
    }

    /// Returns the final status as an error if the connection has ended.
    pub(super) fn not_closed(&self) -> Result<(), Status> {
        match &*self.phase.borrow() {
            Phase::Closed(status) => Err(status.clone()),
            _ => Ok(()),
        }
    }

    /// Returns why the connection accepts no new calls. Such a call was not executed.
    pub(crate) fn why_not_open(&self) -> Status {
        match &*self.phase.borrow() {
            Phase::Closed(status) => status.clone().with_executed(Executed::No),
            _ => self.status("it takes no new calls", Executed::No, Blame::Environment),
        }
    }

    /// Resolves when the connection takes no new calls.
    pub(crate) async fn not_open(&self) {
        // Can't fail, because `self` holds the sender.
        let _ =
            self.phase.subscribe().wait_for(|phase| !matches!(phase, Phase::Greeting | Phase::Open)).await;
    }

    /// Resolves when the connection has ended, with the status that its calls ended with. Cancel safe.
    pub async fn closed(&self) -> Status {
        let mut phase = self.phase.subscribe();
        match phase.wait_for(|p| matches!(p, Phase::Closed(_))).await.map(|p| p.clone()) {
            Ok(Phase::Closed(status)) => status,
            // Can't fail, because `self` holds the sender.
            _ => self.status("it is gone", Executed::Maybe, Blame::Environment),
        }
    }

    /// Notes that the stream link has ended, and sends no more.
    pub(super) fn note_gone(&self) {
        self.gone.send_replace(true);
    }

    /// Resolves when the stream link has ended, too, after its last bytes were sent.
    pub(crate) async fn gone(&self) {
        // Can't fail, because `self` holds the sender.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// Ends the connection now. On a server, handlers of its calls are dropped. All its calls end UNAVAILABLE: their status says
    /// which side has closed the connection, with `reason`, and whether the call may have been executed. The peer is sent the first
    /// 512 bytes of the reason.
    ///
    /// It keeps nobody out. A client's next call makes another connection, so a server that wants to be rid of a client must also
    /// refuse its calls, in an interceptor for example.
    ///
    /// A server closes connections that [`Handle::connections`] lists, or a handler closes that of its call,
    /// [`Context::connection`].
    ///
    /// [`Handle::connections`]: https://docs.rs/farcall/latest/farcall/struct.Handle.html#method.connections
    /// [`Context::connection`]: crate::context::Context::connection
    pub fn close(&self, reason: &str) {
        let blame = match self.role() {
            Role::Client => Blame::Caller,
            Role::Server => Blame::Environment,
        };
        let status = self.status(format!("closed by this side: {reason}"), Executed::Maybe, blame);
        self.close_saying(CloseCode::Done, reason, status);
    }

    /// Lets the connection finish: it takes no new calls, and ends when those that have begun are answered. A client's new calls go by
    /// another connection, and so do those that a draining server has not taken. `reason` is for the peer, which is sent the first 512
    /// bytes, and for statuses.
    ///
    /// Resolves when the connection has ended. Dropping the future does not call the draining off. There is no limit of time; to set
    /// one, [close](Self::close) the connection then. A handler must not wait for this on the connection of its own call, which
    /// would wait for the handler. It leaves that to a task:
    ///
    /// ```
    /// # use farcall_core::context::Context;
    /// async fn move_on(cx: &Context) {
    ///     if let Some(connection) = cx.connection() {
    ///         tokio::spawn(async move { connection.drain("another server is nearer").await });
    ///     }
    /// }
    /// ```
    pub async fn drain(&self, reason: &str) {
        self.begin_draining(reason);
        self.closed().await;
    }

    /// Begins to [drain](Self::drain), if that has not begun.
    pub(crate) fn begin_draining(&self, reason: &str) {
        match (self.role(), self.me()) {
            (Role::Server, Some(this)) => {
                if self.start_draining() {
                    let reason = reason.to_owned();
                    self.runtime.spawn(async move { this.drain_server(&reason).await });
                }
            }
            _ => self.drain_client(&format!("this side drains: {reason}")),
        }
    }

    /// Server: accepts no more calls, finishes those that were accepted, then closes.
    async fn drain_server(&self, reason: &str) {
        tokio::select! {
            () = self.finish(reason) => {
                let detail = format!("this side drained: {reason}");
                self.close_as(CloseCode::Done, self.status(detail, Executed::No, Blame::Environment));
            }
            _ = self.closed() => {}
        }
    }

    async fn finish(&self, reason: &str) {
        if let Some(dispatch) = &self.dispatch {
            dispatch.say_draining();
        }
        self.go_away(u64::MAX >> 1, reason);
        // When this resolves, the peer has read the GOAWAY, and everything that it began to send before has arrived.
        // Those calls are served. Otherwise a client could repeat a refused call before it reads the GOAWAY, and be
        // refused again. If this takes too long, later calls are refused as not executed, which only costs them a
        // detour.
        let read = async {
            self.sender.progress().until(|| self.sender.is_done()).await;
            self.ping().await;
        };
        let _ = tokio::time::timeout(self.settings().liveness.ping(), read).await;
        let last_call = {
            let mut receiving = self.receiving.lock();
            if let Some(dispatch) = &self.dispatch {
                dispatch.refuse(&mut receiving.in_order);
            }
            receiving.last_call()
        };
        self.go_away(last_call, reason);
        self.sender.progress().until(|| self.is_done()).await;
        if self.accesses.withdraw_grants().await {
            // A peer that was using memory by itself goes on by messages, and closes the connection when it needs it no more.
            let _ = tokio::time::timeout(LAST_ACCESSES, self.closed()).await;
            self.sender.progress().until(|| self.is_done()).await;
        }
    }

    fn go_away(&self, last_call: u64, reason: &str) {
        self.sender.send_message(FrameType::GOAWAY, 0, |out| {
            Goaway { last_call, reason: reason.to_owned() }.encode(out);
        });
        self.sender.flush();
    }

    /// Whether no call is left to answer. Checked in the order in which calls move on, so that none is missed.
    fn is_done(&self) -> bool {
        !self.receiving.lock().inbox.is_assembling()
            && self.dispatch.as_ref().is_none_or(|dispatch| dispatch.is_idle())
            && self.accesses.is_idle()
            && self.sender.is_done()
    }

    /// Tells the server that a message has arrived in part.
    pub(super) fn note_amid_message(&self) {
        if let Some(dispatch) = &self.dispatch {
            dispatch.note_amid_message();
        }
    }

    /// Returns how many bytes have arrived so far, and what the connection does. Frames that are no progress of a message are left
    /// out: pings and the like, and messages that came whole while others had come in part.
    pub(crate) fn activity(&self) -> (u64, Activity) {
        let Traffic { stream, upgraded, .. } = self.sender.traffic();
        let (awaits_fragments, beside) = {
            let inbox = &self.receiving.lock().inbox;
            (inbox.awaits_fragments(), inbox.bytes_beside())
        };
        let is_amid = awaits_fragments || self.sender.stream().is_amid_frame();
        let activity = match is_amid {
            true if self.sender.account().is_held_back() => Activity::HeldBack,
            true => Activity::AmidMessage,
            false if self.is_done() && self.streams.is_empty() && !self.accesses.may_be_used_unseen() => {
                Activity::Idle
            }
            false => Activity::Busy,
        };
        let received = stream.bytes_received + upgraded.bytes_received;
        (received.saturating_sub(beside), activity)
    }

    /// Handles the server's GOAWAY: starts no more calls, and ends those that the server will not execute.
    pub(super) fn on_goaway(&self, goaway: &Goaway) {
        self.start_draining();
        let detail = format!("the server is draining: {}", goaway.reason);
        let status = self.status(detail, Executed::No, Blame::Environment);
        self.calls.refuse(status.clone());
        self.calls.take_back(goaway.last_call, &status);
    }

    /// Closes a client's connection when it drains and the last call is done.
    #[inline]
    pub(super) fn close_if_drained(&self) {
        let is_idle = || self.calls.is_idle() && self.accesses.is_idle();
        if self.is_draining() && self.dispatch.is_none() && is_idle() {
            // Nothing refuses calls yet when another thread has only just begun to drain. It looks here afterwards.
            self.calls.refusing().into_iter().for_each(|why| self.close_as(CloseCode::Done, why));
        }
    }

    /// Takes no new calls. Returns whether this ended the time in which it took some.
    pub(super) fn start_draining(&self) -> bool {
        self.enter(|phase| matches!(phase, Phase::Open).then_some(Phase::Draining))
    }

    /// Ends the connection: tells the peer why, fails waiting calls, and drops running handlers.
    pub(crate) fn close_as(&self, code: CloseCode, status: Status) {
        // The prefix names the peer, for this side only. The peer adds its own.
        let reason = status.message();
        let reason = reason.strip_prefix(&self.sender.terms().with_whom()).unwrap_or(reason).to_owned();
        self.close_saying(code, &reason, status);
    }

    /// Ends the connection with a status for this side, and another reason for the peer.
    fn close_saying(&self, code: CloseCode, reason: &str, status: Status) {
        if self.end(status) {
            let reason = reason.to_owned();
            self.sender.send_link(FrameType::CLOSE, |out| Close { code, reason }.encode(out));
        }
        self.sender.stream().close();
    }

    /// Client: closes the connection when its streams have ended, because nobody can make a call on it any more.
    pub(crate) fn close_for_want_of_callers(&self) {
        self.drain_client("closed by this side, whose channel is gone");
    }

    /// Client: accepts no new calls, and closes when those in progress have ended. Calls that wait for a place go
    /// elsewhere.
    pub(crate) fn retire(&self) {
        self.drain_client("its caller uses another connection");
    }

    fn drain_client(&self, why: &str) {
        self.start_draining();
        self.calls.refuse(self.status(why, Executed::No, Blame::Environment));
        self.close_if_drained();
    }

    /// Resolves when the connection must be closed to make room in memory, with the reason.
    pub(crate) async fn evicted(&self) -> String {
        self.sender.account().evicted().await
    }

    /// Server: closes the connection to make room in memory. Returns its status.
    pub(crate) async fn close_to_make_room(&self, why: String) -> Status {
        tracing::warn!(peer = ?self.peer(), why, "closing a connection to make room");
        self.close_as(CloseCode::Internal, self.status(why, Executed::Maybe, Blame::Peer));
        self.closed().await
    }

    /// Server: closes the connection because its peer stopped in the middle of a message, for longer than `limit`.
    pub(crate) fn close_stalled(&self, limit: Duration) {
        let detail = format!("the peer stopped in the middle of a message for {limit:?} (limits.stall_ms)");
        self.close_as(CloseCode::Silent, self.status(detail, Executed::Maybe, Blame::Peer));
    }

    /// Server: drains the connection, and closes it after `grace` if its calls go on. Returns its status.
    pub(crate) async fn drain_within(&self, reason: &str, grace: Option<Duration>) -> Status {
        let drained = self.drain(reason);
        match grace {
            None => drained.await,
            Some(grace) => {
                if tokio::time::timeout(grace, drained).await.is_err() {
                    let detail = format!("{reason}; its calls did not end within {grace:?}");
                    self.close_as(CloseCode::Done, self.status(detail, Executed::Maybe, Blame::Environment));
                }
            }
        }
        self.closed().await
    }

    /// Server: closes the connection without waiting for running handlers.
    pub(crate) fn close_by_server(&self) {
        let status = self.status("the server was closed", Executed::Maybe, Blame::Environment);
        self.close_as(CloseCode::Done, status);
    }

    /// Ends the session on this side. The first status is kept. Returns whether this call was the first.
    pub(super) fn end(&self, status: Status) -> bool {
        let first =
            self.enter(|phase| (!matches!(phase, Phase::Closed(_))).then(|| Phase::Closed(status.clone())));
        if !first {
            return false;
        }
        self.sender.account().begin_closing();
        let gone = self.sender.inspect(|sending| {
            self.sender.set_upgraded(sending, None);
            sending.retire()
        });
        if let Some((_, link)) = gone {
            link.close();
        }
        let mut receiving = self.receiving.lock();
        let attempt = receiving.attempt.take();
        let (partial, gauge) = receiving.clear(self.sender.account());
        drop(receiving);
        free_in_steps(partial, gauge);
        attempt.inspect(|attempt| attempt.abort());
        if let Some(dispatch) = &self.dispatch {
            dispatch.end();
        }
        self.sender.end();
        self.accesses.end(&status);
        self.calls.fail(&status);
        self.upgrading.send_if_modified(|u| {
            let undecided = matches!(u, Upgrading::Undecided);
            if undecided {
                *u = Upgrading::Stream { why: Unavailable::new(Reason::ShuttingDown, ""), again: None };
            }
            undecided
        });
        true
    }
}
