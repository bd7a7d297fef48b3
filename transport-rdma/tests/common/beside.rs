//! Accesses that are not within a grant.

use farcall_rdma::testing::device::{Exposure, RemoteRange};

use super::windows::PAGE;

/// Where an access begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Begin {
    /// So far from the begin of the grant.
    At(i64),
    /// So many bytes before the end of all addresses. The sum of address and length wraps to a small one.
    Top(usize),
}

/// Begins and lengths that are not within memory of this length.
pub(super) fn beside(len: usize) -> [(Begin, usize); 12] {
    let (before, after) = (-(PAGE as i64), len as i64);
    [
        (Begin::At(before), PAGE),
        (Begin::At(after), PAGE),
        (Begin::At(-1), 1),
        (Begin::At(after), 1),
        (Begin::At(-1), len),
        (Begin::At(1), len),
        (Begin::At(before), 3 * PAGE + len),
        (Begin::At(i64::MIN / 2), PAGE),
        (Begin::Top(PAGE), PAGE),
        (Begin::Top(PAGE), 2 * PAGE),
        (Begin::Top(1), 8),
        (Begin::Top(1), len),
    ]
}

impl Begin {
    /// Returns the range that begins here, with the grant's key.
    pub(super) fn of(self, exposure: &Exposure) -> RemoteRange {
        let addr = match self {
            Self::At(offset) => exposure.addr().wrapping_add_signed(offset),
            Self::Top(bytes) => 0_u64.wrapping_sub(bytes as u64),
        };
        RemoteRange { addr, rkey: exposure.rkey() }
    }

    /// Whether this is within memory of this length, so that only the end is not.
    pub(super) fn is_within(self, len: usize) -> bool {
        matches!(self, Self::At(offset) if (0..len as i64).contains(&offset))
    }
}
