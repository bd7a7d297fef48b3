//! Bytes that this side has read from the peer's memory. They count in the connection's account as long as anything holds them.

use bytes::Bytes;

use super::Accesses;
use crate::memory::{Gauge, Use, kept_by};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::words::WORD;

/// Bytes that were read, and what counts them.
struct Held {
    bytes: Bytes,
    _gauge: Gauge,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Accesses {
    /// Checks that the account has room for a read.
    pub(super) fn check_room(&self, len: usize) -> Result<(), Status> {
        let account = self.sender.account();
        // A greedy connection may just have dropped what it held, and then it is refused no more.
        let _until = account.judge();
        if account.has_room(len) {
            return Ok(());
        }
        let message = format!(
            "this side's limits.memory has no room for {len} bytes of the peer's memory; read less at a time, or later"
        );
        let status = Status::new(Code::ResourceExhausted, message).with_blame(Blame::Environment);
        Err(status.with_executed(Executed::No))
    }

    /// Begins to count the bytes of a read. `None`: nothing limits the account, or the bytes are a number, which is copied.
    pub(super) fn count(&self, len: usize) -> Option<Gauge> {
        let account = self.sender.account();
        let counts = len > WORD && account.is_limited();
        counts.then(|| Gauge::holding(account, Use::Arguments, kept_by(len)))
    }
}

/// Returns bytes that are counted until the last view of them is dropped.
pub(super) fn counted(bytes: Bytes, gauge: Option<Gauge>) -> Bytes {
    match gauge {
        Some(gauge) => Bytes::from_owner(Held { bytes, _gauge: gauge }),
        None => bytes,
    }
}
