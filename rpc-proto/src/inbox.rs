//! The receiving half of a session: the order of frames, whichever link they come by, and putting fragments together.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::message::MAX_DESCRIPTOR;
use super::outbox::Route;
use super::wire::{Down, FrameType, HEADER_LEN, Header, MIN_LIMIT, Pull, Reader, Up, WireError, flags};

/// The most bytes held back before an UP, headers included: twice what a sender keeps for an upgraded link, and so more
/// than one sends that waits for acknowledgements.
const MAX_HELD: usize = 32 << 20;

/// Factor by which the buffer of a message in fragments exceeds what has come of it.
const AHEAD: usize = 4;

/// Where memory is scarce, the buffer exceeds what has come by one part in this many. With none ahead each fragment would move all
/// before it.
const PART_AHEAD: usize = 4;

/// The memory that a message takes while it is assembled, beside its bytes. Bytes.
const ASSEMBLY: usize = 128;

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
    assembling: BTreeMap<u64, Assembly>,
    assembling_bytes: u64,
    /// The memory of all that are being assembled, in bytes.
    assembling_memory: usize,
    /// The calls of described messages that are being read, by the number of the frame.
    pulling: BTreeMap<u32, u64>,
    /// Whether both sides have agreed on described messages.
    describes: bool,
    room: Room,
    limits: Limits,
}

#[derive(Clone, Debug, Hash)]
struct Assembly {
    kind: FrameType,
    total: usize,
    rest: Rest,
    have: usize,
    /// The memory for the message, in bytes.
    reserved: usize,
    /// It was cancelled before it was whole.
    unwanted: bool,
}

/// How the rest of a message comes.
#[derive(Clone, Debug, Hash)]
enum Rest {
    /// In FRAGMENTs, to the end of this.
    Sent(BytesMut),
    /// In FRAGMENTs, and a link has the buffer that they go to.
    Lent,
    /// It is read by the link. This is how the message begins.
    Pulled(Bytes),
    /// In FRAGMENTs, which are counted and dropped: there was no memory for them.
    Lost,
}

impl Assembly {
    /// Returns the memory that is taken for the message, in bytes.
    fn memory(&self) -> usize {
        ASSEMBLY + self.reserved
    }
}

impl Rest {
    /// The rest of a message of so many bytes, which comes in FRAGMENTs.
    fn sent(room: Room, total: usize, begin: &[u8]) -> Self {
        let mut buffer = BytesMut::new();
        if !make_room(room, &mut buffer, begin.len(), total) {
            return Self::Lost;
        }
        buffer.extend_from_slice(begin);
        Self::Sent(buffer)
    }
}

/// Makes room for so many more bytes of a message. The room grows with the bytes that have come: its length is only
/// what the peer says. False: there is no memory for them.
fn make_room(room: Room, buffer: &mut BytesMut, more: usize, total: usize) -> bool {
    let needed = buffer.len() + more;
    let enough = match room {
        Room::Ample => needed.saturating_mul(AHEAD),
        Room::Scarce => needed + needed / PART_AHEAD,
        Room::None => return false,
    };
    if needed <= buffer.capacity() {
        return true;
    }
    // A `BytesMut` can't be asked to grow if it can, but a `Vec` can, and it is the same memory.
    let mut bytes = Vec::from(std::mem::take(buffer));
    let more = enough.min(total) - bytes.len();
    let has_room = bytes.try_reserve_exact(more).is_ok();
    *buffer = Bytes::from(bytes).into();
    has_room
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
            assembling: BTreeMap::new(),
            assembling_bytes: 0,
            assembling_memory: 0,
            pulling: BTreeMap::new(),
            describes: false,
            room: Room::Ample,
            limits,
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
        self.assembling_memory + self.held_bytes
    }

    /// Takes everything out that is kept here: the session is over.
    #[must_use]
    pub fn clear(&mut self) -> Self {
        let empty = Self { rx_seq: self.rx_seq, ..Self::new(self.limits) };
        std::mem::replace(self, empty)
    }

    /// Drops one of the messages that have arrived in part, after the session. False: there is none.
    pub fn drop_one(&mut self) -> bool {
        let first = self.assembling.keys().next().copied();
        first.and_then(|call| self.end(call)).is_some()
    }

    /// Sets how much room there is for messages that arrive in parts, from now on.
    #[inline]
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// Whether the peer has to send the rest of a message.
    pub fn awaits_fragments(&self) -> bool {
        self.assembling.len() > self.pulling.len()
    }

    /// Whether a message has begun to arrive and is not whole.
    pub fn is_assembling(&self) -> bool {
        !self.assembling.is_empty()
    }

    /// Returns how much has come of a call's message that is not whole. `None`: there is no such message.
    pub fn partly(&self, call: u64) -> Option<Partly> {
        let assembly = self.assembling.get(&call)?;
        let pulled = self.pulling.iter().find(|(_, of)| **of == call).map(|(seq, _)| *seq);
        Some(Partly { have: assembly.have, total: assembly.total, pulled })
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
        let pulling = std::mem::take(&mut self.pulling);
        for call in pulling.values() {
            self.wait_for_rest(*call);
        }
        pulling.into_keys().map(|seq| Pull { seq }).collect()
    }

    /// Takes the next frame in; gives a message when one is whole.
    pub fn take(&mut self, header: &Header, payload: Bytes) -> Result<Taken, WireError> {
        self.rx_seq = header.seq;
        if header.kind == FrameType::FRAGMENT {
            return self.fragment(header, &payload);
        }
        if header.flags & flags::DESCRIBED != 0 {
            return self.begin_described(header, payload).map(Taken::Described);
        }
        if header.flags & flags::FRAGMENTED != 0 {
            self.begin(header, payload)?;
            return Ok(Taken::Part);
        }
        self.take_whole(header, payload.len())?;
        Ok(Taken::Message(Arrived { kind: header.kind, call: header.call, bytes: payload }))
    }

    /// Takes the next frame in, which is a message of so many bytes.
    #[inline(always)]
    pub fn take_whole(&mut self, header: &Header, len: usize) -> Result<(), WireError> {
        self.rx_seq = header.seq;
        if len as u64 > self.limits.max_message {
            return Err(WireError::new("message", "is longer than HELLO's max_message"));
        }
        // A copy, or the header would need an address, and go through memory.
        let Header { call, .. } = *header;
        let is_assembling = !self.assembling.is_empty() && self.assembling.contains_key(&call);
        if is_assembling && header.kind.is_message_of_call() {
            return Err(WireError::new("message", "comes before another of its call is finished"));
        }
        Ok(())
    }

    fn begin(&mut self, header: &Header, payload: Bytes) -> Result<(), WireError> {
        let mut r = Reader::new(payload);
        let total = r.u32("fragmented.total")?;
        let begin = r.rest();
        self.make_room(header, total, &begin)?;
        let rest = Rest::sent(self.room, total as usize, &begin);
        self.assemble(header, total, begin.len(), rest);
        Ok(())
    }

    fn begin_described(&mut self, header: &Header, payload: Bytes) -> Result<Described, WireError> {
        if !self.describes || self.route == Route::Stream {
            return Err(WireError::new("header.flags", "has DESCRIBED where nothing can be read"));
        }
        if self.pulling.len() >= Down::MAX_PULLS {
            return Err(WireError::new("described", "is one of too many at once"));
        }
        let mut r = Reader::new(payload);
        let total = r.u32("fragmented.total")?;
        let len = usize::from(r.u16("described.descriptor")?);
        if len > MAX_DESCRIPTOR {
            return Err(WireError::new("described.descriptor", "is longer than a descriptor may be"));
        }
        let descriptor = r.bytes(len, "described.descriptor")?;
        let begin = r.rest();
        self.make_room(header, total, &begin)?;
        self.pulling.insert(header.seq, header.call);
        self.assemble(header, total, begin.len(), Rest::Pulled(begin.clone()));
        Ok(Described { seq: header.seq, kind: header.kind, descriptor, begin, total: total as usize })
    }

    /// Whether a message of this length that begins like this may be begun now.
    fn make_room(&self, header: &Header, total: u32, begin: &Bytes) -> Result<(), WireError> {
        if u64::from(total) > self.limits.max_message {
            return Err(WireError::new("fragmented.total", "is longer than HELLO's max_message"));
        }
        if self.assembling_bytes > 0 && self.assembling_bytes + u64::from(total) > self.limits.max_assembly {
            return Err(WireError::new("fragmented.total", "exceeds HELLO's max_assembly"));
        }
        if begin.len() >= total as usize {
            return Err(WireError::new("fragmented.total", "is no longer than its first frame"));
        }
        // A message in fragments is longer than the shortest limit there is, so no sender needs more of them. Each costs
        // memory beside its bytes.
        if self.assembling.len() as u64 >= self.limits.max_assembly / u64::from(MIN_LIMIT) {
            return Err(WireError::new("fragmented", "is one of too many at once"));
        }
        if self.assembling.contains_key(&header.call) {
            return Err(WireError::new("fragmented", "is the second at once of its call"));
        }
        Ok(())
    }

    fn assemble(&mut self, header: &Header, total: u32, have: usize, rest: Rest) {
        self.assembling_bytes += u64::from(total);
        let (kind, total) = (header.kind, total as usize);
        let reserved = match &rest {
            Rest::Sent(buffer) => buffer.capacity(),
            // The memory that the rest is read to.
            Rest::Pulled(_) => total,
            Rest::Lent | Rest::Lost => 0,
        };
        let assembly = Assembly { kind, total, rest, have, reserved, unwanted: false };
        self.assembling_memory += assembly.memory();
        self.assembling.insert(header.call, assembly);
    }

    /// A described message is not read yet, and takes no memory until it [is](Self::resume).
    pub fn defer(&mut self, seq: u32) {
        self.reserve_for(seq, |_| 0);
    }

    /// A [deferred](Self::defer) message is about to be read. False: nobody wants it read any more.
    #[must_use]
    pub fn resume(&mut self, seq: u32) -> bool {
        self.reserve_for(seq, |assembly| assembly.total)
    }

    fn reserve_for(&mut self, seq: u32, reserved: impl FnOnce(&Assembly) -> usize) -> bool {
        let call = self.pulling.get(&seq);
        let Some(assembly) = call.and_then(|call| self.assembling.get_mut(call)) else { return false };
        self.assembling_memory -= assembly.memory();
        assembly.reserved = reserved(assembly);
        self.assembling_memory += assembly.memory();
        true
    }

    /// A described message is whole, with these bytes; `None`: it can't be read, and has to be sent.
    pub fn pulled(&mut self, seq: u32, whole: Option<Bytes>) -> Pulled {
        let Some(call) = self.pulling.remove(&seq) else { return Pulled::Stale };
        let Some(bytes) = whole else {
            self.wait_for_rest(call);
            return Pulled::Nothing;
        };
        let Some(assembly) = self.end(call) else { return Pulled::Nothing };
        if assembly.unwanted {
            return Pulled::Nothing;
        }
        Pulled::Message(Arrived { kind: assembly.kind, call, bytes })
    }

    /// The rest of a described message comes in FRAGMENTs.
    fn wait_for_rest(&mut self, call: u64) {
        if let Some(assembly) = self.assembling.get_mut(&call)
            && let Rest::Pulled(begin) = &assembly.rest
        {
            self.assembling_memory -= assembly.memory();
            assembly.rest = Rest::sent(self.room, assembly.total, begin);
            assembly.reserved = if let Rest::Sent(buffer) = &assembly.rest { buffer.capacity() } else { 0 };
            self.assembling_memory += assembly.memory();
        }
    }

    /// Forgets a message that is whole, or that the peer has given up.
    fn end(&mut self, call: u64) -> Option<Assembly> {
        let assembly = self.assembling.remove(&call)?;
        self.assembling_bytes -= assembly.total as u64;
        self.assembling_memory -= assembly.memory();
        Some(assembly)
    }

    /// The peer has cancelled a call. If its REQUEST has begun and is not whole, it comes to nothing.
    pub fn cancel(&mut self, call: u64) {
        if let Some(assembly) = self.assembling.get_mut(&call) {
            assembly.unwanted = true;
        }
    }

    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Result<Taken, WireError> {
        if header.flags & flags::ABANDONED != 0 {
            let Some(assembly) = self.assembling.get(&header.call) else {
                return Err(WireError::new("fragment", "gives up a message that was not begun"));
            };
            if matches!(assembly.rest, Rest::Pulled(_)) {
                return Err(WireError::new("fragment", "gives up a message that is described"));
            }
            self.end(header.call);
            return Ok(Taken::Part);
        }
        let buffer = self.buffer(header)?.map(|mut buffer| {
            buffer.extend_from_slice(payload);
            buffer
        });
        self.fill(header, buffer)
    }

    /// The buffer that the payload of this FRAGMENT belongs at the end of, for a link that reads it straight to
    /// there; [`filled`](Self::filled) must give it back before another frame is taken in. The capacity for the payload
    /// is there. `None`: there is no memory for it, and the FRAGMENT is to be [taken in](Self::take) like any other.
    pub fn buffer(&mut self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        let Some(assembly) = self.assembling.get_mut(&header.call) else {
            return Err(WireError::new("fragment", "goes on with a message that was not begun"));
        };
        if header.len as usize > assembly.total - assembly.have || header.len == 0 {
            return Err(WireError::new("fragment", "goes past the end of its message"));
        }
        let buffer = match &mut assembly.rest {
            Rest::Sent(buffer) => make_room(self.room, buffer, header.len as usize, assembly.total)
                .then(|| std::mem::take(buffer)),
            Rest::Lost => None,
            Rest::Lent => return Err(WireError::new("fragment", "comes while another is being read")),
            Rest::Pulled(_) => {
                return Err(WireError::new("fragment", "goes on with a message that is described"));
            }
        };
        self.assembling_memory -= assembly.memory();
        assembly.rest = if buffer.is_some() { Rest::Lent } else { Rest::Lost };
        assembly.reserved = buffer.as_ref().map_or(0, BytesMut::capacity);
        self.assembling_memory += assembly.memory();
        Ok(buffer)
    }

    /// Takes back a [`buffer`](Self::buffer) with the payload of this FRAGMENT read to its end.
    pub fn filled(&mut self, header: &Header, buffer: BytesMut) -> Result<Taken, WireError> {
        self.rx_seq = header.seq;
        self.fill(header, Some(buffer))
    }

    fn fill(&mut self, header: &Header, buffer: Option<BytesMut>) -> Result<Taken, WireError> {
        let Some(assembly) = self.assembling.get_mut(&header.call) else {
            return Err(WireError::new("fragment", "goes on with a message that was not begun"));
        };
        assembly.have += header.len as usize;
        if assembly.have < assembly.total {
            assembly.rest = buffer.map_or(Rest::Lost, Rest::Sent);
            return Ok(Taken::Part);
        }
        let Assembly { kind, total, unwanted, .. } = *assembly;
        self.end(header.call);
        Ok(match buffer {
            _ if unwanted => Taken::Part,
            Some(buffer) => Taken::Message(Arrived { kind, call: header.call, bytes: buffer.freeze() }),
            None => Taken::Lost(Lost { kind, call: header.call, total }),
        })
    }
}
