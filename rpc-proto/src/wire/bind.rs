//! BIND: what a service's short index stands for (WIRE.md section 5.1).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError, list_of};
use super::write::{TooLong, len16, put_name};

/// One method, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindMethod {
    /// The hash of its name.
    pub hash: u64,
    /// Its shape: the number of `Kind` in the crate farcall-core.
    pub kind: u8,
    /// The fingerprint of its signature.
    pub fingerprint: u64,
}

/// The most that all BINDs of a session may [count](counted_bind), in bytes. It bounds what a server keeps of them.
pub const MAX_BIND_BYTES: usize = 1 << 20;

/// Returns as how many bytes a BIND with a payload of this length counts. A server keeps more of a short one than its payload.
pub fn counted_bind(payload: usize) -> usize {
    payload.max(1024)
}

/// The length of one method in the payload.
const METHOD_LEN: usize = 17;

/// Announces a service before its first call on a session; calls then name it by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The index that calls will use: counted up from 0 by the client.
    pub service: u16,
    /// The service's name.
    pub name: String,
    /// Its codec's name.
    pub codec: String,
    /// Its methods; calls name them by index.
    pub methods: Vec<BindMethod>,
}

/// Whether a BIND has room for a service whose name and whose codec's name are of so many bytes, with so many methods.
pub fn bind_has_room(name: usize, codec: usize, methods: usize) -> Result<(), TooLong> {
    len16(name, "the service's name")?;
    len16(methods, "the number of its methods")?;
    let max = u8::MAX.into();
    if codec > usize::from(u8::MAX) { Err(TooLong { what: "the name of its codec", max }) } else { Ok(()) }
}

impl Bind {
    /// Appends the payload of the frame.
    ///
    /// # Panics
    ///
    /// If the service's name has more than 65,535 bytes, the codec's more than 255, or there are more than 65,535
    /// methods.
    pub fn encode(&self, out: &mut BytesMut) {
        let short = |len| u16::try_from(len).expect("the caller keeps names and methods to 65,535");
        out.put_u16_le(self.service);
        out.put_u16_le(short(self.name.len()));
        out.put_slice(self.name.as_bytes());
        put_name(out, &self.codec);
        out.put_u16_le(short(self.methods.len()));
        out.reserve(self.methods.len() * METHOD_LEN);
        for method in &self.methods {
            out.put_u64_le(method.hash);
            out.put_u8(method.kind);
            out.put_u64_le(method.fingerprint);
        }
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let service = r.u16("bind.service")?;
        let name_len = usize::from(r.u16("bind.name")?);
        let name = r.string(name_len, "bind.name")?;
        let codec_len = usize::from(r.u8("bind.codec")?);
        let codec = r.string(codec_len, "bind.codec")?;
        let count = usize::from(r.u16("bind.methods")?);
        if r.remaining() != count * METHOD_LEN {
            return Err(WireError::new("bind.methods", "are not as many as announced"));
        }
        let mut methods = list_of(count, "bind.methods")?;
        for _ in 0..count {
            methods.push(BindMethod {
                hash: r.u64("bind.method.hash")?,
                kind: r.u8("bind.method.kind")?,
                fingerprint: r.u64("bind.method.fingerprint")?,
            });
        }
        Ok(Self { service, name, codec, methods })
    }
}
