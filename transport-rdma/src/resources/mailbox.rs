//! Messages to an endpoint's driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_core::transport::LinkEnd;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::device::DeviceEvent;

/// Written by anyone, read by the driver. Links are named by the numbers of their queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    /// There is some, for a driver that looks at every turn. Set before it is told of.
    unread: AtomicBool,
    arrived: Notify,
    /// Links that wait for a send slot, in the order in which they came.
    slot_waiters: Mutex<Vec<u32>>,
    /// Nobody will ask for another link.
    leaving: AtomicBool,
    /// The runtime is gone, and with it whoever could be told anything.
    forsaken: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// Links that the driver must look at: they were started or closed, have something to deliver, or have room again.
    pub(crate) changed: Vec<u32>,
    /// Links on which posting has failed.
    pub(crate) failed: Vec<(u32, LinkEnd)>,
    pub(crate) events: Vec<DeviceEvent>,
}

impl Mailbox {
    /// Has the driver look at a link: it was started or closed, has something to deliver, or has room again.
    pub(crate) fn changed(&self, link: u32) {
        self.put(|mail| mail.changed.push(link));
    }

    /// Posting on a link has failed.
    pub(crate) fn failed(&self, link: u32, end: LinkEnd) {
        self.put(|mail| mail.failed.push((link, end)));
    }

    /// A link needs a send slot, and there is none. The driver is not woken: the completion that frees one does that.
    pub(crate) fn wait_for_slot(&self, link: u32) {
        let mut waiters = lock(&self.slot_waiters);
        if !waiters.contains(&link) {
            waiters.push(link);
        }
    }

    pub(crate) fn event(&self, event: DeviceEvent) {
        self.put(|mail| mail.events.push(event));
    }

    fn put(&self, put: impl FnOnce(&mut Mail)) {
        put(&mut lock(&self.mail));
        self.unread.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    pub(crate) fn forsake(&self) {
        self.forsaken.store(true, Ordering::Release);
    }

    pub(crate) fn is_forsaken(&self) -> bool {
        self.forsaken.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Option<Mail> {
        let unread = self.unread.load(Ordering::Relaxed) && self.unread.swap(false, Ordering::Acquire);
        unread.then(|| std::mem::take(&mut *lock(&self.mail)))
    }

    pub(crate) fn take_slot_waiters(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.slot_waiters))
    }

    /// Resolves when there is mail since the last time.
    pub(crate) fn arrived(&self) -> Notified<'_> {
        self.arrived.notified()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
