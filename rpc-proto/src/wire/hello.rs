//! HELLO: the first frame on a connection, from both sides (WIRE.md section 4).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError};
use super::write::put_name;

/// The bytes that each side of a stream link sends before its HELLO, so that a stranger is told apart at once.
pub const PREFACE: &[u8; 8] = b"farcall\n";

/// The version of the wire format that this library speaks.
pub const VERSION: u16 = 1;

/// The longest payload of a HELLO. Every side takes one of this length, whatever its `max_frame`, which the peer does
/// not know yet.
pub const MAX_HELLO: usize = 128 * 1024;

/// No side may announce a `max_frame` or a `max_message` below this: short frames and statuses always fit.
pub const MIN_LIMIT: u32 = 1024;

/// Bits of [`Hello::features`]; both sides use the intersection.
pub mod features {
    /// Reserved: payloads may carry a CRC32C.
    pub const CHECKSUM: u64 = 1 << 0;
    /// It reads what is compressed by Zstandard.
    pub const ZSTD: u64 = 1 << 1;
    /// Long messages may be described, for the receiver to read.
    pub const DESCRIBED: u64 = 1 << 2;
    /// Methods may have streams.
    pub const STREAMS: u64 = 1 << 3;
    /// It takes metadata; who has not set it is sent none.
    pub const METADATA: u64 = 1 << 4;
    /// It reads what is compressed by LZ4.
    pub const LZ4: u64 = 1 << 5;
    /// It lets the peer access memory that it lends or exports.
    pub const ACCESS: u64 = 1 << 6;
    /// It knows grants of regions.
    pub const GRANTS: u64 = 1 << 7;
    /// It knows grants of loans.
    pub const LOAN_GRANTS: u64 = 1 << 8;
}

/// Something a session can be moved to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Its name, as in `rdma`.
    pub name: String,
    /// 0 if this side can; else the number of the reason why not (WIRE.md section 4.2).
    pub reason: u8,
    /// Data that the other side needs before an OFFER; opaque to all but the transport.
    pub data: Bytes,
}

/// HELLO: the identity of a side, and what it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version it speaks.
    pub version_min: u16,
    /// The newest version it speaks.
    pub version_max: u16,
    /// See [`features`].
    pub features: u64,
    /// The longest payload of one frame that it takes on any link, in bytes; at least [`MIN_LIMIT`].
    pub max_frame: u32,
    /// The longest message that it takes, in bytes, with all that goes before the body; at least [`MIN_LIMIT`]. No
    /// message is longer than 2^32 - 1 bytes: a larger value is read as that.
    pub max_message: u64,
    /// How many bytes of messages may be under way in fragments at once; at least `max_message`.
    pub max_assembly: u64,
    /// How many calls it takes at once.
    pub max_calls: u32,
    /// The longest metadata block that it takes, in bytes.
    pub max_metadata: u32,
    /// The traffic class the client wants this connection for: 0 normal, 1 urgent, 2 bulk, others as 0.
    pub class: u8,
    /// 0: neither encrypted nor authenticated; others are reserved.
    pub security: u8,
    /// A random number for this process, so that logs of both sides can be laid side by side.
    pub instance: u64,
    /// The links that the session can be moved to.
    pub upgrades: Vec<Upgrade>,
    /// Reserved for authentication; empty.
    pub auth: Bytes,
    /// How many items of each stream it takes at first; 0 without [`STREAMS`](features::STREAMS).
    pub stream_items: u32,
    /// How many bytes of items of each stream it takes at first; 0 without [`STREAMS`](features::STREAMS).
    pub stream_bytes: u32,
}

/// The longest `auth`.
const MAX_AUTH: usize = 64 * 1024;

/// The length of an [`Upgrade`] with an empty name and no data.
const SHORTEST_UPGRADE: usize = 4;

/// The longest data of an upgrade in a HELLO, in bytes.
pub const MAX_ANNOUNCED: usize = u16::MAX as usize;

impl Hello {
    /// Appends the payload of the frame.
    ///
    /// # Panics
    ///
    /// If there are more than 255 upgrades, one has a name of more than 255 bytes or data of more than 65,535, `auth`
    /// has more than 65,536, or all of it is longer than [`MAX_HELLO`].
    pub fn encode(&self, out: &mut BytesMut) {
        assert!(self.auth.len() <= MAX_AUTH, "auth is longer than 64 KiB");
        let start = out.len();
        out.put_u16_le(self.version_min);
        out.put_u16_le(self.version_max);
        out.put_u64_le(self.features);
        out.put_u32_le(self.max_frame);
        out.put_u64_le(self.max_message);
        out.put_u64_le(self.max_assembly);
        out.put_u32_le(self.max_calls);
        out.put_u32_le(self.max_metadata);
        out.put_u8(self.class);
        out.put_u8(self.security);
        out.put_u64_le(self.instance);
        out.put_u8(u8::try_from(self.upgrades.len()).expect("the caller keeps upgrades to 255"));
        for upgrade in &self.upgrades {
            put_name(out, &upgrade.name);
            out.put_u8(upgrade.reason);
            out.put_u16_le(
                u16::try_from(upgrade.data.len()).expect("a transport keeps its data to 65,535 bytes"),
            );
            out.put_slice(&upgrade.data);
        }
        out.put_u32_le(self.auth.len() as u32);
        out.put_slice(&self.auth);
        if self.features & features::STREAMS != 0 {
            out.put_u32_le(self.stream_items);
            out.put_u32_le(self.stream_bytes);
        }
        assert!(out.len() - start <= MAX_HELLO, "a HELLO is longer than 128 KiB");
    }

    /// Reads the payload. Bytes after the known fields belong to later versions and are not looked at.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        if payload.len() > MAX_HELLO {
            return Err(WireError::new("hello", "is longer than 128 KiB"));
        }
        let mut r = Reader::new(payload);
        let mut hello = Self {
            version_min: r.u16("hello.version_min")?,
            version_max: r.u16("hello.version_max")?,
            features: r.u64("hello.features")?,
            max_frame: r.u32("hello.max_frame")?,
            max_message: r.u64("hello.max_message")?.min(u32::MAX.into()),
            max_assembly: r.u64("hello.max_assembly")?,
            max_calls: r.u32("hello.max_calls")?,
            max_metadata: r.u32("hello.max_metadata")?,
            class: r.u8("hello.class")?,
            security: r.u8("hello.security")?,
            instance: r.u64("hello.instance")?,
            upgrades: Vec::new(),
            auth: Bytes::new(),
            stream_items: 0,
            stream_bytes: 0,
        };
        let count = usize::from(r.u8("hello.upgrades")?);
        if count * SHORTEST_UPGRADE > r.remaining() {
            return Err(WireError::new("hello.upgrades", "are more than the frame can hold"));
        }
        hello.upgrades.reserve_exact(count);
        for _ in 0..count {
            let name_len = usize::from(r.u8("hello.upgrade.name")?);
            let name = r.string(name_len, "hello.upgrade.name")?;
            let reason = r.u8("hello.upgrade.reason")?;
            let data_len = usize::from(r.u16("hello.upgrade.data")?);
            let data = r.bytes(data_len, "hello.upgrade.data")?;
            hello.upgrades.push(Upgrade { name, reason, data });
        }
        let auth_len = r.u32("hello.auth")? as usize;
        if auth_len > MAX_AUTH {
            return Err(WireError::new("hello.auth", "is longer than 64 KiB"));
        }
        hello.auth = r.bytes(auth_len, "hello.auth")?;
        if hello.features & features::STREAMS != 0 {
            hello.stream_items = r.u32("hello.stream_items")?;
            hello.stream_bytes = r.u32("hello.stream_bytes")?;
        }
        hello.check()?;
        Ok(hello)
    }

    fn check(&self) -> Result<(), WireError> {
        if self.version_min > self.version_max {
            return Err(WireError::new("hello.version_min", "is above version_max"));
        }
        if self.max_frame < MIN_LIMIT {
            return Err(WireError::new("hello.max_frame", "is below 1024 bytes"));
        }
        if self.max_message < MIN_LIMIT.into() {
            return Err(WireError::new("hello.max_message", "is below 1024 bytes"));
        }
        if self.max_assembly < self.max_message {
            return Err(WireError::new("hello.max_assembly", "is below max_message"));
        }
        let streams = self.features & features::STREAMS != 0;
        if streams && (self.stream_items == 0 || self.stream_bytes == 0) {
            return Err(WireError::new("hello.stream_items", "or stream_bytes is 0: no stream could begin"));
        }
        Ok(())
    }
}
