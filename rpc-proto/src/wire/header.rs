//! The 32 bytes before every frame's payload (WIRE.md section 3).

use super::read::WireError;

/// The length of a header.
pub const HEADER_LEN: usize = 32;

/// Bits of [`Header::flags`].
pub mod flags {
    /// The message goes on in FRAGMENT frames; the payload begins with its total length. In any session frame but a
    /// FRAGMENT.
    pub const FRAGMENTED: u8 = 0x01;
    /// The sender has something to send and no credit left on this link.
    pub const STARVED: u8 = 0x02;
    /// Reserved: the payload is compressed.
    pub const COMPRESSED: u8 = 0x04;
    /// Reserved: the header's checksum field holds the CRC32C of the payload.
    pub const CHECKSUM: u8 = 0x08;
    /// With FRAGMENTED: the payload says where the rest of the message is to be read.
    pub const DESCRIBED: u8 = 0x10;
    /// In an empty FRAGMENT: the message is given up, this is its last frame.
    pub const ABANDONED: u8 = 0x20;
    /// The flags that this version understands.
    pub const KNOWN: u8 = FRAGMENTED | STARVED | DESCRIBED | ABANDONED;
}

/// The type of a frame. Bit 0x40 marks link frames, which are unnumbered and die with their link; all others are
/// session frames. Bit 0x80 marks frames that a peer which does not know them skips.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameType(pub u8);

impl FrameType {
    /// Announces a service (session).
    pub const BIND: Self = Self(0x01);
    /// Opens a call (session).
    pub const REQUEST: Self = Self(0x02);
    /// Ends a call (session).
    pub const RESPONSE: Self = Self(0x03);
    /// Cancels a call (session).
    pub const CANCEL: Self = Self(0x04);
    /// Goes on with a fragmented message (session).
    pub const FRAGMENT: Self = Self(0x05);
    /// An item of a stream (session).
    pub const ITEM: Self = Self(0x06);
    /// The end of a stream, with its reason (session).
    pub const END: Self = Self(0x07);
    /// Lets a stream's sender send more (session).
    pub const WINDOW: Self = Self(0x08);
    /// No calls after this one (session).
    pub const GOAWAY: Self = Self(0x09);
    /// The described end of a message has been read (session).
    pub const DONE: Self = Self(0x0a);
    /// Asks for no more of a stream (session).
    pub const STOP: Self = Self(0x0b);
    /// Reads or writes memory of the receiver (session).
    pub const ACCESS: Self = Self(0x0c);
    /// The outcome of an access (session).
    pub const ACCESSED: Self = Self(0x0d);

    /// The first frame on a connection (link).
    pub const HELLO: Self = Self(0x40);
    /// Credits, or a request to give some back (link).
    pub const CREDIT: Self = Self(0x41);
    /// Are you there? (link)
    pub const PING: Self = Self(0x42);
    /// I am (link).
    pub const PONG: Self = Self(0x43);
    /// A proposal to move the session to another link (link).
    pub const OFFER: Self = Self(0x44);
    /// The answer to an OFFER (link).
    pub const ANSWER: Self = Self(0x45);
    /// The end of the session's frames on this link: the next is on the new one (link).
    pub const UP: Self = Self(0x46);
    /// The other link is dead or abandoned (link).
    pub const DOWN: Self = Self(0x47);
    /// The first frame on a new link, of a set length (link).
    pub const PROBE: Self = Self(0x48);
    /// Carries nothing but its header's acknowledgement (link).
    pub const ACK: Self = Self(0x49);
    /// The last frame on a connection, with the reason (link).
    pub const CLOSE: Self = Self(0x4a);

    /// Whether the frame belongs to its link and not to the session.
    #[inline]
    pub fn is_link(self) -> bool {
        self.0 & 0x40 != 0
    }

    /// Whether frames of this type are of one call: `Some(false)` if they are of the session itself, `None` if they
    /// may be either or the type is unknown.
    fn is_of_call(self) -> Option<bool> {
        match self {
            Self::REQUEST | Self::RESPONSE | Self::CANCEL => Some(true),
            Self::ITEM | Self::END | Self::WINDOW | Self::STOP => Some(true),
            Self::ACCESS | Self::ACCESSED => Some(true),
            Self::BIND | Self::GOAWAY | Self::DONE => Some(false),
            _ if self.is_link() => Some(false),
            _ => None,
        }
    }

    /// Whether messages of this type are of one call or access, which has one at a time under way.
    #[inline]
    pub fn is_message_of_call(self) -> bool {
        matches!(self, Self::REQUEST | Self::RESPONSE | Self::ITEM | Self::END) || self.is_of_access()
    }

    /// Whether messages of this type are of an access.
    pub fn is_of_access(self) -> bool {
        matches!(self, Self::ACCESS | Self::ACCESSED)
    }

    /// Whether messages of this type are of a call's streams.
    pub fn is_of_stream(self) -> bool {
        matches!(self, Self::ITEM | Self::END | Self::WINDOW | Self::STOP)
    }

    /// Whether a peer that does not know the type skips it.
    pub fn is_ignorable(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// The name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::BIND => "BIND",
            Self::REQUEST => "REQUEST",
            Self::RESPONSE => "RESPONSE",
            Self::CANCEL => "CANCEL",
            Self::FRAGMENT => "FRAGMENT",
            Self::ITEM => "ITEM",
            Self::END => "END",
            Self::WINDOW => "WINDOW",
            Self::GOAWAY => "GOAWAY",
            Self::DONE => "DONE",
            Self::STOP => "STOP",
            Self::ACCESS => "ACCESS",
            Self::ACCESSED => "ACCESSED",
            Self::HELLO => "HELLO",
            Self::CREDIT => "CREDIT",
            Self::PING => "PING",
            Self::PONG => "PONG",
            Self::OFFER => "OFFER",
            Self::ANSWER => "ANSWER",
            Self::UP => "UP",
            Self::DOWN => "DOWN",
            Self::PROBE => "PROBE",
            Self::ACK => "ACK",
            Self::CLOSE => "CLOSE",
            _ => "unknown",
        }
    }
}

impl std::fmt::Debug for FrameType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({:#04x})", self.name(), self.0)
    }
}

/// The header before every payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The type of the payload.
    pub kind: FrameType,
    /// See [`flags`].
    pub flags: u8,
    /// The length of the payload in bytes.
    pub len: u32,
    /// The call or access it belongs to; 0 for the session itself.
    pub call: u64,
    /// The number of a session frame, from 1, modulo 2^32; 0 in link frames.
    pub seq: u32,
    /// The number of the last session frame that the sender has taken in.
    pub rx_seq: u32,
    /// How many receives the sender has granted on this link since it began, modulo 2^32; 0 where the link has no
    /// credits.
    pub grant: u32,
    /// Reserved for the CRC32C of the payload; 0.
    pub checksum: u32,
}

impl Header {
    /// A header of a frame of this type for this call; the rest is stamped when the frame is sent.
    pub fn new(kind: FrameType, call: u64) -> Self {
        Self { kind, flags: 0, len: 0, call, seq: 0, rx_seq: 0, grant: 0, checksum: 0 }
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[0] = self.kind.0;
        b[1] = self.flags;
        b[4..8].copy_from_slice(&self.len.to_le_bytes());
        b[8..16].copy_from_slice(&self.call.to_le_bytes());
        b[16..20].copy_from_slice(&self.seq.to_le_bytes());
        b[20..24].copy_from_slice(&self.rx_seq.to_le_bytes());
        b[24..28].copy_from_slice(&self.grant.to_le_bytes());
        b[28..32].copy_from_slice(&self.checksum.to_le_bytes());
        b
    }

    /// The length of the payload behind a header, which may be anything.
    #[inline]
    pub fn payload_len(b: &[u8; HEADER_LEN]) -> usize {
        u32::from_le_bytes([b[4], b[5], b[6], b[7]]) as usize
    }

    /// Writes into an encoded header what is known when its frame leaves.
    pub fn stamp(b: &mut [u8; HEADER_LEN], seq: u32, rx_seq: u32) {
        b[16..20].copy_from_slice(&seq.to_le_bytes());
        b[20..24].copy_from_slice(&rx_seq.to_le_bytes());
    }

    /// Reads a header of this side's own making.
    #[inline]
    pub(crate) fn read(b: &[u8; HEADER_LEN]) -> Self {
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        Self {
            kind: FrameType(b[0]),
            flags: b[1],
            len: u32_at(4),
            call: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            seq: u32_at(16),
            rx_seq: u32_at(20),
            grant: u32_at(24),
            checksum: u32_at(28),
        }
    }

    /// Reads a header. Flags and reserved bytes that this version does not know are refused: they change what the
    /// payload means. A type that it does not know is not: see [`FrameType::is_ignorable`].
    #[inline(always)]
    pub fn decode(b: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let header = Self::read(b);
        let is_whole = matches!(header.kind, FrameType::REQUEST | FrameType::RESPONSE) && header.call != 0;
        if is_whole && b[1..4] == [0; 3] && header.checksum == 0 {
            // Most frames; of such there is no more to check.
            return Ok(header);
        }
        header.check((b[2], b[3]))?;
        Ok(header)
    }

    /// Holds the fields against the frame's type. By value: a header that is read here stays out of memory.
    #[inline(never)]
    fn check(self, reserved: (u8, u8)) -> Result<(), WireError> {
        if reserved != (0, 0) {
            return Err(WireError::new("header.reserved", "is not zero"));
        }
        if self.checksum != 0 {
            return Err(WireError::new("header.checksum", "is not zero"));
        }
        let (kind, has) = (self.kind, |flag| self.flags & flag != 0);
        if has(!flags::KNOWN) {
            return Err(WireError::new("header.flags", "has a bit that was not agreed on"));
        }
        if has(flags::FRAGMENTED) && (kind.is_link() || kind == FrameType::FRAGMENT) {
            return Err(WireError::new("header.flags", "has FRAGMENTED where no message begins"));
        }
        if has(flags::DESCRIBED) && !(has(flags::FRAGMENTED) && kind.is_message_of_call()) {
            return Err(WireError::new(
                "header.flags",
                "has DESCRIBED where no long message of a call begins",
            ));
        }
        if has(flags::ABANDONED) && (kind != FrameType::FRAGMENT || self.len != 0) {
            return Err(WireError::new("header.flags", "has ABANDONED elsewhere than in an empty FRAGMENT"));
        }
        if kind == FrameType::FRAGMENT && self.len == 0 && !has(flags::ABANDONED) {
            return Err(WireError::new("header.len", "is zero in a FRAGMENT"));
        }
        if kind == FrameType::ACK && self.len != 0 {
            return Err(WireError::new("header.len", "is not zero in an ACK"));
        }
        if kind.is_link() && self.seq != 0 {
            return Err(WireError::new("header.seq", "is set in a link frame"));
        }
        match kind.is_of_call() {
            Some(true) if self.call == 0 => {
                Err(WireError::new("header.call", "is zero in a frame of a call"))
            }
            Some(false) if self.call != 0 => {
                Err(WireError::new("header.call", "is set in a frame of no call"))
            }
            _ => Ok(()),
        }
    }
}
