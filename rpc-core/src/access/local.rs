//! This side's end of a transfer: a range of a region of this process.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::owner::failed;
use crate::proto::wire::Outcome;
use crate::status::Status;
use crate::transport::{DeviceId, Link, Registered, Words, words};

/// How long a device is not asked again that could not register a region.
const REFUSAL: Duration = Duration::from_secs(30);

/// Memory of this process that transfers use: a region.
pub(crate) trait LocalMemory: fmt::Debug + Send + Sync {
    /// Returns the words, unless the region was revoked.
    fn words(&self) -> Result<Words, Outcome>;

    /// Changes the state of its transfers, unless the region was revoked.
    fn with_transfers(&self, change: &mut dyn FnMut(&mut Transfers));
}

/// The transfers of a region, and the devices that can do them.
pub(crate) struct Transfers {
    /// Dropped when the region is revoked, which those who wait hear of.
    revoked: watch::Sender<()>,
    devices: Vec<(DeviceId, Registering)>,
    /// Those that have begun or wait, in this order, also if their futures were dropped.
    entered: Vec<Entered>,
}

/// The state of a region at a device.
enum Registering {
    /// The device registers it. Closed when that is over.
    Asked(watch::Receiver<()>),
    Done(Arc<dyn Registered>),
    /// The device could not, at this time: because of the limit on locked memory, for example.
    Refused(Instant),
}

/// A transfer.
struct Entered {
    range: Range<usize>,
    /// Whether it changes the region.
    changes: bool,
    /// Closed when it is over.
    over: watch::Receiver<()>,
}

impl Default for Transfers {
    fn default() -> Self {
        Self { revoked: watch::Sender::new(()), devices: Vec::new(), entered: Vec::new() }
    }
}

impl Transfers {
    /// Returns the region's state at a device, if it has one.
    fn at(&mut self, device: DeviceId) -> Option<&Registering> {
        self.devices.retain(|(_, state)| match state {
            // Closed without a result, if its runtime has ended.
            Registering::Asked(asked) => asked.has_changed().is_ok(),
            Registering::Done(registered) => !registered.is_over(),
            Registering::Refused(at) => at.elapsed() < REFUSAL,
        });
        self.devices.iter().find(|(of, _)| *of == device).map(|(_, state)| state)
    }

    fn set(&mut self, device: DeviceId, state: Registering) {
        self.devices.retain(|(of, _)| *of != device);
        self.devices.push((device, state));
    }

    /// Returns what is closed when the transfers are over that a use of this range, which `changes` it, has to wait for.
    fn before(&self, range: &Range<usize>, changes: bool) -> Vec<watch::Receiver<()>> {
        let is_before = |transfer: &&Entered| {
            let overlaps = transfer.range.start < range.end && range.start < transfer.range.end;
            overlaps && (transfer.changes || changes)
        };
        self.entered.iter().filter(is_before).map(|transfer| transfer.over.clone()).collect()
    }

    fn enter(&mut self, transfer: Entered) -> Vec<watch::Receiver<()>> {
        self.entered.retain(|transfer| transfer.over.has_changed().is_ok());
        let before = self.before(&transfer.range, transfer.changes);
        self.entered.push(transfer);
        before
    }
}

/// The answer to the question whether a device can use a region.
enum Answer {
    Yes(Arc<dyn Registered>),
    No,
    /// It is known when this is closed.
    Later(watch::Receiver<()>),
}

/// A range of a region of this process. Bytes move there, or from there.
#[derive(Clone, Debug)]
pub(crate) struct LocalRange {
    memory: Arc<dyn LocalMemory>,
    range: Range<usize>,
}

impl LocalRange {
    /// Returns a range, which must be within the memory.
    pub(crate) fn new(memory: Arc<dyn LocalMemory>, range: Range<usize>) -> Self {
        Self { memory, range }
    }

    /// Returns the range's length, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns the range in the region.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the range in parts of so many bytes, each with where it begins in this.
    pub(crate) fn parts(&self, most: usize) -> impl Iterator<Item = (usize, Self)> + Send + use<> {
        let (memory, Range { start, end }) = (self.memory.clone(), self.range());
        (start..end).step_by(most).map(move |at| {
            (at - start, Self { memory: memory.clone(), range: at..end.min(at.saturating_add(most)) })
        })
    }

    /// Checks that the region was not revoked.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if it was.
    pub(crate) fn check(&self) -> Result<(), Status> {
        self.memory.words().map(drop).map_err(failed)
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

    /// Returns the region as this link's device has it. The first time waits until the device has registered all of the region, which
    /// goes on if the future is dropped. `None`: the device can't.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if the region was revoked.
    pub(crate) async fn registered(
        &self,
        link: &Arc<dyn Link>,
        runtime: &Handle,
    ) -> Result<Option<Arc<dyn Registered>>, Status> {
        // Twice, because another runtime may have begun, and ended.
        for _ in 0..2 {
            match self.ask(link, runtime).map_err(failed)? {
                Answer::Yes(registered) => return Ok(Some(registered)),
                Answer::No => return Ok(None),
                Answer::Later(asked) => self.until_closed(vec![asked]).await?,
            }
        }
        Ok(self.registered_already(link, runtime))
    }

    /// Returns the region as this link's device has it. `None`: the device does not have it, and registers it for later if it can.
    pub(crate) fn registered_already(
        &self,
        link: &Arc<dyn Link>,
        runtime: &Handle,
    ) -> Option<Arc<dyn Registered>> {
        match self.ask(link, runtime) {
            Ok(Answer::Yes(registered)) => Some(registered),
            Ok(Answer::No | Answer::Later(_)) | Err(_) => None,
        }
    }

    /// Asks for the region at this link's device. The first time has the device register it, in a task of its own.
    fn ask(&self, link: &Arc<dyn Link>, runtime: &Handle) -> Result<Answer, Outcome> {
        let Some(device) = link.registrar() else { return Ok(Answer::No) };
        let words = self.memory.words()?;
        let mut begun = None;
        let answer = self.change(|transfers| match transfers.at(device) {
            Some(Registering::Done(registered)) => Answer::Yes(registered.clone()),
            Some(Registering::Refused(_)) => Answer::No,
            Some(Registering::Asked(asked)) => Answer::Later(asked.clone()),
            None => {
                let (sender, asked) = watch::channel(());
                begun = Some(sender);
                transfers.set(device, Registering::Asked(asked.clone()));
                Answer::Later(asked)
            }
        })?;
        if let Some(asked) = begun {
            let (this, link) = (self.clone(), link.clone());
            runtime.spawn(async move {
                let state = match link.register(words).await {
                    Some(registered) => Registering::Done(registered),
                    None => Registering::Refused(Instant::now()),
                };
                // If the region was revoked meanwhile, nobody needs it.
                let _ = this.change(move |transfers| transfers.set(device, state));
                drop(asked);
            });
        }
        Ok(answer)
    }

    /// Waits for the transfers that have begun by now, as far as a use of the range, which changes it, would get in their way.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if the region was revoked.
    pub(crate) async fn settled(&self) -> Result<(), Status> {
        let before = self.change(|transfers| transfers.before(&self.range, true)).map_err(failed)?;
        self.until_closed(before).await
    }

    /// Waits for this range's turn in a transfer, which `changes` it. Transfers that would get in each other's way have their turns in
    /// the order of this call. The turn ends when the last clone of it is dropped.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if the region was revoked.
    pub(crate) async fn turn(&self, changes: bool) -> Result<Turn, Status> {
        let (turn, over) = watch::channel(());
        let entered = Entered { range: self.range(), changes, over };
        let before = self.change(|transfers| transfers.enter(entered)).map_err(failed)?;
        self.until_closed(before).await?;
        Ok(Turn(turn))
    }

    /// Waits until all these are closed.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if the region is revoked meanwhile.
    async fn until_closed(&self, all: Vec<watch::Receiver<()>>) -> Result<(), Status> {
        if all.is_empty() {
            return Ok(());
        }
        let mut revoked = self.change(|transfers| transfers.revoked.subscribe()).map_err(failed)?;
        for mut one in all {
            // Either fails when it is closed.
            tokio::select! {
                _ = one.changed() => {}
                _ = revoked.changed() => return Err(failed(Outcome::Gone)),
            }
        }
        Ok(())
    }

    fn change<R>(&self, change: impl FnOnce(&mut Transfers) -> R) -> Result<R, Outcome> {
        let (mut change, mut changed) = (Some(change), None);
        self.memory.with_transfers(&mut |transfers| {
            changed = change.take().map(|change| change(transfers));
        });
        changed.ok_or(Outcome::Gone)
    }
}

/// A transfer's turn. Devices keep clones as long as they may move something.
#[derive(Clone)]
pub(crate) struct Turn(#[expect(dead_code, reason = "for its drop")] watch::Sender<()>);
