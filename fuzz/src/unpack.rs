//! Decompression.

use bytes::{Bytes, BytesMut};
use farcall_core::proto::compress::{Workspace, pack, unpack as unpack_payload};
use farcall_core::proto::wire::RequestHead;

/// The most that an input may claim to become. Connections check a claim against their limits before they decompress.
const MOST: u64 = 1 << 20;

/// Reads the input as the payload of a REQUEST, which says by what it is compressed and what it becomes.
pub fn unpack(data: &[u8]) {
    let Ok((_, content)) = RequestHead::decode(Bytes::copy_from_slice(data)) else { return };
    let Some(packed) = content.payload.as_packed() else { return };
    let (by, len) = (packed.by(), packed.unpacked_len());
    if len > MOST {
        return;
    }
    let mut workspace = Workspace::default();
    let Ok(payload) = unpack_payload(&mut workspace, content.payload) else { return };
    assert_eq!(payload.len() as u64, len, "a payload becomes as long as its sender said");
    if let Some(again) = pack(&mut workspace, by, &payload) {
        let again = unpack_payload(&mut workspace, again).expect("what was packed here can be unpacked");
        assert_eq!(flat(again), flat(payload));
    }
}

fn flat(payload: farcall_core::proto::payload::Payload) -> BytesMut {
    payload.into_pieces().fold(BytesMut::new(), |mut all, piece| {
        all.extend_from_slice(&piece);
        all
    })
}
