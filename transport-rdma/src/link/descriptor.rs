//! The descriptor of a grant: where the granted memory is (WIRE.md section 5.7). It may lie in several pieces, which are one behind the
//! other for those that use it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use farcall_core::proto::wire::Granted;

use crate::device::{Exposure, NUMBER, RemoteRange};

/// The bytes by which a descriptor describes a piece.
const PIECE: usize = 20;

/// The most pieces that a descriptor has room for.
pub(super) const MAX_PIECES: usize = Granted::MAX_DESCRIPTOR / PIECE;

/// Describes granted memory for the peer.
pub(super) fn describe(exposures: &[Exposure]) -> Bytes {
    let mut out = BytesMut::with_capacity(exposures.len() * PIECE);
    for exposure in exposures {
        out.put_u64_le(exposure.addr());
        out.put_u32_le(exposure.rkey());
        out.put_u64_le(exposure.len() as u64);
    }
    out.freeze()
}

/// A part of memory that the peer has granted, as far as it is not used yet.
pub(super) struct GrantedPart {
    /// Where the next byte is, and how many follow it in its piece.
    at: RemoteRange,
    len: usize,
    /// The pieces behind that. The descriptor is kept as long as the part is used, even if there are none.
    rest: Bytes,
}

impl GrantedPart {
    /// Returns a part of the memory of a descriptor. `None`: it is not within that, or the descriptor is none.
    pub(super) fn of(descriptor: Bytes, mut offset: usize, len: usize) -> Option<Self> {
        let mut part = Self { at: RemoteRange { addr: 0, rkey: 0 }, len: 0, rest: descriptor };
        let mut left = offset.checked_add(len)?;
        let mut pieces = &part.rest[..];
        while left > 0 {
            let (_, piece) = decode_piece(&mut pieces)?;
            left = left.saturating_sub(piece);
        }
        loop {
            (part.at, part.len) = decode_piece(&mut part.rest)?;
            if offset < part.len || part.rest.is_empty() {
                break;
            }
            offset -= part.len;
        }
        part.advance(offset.min(part.len));
        Some(part)
    }

    /// Returns a part of memory that lies in one piece.
    pub(super) fn one(at: RemoteRange, len: usize) -> Self {
        Self { at, len, rest: Bytes::new() }
    }

    /// Whether a device can change the next bytes as one number. The peer decides where they are.
    pub(super) fn begins_with_number(&self) -> bool {
        self.len >= NUMBER && self.at.check_number().is_ok()
    }

    /// Takes up to so many bytes that lie in one piece. Returns where they are, and how many.
    pub(super) fn take(&mut self, most: usize) -> (RemoteRange, usize) {
        while self.len == 0
            && let Some(piece) = decode_piece(&mut self.rest)
        {
            (self.at, self.len) = piece;
        }
        let (at, len) = (self.at, most.min(self.len));
        self.advance(len);
        (at, len)
    }

    fn advance(&mut self, count: usize) {
        self.at.addr = self.at.addr.wrapping_add(count as u64);
        self.len -= count;
    }
}

/// Takes the next piece from a descriptor: where it is, and its length. `None`: there is none.
fn decode_piece(descriptor: &mut impl Buf) -> Option<(RemoteRange, usize)> {
    if descriptor.remaining() < PIECE {
        return None;
    }
    let at = RemoteRange { addr: descriptor.get_u64_le(), rkey: descriptor.get_u32_le() };
    Some((at, usize::try_from(descriptor.get_u64_le()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(pieces: &[(u64, u64)]) -> Bytes {
        let mut out = BytesMut::new();
        for (n, (addr, len)) in pieces.iter().enumerate() {
            out.put_u64_le(*addr);
            out.put_u32_le(n as u32);
            out.put_u64_le(*len);
        }
        out.freeze()
    }

    /// Takes up to `len` bytes, in steps of at most `step`: addresses, keys and lengths.
    fn steps(mut part: GrantedPart, mut len: usize, step: usize) -> Vec<(u64, u32, usize)> {
        let mut steps = Vec::new();
        while len > 0 {
            let (at, taken) = part.take(step.min(len));
            steps.push((at.addr, at.rkey, taken));
            len -= taken;
        }
        steps
    }

    #[test]
    fn a_part_goes_on_from_piece_to_piece() {
        let memory = descriptor(&[(1000, 10), (5000, 0), (9000, 20), (100, 5)]);
        let part =
            |offset, len, step| steps(GrantedPart::of(memory.clone(), offset, len).unwrap(), len, step);
        assert_eq!(part(0, 35, 100), [(1000, 0, 10), (9000, 2, 20), (100, 3, 5)]);
        assert_eq!(part(9, 3, 100), [(1009, 0, 1), (9000, 2, 2)]);
        assert_eq!(part(10, 20, 8), [(9000, 2, 8), (9008, 2, 8), (9016, 2, 4)]);
        assert_eq!(part(34, 1, 8), [(104, 3, 1)]);
        assert_eq!(part(35, 0, 8), []);
    }

    #[test]
    fn a_part_is_within_the_memory() {
        let memory = descriptor(&[(1000, 10), (9000, 20)]);
        for (offset, len) in [(0, 31), (30, 1), (31, 0), (1, usize::MAX), (usize::MAX, 1), (usize::MAX, 0)] {
            assert!(GrantedPart::of(memory.clone(), offset, len).is_none(), "{offset}, {len}");
        }
        for bytes in [Bytes::new(), memory.slice(..19)] {
            assert!(GrantedPart::of(bytes.clone(), 0, 0).is_none());
            assert!(GrantedPart::of(bytes, 0, 1).is_none());
        }
        // The lengths that a peer names may have a sum that is no number.
        let huge = descriptor(&[(u64::MAX, u64::MAX), (u64::MAX, u64::MAX)]);
        assert_eq!(steps(GrantedPart::of(huge, 1, 7).unwrap(), 7, 7), [(0, 0, 7)]);
    }

    #[test]
    fn a_number_is_whole_and_at_a_multiple_of_its_size() {
        let memory = descriptor(&[(1000, 16), (2004, 16), (3008, 7), (4000, 1)]);
        for (offset, is_number) in [(0, true), (8, true), (16, false), (20, true), (32, false), (39, false)] {
            let part = GrantedPart::of(memory.clone(), offset, 1).unwrap();
            assert_eq!(part.begins_with_number(), is_number, "at {offset}");
        }
    }

    #[test]
    fn a_part_keeps_the_descriptor() {
        struct Owner(Vec<u8>, #[expect(dead_code, reason = "for its drop")] std::sync::Arc<()>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let kept = std::sync::Arc::new(());
        let bytes = Bytes::from_owner(Owner(descriptor(&[(0, 8)]).to_vec(), kept.clone()));
        let mut part = GrantedPart::of(bytes, 0, 8).unwrap();
        part.take(8);
        assert_eq!(std::sync::Arc::strong_count(&kept), 2);
        drop(part);
        assert_eq!(std::sync::Arc::strong_count(&kept), 1);
    }
}
