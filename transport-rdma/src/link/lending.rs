//! How much a peer may send: lent to one that uses all it has, asked back from one that does not.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use super::LinkCore;
use super::receive::Receiving;
use crate::resources::CreditLease;

impl LinkCore {
    /// The peer uses its whole window. It is lent more, once for each time that it does.
    pub(super) fn lend(&self, receiving: &mut Receiving) {
        let mut lease = self.lease();
        let Some(lease) = lease.as_mut() else { return };
        if receiving.count.since(receiving.lent_at) < lease.window() {
            return;
        }
        receiving.lent_at = receiving.count;
        let lent = lease.lend();
        if lent > 0 {
            self.granted.fetch_add(lent, Ordering::Release);
            self.sending().reports.set_window(lease.window());
        }
    }

    /// Asks the peer to give back what it was lent. `idle`: only if it has sent nothing since this was asked last.
    /// Returns how much it was asked for.
    pub(crate) fn reclaim(&self, idle: bool, now: Instant) -> u32 {
        let count = {
            let mut receiving = self.receiving();
            let count = receiving.count;
            let seen = std::mem::replace(&mut receiving.seen, count);
            if !receiving.is_proven() || (idle && seen != count) {
                return 0;
            }
            let Some(count) = self.lease().as_mut().and_then(|lease| lease.ask(now)) else { return 0 };
            self.sending().want_reclaim(count);
            count
        };
        self.flush_controls();
        count
    }

    /// When the peer was asked to give back, if it has not answered.
    pub(crate) fn reclaimed_at(&self) -> Option<Instant> {
        self.lease().as_ref()?.asked_at()
    }

    /// The peer gives back credits that it has not used.
    pub(super) fn take_back(&self, receiving: &mut Receiving, count: u32, told: u32) -> Result<(), String> {
        let mut lease = self.lease();
        let mut sending = self.sending();
        let asked = lease.as_mut().filter(|_| !sending.is_reclaim_unsent());
        let Some(asked) = asked.filter(|lease| lease.was_asked_for(count)) else {
            return Err("it gives back credits without being asked".to_owned());
        };
        // Before the lease changes: a peer that does not have them still has the receives that it was promised.
        if !receiving.count.forfeit(count, told) {
            return Err("it gives back credits that it does not have".to_owned());
        }
        asked.give_back(count);
        sending.reports.note_forfeit();
        sending.reports.set_window(lease.as_ref().map_or(0, CreditLease::window));
        Ok(())
    }

    /// How many messages the peer may have on their way.
    #[cfg(test)]
    pub(crate) fn window(&self) -> u32 {
        self.lease().as_ref().map_or(0, CreditLease::window)
    }

    /// The grant that the peer was told of.
    #[cfg(test)]
    pub(crate) fn told(&self) -> u32 {
        self.told.load(Ordering::Acquire)
    }

    fn lease(&self) -> MutexGuard<'_, Option<CreditLease>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
