//! Regions as this side's end of a transfer: bytes move between them and memory of a peer.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use super::Region;
use super::exported::{InUse, Shared, failed};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::access;
use crate::proto::wire::Outcome;
use crate::status::Status;
use crate::transport::{Link, Registered, words};

/// The devices that have registered a region for its owner.
#[derive(Default)]
pub(super) struct OwnDevices {
    registered: Vec<Registered>,
    /// Whether a device could not, because of the limit on locked memory, for example. It is not asked again.
    is_refused: bool,
    /// Whether a device is registering it for a later call.
    is_under_way: bool,
    /// The transfers that devices do, also those whose futures were dropped.
    under_way: Vec<UnderWay>,
}

/// A transfer that a device does.
struct UnderWay {
    range: Range<usize>,
    /// Whether it changes the region.
    changes: bool,
    /// Closed when it is over.
    over: watch::Receiver<()>,
}

impl UnderWay {
    /// Whether the transfer and a use of this range get in each other's way.
    fn is_in_the_way(&self, range: &Range<usize>, changes: bool) -> bool {
        let overlap = self.range.start < range.end && range.start < self.range.end;
        overlap && (self.changes || changes) && self.over.has_changed().is_ok()
    }
}

impl OwnDevices {
    /// Returns the region as this link's device has registered it, if it has.
    fn find(&self, link: &Arc<dyn Link>, changes: bool) -> Option<Registered> {
        self.registered.iter().find(|memory| link.has_registered(memory, changes)).cloned()
    }
}

impl Shared {
    /// Uses the part for the owner, unless the region was revoked.
    fn own<R>(&self, using: impl FnOnce(&mut OwnDevices) -> R) -> Option<R> {
        self.exported.lock().as_mut().map(|exported| using(&mut exported.own))
    }
}

/// A range of a region of this process. Bytes move there, or from there.
#[derive(Clone, Debug)]
pub(crate) struct LocalRange {
    region: Arc<Shared>,
    range: Range<usize>,
}

impl Region {
    /// Returns a range of the region.
    ///
    /// # Errors
    ///
    /// OUT_OF_RANGE, if it is not within the region.
    pub(crate) fn local(&self, range: impl RangeBounds<usize>) -> Result<LocalRange, Status> {
        let (offset, len) = access::range(range, self.len())?;
        Ok(LocalRange { region: self.shared.clone(), range: offset..offset + len })
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

impl LocalRange {
    /// Checks that the region was not revoked.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if it was.
    pub(crate) fn check(&self) -> Result<(), Status> {
        self.memory().map(drop)
    }

    /// Returns the range's length, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns the range in the region.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns a copy of a part. Fails if the region was revoked, or if there is no memory for the copy.
    pub(crate) fn copy(&self, begin: usize, len: usize) -> Result<Vec<u8>, Outcome> {
        let copy = words::copy_out((*self.region.memory()?).as_ref(), self.range.start + begin, len);
        copy.map_err(|_| Outcome::NoMemory)
    }

    /// Writes to a part. Fails if the region was revoked.
    pub(crate) fn fill(&self, begin: usize, bytes: &[u8]) -> Result<(), Outcome> {
        words::copy_in((*self.region.memory()?).as_ref(), self.range.start + begin, bytes);
        Ok(())
    }

    /// Returns the region as this link's device has it. The first time waits until it has registered the region, which takes the longer
    /// the more memory that is. `None`: it can't.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if the region was revoked.
    pub(crate) async fn registered(
        &self,
        link: &Arc<dyn Link>,
        changes: bool,
    ) -> Result<Option<Registered>, Status> {
        let memory = self.memory()?;
        match self.region.own(|own| (own.find(link, changes), own.is_refused)) {
            Some((None, false)) => {}
            Some((registered, _)) => return Ok(registered),
            None => return Ok(None),
        }
        let registered = link.clone().register(memory, changes).await;
        self.region.own(|own| match &registered {
            // Another transfer may have been as fast.
            Some(memory) if own.find(link, changes).is_none() => own.registered.push(memory.clone()),
            Some(_) => {}
            None => own.is_refused = true,
        });
        Ok(registered)
    }

    /// Returns the region as this link's device has it. `None`: it does not have it, and registers it for later if it can.
    pub(crate) fn registered_already(
        &self,
        link: &Arc<dyn Link>,
        changes: bool,
        runtime: &Handle,
    ) -> Option<Registered> {
        let (registered, begins) = self.region.own(|own| {
            let registered = own.find(link, changes);
            let begins = registered.is_none() && !own.is_refused && !own.is_under_way;
            own.is_under_way |= begins;
            (registered, begins)
        })?;
        if begins {
            let (this, link) = (self.clone(), link.clone());
            runtime.spawn(async move {
                // If the region is revoked meanwhile, nobody needs it.
                let _ = this.registered(&link, changes).await;
                this.region.own(|own| own.is_under_way = false);
            });
        }
        registered
    }

    /// Waits until no device does a transfer that a use of the range, which `changes` it, would get in the way of.
    async fn settled(&self, changes: bool) {
        loop {
            let first = {
                let exported = self.region.exported.lock();
                let under_way = exported.iter().flat_map(|exported| &exported.own.under_way);
                under_way
                    .filter(|transfer| transfer.is_in_the_way(&self.range, changes))
                    .map(|transfer| transfer.over.clone())
                    .next()
            };
            let Some(mut over) = first else { return };
            // Fails when the transfer is over.
            let _ = over.changed().await;
        }
    }

    /// Begins a transfer by a device, which `changes` the region, when those before it are out of the way. Returns what the device drops
    /// when the transfer is over, and what is closed then.
    pub(crate) async fn begin(&self, changes: bool) -> (watch::Sender<()>, watch::Receiver<()>) {
        self.settled(changes).await;
        let (sender, over) = watch::channel(());
        self.region.own(|own| {
            own.under_way.retain(|transfer| transfer.over.has_changed().is_ok());
            own.under_way.push(UnderWay { range: self.range(), changes, over: over.clone() });
        });
        (sender, over)
    }

    fn memory(&self) -> Result<Arc<InUse>, Status> {
        self.region.memory().map_err(failed)
    }
}
