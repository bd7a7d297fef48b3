//! This side's end of a transfer: a range of a region of this process.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::owner::failed;
use crate::proto::wire::Outcome;
use crate::status::Status;
use crate::transport::{Link, Registered, Words, words};

/// Memory of this process that transfers use: a region.
pub(crate) trait OwnMemory: fmt::Debug + Send + Sync {
    /// Returns the words, unless the region was revoked.
    fn words(&self) -> Result<Words, Outcome>;

    /// Uses what devices have of it, unless it was revoked.
    fn with_devices(&self, using: &mut dyn FnMut(&mut OwnDevices));
}

/// The devices that have registered a region for its owner.
#[derive(Default)]
pub(crate) struct OwnDevices {
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
        let overlaps = self.range.start < range.end && range.start < self.range.end;
        overlaps && (self.changes || changes) && self.over.has_changed().is_ok()
    }
}

impl OwnDevices {
    /// Returns the region as this link's device has registered it, if it has.
    fn find(&self, link: &Arc<dyn Link>, changes: bool) -> Option<Registered> {
        self.registered.iter().find(|memory| link.has_registered(memory, changes)).cloned()
    }

    /// Returns what is closed when a transfer is over that a use of this range would get in the way of, if there is one.
    fn in_the_way(&self, range: &Range<usize>, changes: bool) -> Option<watch::Receiver<()>> {
        let transfer = self.under_way.iter().find(|transfer| transfer.is_in_the_way(range, changes));
        transfer.map(|transfer| transfer.over.clone())
    }
}

/// A range of a region of this process. Bytes move there, or from there.
#[derive(Clone, Debug)]
pub(crate) struct LocalRange {
    memory: Arc<dyn OwnMemory>,
    range: Range<usize>,
}

impl LocalRange {
    /// Returns a range, which must be within the memory.
    pub(crate) fn new(memory: Arc<dyn OwnMemory>, range: Range<usize>) -> Self {
        Self { memory, range }
    }

    /// Checks that the region was not revoked.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if it was.
    pub(crate) fn check(&self) -> Result<(), Status> {
        self.words().map(drop)
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
        let copy = words::copy_out((*self.memory.words()?).as_ref(), self.range.start + begin, len);
        copy.map_err(|_| Outcome::NoMemory)
    }

    /// Writes to a part. Fails if the region was revoked.
    pub(crate) fn fill(&self, begin: usize, bytes: &[u8]) -> Result<(), Outcome> {
        words::copy_in((*self.memory.words()?).as_ref(), self.range.start + begin, bytes);
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
        let memory = self.words()?;
        match self.own(|own| (own.find(link, changes), own.is_refused)) {
            Some((None, false)) => {}
            Some((registered, _)) => return Ok(registered),
            None => return Ok(None),
        }
        let registered = link.clone().register(memory, changes).await;
        self.own(|own| match &registered {
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
        let (registered, begins) = self.own(|own| {
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
                this.own(|own| own.is_under_way = false);
            });
        }
        registered
    }

    /// Waits until no device does a transfer that a use of the range, which `changes` it, would get in the way of.
    pub(crate) async fn settled(&self, changes: bool) {
        while let Some(Some(mut over)) = self.own(|own| own.in_the_way(&self.range, changes)) {
            // Fails when the transfer is over.
            let _ = over.changed().await;
        }
    }

    /// Begins a transfer by a device, which `changes` the region, when those before it are out of the way. Returns what the device drops
    /// when the transfer is over, and what is closed then.
    pub(crate) async fn begin(&self, changes: bool) -> (watch::Sender<()>, watch::Receiver<()>) {
        let (sender, over) = watch::channel(());
        while let Some(Some(mut earlier)) = self.own(|own| {
            let earlier = own.in_the_way(&self.range, changes);
            if earlier.is_none() {
                own.under_way.retain(|transfer| transfer.over.has_changed().is_ok());
                own.under_way.push(UnderWay { range: self.range(), changes, over: over.clone() });
            }
            earlier
        }) {
            let _ = earlier.changed().await;
        }
        (sender, over)
    }

    fn words(&self) -> Result<Words, Status> {
        self.memory.words().map_err(failed)
    }

    /// Uses what devices have of the memory, unless it was revoked.
    fn own<R>(&self, using: impl FnOnce(&mut OwnDevices) -> R) -> Option<R> {
        let (mut using, mut used) = (Some(using), None);
        self.memory.with_devices(&mut |own| used = using.take().map(|using| using(own)));
        used
    }
}
