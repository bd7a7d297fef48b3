//! A session message on its way out, and the frames it is cut into.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use super::wire::{
    Content, EndHead, FrameType, HEADER_LEN, Header, ItemHead, MIN_LIMIT, RequestHead, ResponseHead, TooLong,
    flags,
};
use crate::payload::Payload;

/// A message: what goes before the body, already encoded, and the payload by reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Its frame type.
    pub kind: FrameType,
    /// The call it belongs to; 0 for the session itself.
    pub call: u64,
    /// The bytes before the payload.
    pub head: Head,
    /// Body and attachments.
    pub payload: Payload,
    /// Its end, where a link may let its peer read that, instead of sending it.
    pub bulk: Bulk,
    precedence: Precedence,
}

/// The end of a message, as a link may let its peer read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bulk {
    /// There is none: the message is sent.
    #[default]
    None,
    /// These bytes, which come after the payload.
    Plain(Bytes),
    /// The last bytes of the payload, in a form that one link has encrypted. Only that link can let its peer read them; any
    /// other sends the payload.
    Sealed(Sealed),
}

/// Bytes that a link has encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sealed {
    /// How many bytes of the payload they stand for.
    pub len: usize,
    /// The encrypted bytes, with all that is needed to decrypt them but the key and the number.
    pub bytes: Bytes,
    /// The number, under which nothing else is encrypted.
    pub number: u64,
    /// The link, by a number of its own in this process.
    pub link: u64,
}

impl Bulk {
    /// Returns how many bytes of the message it stands for.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Plain(bytes) => bytes.len(),
            Self::Sealed(sealed) => sealed.len,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that come after the payload.
    fn into_piece(self) -> Bytes {
        match self {
            Self::Plain(bytes) => bytes,
            Self::None | Self::Sealed(_) => Bytes::new(),
        }
    }

    /// Returns how many bytes come after the payload.
    fn piece_len(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::None | Self::Sealed(_) => 0,
        }
    }
}

/// Whether a message has to keep its place before others of its call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Precedence {
    /// None come behind it.
    #[default]
    Free,
    /// Others of the call's streams may be queued behind it: every link takes it in one frame.
    Kept,
    /// Others are queued when it [has left](super::outbox::Outbox::take_sent).
    Told,
}

/// The longest payload, in bytes, that every link takes in one frame. On a stream link it is the least `max_frame` of a HELLO;
/// an upgraded link may have receives of that length, in which a header lies before the payload.
pub const MIN_PAYLOAD: usize = MIN_LIMIT as usize - HEADER_LEN;

impl Message {
    /// A message without a payload.
    pub fn new(kind: FrameType, call: u64, head: impl Into<Head>) -> Self {
        Self::with_payload(kind, call, head.into(), Payload::default())
    }

    /// A message that is all sent.
    pub fn with_payload(kind: FrameType, call: u64, head: Head, payload: Payload) -> Self {
        Self { kind, call, head, payload, bulk: Bulk::None, precedence: Precedence::Free }
    }

    /// The RESPONSE that says that the answer is a stream, whose items come behind it.
    pub fn begin_stream(call: u64, head: impl Into<Head>) -> Self {
        let mut message = Self::new(FrameType::RESPONSE, call, head);
        message.keep_place();
        message
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len() + self.bulk.piece_len()
    }

    /// Has it arrive before the messages of its call's streams that come behind it. The message is whole by now: one that some
    /// link would have to cut is overtaken by those that are queued, and so [holds them back](Self::holds_back).
    pub fn keep_place(&mut self) {
        self.precedence = if self.len() > MIN_PAYLOAD { Precedence::Told } else { Precedence::Kept };
    }

    /// Has its call queue nothing before this message has left, however short it is.
    pub fn hold_back(&mut self) {
        self.precedence = Precedence::Told;
    }

    /// Whether its call queues nothing before this message [has left](super::outbox::Outbox::take_sent).
    pub fn holds_back(&self) -> bool {
        self.precedence == Precedence::Told
    }

    /// Whether nothing of its call comes behind it.
    pub(crate) fn is_free(&self) -> bool {
        self.precedence == Precedence::Free
    }

    /// Whether it is of the session itself; a CANCEL counts as such, because it ends a call that is none any more.
    pub(crate) fn is_own(&self) -> bool {
        self.call == 0 || self.kind == FrameType::CANCEL
    }

    /// Whether it is of a call, and is neither its beginning nor its end; or of an access, of which few are under way.
    pub fn is_amid_call(&self) -> bool {
        let comes_before_end =
            self.kind.is_of_stream() && self.kind != FrameType::END || self.kind.is_of_access();
        // Something comes behind the RESPONSE that begins a stream.
        comes_before_end || self.kind == FrameType::RESPONSE && !self.is_free()
    }

    /// Whether it is empty; a message may be.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the one frame that the message is; the link that it goes by takes frames of this length.
    pub fn into_frame(self) -> Frame {
        let mut header = Header::new(self.kind, self.call);
        header.len = self.len() as u32;
        let mut pieces = Pieces::default();
        match self.head {
            Head::Inline(head) => pieces.head = head,
            Head::Long(head) => pieces.push(head),
        }
        if self.payload.is_one_piece() && self.bulk.is_empty() {
            pieces.push(self.payload.body.into_bytes());
        } else {
            self.payload.into_pieces().for_each(|piece| pieces.push(piece));
            pieces.push(self.bulk.into_piece());
        }
        Frame { header, pieces }
    }
}

/// The bytes before a message's payload: mostly a few, which cost no allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Head {
    /// A few bytes.
    Inline(InlineHead),
    /// Any bytes.
    Long(Bytes),
}

impl Head {
    /// The head of a request.
    pub fn request(head: &RequestHead, content: &Content) -> Result<Self, TooLong> {
        match head.len(content) {
            len @ ..=InlineHead::MAX => InlineHead::write(len, |mut out| head.encode(content, &mut out)),
            len => long(len, |out| head.encode(content, out)),
        }
    }

    /// The head of an item, or of several.
    pub fn item(head: ItemHead, content: &Content) -> Result<Self, TooLong> {
        match head.len(content) {
            len @ ..=InlineHead::MAX => InlineHead::write(len, |mut out| head.encode(content, &mut out)),
            len => long(len, |out| head.encode(content, out)),
        }
    }

    /// The head of the end of a stream.
    pub fn end(head: EndHead, content: &Content) -> Result<Self, TooLong> {
        long(head.len(content), |out| head.encode(content, out))
    }

    /// The head of a response.
    pub fn response(head: &ResponseHead, content: &Content) -> Result<Self, TooLong> {
        match head.len(content) {
            len @ ..=InlineHead::MAX => InlineHead::write(len, |mut out| head.encode(content, &mut out)),
            len => long(len, |out| head.encode(content, out)),
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(short) => short.as_slice().len(),
            Self::Long(long) => long.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to be sent by reference.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Inline(short) => Bytes::copy_from_slice(short.as_slice()),
            Self::Long(long) => long,
        }
    }
}

fn long<E>(len: usize, write: impl FnOnce(&mut BytesMut) -> Result<(), E>) -> Result<Head, E> {
    let mut long = BytesMut::with_capacity(len);
    write(&mut long)?;
    Ok(Head::Long(long.freeze()))
}

impl From<Bytes> for Head {
    fn from(bytes: Bytes) -> Self {
        InlineHead::new(&bytes).map_or(Self::Long(bytes), Self::Inline)
    }
}

/// A few bytes, in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InlineHead {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl InlineHead {
    /// As many as make it no larger than [`Bytes`] are in an enum with them.
    const MAX: usize = 23;

    fn write<E>(len: usize, write: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Head, E> {
        let mut short = Self { len: len as u8, ..Self::default() };
        write(&mut short.bytes)?;
        Ok(Head::Inline(short))
    }

    fn new(from: &[u8]) -> Option<Self> {
        let mut short = Self { len: from.len() as u8, ..Self::default() };
        short.bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(short)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(Self::MAX)]
    }
}

/// The bytes of a frame's payload: what is short in place, the rest by reference. One piece of that costs no allocation;
/// most frames have no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pieces {
    head: InlineHead,
    first: Bytes,
    rest: Vec<Bytes>,
}

impl Pieces {
    /// Returns the piece before all others.
    pub fn head(&self) -> &[u8] {
        self.head.as_slice()
    }

    /// The pieces after the head, in order; none of them is empty.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).filter(|first| !first.is_empty()).chain(&self.rest)
    }

    /// All bytes, piece by piece, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.head()).chain(self.iter().map(|piece| &piece[..]))
    }

    fn push(&mut self, piece: Bytes) {
        if self.first.is_empty() {
            self.first = piece;
        } else if !piece.is_empty() {
            self.rest.push(piece);
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(first: Bytes) -> Self {
        Self { first, ..Self::default() }
    }
}

/// A frame: `header.len` bytes in pieces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Its header; `rx_seq` and `grant` are stamped when it is sent.
    pub header: Header,
    /// Its payload.
    pub pieces: Pieces,
}

impl Frame {
    /// A link frame.
    pub fn link(kind: FrameType, payload: Bytes) -> Self {
        let mut header = Header::new(kind, 0);
        header.len = payload.len() as u32;
        Self { header, pieces: payload.into() }
    }

    /// The frame that begins a [described](flags::DESCRIBED) message as it goes by a link that describes nothing.
    pub(crate) fn undescribe(&mut self) {
        self.header.flags &= !flags::DESCRIBED;
        // `Fragmenter::describe` puts the descriptor there, with its length.
        self.header.len -= self.pieces.first.len() as u32;
        self.pieces.first = Bytes::new();
    }
}

/// Lets the peer read memory.
pub trait Expose {
    /// Lets it read exactly this, until it says that it has (DONE), the link is given up, or its lease ends.
    /// `seq` is the number of the frame that will tell the peer, which must be the next to be sent.
    fn expose(&mut self, seq: u32, bulk: &Bulk) -> Exposing;
}

/// Whether memory was exposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposing {
    /// It is; these bytes tell the peer where.
    Described(Bytes),
    /// Not now: the link asks for frames again when it can.
    Later,
    /// Not this: it has to be sent.
    Never,
}

/// Links that send everything.
#[derive(Clone, Copy, Debug)]
pub struct ExposeNothing;

impl Expose for ExposeNothing {
    fn expose(&mut self, _: u32, _: &Bulk) -> Exposing {
        Exposing::Never
    }
}

/// The first frame of a message in fragments carries at most this much of it, so that the receiver knows the total
/// before the bulk arrives and can read that straight to where it belongs.
const FIRST_FRAGMENT: usize = 4096;

/// The longest descriptor of a link.
pub const MAX_DESCRIPTOR: usize = 64;

/// A message that is being sent in fragments.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Fragmenter {
    kind: FrameType,
    pub(crate) call: u64,
    total: usize,
    left: usize,
    pieces: VecDeque<Bytes>,
    /// The last pieces, as a link may expose them.
    bulk: Bulk,
    abandoned: bool,
    is_amid_call: bool,
    holds_back: bool,
}

impl Fragmenter {
    pub(crate) fn new(message: Message) -> Self {
        let (total, is_amid_call) = (message.len(), message.is_amid_call());
        let holds_back = message.holds_back();
        let Message { kind, call, head, payload, bulk, .. } = message;
        let mut pieces = VecDeque::from_iter([head.into_bytes()]);
        pieces.extend(payload.into_pieces());
        pieces.push_back(bulk.clone().into_piece());
        Self { kind, call, total, left: total, pieces, bulk, abandoned: false, is_amid_call, holds_back }
    }

    /// Whether one frame of this length can describe where the end of the message is to be read.
    pub(crate) fn can_be_described(&self, max: usize) -> bool {
        !self.bulk.is_empty() && !self.has_begun() && self.total - self.bulk.len() + 6 + MAX_DESCRIPTOR <= max
    }

    /// The frame that describes where the end of the message is to be read, if it [can be](Self::can_be_described) and
    /// is exposed. Afterwards the message holds the exposed bytes only: should the peer not read it, it is cut like any
    /// other.
    pub(crate) fn describe(&mut self, seq: u32, to: &mut dyn Expose) -> Result<Frame, Exposing> {
        let begins_with = self.total - self.bulk.len();
        let descriptor = match to.expose(seq, &self.bulk) {
            Exposing::Described(descriptor) => descriptor,
            not => return Err(not),
        };
        debug_assert!(descriptor.len() <= MAX_DESCRIPTOR);
        let mut header = Header::new(self.kind, self.call);
        header.flags = flags::FRAGMENTED | flags::DESCRIBED;
        let mut second = BytesMut::with_capacity(2 + descriptor.len());
        second.put_u16_le(descriptor.len() as u16);
        second.put_slice(&descriptor);
        header.len = (4 + second.len() + begins_with) as u32;
        let mut pieces = Pieces { head: self.total_length(), first: second.freeze(), rest: Vec::new() };
        self.take_front(begins_with, |piece| pieces.rest.push(piece));
        self.left = self.bulk.len();
        Ok(Frame { header, pieces })
    }

    /// Takes up to `len` bytes from the front, piece by piece. None of the pieces is empty.
    fn take_front(&mut self, mut len: usize, mut take: impl FnMut(Bytes)) {
        while len > 0
            && let Some(piece) = self.pieces.front_mut()
        {
            let cut = piece.split_to(piece.len().min(len));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            if !cut.is_empty() {
                len -= cut.len();
                take(cut);
            }
        }
    }

    /// Cuts the next frame, with a payload of at most `max` bytes.
    pub(crate) fn next(&mut self, max: usize) -> Frame {
        let mut pieces = Pieces::default();
        let mut header = Header::new(FrameType::FRAGMENT, self.call);
        if self.abandoned {
            header.flags = flags::ABANDONED;
            return Frame { header, pieces };
        }
        // Nothing of it is exposed any more.
        self.bulk = Bulk::None;
        let (mut room, mut cut) = (max, 0);
        if self.left == self.total && self.total <= max {
            // It was too long for the link it was to go by; for this one it is not.
            header.kind = self.kind;
        } else if self.left == self.total {
            header.kind = self.kind;
            header.flags = flags::FRAGMENTED;
            pieces.head = self.total_length();
            header.len = 4;
            room = FIRST_FRAGMENT.min(max - 4);
        }
        self.take_front(room, |piece| {
            header.len += piece.len() as u32;
            cut += piece.len();
            pieces.push(piece);
        });
        self.left -= cut;
        Frame { header, pieces }
    }

    /// Returns the bytes that the first frame begins with.
    fn total_length(&self) -> InlineHead {
        InlineHead::new(&(self.total as u32).to_le_bytes()).unwrap_or_default()
    }

    pub(crate) fn is_of(&self, kind: FrameType) -> bool {
        self.kind == kind
    }

    pub(crate) fn kind(&self) -> FrameType {
        self.kind
    }

    pub(crate) fn is_amid_call(&self) -> bool {
        self.is_amid_call
    }

    pub(crate) fn holds_back(&self) -> bool {
        self.holds_back
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.left < self.total
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// The rest of the message will not be sent; one more frame tells the peer. True: that is news, and the
    /// message begins or ends its call.
    pub(crate) fn abandon(&mut self) -> bool {
        self.left = 0;
        self.pieces.clear();
        !std::mem::replace(&mut self.abandoned, true) && !self.is_amid_call
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Returns how many bytes have left.
    pub(crate) fn sent(&self) -> u64 {
        (self.total - self.left) as u64
    }

    pub(crate) fn total(&self) -> u64 {
        self.total as u64
    }
}
