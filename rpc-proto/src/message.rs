//! A session message on its way out, and the frames it is cut into.

mod fragmenter;
mod head;

use bytes::Bytes;

pub(crate) use self::fragmenter::Fragmenter;
pub use self::head::{Head, InlineHead};
use crate::payload::Payload;
use crate::wire::{FrameType, HEADER_LEN, Header, MIN_LIMIT, flags};

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

/// The longest descriptor of a link.
pub const MAX_DESCRIPTOR: usize = 64;
