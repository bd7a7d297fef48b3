//! HELLO: the first frame on a connection, from both sides (WIRE.md section 4).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError};

/// What a client sends before its HELLO, and a server before its own, so that a stranger is told apart at once.
pub const PREFACE: &[u8; 8] = b"farcall\n";

/// The version of the wire format that this library speaks.
pub const VERSION: u16 = 1;

/// Bits of [`Hello::features`]; both sides use the intersection.
pub mod features {
    /// Reserved: payloads may carry a CRC32C.
    pub const CHECKSUM: u64 = 1 << 0;
    /// Reserved: payloads may be compressed.
    pub const COMPRESSION: u64 = 1 << 1;
    /// Reserved: attachments may be described for the receiver to READ.
    pub const DESCRIBED: u64 = 1 << 2;
    /// Reserved: streams.
    pub const STREAMS: u64 = 1 << 3;
}

/// Something a session can be moved to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Its name, as in `rdma`.
    pub name: String,
    /// 0 if this side can; else the number of the reason why not (WIRE.md section 4.2).
    pub reason: u8,
    /// What the other side needs to know before an OFFER; opaque to all but the transport.
    pub data: Bytes,
}

/// Who speaks, and what it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version it speaks.
    pub version_min: u16,
    /// The newest version it speaks.
    pub version_max: u16,
    /// See [`features`].
    pub features: u64,
    /// The longest payload of one frame that it takes on this link, in bytes.
    pub max_frame: u32,
    /// The longest message that it takes, in bytes, body and attachments together.
    pub max_message: u64,
    /// How many bytes of messages may be under way in fragments at once.
    pub max_assembly: u64,
    /// How many calls it takes at once.
    pub max_calls: u32,
    /// The longest metadata block that it takes, in bytes.
    pub max_metadata: u32,
    /// The traffic class the client wants this connection for: 0 normal, 1 urgent, 2 bulk.
    pub class: u8,
    /// 0: neither encrypted nor authenticated; others are reserved.
    pub security: u8,
    /// A random number for this process, so that logs of both sides can be laid side by side.
    pub instance: u64,
    /// What the session can be moved to.
    pub upgrades: Vec<Upgrade>,
    /// Reserved for authentication; empty.
    pub auth: Bytes,
}

/// The longest `auth` that is read.
const MAX_AUTH: usize = 64 * 1024;

impl Hello {
    /// Appends the payload of the frame.
    pub fn encode(&self, out: &mut BytesMut) {
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
        out.put_u8(self.upgrades.len() as u8);
        for upgrade in &self.upgrades {
            out.put_u8(upgrade.name.len() as u8);
            out.put_slice(upgrade.name.as_bytes());
            out.put_u8(upgrade.reason);
            out.put_u16_le(upgrade.data.len() as u16);
            out.put_slice(&upgrade.data);
        }
        out.put_u32_le(self.auth.len() as u32);
        out.put_slice(&self.auth);
    }

    /// Reads the payload. What follows the known fields belongs to later versions and is not looked at.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let mut hello = Self {
            version_min: r.u16("hello.version_min")?,
            version_max: r.u16("hello.version_max")?,
            features: r.u64("hello.features")?,
            max_frame: r.u32("hello.max_frame")?,
            max_message: r.u64("hello.max_message")?,
            max_assembly: r.u64("hello.max_assembly")?,
            max_calls: r.u32("hello.max_calls")?,
            max_metadata: r.u32("hello.max_metadata")?,
            class: r.u8("hello.class")?,
            security: r.u8("hello.security")?,
            instance: r.u64("hello.instance")?,
            upgrades: Vec::new(),
            auth: Bytes::new(),
        };
        for _ in 0..r.u8("hello.upgrades")? {
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
        if hello.version_min > hello.version_max {
            return Err(WireError::new("hello.version", "the oldest is newer than the newest"));
        }
        if hello.max_frame < 1024 {
            return Err(WireError::new("hello.max_frame", "is below 1024 bytes"));
        }
        Ok(hello)
    }
}
