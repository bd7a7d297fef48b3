//! What others tell an endpoint's driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_core::transport::LinkEnd;
use tokio::sync::Notify;

use crate::device::DeviceEvent;

/// Written by anyone, read by the driver. Links are named by the numbers of their queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    arrived: Notify,
    /// Links that wait for a send slot, in the order in which they came.
    slot_waiters: Mutex<Vec<u32>>,
    /// Nobody will ask for another link.
    leaving: AtomicBool,
    /// The runtime is gone, and with it whoever could be told anything.
    forsaken: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Mail {
    /// Links that were started or closed.
    pub(super) changed: Vec<u32>,
    /// Links on which posting has failed.
    pub(super) failed: Vec<(u32, LinkEnd)>,
    pub(super) events: Vec<DeviceEvent>,
}

impl Mailbox {
    /// A link was started or closed.
    pub(crate) fn changed(&self, link: u32) {
        self.mail().changed.push(link);
        self.arrived.notify_one();
    }

    /// Posting on a link has failed.
    pub(crate) fn failed(&self, link: u32, end: LinkEnd) {
        self.mail().failed.push((link, end));
        self.arrived.notify_one();
    }

    /// A link needs a send slot, and there is none. The driver is not woken: the completion that frees one does that.
    pub(crate) fn wait_for_slot(&self, link: u32) {
        let mut waiters = lock(&self.slot_waiters);
        if !waiters.contains(&link) {
            waiters.push(link);
        }
    }

    pub(super) fn event(&self, event: DeviceEvent) {
        self.mail().events.push(event);
        self.arrived.notify_one();
    }

    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    pub(super) fn forsake(&self) {
        self.forsaken.store(true, Ordering::Release);
    }

    pub(super) fn is_forsaken(&self) -> bool {
        self.forsaken.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Mail {
        std::mem::take(&mut *self.mail())
    }

    pub(super) fn take_slot_waiters(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.slot_waiters))
    }

    /// Waits until there is mail since the last time.
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        lock(&self.mail)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
