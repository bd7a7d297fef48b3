//! The way in: from the driver, through credits, to the handler.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use farcall_core::proto::wire::{Credit, CreditOp, FrameType, Header, Ping, Probe, WireError, flags};
use farcall_core::transport::{LinkEnd, LinkHandler};
use tokio::sync::oneshot;

use super::LinkCore;
use super::arrival::{Heard, Message};
use super::credit::{Received, Turn};

/// What receiving needs. Whoever has the endpoint's intake delivers; others start the link and ask about it.
#[derive(Default)]
pub(super) struct Receiving {
    pub(super) count: Received,
    /// What it was when the peer was lent receives the last time.
    pub(super) lent_at: Received,
    /// What it was when somebody looked for peers that are idle.
    pub(super) seen: Received,
    /// What the peer may say without a credit, and without being asked.
    credits: Turn,
    pings: Turn,
    proof: Proof,
    handler: Option<Arc<dyn LinkHandler>>,
    /// What has arrived and is not delivered: before the link is started, all of it. Credits bound how much.
    inbox: VecDeque<Item>,
    /// The peer has said CLOSE.
    farewell: bool,
    /// Nothing more is taken in.
    ended: bool,
    /// The driver knows the link no more.
    released: bool,
}

enum Item {
    Frame(Header, Bytes),
    End(LinkEnd),
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

    /// The driver will deliver nothing more after this. False if there is something that it has to deliver before. Who starts
    /// the link delivers the rest, if it comes after this, and the driver otherwise: never both, at the same time.
    #[must_use]
    pub(super) fn release(&mut self) -> bool {
        self.released = self.handler.is_none() || self.inbox.is_empty();
        self.released
    }

    /// Forgets the handler without a word: its runtime is gone. The caller drops it when it holds no lock: a handler that
    /// is dropped before it heard of the end may close the link.
    #[must_use]
    pub(super) fn abandon(&mut self) -> Option<Arc<dyn LinkHandler>> {
        self.ended = true;
        self.inbox.clear();
        self.handler.take()
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
                // Who asked may have lost patience.
                let _ = sender.send(result);
                Proof::Given
            }
            proof => proof,
        };
    }
}

impl LinkCore {
    /// A message has arrived. `Some`: the link is over.
    pub(super) fn accept(&self, message: Message, heard: Heard) -> Option<LinkEnd> {
        match self.take_in(message, heard) {
            Ok(None) => {}
            Ok(end) => return end,
            Err(error) => {
                return Some(LinkEnd::malformed(format!(
                    "{}: the peer broke the protocol: {error}",
                    self.name
                )));
            }
        }
        self.deliver()
    }

    fn take_in(&self, mut message: Message, heard: Heard) -> Result<Option<LinkEnd>, String> {
        let mut receiving = self.receiving();
        if receiving.ended {
            return Ok(None);
        }
        if receiving.farewell {
            return Err("it sends a frame after its CLOSE".to_owned());
        }
        let Some((header, payload)) = message.next() else { return Ok(None) };
        let is_control =
            [FrameType::CREDIT, FrameType::PING, FrameType::PONG, FrameType::CLOSE].contains(&header.kind);
        if !is_control {
            if !receiving.count.count(heard.grants) {
                return Err("it sent a frame without a credit".to_owned());
            }
            // The driver has already put another receive in the place of this one.
            self.granted.fetch_add(1, Ordering::Release);
        }
        self.sending().on_grant(header.grant);
        if header.flags & flags::STARVED != 0 || (!is_control && receiving.count.is_all_of(heard.grants)) {
            self.lend(&mut receiving);
        }
        if header.kind.is_link() {
            return self.take_in_own(&mut receiving, &header, payload, heard);
        }
        if !receiving.is_proven() {
            return Err("its first frame is not a PROBE".to_owned());
        }
        receiving.inbox.push_back(Item::Frame(header, payload));
        let mut grant = header.grant;
        for (header, payload) in message {
            grant = header.grant;
            receiving.inbox.push_back(Item::Frame(header, payload));
        }
        if grant != header.grant {
            self.sending().on_grant(grant);
        }
        Ok(None)
    }

    /// A frame of the link itself.
    fn take_in_own(
        &self,
        receiving: &mut Receiving,
        header: &Header,
        payload: Bytes,
        heard: Heard,
    ) -> Result<Option<LinkEnd>, String> {
        let wrong = |error: WireError| error.to_string();
        match header.kind {
            FrameType::PROBE if matches!(receiving.proof, Proof::Awaited | Proof::Asked(_)) => {
                let probe = Probe::decode(payload).map_err(wrong)?;
                receiving.prove(Ok(probe));
            }
            FrameType::CLOSE => return Ok(Some(LinkEnd::orderly())),
            _ if !receiving.is_proven() => return Err("its first frame is not a PROBE".to_owned()),
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
            FrameType::PONG => {
                Ping::decode(payload).map_err(wrong)?;
                if !self.sending().reports.note_pong() {
                    return Err("it answers a PING that was not sent".to_owned());
                }
            }
            // What this link has no use for is the session's to judge.
            _ => receiving.inbox.push_back(Item::Frame(*header, payload)),
        }
        Ok(None)
    }

    /// Whether what arrives next goes straight to the handler, with nothing before it.
    pub(super) fn delivers_at_once(&self) -> bool {
        let receiving = self.receiving();
        receiving.handler.is_some() && receiving.inbox.is_empty()
    }

    /// Gives the handler what has arrived, if the link is started. `Some`: the handler will have no more of it.
    pub(crate) fn deliver(&self) -> Option<LinkEnd> {
        loop {
            let (handler, item) = {
                let mut receiving = self.receiving();
                let handler = receiving.handler.clone()?;
                (handler, receiving.inbox.pop_front()?)
            };
            match item {
                Item::Frame(header, payload) => {
                    if self.hand_over(&*handler, header, payload).is_err() {
                        // The handler knows, and has closed the connection.
                        return Some(LinkEnd::failed("the peer broke the protocol"));
                    }
                }
                Item::End(end) => {
                    self.receiving().handler = None;
                    handler.closed(end);
                    return None;
                }
            }
        }
    }

    fn hand_over(&self, handler: &dyn LinkHandler, header: Header, payload: Bytes) -> Result<(), WireError> {
        if header.kind == FrameType::FRAGMENT
            && let Some(mut buffer) = handler.buffer(&header)?
        {
            buffer.extend_from_slice(&payload);
            self.copied.fetch_add(payload.len() as u64, Ordering::Relaxed);
            return handler.filled(header, buffer);
        }
        handler.receive(header, payload)
    }

    /// All that had arrived is delivered: lets replies leave, and more be sent.
    pub(crate) fn batch_end(&self) {
        let handler = self.receiving().handler();
        if let Some(handler) = handler {
            handler.batch_end();
        }
        // After the replies, which report grants as well.
        self.on_room();
    }

    /// The peer has closed the link, and listens no more.
    pub(crate) fn hear_farewell(&self) {
        self.receiving().farewell = true;
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
            receiving.inbox.push_back(Item::End(end));
        }
        if !self.is_closing() {
            self.sending().end();
        }
        self.deliver_rest();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.receiving().ended
    }

    /// Delivers what there is of a link that has ended, the end included.
    pub(super) fn deliver_rest(&self) {
        while self.deliver().is_some() {
            // The handler refuses a frame: it wants none of those behind it, only the end.
            self.receiving().inbox.retain(|item| matches!(item, Item::End(_)));
        }
    }

    /// Leaves what there is to who starts the link, or delivers it if that was done.
    pub(super) fn release_receiving(&self) {
        while !self.receiving().release() {
            self.deliver_rest();
        }
    }

    /// Whether what was taken to be sent has been.
    pub(crate) fn has_sent(&self) -> bool {
        self.sending().has_sent()
    }
}

/// Every interleaving of a driver that lets go of a link and of who starts it: `RUSTFLAGS="--cfg farcall_loom" cargo test -p
/// farcall-rdma --lib loom`.
#[cfg(all(test, farcall_loom))]
mod loom_tests {
    use bytes::BytesMut;
    use loom::sync::{Arc, Mutex, MutexGuard};
    use loom::thread;

    use super::*;

    /// What it has heard.
    #[derive(Default)]
    struct Handler(Mutex<Vec<&'static str>>);

    impl Handler {
        /// Only one may be here.
        fn hear(&self, what: &'static str) {
            self.0.try_lock().expect("two deliver at once").push(what);
        }
    }

    impl LinkHandler for Handler {
        fn receive(&self, _: Header, _: Bytes) -> Result<(), WireError> {
            self.hear("frame");
            Ok(())
        }

        fn buffer(&self, _: &Header) -> Result<Option<BytesMut>, WireError> {
            Ok(None)
        }

        fn filled(&self, _: Header, _: BytesMut) -> Result<(), WireError> {
            Ok(())
        }

        fn batch_end(&self) {}

        fn writable(&self) {}

        fn closed(&self, _: LinkEnd) {
            self.hear("end");
        }
    }

    /// As [`LinkCore::deliver_rest`] does, to a handler that refuses nothing.
    fn deliver_rest(receiving: &Mutex<Receiving>) {
        let lock = || -> MutexGuard<'_, Receiving> { receiving.lock().unwrap() };
        loop {
            let (handler, item) = {
                let mut receiving = lock();
                let Some(handler) = receiving.handler.clone() else { return };
                let Some(item) = receiving.inbox.pop_front() else { return };
                (handler, item)
            };
            match item {
                Item::Frame(header, payload) => drop(handler.receive(header, payload)),
                Item::End(end) => {
                    lock().handler = None;
                    return handler.closed(end);
                }
            }
        }
    }

    #[test]
    fn rest_of_a_link_is_delivered_by_one() {
        loom::model(|| {
            let mut receiving = Receiving { ended: true, ..Receiving::default() };
            for _ in 0..2 {
                receiving.inbox.push_back(Item::Frame(Header::new(FrameType::ITEM, 1), Bytes::new()));
            }
            receiving.inbox.push_back(Item::End(LinkEnd::orderly()));
            let receiving = Arc::new(Mutex::new(receiving));
            let handler = std::sync::Arc::new(Handler::default());
            let driver = thread::spawn({
                let receiving = Arc::clone(&receiving);
                move || {
                    while !receiving.lock().unwrap().release() {
                        deliver_rest(&receiving);
                    }
                }
            });
            let released = receiving.lock().unwrap().start(std::sync::Arc::clone(&handler) as _);
            if released {
                deliver_rest(&receiving);
            }
            driver.join().unwrap();
            assert_eq!(*handler.0.lock().unwrap(), ["frame", "frame", "end"]);
        });
    }
}
