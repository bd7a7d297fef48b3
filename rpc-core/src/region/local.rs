//! Regions as this side's end of a transfer: bytes move between them and memory of a peer.

use std::ops::RangeBounds;

use super::Region;
use super::exported::Shared;
use crate::access::{self, LocalRange, OwnDevices, OwnMemory};
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

    /// Waits until no device moves bytes to or from a range any more for a transfer that this process has started: `read_into` or
    /// `write_from`. It returns at once where no such future was dropped before it was ready.
    ///
    /// Await it before you [write](Self::write) to a range, or give it another purpose, if it may have been part of a transfer that was
    /// given up. Further transfers of the range wait by themselves.
    ///
    /// # Errors
    ///
    /// OUT_OF_RANGE, if the range is not within the region.
    pub async fn settled(&self, range: impl RangeBounds<usize>) -> Result<(), Status> {
        self.local(range)?.settled(true).await;
        Ok(())
    }
}

impl OwnMemory for Shared {
    fn words(&self) -> Result<Words, Outcome> {
        Ok(self.memory()?)
    }

    fn with_devices(&self, using: &mut dyn FnMut(&mut OwnDevices)) {
        if let Some(exported) = &mut *self.exported.lock() {
            using(&mut exported.own);
        }
    }
}
