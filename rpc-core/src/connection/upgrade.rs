//! Moving a connection to an upgraded link, and back when that link fails.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::link_receiver::LinkReceiver;
use super::receive::Receiving;
use super::{Connection, Upgrading, log_once, required};
use crate::config::Policy;
use crate::proto::message::Frame;
use crate::proto::session::{Fallen, Say, Session};
use crate::proto::wire::{self, Answer, CloseCode, Down, FrameType, MAX_SWITCH_DATA, Offer, WireError};
use crate::session::Sending;
use crate::status::{Blame, Executed};
use crate::transport::{Attempt, Link, LinkEnd, PreparedUpgrade, Reason, Unavailable, Upgrade};

/// How many link frames may wait for a peer that sends offers without reading the answers.
const MAX_CONTROL: usize = 64;

/// How long a peer may take after the fall of a link to do what it owes:
///
/// - to answer our DOWN, until which nothing is sent;
/// - to answer for the messages that its DOWN does not ask for, until which they are kept.
///
/// It is as long as the lease of what a link exposes. It is longer where a longer silence is tolerated, because the
/// cause of the fall may hold up the stream link, too.
const FALL_LEASE: Duration = Duration::from_secs(10);

/// A debt of the peer after the fall of a link.
#[derive(Clone, Copy, Debug)]
enum Owed {
    /// Its DOWN of this epoch.
    Down(u32),
    /// A DONE for everything that was described up to this frame.
    Answers(u32),
}

impl Connection {
    /// Client: decides after both HELLOs. It offers to move, stays on the stream link, or offers later if the obstacle
    /// may pass.
    pub(super) fn decide(&self, announced: &[wire::Upgrade]) {
        let Ok(upgrade) = &self.settings().upgrade else { return };
        let ours = match &*self.upgrading.borrow() {
            Upgrading::Stream { why, .. } => Some(why.reason),
            _ => None,
        };
        let theirs = why_not(announced, upgrade.name());
        let may_pass = ours.into_iter().chain(theirs.iter().map(|why| why.reason)).all(Reason::may_pass);
        match (ours, theirs) {
            (None, None) => return self.move_up(),
            (None, Some(why)) => self.stay_on_stream(why),
            (Some(_), _) => {}
        }
        if may_pass {
            self.move_up_later();
        }
    }

    /// Prepares a link in a task, which ends with the attempt.
    pub(super) fn attempt(&self, prepare: impl Future<Output = ()> + Send + 'static) {
        let task = self.runtime.spawn(prepare).abort_handle();
        let former = self.receiving.lock().attempt.replace(task);
        former.inspect(AbortHandle::abort);
    }

    /// Server: records why the client will not offer, for `transport()`. Closes if RDMA is required.
    pub(super) fn expect_offer(&self, announced: &[wire::Upgrade]) {
        if matches!(*self.upgrading.borrow(), Upgrading::Undecided) {
            match why_not(announced, self.upgrade_name()) {
                None => return, // It will offer.
                Some(why) => self.stay_on_stream(why),
            }
        }
        self.close_if_required();
    }

    /// Returns the name of the transport that a session may move to.
    pub(super) fn upgrade_name(&self) -> &'static str {
        self.settings().upgrade.as_ref().map_or("rdma", |upgrade| upgrade.name())
    }

    /// Closes the connection of a server with policy `rdma` if there is no RDMA.
    fn close_if_required(&self) {
        let upgrading = self.upgrading.borrow().clone();
        // A session that has moved has served calls, and goes on.
        let moved = self.sender.was_upgraded();
        if let (Policy::Rdma, Upgrading::Stream { why, .. }, false) =
            (self.settings().policy, upgrading, moved)
        {
            self.close_as(CloseCode::Required, required(&why));
        }
    }

    pub(super) async fn offer(self: Arc<Self>, upgrade: Arc<dyn Upgrade>, announced: Bytes) {
        let prepared = upgrade.offer(announced, &self.attempt_terms());
        let prepared = tokio::time::timeout(self.patience(), prepared).await;
        let prepared = prepared.unwrap_or_else(|_| Err(self.too_slow(self.patience())));
        let (candidate, data) = match prepared.and_then(fitting) {
            Ok(prepared) => prepared,
            // The peer knows of no attempt, so no DOWN is needed.
            Err(why) => {
                self.stay_on_stream(why);
                return self.move_up_later();
            }
        };
        let (sender, answer) = oneshot::channel();
        let epoch = {
            let mut receiving = self.receiving.lock();
            let Some(epoch) = receiving.upgrade_state.begin() else { return };
            receiving.inbox.expect(epoch);
            receiving.answer = Some(sender);
            epoch
        };
        let name = upgrade.name().to_owned();
        self.sender.send_link(FrameType::OFFER, |out| Offer { epoch, name, data }.encode(out));
        let result = tokio::time::timeout(self.patience(), async {
            let gone = || Unavailable::new(Reason::ShuttingDown, "the attempt was given up");
            let answer = answer.await.map_err(|_| gone())?;
            candidate.complete(epoch, Some(answer)).await
        });
        self.settle(epoch, result.await.unwrap_or_else(|_| Err(self.too_slow(self.patience()))));
    }

    pub(super) fn on_offer(&self, offer: Offer) -> Result<(), WireError> {
        if self.sender.inspect(|sending| sending.control.len()) >= MAX_CONTROL {
            return Err(WireError::new("offer", "comes again and again, and the answers are not read"));
        }
        {
            let mut receiving = self.receiving.lock();
            receiving.upgrade_state.accept(offer.epoch)?;
            receiving.inbox.expect(offer.epoch);
        }
        let Offer { epoch, name, data } = offer;
        let refuse = |why: Unavailable| {
            self.fall(epoch, &why);
            Ok(())
        };
        let upgrade = match &self.settings().upgrade {
            Ok(upgrade) if upgrade.name() == name => upgrade.clone(),
            Ok(_) => return refuse(Unavailable::new(Reason::Other, format!("`{name}` is unknown here"))),
            Err(why) => return refuse(why.clone()),
        };
        if self.settings().policy == Policy::Tcp {
            return refuse(Unavailable::new(Reason::Disabled, ""));
        }
        let Some(connection) = self.me() else { return Ok(()) };
        self.attempt(connection.answer(upgrade, epoch, data));
        Ok(())
    }

    async fn answer(self: Arc<Self>, upgrade: Arc<dyn Upgrade>, epoch: u32, offer: Bytes) {
        let result = tokio::time::timeout(self.patience(), async {
            let prepared = upgrade.answer(epoch, offer, &self.attempt_terms()).await?;
            let (candidate, data) = fitting(prepared)?;
            self.sender.send_link(FrameType::ANSWER, |out| Answer { epoch, data }.encode(out));
            candidate.complete(epoch, None).await
        });
        self.settle(epoch, result.await.unwrap_or_else(|_| Err(self.too_slow(self.patience()))));
        self.close_if_required();
    }

    /// Returns what an upgraded link has to be made for.
    fn attempt_terms(&self) -> Attempt {
        let stream = self.sender.stream();
        let mut terms = Attempt::plain(stream.description().clone(), self.class());
        if stream.is_encrypted() {
            terms.allows_plaintext = self.settings().plaintext_upgrade;
            terms.secret = stream.secret();
        }
        terms
    }

    /// Refuses a link that does not encrypt for a session that does, whatever transport has made it.
    fn check_protection(&self, link: Arc<dyn Link>) -> Result<Arc<dyn Link>, Unavailable> {
        let must_encrypt = self.sender.stream().is_encrypted() && !self.settings().plaintext_upgrade;
        if must_encrypt && !link.is_encrypted() {
            link.close();
            let why = "the upgraded link would move bytes in the clear";
            return Err(Unavailable::new(Reason::Encrypted, why));
        }
        Ok(link)
    }

    pub(super) fn too_slow(&self, limit: Duration) -> Unavailable {
        let whole = self.patience();
        let detail =
            format!("a step took longer than {limit:?}; liveness.connect_ms is {}", whole.as_millis());
        Unavailable::new(Reason::TimedOut, detail)
    }

    pub(super) fn on_answer(&self, answer: Answer) -> Result<(), WireError> {
        let mut receiving = self.receiving.lock();
        if answer.epoch > receiving.upgrade_state.epoch() {
            return Err(WireError::new("answer.epoch", "was never offered"));
        }
        if receiving.upgrade_state.is_usable(answer.epoch) {
            let Some(waiter) = receiving.answer.take() else {
                return Err(WireError::new("answer", "comes again"));
            };
            // The waiter may have timed out at this moment.
            let _ = waiter.send(answer.data);
        }
        Ok(())
    }

    /// Ends the attempt: uses the link, or gives it up.
    fn settle(&self, epoch: u32, result: Result<Arc<dyn Link>, Unavailable>) {
        let link = match result.and_then(|link| self.check_protection(link)) {
            Ok(link) => link,
            Err(why) => return self.fall(epoch, &why),
        };
        let Some(connection) = self.me() else { return link.close() };
        let up = {
            let mut receiving = self.receiving.lock();
            let Receiving { upgrade_state, inbox, .. } = &mut *receiving;
            self.sender.change(|sending| {
                let mut session = Session { upgrade_state, inbox, outbox: &mut sending.outbox };
                let up = if self.is_closed() { None } else { session.go_up(epoch) }?;
                let mut payload = BytesMut::new();
                up.encode(&mut payload);
                sending.control.push_back(Frame::link(FrameType::UP, payload.freeze()));
                sending.upgraded = Some((epoch, link.clone()));
                self.sender.set_upgraded(sending, Some((epoch, link.clone())));
                self.sender.note_upgraded();
                // Under the locks, so that a fall of this link, which may come at once, sets its own state after this.
                self.upgrading.send_replace(Upgrading::Upgraded);
                self.retry.note_up();
                Some(up)
            })
        };
        if up.is_none() {
            return link.close(); // The attempt was given up meanwhile.
        }
        tracing::debug!(peer = ?self.peer(), class = %self.class(), link = ?link.description(), epoch, "moved up");
        link.start(Arc::new(LinkReceiver::upgraded(connection, epoch)));
    }

    pub(super) fn on_down(&self, down: &Down) -> Result<(), WireError> {
        let reason = Reason::from_wire(down.reason).unwrap_or(Reason::Other);
        let why = Unavailable::at_peer(reason, down.detail.clone());
        self.falling(down.epoch, why, |mut session| session.on_down(down))
    }

    pub(super) fn on_upgraded_closed(&self, epoch: u32, end: &LinkEnd) {
        if end.malformed && self.receiving.lock().upgrade_state.is_usable(epoch) {
            return self.close_as(CloseCode::Protocol, self.status(end, Executed::Maybe, Blame::Peer));
        }
        let why = Unavailable::new(Reason::QueuePair, end.detail.clone());
        if end.failed {
            return self.fall(epoch, &why);
        }
        // A peer that has closed its end in order says why by the stream link: its DOWN or CLOSE is on its way.
        let Some(connection) = self.me() else { return };
        self.runtime.spawn(async move {
            let patience = connection.patience();
            if tokio::time::timeout(patience, connection.closed()).await.is_err() {
                connection.fall(epoch, &why);
            }
        });
    }

    /// Abandons the link of `epoch` on this side.
    pub(super) fn fall(&self, epoch: u32, why: &Unavailable) {
        // Giving up a link can't be a protocol error.
        let _ = self.falling(epoch, why.clone(), |mut session| Ok(session.fail(epoch)));
    }

    fn falling(
        &self,
        epoch: u32,
        why: Unavailable,
        fall: impl FnOnce(Session<'_>) -> Result<Fallen, WireError>,
    ) -> Result<(), WireError> {
        let (fallen, gone, owed, attempt) = {
            let mut receiving = self.receiving.lock();
            let Receiving { upgrade_state, inbox, answer, attempt, .. } = &mut *receiving;
            let (fallen, gone, owed) = self.sender.change(|sending| {
                let fallen = fall(Session { upgrade_state, inbox, outbox: &mut sending.outbox })?;
                let gone = sending.say_down(epoch, &fallen, &why);
                if gone.is_some() {
                    self.sender.set_upgraded(sending, None);
                }
                let owed = sending.owed(epoch, &fallen);
                // The first side to say DOWN knows why; the other's answer adds nothing. This is recorded under the
                // locks, because another thread may find the session resumed, and retries only if it sees this.
                if fallen.say.is_some() {
                    self.note_on_stream(why.clone());
                }
                Ok((fallen, gone, owed))
            })?;
            // The first DOWN ends the attempt; the second finds none.
            let attempt = fallen.say.as_ref().and_then(|_| {
                *answer = None;
                attempt.take()
            });
            (fallen, gone, owed, attempt)
        };
        attempt.inspect(AbortHandle::abort);
        owed.into_iter().for_each(|owed| self.expect_in_time(owed));
        self.fell(fallen, gone, why);
        Ok(())
    }

    fn fell(&self, fallen: Fallen, gone: Option<Arc<dyn Link>>, why: Unavailable) {
        if let Some(link) = gone {
            crate::session::count_fallback(&why);
            tracing::warn!(peer = ?self.peer(), class = %self.class(), %why, "fell back to the stream link");
            link.close();
        }
        if fallen.say.is_some() {
            log_once(&why, self.peer());
        }
        if fallen.resumed {
            self.move_up_later();
        }
    }

    /// Closes the connection if the peer has not done this in time.
    fn expect_in_time(&self, owed: Owed) {
        let lease = FALL_LEASE.max(self.settings().liveness.silence());
        let connection = self.me.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(lease).await;
            let Some(this) = connection.upgrade() else { return };
            if let Some(what) = this.still_owes(owed) {
                let detail = format!(
                    "the peer {what} within {lease:?} of the loss of the upgraded link: its process is stopped, or \
                     it is at fault"
                );
                this.close_as(CloseCode::Silent, this.status(detail, Executed::Maybe, Blame::Peer));
            }
        });
    }

    /// Returns what the peer has failed to do, if anything.
    fn still_owes(&self, owed: Owed) -> Option<String> {
        match owed {
            Owed::Down(epoch) => {
                let upgrade_state = self.receiving.lock().upgrade_state;
                (upgrade_state.epoch() == epoch && upgrade_state.is_open())
                    .then(|| "has not answered DOWN".into())
            }
            Owed::Answers(last) => {
                let count = self.sender.inspect(|sending| sending.outbox.exposed_up_to(last));
                let what = || format!("has neither read nor asked for {count} long messages");
                (count > 0).then(what)
            }
        }
    }
}

/// Refuses a link whose data for the peer its frame has no room for.
fn fitting(prepared: PreparedUpgrade) -> Result<PreparedUpgrade, Unavailable> {
    let len = prepared.1.len();
    if len > MAX_SWITCH_DATA {
        let detail = format!("its data for the peer has {len} bytes, and {MAX_SWITCH_DATA} may be sent");
        return Err(Unavailable::new(Reason::Other, detail));
    }
    Ok(prepared)
}

/// Returns why the peer can't use this link, according to its HELLO.
fn why_not(announced: &[wire::Upgrade], name: &str) -> Option<Unavailable> {
    let Some(theirs) = announced.iter().find(|theirs| theirs.name == name) else {
        let detail = "its HELLO does not mention it; is it a build without the `rdma` feature?";
        return Some(Unavailable::at_peer(Reason::PeerWithout, detail));
    };
    Reason::from_wire(theirs.reason).map(|reason| Unavailable::at_peer(reason, ""))
}

impl Sending {
    /// Queues the DOWN if one must be sent, and returns the link that is no longer used.
    fn say_down(&mut self, epoch: u32, fallen: &Fallen, why: &Unavailable) -> Option<Arc<dyn Link>> {
        let Say { rx_seq, pulls } = fallen.say.clone()?;
        let (reason, detail) = (why.reason as u8, why.detail.clone());
        let mut payload = BytesMut::new();
        Down { epoch, rx_seq, reason, pulls, detail }.encode(&mut payload);
        self.control.push_back(Frame::link(FrameType::DOWN, payload.freeze()));
        self.retire().map(|(_, link)| link)
    }

    /// Returns what the peer owes now, if this side waits for it.
    fn owed(&self, epoch: u32, fallen: &Fallen) -> Option<Owed> {
        let outbox = &self.outbox;
        if fallen.resumed {
            (outbox.exposed() > 0).then(|| Owed::Answers(outbox.last_seq()))
        } else {
            (fallen.say.is_some() && outbox.is_frozen()).then_some(Owed::Down(epoch))
        }
    }
}
