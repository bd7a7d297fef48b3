//! Regions as this side's end of a transfer: bytes move between them and memory of a peer.

use std::ops::RangeBounds;

use super::Region;
use super::exported::Shared;
use crate::access::{self, LocalMemory, LocalRange, Transfers};
use crate::proto::wire::Outcome;
use crate::status::Status;
use crate::transport::Words;

impl Region {
    /// Returns a range of the region.
    ///
    /// # Errors
    ///
    /// OUT_OF_RANGE, if it is not within the region.
    pub(crate) fn local(&self, range: impl RangeBounds<usize>) -> Result<LocalRange, Status> {
        let (offset, len) = access::range(range, self.len())?;
        Ok(LocalRange::new(self.shared.clone(), offset..offset + len))
    }

    /// Waits for all `read_into` and `write_from` of a range that this process has begun, also for those that it has given up: a device may
    /// still do some of these, for seconds at most unless the peer is slow.
    ///
    /// If a future of these was dropped, await this before you [write](Self::write) to the range, [lend](crate::bulk::BulkRead::of_region) it,
    /// or use it for something else. Further `read_into` and `write_from` of the range wait by themselves.
    ///
    /// # Errors
    ///
    /// - OUT_OF_RANGE, if the range is not within the region.
    /// - FAILED_PRECONDITION, if the region was revoked. [`revoke`](Self::revoke) waits for transfers, too.
    pub async fn settled(&self, range: impl RangeBounds<usize>) -> Result<(), Status> {
        self.local(range)?.settled().await
    }
}

impl LocalMemory for Shared {
    fn words(&self) -> Result<Words, Outcome> {
        Ok(self.memory()?)
    }

    fn with_transfers(&self, change: &mut dyn FnMut(&mut Transfers)) {
        if let Some(exported) = &mut *self.exported.lock() {
            change(&mut exported.transfers);
        }
    }
}
