//! Messages that have begun to arrive and are not whole, and the memory they take.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use super::{Arrived, Described, Limits, Lost, Partly, Pulled, Room, Taken};
use crate::message::MAX_DESCRIPTOR;
use crate::wire::{Down, FrameType, Header, MIN_LIMIT, Pull, Reader, WireError, flags};

/// Factor by which the buffer of a message in fragments exceeds what has come of it.
const AHEAD: usize = 4;

/// Where memory is scarce, the buffer exceeds what has come by one part in this many. With none ahead each fragment would move all
/// before it.
const PART_AHEAD: usize = 4;

/// The memory that a message takes while it is assembled, beside its bytes. Bytes.
pub(super) const ASSEMBLY: usize = 128;

/// All messages of a session that are not whole.
#[derive(Clone, Debug, Hash)]
pub(super) struct Assembling {
    messages: BTreeMap<u64, Assembly>,
    /// The sum of their lengths, in bytes.
    total: u64,
    /// The memory that they take, in bytes.
    memory: usize,
    /// The calls of described messages that are being read, by the number of the frame.
    pulling: BTreeMap<u32, u64>,
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

    /// Returns the memory for a message of so many bytes whose rest comes like this, in bytes.
    fn reserved(&self, total: usize) -> usize {
        match self {
            Self::Sent(buffer) => buffer.capacity(),
            // The memory that the rest is read to.
            Self::Pulled(_) => total,
            Self::Lent | Self::Lost => 0,
        }
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

impl Assembling {
    pub(super) fn new(limits: Limits) -> Self {
        let (messages, pulling) = (BTreeMap::new(), BTreeMap::new());
        Self { messages, total: 0, memory: 0, pulling, room: Room::Ample, limits }
    }

    /// Returns the memory that these messages take, in bytes.
    #[inline]
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    #[inline]
    pub(super) fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the peer has to send the rest of a message.
    pub(super) fn awaits_fragments(&self) -> bool {
        self.messages.len() > self.pulling.len()
    }

    /// Whether a message of this call is here.
    pub(super) fn contains(&self, call: u64) -> bool {
        self.messages.contains_key(&call)
    }

    /// Returns how much has come of a call's message. `None`: there is no such message.
    pub(super) fn partly(&self, call: u64) -> Option<Partly> {
        let assembly = self.messages.get(&call)?;
        let pulled = self.pulling.iter().find(|(_, of)| **of == call).map(|(seq, _)| *seq);
        Some(Partly { have: assembly.have, total: assembly.total, pulled })
    }

    /// Drops one of the messages, if there is one.
    pub(super) fn drop_one(&mut self) {
        let first = self.messages.keys().next().copied();
        first.and_then(|call| self.end(call));
    }

    /// Takes in the first frame of a message in fragments.
    pub(super) fn begin(&mut self, header: &Header, payload: Bytes) -> Result<(), WireError> {
        let mut r = Reader::new(payload);
        let total = r.u32("fragmented.total")?;
        let begin = r.rest();
        self.check(header, total, &begin)?;
        let rest = Rest::sent(self.room, total as usize, &begin);
        self.insert(header, total, begin.len(), rest);
        Ok(())
    }

    /// Takes in the frame that describes a message.
    pub(super) fn begin_described(
        &mut self,
        header: &Header,
        payload: Bytes,
    ) -> Result<Described, WireError> {
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
        self.check(header, total, &begin)?;
        self.pulling.insert(header.seq, header.call);
        self.insert(header, total, begin.len(), Rest::Pulled(begin.clone()));
        Ok(Described { seq: header.seq, kind: header.kind, descriptor, begin, total: total as usize })
    }

    /// Checks that a message of this length that begins like this may be begun now.
    fn check(&self, header: &Header, total: u32, begin: &Bytes) -> Result<(), WireError> {
        if u64::from(total) > self.limits.max_message {
            return Err(WireError::new("fragmented.total", "is longer than HELLO's max_message"));
        }
        if self.total > 0 && self.total + u64::from(total) > self.limits.max_assembly {
            return Err(WireError::new("fragmented.total", "exceeds HELLO's max_assembly"));
        }
        if begin.len() >= total as usize {
            return Err(WireError::new("fragmented.total", "is no longer than its first frame"));
        }
        // A message in fragments is longer than the shortest limit there is, so no sender needs more of them. Each costs
        // memory beside its bytes.
        if self.messages.len() as u64 >= self.limits.max_assembly / u64::from(MIN_LIMIT) {
            return Err(WireError::new("fragmented", "is one of too many at once"));
        }
        if self.messages.contains_key(&header.call) {
            return Err(WireError::new("fragmented", "is the second at once of its call"));
        }
        Ok(())
    }

    fn insert(&mut self, header: &Header, total: u32, have: usize, rest: Rest) {
        self.total += u64::from(total);
        let (kind, total) = (header.kind, total as usize);
        let reserved = rest.reserved(total);
        let assembly = Assembly { kind, total, rest, have, reserved, unwanted: false };
        self.memory += assembly.memory();
        self.messages.insert(header.call, assembly);
    }

    /// Takes no memory for a described message until it [is read](Self::resume).
    pub(super) fn defer(&mut self, seq: u32) {
        self.reserve_for(seq, |_| 0);
    }

    /// Takes memory for a [deferred](Self::defer) message. False: nobody wants it read any more.
    pub(super) fn resume(&mut self, seq: u32) -> bool {
        self.reserve_for(seq, |assembly| assembly.total)
    }

    fn reserve_for(&mut self, seq: u32, reserved: impl FnOnce(&Assembly) -> usize) -> bool {
        let call = self.pulling.get(&seq);
        let Some(assembly) = call.and_then(|call| self.messages.get_mut(call)) else { return false };
        self.memory -= assembly.memory();
        assembly.reserved = reserved(assembly);
        self.memory += assembly.memory();
        true
    }

    /// Ends a described message, which is whole with these bytes. `None`: it can't be read, and has to be sent.
    pub(super) fn pulled(&mut self, seq: u32, whole: Option<Bytes>) -> Pulled {
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

    /// Stops reading: the link is gone. Returns the messages whose rest must now be sent.
    pub(super) fn stop_pulling(&mut self) -> Vec<Pull> {
        let pulling = std::mem::take(&mut self.pulling);
        for call in pulling.values() {
            self.wait_for_rest(*call);
        }
        pulling.into_keys().map(|seq| Pull { seq }).collect()
    }

    /// Has the rest of a described message come in FRAGMENTs.
    fn wait_for_rest(&mut self, call: u64) {
        if let Some(assembly) = self.messages.get_mut(&call)
            && let Rest::Pulled(begin) = &assembly.rest
        {
            self.memory -= assembly.memory();
            assembly.rest = Rest::sent(self.room, assembly.total, begin);
            assembly.reserved = assembly.rest.reserved(assembly.total);
            self.memory += assembly.memory();
        }
    }

    /// Forgets a message that is whole, or that the peer has given up.
    fn end(&mut self, call: u64) -> Option<Assembly> {
        let assembly = self.messages.remove(&call)?;
        self.total -= assembly.total as u64;
        self.memory -= assembly.memory();
        Some(assembly)
    }

    /// Has a cancelled call's message come to nothing.
    pub(super) fn cancel(&mut self, call: u64) {
        if let Some(assembly) = self.messages.get_mut(&call) {
            assembly.unwanted = true;
        }
    }

    /// Takes in a FRAGMENT.
    pub(super) fn fragment(&mut self, header: &Header, payload: &[u8]) -> Result<Taken, WireError> {
        if header.flags & flags::ABANDONED != 0 {
            let Some(assembly) = self.messages.get(&header.call) else {
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

    /// Lends the buffer that the payload of this FRAGMENT belongs at the end of. `None`: there is no memory for it.
    pub(super) fn buffer(&mut self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        let Some(assembly) = self.messages.get_mut(&header.call) else {
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
        self.memory -= assembly.memory();
        assembly.rest = if buffer.is_some() { Rest::Lent } else { Rest::Lost };
        assembly.reserved = buffer.as_ref().map_or(0, BytesMut::capacity);
        self.memory += assembly.memory();
        Ok(buffer)
    }

    /// Takes back a [`buffer`](Self::buffer) with the payload of this FRAGMENT at its end.
    pub(super) fn fill(&mut self, header: &Header, buffer: Option<BytesMut>) -> Result<Taken, WireError> {
        let Some(assembly) = self.messages.get_mut(&header.call) else {
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
