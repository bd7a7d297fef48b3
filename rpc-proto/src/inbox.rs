//! The receiving half of a session: the order of frames, whichever link they come by, and putting fragments together.

mod assembling;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use self::assembling::Assembling;
use super::leftovers::Leftovers;
use super::outbox::Route;
use super::wire::{FrameType, HEADER_LEN, Header, Pull, Up, WireError, flags};

/// The most bytes held back before an UP, headers included: twice what a sender keeps for an upgraded link, and so more
/// than one sends that waits for acknowledgements.
const MAX_HELD: usize = 32 << 20;

/// The next step with a session frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It is the next one.
    Next,
    /// It came by the new link before the UP was read: give it to [`Inbox::hold`].
    Hold,
    /// It came by a link that the session has left: forget it.
    Discard,
}

/// A message in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its type.
    pub kind: FrameType,
    /// The call it belongs to.
    pub call: u64,
    /// Its bytes.
    pub bytes: Bytes,
}

/// The result of taking a frame in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A part of a message that is not whole.
    Part,
    /// A message, whole.
    Message(Arrived),
    /// The end of a message that this side had no memory for.
    Lost(Lost),
    /// The beginning of a message whose rest is to be read. [`Inbox::pulled`] must say what came of it.
    Described(Described),
}

/// A message that is not there: this side had no memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its type.
    pub kind: FrameType,
    /// The call it belongs to.
    pub call: u64,
    /// Its length, in bytes.
    pub total: usize,
}

/// A message of which the peer has sent the beginning, and where the rest is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The number of its frame, which names it in DONE and DOWN.
    pub seq: u32,
    /// Its type.
    pub kind: FrameType,
    /// Where the rest is, in the link's own form.
    pub descriptor: Bytes,
    /// How the message begins.
    pub begin: Bytes,
    /// The length of the whole message.
    pub total: usize,
}

/// The outcome of pulling a described message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// It is whole. The peer must be told, by DONE.
    Message(Arrived),
    /// It is over: nobody wants the message, or the peer is asked to send the rest. It must be told so by DONE.
    Nothing,
    /// The link was given up meanwhile, and DOWN has said that the rest must be sent.
    Stale,
}

/// How much has come of a message that is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partly {
    /// The bytes that have come in frames.
    pub have: usize,
    /// The length of the whole message, in bytes.
    pub total: usize,
    /// The number of the frame that described the rest, while a link reads that.
    pub pulled: Option<u32>,
}

/// How much room this side has for messages that arrive in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Room {
    /// Memory is taken ahead, so that a message is moved seldom while it grows.
    Ample,
    /// A quarter more memory is taken than has arrived.
    Scarce,
    /// None is taken. Messages that are not whole are [lost](Taken::Lost).
    None,
}

/// Limits this side has told its peer.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Limits {
    /// The longest message.
    pub max_message: u64,
    /// The sum of the lengths of messages begun and not finished.
    pub max_assembly: u64,
}

/// The receiving half of a session.
///
/// Ask [`order`](Self::order) about every session frame, then give the next one to [`take`](Self::take).
#[derive(Clone, Debug, Hash)]
pub struct Inbox {
    rx_seq: u32,
    route: Route,
    /// The link being tried, before its UP.
    pending: Option<u32>,
    held: VecDeque<(Header, Bytes)>,
    held_bytes: usize,
    bytes_beside: u64,
    assembling: Assembling,
    /// Whether both sides have agreed on described messages.
    describes: bool,
}

impl Inbox {
    /// An inbox that begins on the stream link.
    pub fn new(limits: Limits) -> Self {
        Self {
            rx_seq: 0,
            route: Route::Stream,
            pending: None,
            held: VecDeque::new(),
            held_bytes: 0,
            bytes_beside: 0,
            assembling: Assembling::new(limits),
            describes: false,
        }
    }

    /// Both sides' HELLO say that messages may be described.
    pub fn allow_described(&mut self) {
        self.describes = true;
    }

    /// The number of the last session frame that was taken in.
    pub fn rx_seq(&self) -> u32 {
        self.rx_seq
    }

    /// Returns how many bytes are kept here: of messages that are not whole, and of frames that are held back.
    #[inline]
    pub fn memory(&self) -> usize {
        self.assembling.memory() + self.held_bytes
    }

    /// Takes everything out that is kept here: the session is over.
    #[must_use]
    pub fn clear(&mut self) -> Self {
        let empty = Self { rx_seq: self.rx_seq, ..Self::new(self.assembling.limits()) };
        std::mem::replace(self, empty)
    }

    /// Sets how much room there is for messages that arrive in parts, from now on.
    #[inline]
    pub fn set_room(&mut self, room: Room) {
        self.assembling.set_room(room);
    }

    /// Whether the peer has to send the rest of a message.
    pub fn awaits_fragments(&self) -> bool {
        self.assembling.awaits_fragments()
    }

    /// Returns the bytes of frames that advanced no unfinished message: control frames, and messages that came whole meanwhile.
    pub fn bytes_beside(&self) -> u64 {
        self.bytes_beside
    }

    /// Counts a control frame, or a whole message, with a payload of so many bytes.
    pub fn pass_by(&mut self, len: usize) {
        self.bytes_beside += (HEADER_LEN + len) as u64;
    }

    /// Whether a message has begun to arrive and is not whole.
    pub fn is_assembling(&self) -> bool {
        !self.assembling.is_empty()
    }

    /// Returns how much has come of a call's message that is not whole. `None`: there is no such message.
    pub fn partly(&self, call: u64) -> Option<Partly> {
        self.assembling.partly(call)
    }

    /// Returns what to do with a session frame that came by `from`. `Err`: the peer broke the order.
    #[inline(always)]
    pub fn order(&self, from: Route, header: &Header) -> Result<Order, WireError> {
        if from != self.route {
            return match from {
                Route::Upgraded(epoch) if self.pending == Some(epoch) => Ok(Order::Hold),
                Route::Upgraded(_) => Ok(Order::Discard),
                Route::Stream => Err(WireError::new("header.seq", "comes by the old link after UP")),
            };
        }
        if header.seq != self.rx_seq.wrapping_add(1) {
            return Err(WireError::new("header.seq", "is not the next number"));
        }
        Ok(Order::Next)
    }

    /// Keeps a frame until the UP is read. `false`: they are too many, and the link must be given up.
    #[must_use]
    pub fn hold(&mut self, header: Header, payload: Bytes) -> bool {
        self.held_bytes += HEADER_LEN + payload.len();
        self.held.push_back((header, payload));
        self.held_bytes <= MAX_HELD
    }

    /// A new link is being tried.
    pub fn expect(&mut self, epoch: u32) {
        self.pending = Some(epoch);
    }

    /// The peer's UP: from here on its frames come by the new link. Returns the frames that were held, which the caller
    /// now takes in. An UP of another epoch than the one being tried is of a link already given up.
    pub fn up(&mut self, up: Up) -> Result<VecDeque<(Header, Bytes)>, WireError> {
        if self.route == Route::Upgraded(up.epoch) {
            return Err(WireError::new("up", "was said before"));
        }
        if self.pending != Some(up.epoch) {
            return Ok(VecDeque::new());
        }
        if up.first_seq != self.rx_seq.wrapping_add(1) {
            return Err(WireError::new("up.first_seq", "is not the next number"));
        }
        self.pending = None;
        self.route = Route::Upgraded(up.epoch);
        self.held_bytes = 0;
        Ok(std::mem::take(&mut self.held))
    }

    /// The link of this epoch is dead or given up: whatever else comes by it is discarded, also what was held. Frames
    /// that the peer sent before on the stream link, or sends again, come by the stream. Returns the messages whose
    /// rest was being read and must now be sent.
    #[must_use]
    pub fn freeze(&mut self) -> Vec<Pull> {
        self.pending = None;
        self.held.clear();
        self.held_bytes = 0;
        self.route = Route::Stream;
        self.assembling.stop_pulling()
    }

    /// Takes the next frame in; gives a message when one is whole.
    pub fn take(&mut self, header: &Header, payload: Bytes) -> Result<Taken, WireError> {
        self.rx_seq = header.seq;
        if header.kind == FrameType::FRAGMENT {
            return self.assembling.fragment(header, &payload);
        }
        if header.flags & flags::DESCRIBED != 0 {
            if !self.describes || self.route == Route::Stream {
                return Err(WireError::new("header.flags", "has DESCRIBED where nothing can be read"));
            }
            return self.assembling.begin_described(header, payload).map(Taken::Described);
        }
        if header.flags & flags::FRAGMENTED != 0 {
            self.assembling.begin(header, payload)?;
            return Ok(Taken::Part);
        }
        self.take_whole(header, payload.len())?;
        Ok(Taken::Message(Arrived { kind: header.kind, call: header.call, bytes: payload }))
    }

    /// Takes the next frame in, which is a message of so many bytes.
    #[inline(always)]
    pub fn take_whole(&mut self, header: &Header, len: usize) -> Result<(), WireError> {
        self.rx_seq = header.seq;
        if len as u64 > self.assembling.limits().max_message {
            return Err(WireError::new("message", "is longer than HELLO's max_message"));
        }
        // A copy, or the header would need an address, and go through memory.
        let Header { call, kind, .. } = *header;
        if self.assembling.is_empty() { Ok(()) } else { self.take_beside(call, kind, len) }
    }

    /// Takes in a message while others are not whole.
    #[cold]
    fn take_beside(&mut self, call: u64, kind: FrameType, len: usize) -> Result<(), WireError> {
        if self.assembling.contains(call) && kind.is_message_of_call() {
            return Err(WireError::new("message", "comes before another of its call is finished"));
        }
        self.pass_by(len);
        Ok(())
    }

    /// A described message is not read yet, and takes no memory until it [is](Self::resume).
    pub fn defer(&mut self, seq: u32) {
        self.assembling.defer(seq);
    }

    /// A [deferred](Self::defer) message is about to be read. False: nobody wants it read any more.
    #[must_use]
    pub fn resume(&mut self, seq: u32) -> bool {
        self.assembling.resume(seq)
    }

    /// A described message is whole, with these bytes; `None`: it can't be read, and has to be sent.
    pub fn pulled(&mut self, seq: u32, whole: Option<Bytes>) -> Pulled {
        self.assembling.pulled(seq, whole)
    }

    /// The peer has cancelled a call. If its REQUEST has begun and is not whole, it comes to nothing.
    pub fn cancel(&mut self, call: u64) {
        self.assembling.cancel(call);
    }

    /// The buffer that the payload of this FRAGMENT belongs at the end of, for a link that reads it straight to
    /// there; [`filled`](Self::filled) must give it back before another frame is taken in. The capacity for the payload
    /// is there. `None`: there is no memory for it, and the FRAGMENT is to be [taken in](Self::take) like any other.
    pub fn buffer(&mut self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        self.assembling.buffer(header)
    }

    /// Takes back a [`buffer`](Self::buffer) with the payload of this FRAGMENT read to its end.
    pub fn filled(&mut self, header: &Header, buffer: BytesMut) -> Result<Taken, WireError> {
        self.rx_seq = header.seq;
        self.assembling.fill(header, Some(buffer))
    }
}

/// Frames that are held back count as one.
impl Leftovers for Inbox {
    fn len(&self) -> usize {
        self.assembling.len() + usize::from(!self.held.is_empty())
    }

    fn memory(&self) -> usize {
        self.memory()
    }

    fn drop_one(&mut self) {
        if self.assembling.is_empty() {
            self.held.clear();
            self.held_bytes = 0;
        }
        self.assembling.drop_one();
    }
}
