//! One of the two peers, and what it has on its way.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::super::inbox::{Arrived, Described, Inbox, Limits, Order, Pulled, Taken};
use super::super::message::{Bulk, Expose, Exposing, Frame, Message, Sealed};
use super::super::outbox::{Outbox, Route};
use super::super::session::{Fallen, Say, Session};
use super::super::upgrade_state::UpgradeState;
use super::super::wire::{Done, Down, FrameType, Header, Up};

/// A frame on its way by the stream.
#[derive(Clone, Debug, Hash)]
pub(super) enum OnStream {
    Offer(u32),
    Up(Up),
    Down(Down),
    Ack(u32),
    Session(Frame),
}

/// A frame on its way by the other link.
#[derive(Clone, Debug, Hash)]
pub(super) enum OnLink {
    Probe,
    Session(Frame),
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Peer {
    pub(super) upgrade_state: UpgradeState,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) sent: u64,
    /// An item has not left behind which none may be queued.
    pub(super) waits: bool,
    /// Messages that were given up before they had left.
    pub(super) given_up: Vec<u64>,
    /// Messages that were given up while they could be read: they arrive or do not.
    pub(super) doubtful: Vec<u64>,
    pub(super) arrived: Vec<u64>,
    /// Messages that the other has cancelled.
    pub(super) cancelled: Vec<u64>,
    pub(super) stream: VecDeque<OnStream>,
    pub(super) link: VecDeque<OnLink>,
    /// The link's epoch, from when this side has set it up until it has given it up.
    pub(super) linked: Option<u32>,
    pub(super) probed: bool,
    /// Messages that this side is to read of the other.
    pub(super) pulling: Vec<Pulling>,
    /// The bytes of this side that the other may read by the link, by the number of the frame.
    pub(super) exposed: BTreeMap<u32, Bytes>,
}

/// A message that is being read.
#[derive(Clone, Debug, Hash)]
pub(super) struct Pulling {
    pub(super) epoch: u32,
    pub(super) seq: u32,
    pub(super) begin: Bytes,
    pub(super) total: usize,
}

/// The memory of a peer, as its link lets the other read it.
pub(super) struct Memory<'a>(pub(super) &'a mut BTreeMap<u32, Bytes>);

impl Expose for Memory<'_> {
    fn expose(&mut self, seq: u32, bulk: &Bulk) -> Exposing {
        if self.0.len() >= MAX_EXPOSED {
            return Exposing::Later;
        }
        let bytes = match bulk {
            Bulk::None => return Exposing::Never,
            Bulk::Plain(bytes) | Bulk::Sealed(Sealed { bytes, .. }) => bytes.clone(),
        };
        self.0.insert(seq, bytes);
        Exposing::Described(Bytes::copy_from_slice(&seq.to_le_bytes()))
    }
}

/// How much a link exposes at once, in messages.
pub(super) const MAX_EXPOSED: usize = 2;

pub(super) const LIMITS: Limits = Limits { max_message: 1 << 16, max_assembly: 1 << 16 };

impl Peer {
    pub(super) fn new() -> Self {
        let mut inbox = Inbox::new(LIMITS);
        inbox.allow_described();
        Self {
            upgrade_state: UpgradeState::default(),
            inbox,
            outbox: Outbox::new(LIMITS.max_assembly, 1 << 20),
            sent: 0,
            waits: false,
            given_up: Vec::new(),
            doubtful: Vec::new(),
            arrived: Vec::new(),
            cancelled: Vec::new(),
            stream: VecDeque::new(),
            link: VecDeque::new(),
            linked: None,
            probed: false,
            pulling: Vec::new(),
            exposed: BTreeMap::new(),
        }
    }

    pub(super) fn session(&mut self) -> Session<'_> {
        Session { upgrade_state: &mut self.upgrade_state, inbox: &mut self.inbox, outbox: &mut self.outbox }
    }

    pub(super) fn fall(&mut self, epoch: u32, fallen: Fallen) {
        if let Some(Say { rx_seq, pulls }) = fallen.say {
            let down = Down { epoch, rx_seq, reason: 0, pulls, detail: String::new() };
            self.stream.push_back(OnStream::Down(down));
            self.linked = None;
            // The queue pair is gone, and its windows with it.
            self.exposed.clear();
        }
    }

    pub(super) fn take(&mut self, from: Route, frame: Frame) {
        if from != Route::Stream {
            let acknowledged = self.outbox.acknowledged(frame.header.rx_seq);
            acknowledged.expect("nobody acknowledges what was never sent");
        }
        let mut payload = BytesMut::new();
        frame.pieces.slices().for_each(|p| payload.extend_from_slice(p));
        let payload = payload.freeze();
        match self.inbox.order(from, &frame.header).expect("frames come in order") {
            Order::Hold => assert!(self.inbox.hold(frame.header, payload), "credits bound what is held"),
            Order::Discard => {}
            Order::Next => self.deliver(&frame.header, payload),
        }
    }

    pub(super) fn deliver(&mut self, header: &Header, payload: Bytes) {
        match self.inbox.take(header, payload).expect("well-formed frames") {
            Taken::Part => {}
            Taken::Message(message) => self.arrive(&message),
            Taken::Lost(lost) => panic!("there is memory for {lost:?}"),
            Taken::Described(Described { seq, begin, total, descriptor, .. }) => {
                assert_eq!(descriptor, seq.to_le_bytes()[..], "the descriptor arrives as it was made");
                let epoch = self.linked.expect("only a link describes");
                self.pulling.push(Pulling { epoch, seq, begin, total });
            }
        }
    }

    pub(super) fn arrive(&mut self, message: &Arrived) {
        if message.kind == FrameType::DONE {
            let done = Done::decode(message.bytes.clone()).expect("a DONE");
            self.outbox.done(&done).expect("a DONE of what was described");
            self.exposed.remove(&done.seq);
            return;
        }
        if message.kind == FrameType::CANCEL {
            self.cancelled.push(message.call);
            return self.inbox.cancel(message.call);
        }
        if matches!(message.kind, FrameType::ITEM | FrameType::RESPONSE) {
            let next = self.arrived.len() as u64 + 1;
            assert_eq!(message.bytes, content(next, message.bytes.len()), "in order");
            return self.arrived.push(next);
        }
        assert!(!self.cancelled.contains(&message.call), "it was cancelled before it was whole");
        assert_eq!(message.bytes, content(message.call, message.bytes.len()), "unchanged");
        self.arrived.push(message.call);
    }

    /// The link has read a message, or says that it can't.
    pub(super) fn pull(&mut self, pulling: &Pulling, rest: Option<Bytes>) {
        let whole = rest.map(|rest| {
            let whole = [&pulling.begin[..], &rest].concat();
            assert_eq!(whole.len(), pulling.total, "as long as was said");
            Bytes::from(whole)
        });
        let outcome = if whole.is_some() { Done::READ } else { Done::SEND };
        match self.inbox.pulled(pulling.seq, whole) {
            Pulled::Stale => return,
            Pulled::Nothing => {}
            Pulled::Message(message) => self.arrive(&message),
        }
        let mut payload = BytesMut::new();
        Done { seq: pulling.seq, outcome }.encode(&mut payload);
        self.outbox.push(Message::new(FrameType::DONE, 0, payload.freeze()));
    }
}

pub(super) fn content(call: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (call * 7 + i) as u8).collect()
}
