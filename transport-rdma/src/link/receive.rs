//! The way in: from the intake, through credits, to the handler.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use farcall_core::proto::wire::{Credit, CreditOp, FrameType, Ping, Probe, WireError, flags};
use farcall_core::transport::{LinkEnd, LinkHandler};
use tokio::sync::oneshot;

use super::LinkCore;
use super::arrival::{Headers, PeerView, ReceivedSend};
use super::credit::{PollCycle, Received};
use super::handover::{Pace, hand_over};

/// The state of receiving. The holder of the endpoint's intake delivers; others start the link and ask about it.
#[derive(Default)]
pub(super) struct Receiving {
    pub(super) count: Received,
    /// The count when the peer was lent receives the last time.
    pub(super) lent_at: Received,
    /// The count at the last search for idle peers.
    pub(super) seen: Received,
    /// The frames that the peer may send without a credit, and without being asked.
    credits: PollCycle,
    pings: PollCycle,
    proof: Proof,
    handler: Option<Arc<dyn LinkHandler>>,
    /// Messages that have arrived and are not delivered: before the link is started, all of them. Credits bound how many,
    /// because the peer gets the credit of a message back when that is delivered.
    inbox: VecDeque<ReceivedSend>,
    pace: Pace,
    /// All that has arrived since the last delivery only completes calls.
    answers: bool,
    /// The intake knows that there is something to deliver.
    is_listed: bool,
    /// The link is over, which the driver learns when what came before is delivered.
    over: Option<LinkEnd>,
    /// The peer has said CLOSE.
    close_handshake: bool,
    /// Nothing more is taken in.
    ended: bool,
    /// The end that the handler is told after all that is in the inbox.
    end: Option<LinkEnd>,
    /// The driver knows the link no more.
    released: bool,
}

/// The result of a delivery.
#[derive(Default)]
pub(crate) struct Delivered {
    pub(crate) messages: usize,
    /// There are more.
    pub(crate) unfinished: bool,
    /// It took long: other tasks have to have their turn.
    pub(crate) was_long: bool,
    /// The link is over.
    pub(crate) over: Option<LinkEnd>,
}

/// Whether the peer's PROBE has arrived.
#[derive(Default)]
enum Proof {
    #[default]
    Awaited,
    /// Somebody waits for it.
    Asked(oneshot::Sender<Result<Probe, LinkEnd>>),
    /// It has come, or will not come, before anybody asked.
    Known(Result<Probe, LinkEnd>),
    Given,
}

impl Receiving {
    /// True if the driver will not deliver what has arrived: the link has ended before it was started.
    pub(super) fn start(&mut self, handler: Arc<dyn LinkHandler>) -> bool {
        self.handler = Some(handler);
        self.released
    }

    /// The driver will deliver nothing more after this. False if there is something that it has to deliver before. If
    /// the link is started after this, the starter delivers the rest, and otherwise the driver: never both, at the same
    /// time.
    #[must_use]
    pub(super) fn release(&mut self) -> bool {
        self.released = self.handler.is_none() || (self.inbox.is_empty() && self.end.is_none());
        self.released
    }

    /// Forgets the handler without a word: its runtime is gone. The caller drops it when it holds no lock: a handler that
    /// is dropped before it heard of the end may close the link.
    #[must_use]
    pub(super) fn abandon(&mut self) -> Option<Arc<dyn LinkHandler>> {
        self.ended = true;
        self.inbox.clear();
        self.end = None;
        self.handler.take()
    }

    /// Nothing is taken in any more: the link has ended, or is about to.
    fn is_deaf(&self) -> bool {
        self.ended || self.over.as_ref().is_some_and(|end| end.failed)
    }

    /// Puts the link on the intake's list. False if it is there.
    fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.is_listed, true)
    }

    /// Puts back what was [taken out](Self::take_out) and not handed over.
    fn put_back(&mut self, from: &mut VecDeque<ReceivedSend>) {
        from.drain(..).rev().for_each(|message| self.inbox.push_front(message));
    }

    /// Takes up to `most` messages out of the inbox, into `to`, which is empty.
    fn take_out(&mut self, to: &mut VecDeque<ReceivedSend>, most: usize) {
        if self.inbox.len() <= most {
            // Each has its room for the next ones.
            std::mem::swap(&mut self.inbox, to);
        } else {
            to.extend(self.inbox.drain(..most));
        }
    }

    /// Resolves when the peer's PROBE has arrived, or the link has failed. Asked once.
    pub(super) fn probe(&mut self) -> oneshot::Receiver<Result<Probe, LinkEnd>> {
        let (sender, receiver) = oneshot::channel();
        self.proof = match std::mem::take(&mut self.proof) {
            Proof::Known(result) => {
                // The receiver is there.
                let _ = sender.send(result);
                Proof::Given
            }
            Proof::Awaited | Proof::Asked(_) | Proof::Given => Proof::Asked(sender),
        };
        receiver
    }

    pub(super) fn is_proven(&self) -> bool {
        matches!(self.proof, Proof::Given | Proof::Known(Ok(_)))
    }

    pub(super) fn count(&self) -> Received {
        self.count
    }

    pub(super) fn handler(&self) -> Option<Arc<dyn LinkHandler>> {
        self.handler.clone()
    }

    /// The outcome of the probe, unless there is one already.
    fn prove(&mut self, result: Result<Probe, LinkEnd>) {
        self.proof = match std::mem::take(&mut self.proof) {
            Proof::Awaited => Proof::Known(result),
            Proof::Asked(sender) => {
                // The asker may have lost patience.
                let _ = sender.send(result);
                Proof::Given
            }
            proof => proof,
        };
    }
}

const NOT_PROVEN: &str = "its first frame is not a PROBE";

impl LinkCore {
    /// A message has arrived, and another receive is in its place. True: the intake has to list the link.
    pub(super) fn take_in(&self, message: ReceivedSend, heard: PeerView) -> bool {
        let mut receiving = self.receiving();
        if receiving.is_deaf() {
            return false;
        }
        receiving.answers &= message.headers.answers;
        if let Err(error) = self.count_in(&mut receiving, message, heard) {
            let why = format!("{}: the peer broke the protocol: {error}", self.name);
            receiving.over = Some(LinkEnd::malformed(why));
        }
        receiving.list()
    }

    fn count_in(
        &self,
        receiving: &mut Receiving,
        mut message: ReceivedSend,
        heard: PeerView,
    ) -> Result<(), String> {
        if receiving.close_handshake {
            return Err("it sends a frame after its CLOSE".to_owned());
        }
        let Headers { first, grant, .. } = message.headers;
        let is_control =
            [FrameType::CREDIT, FrameType::PING, FrameType::PONG, FrameType::CLOSE].contains(&first.kind);
        if !is_control && !receiving.count.count(heard.grants) {
            return Err("it sent a frame without a credit".to_owned());
        }
        self.sending().on_grant(grant);
        if first.flags & flags::STARVED != 0 || (!is_control && receiving.count.is_all_of(heard.grants)) {
            self.lend(receiving);
        }
        if is_control || first.kind == FrameType::PROBE && !receiving.is_proven() {
            self.grant(usize::from(!is_control));
            let payload = message.frames.next().map(|(_, payload)| payload);
            return self.take_in_own(receiving, first.kind, payload.unwrap_or_default(), heard);
        }
        if !receiving.is_proven() {
            return Err(NOT_PROVEN.to_owned());
        }
        // The session judges frames that this link has no use for.
        receiving.inbox.push_back(message);
        Ok(())
    }

    /// So many messages need no memory any more. The peer may send others, as the next header tells it.
    fn grant(&self, messages: usize) {
        self.granted.fetch_add(messages as u32, Ordering::Release);
    }

    /// The link has failed, which the driver learns when what has arrived is delivered. The last message may be the
    /// peer's CLOSE, because of which the link has failed. True: the intake has to list it.
    pub(super) fn fail(&self, end: LinkEnd) -> bool {
        let mut receiving = self.receiving();
        // One that has ended may have been released, and must not end again.
        if receiving.ended {
            return false;
        }
        receiving.over.get_or_insert(end);
        receiving.list()
    }

    /// A frame of the link itself.
    fn take_in_own(
        &self,
        receiving: &mut Receiving,
        kind: FrameType,
        payload: Bytes,
        heard: PeerView,
    ) -> Result<(), String> {
        let wrong = |error: WireError| error.to_string();
        match kind {
            FrameType::PROBE => {
                let probe = Probe::decode(payload).map_err(wrong)?;
                receiving.prove(Ok(probe));
            }
            FrameType::CLOSE => {
                receiving.close_handshake = true;
                receiving.over = Some(LinkEnd::orderly());
            }
            _ if !receiving.is_proven() => return Err(NOT_PROVEN.to_owned()),
            FrameType::CREDIT => {
                let credit = Credit::decode(payload).map_err(wrong)?;
                if credit.op != CreditOp::Forfeit && !receiving.credits.take(heard.bytes) {
                    return Err("it sends a CREDIT before it can know that the last was read".to_owned());
                }
                match credit.op {
                    CreditOp::Grant => {}
                    CreditOp::Reclaim => self.sending().want_forfeit(credit.count),
                    CreditOp::Forfeit => self.take_back(receiving, credit.count, heard.grants)?,
                }
            }
            FrameType::PING => {
                let ping = Ping::decode(payload).map_err(wrong)?;
                if !receiving.pings.take(heard.bytes) {
                    return Err("it sends a PING before it can know that the last was read".to_owned());
                }
                self.sending().want_pong(ping.token);
            }
            // PONG: there are no others.
            _ => {
                Ping::decode(payload).map_err(wrong)?;
                if !self.sending().note_pong() {
                    return Err("it answers a PING that was not sent".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Whether delivering all that has arrived would only complete calls.
    pub(crate) fn has_only_answers(&self) -> bool {
        let receiving = self.receiving();
        receiving.handler.is_some() && receiving.answers && receiving.over.is_none()
    }

    /// Delivers up to `most` of the messages that have arrived, as far as there is [time](super::handover), if the link is
    /// started; then lets replies leave, and more be sent. `scratch` is empty, and is again.
    pub(crate) fn deliver(&self, scratch: &mut VecDeque<ReceivedSend>, most: usize) -> Delivered {
        let mut receiving = self.receiving();
        if receiving.ended {
            receiving.is_listed = false;
            drop(receiving);
            self.deliver_rest();
            return Delivered::default();
        }
        let handler = receiving.handler.clone();
        if handler.is_some() {
            receiving.take_out(scratch, most);
        }
        receiving.answers = receiving.inbox.is_empty();
        let mut unfinished = handler.is_some() && !receiving.answers;
        // The intake lists it again.
        receiving.is_listed = unfinished;
        let mut over = if unfinished { None } else { receiving.over.clone() };
        let (received, before) = (receiving.count, receiving.pace);
        drop(receiving);
        let (messages, mut pace, mut was_long) = (scratch.len(), before, false);
        if let Some(handler) = &handler {
            match pace.hand_over(&**handler, scratch, |count| self.grant(count)) {
                Ok(long) => was_long = long,
                Err(_) => {
                    // The handler knows, and has closed the connection.
                    over = Some(LinkEnd::failed("the peer broke the protocol"));
                    scratch.clear();
                }
            }
        }
        let left = scratch.len();
        if left > 0 || pace != before {
            // Only the holder of the intake takes in and delivers, so nothing has come meanwhile.
            let mut receiving = self.receiving();
            receiving.pace = pace;
            if left > 0 {
                receiving.put_back(scratch);
                (receiving.answers, receiving.is_listed) = (false, true);
                (unfinished, over) = (true, None);
            }
        }
        self.end_batch(handler.as_deref(), received);
        Delivered { messages: messages - left, unfinished, was_long, over }
    }

    /// All that had arrived is delivered: lets replies leave, and more be sent.
    pub(crate) fn batch_end(&self) {
        let (handler, received) = {
            let receiving = self.receiving();
            (receiving.handler(), receiving.count)
        };
        self.end_batch(handler.as_deref(), received);
    }

    fn end_batch(&self, handler: Option<&dyn LinkHandler>, received: Received) {
        if let Some(handler) = handler {
            handler.batch_end();
        }
        // After the replies, which report grants as well.
        if self.has_room_again(received) {
            match handler {
                Some(handler) => handler.writable(),
                // The link may have been started since.
                None => self.tell_of_room(),
            }
        }
    }

    /// The peer has closed the link, and listens no more.
    pub(crate) fn hear_farewell(&self) {
        self.sending().end();
    }

    /// The link is over. The handler hears of it after what arrived before, unless this side has closed it.
    pub(crate) fn end(&self, end: LinkEnd) {
        {
            let mut receiving = self.receiving();
            if receiving.ended {
                return;
            }
            receiving.ended = true;
            if self.is_closing() {
                receiving.inbox.clear();
            }
            receiving.prove(Err(end.clone()));
            receiving.end = Some(end);
        }
        if !self.is_closing() {
            self.sending().end();
        }
        self.deliver_rest();
    }

    /// Delivers what there is of a link that has ended, the end included.
    pub(crate) fn deliver_rest(&self) {
        let (handler, mut inbox, end) = {
            let mut receiving = self.receiving();
            let Some(handler) = receiving.handler.clone() else { return };
            (handler, std::mem::take(&mut receiving.inbox), receiving.end.take())
        };
        // If it refuses a frame, it wants none of those behind it, only the end.
        let _ = hand_over(&*handler, &mut inbox);
        if let Some(end) = end {
            self.receiving().handler = None;
            handler.closed(end);
        }
    }

    /// Leaves what there is to who starts the link, or delivers it if that was done.
    pub(super) fn release_receiving(&self) {
        while !self.receiving().release() {
            self.deliver_rest();
        }
    }

    /// Whether the intake has to list the link, which has been started and has something to deliver.
    pub(crate) fn list_rest(&self) -> bool {
        let mut receiving = self.receiving();
        receiving.handler.is_some() && !receiving.inbox.is_empty() && receiving.list()
    }

    /// Whether what was taken to be sent has been.
    pub(crate) fn has_sent(&self) -> bool {
        self.sending().has_sent()
    }
}

#[cfg(all(test, farcall_loom))]
mod loom_tests;
