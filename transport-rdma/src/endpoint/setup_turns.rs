//! Turns of links that are being set up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_core::origin::Origin;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Links that are set up at once. The others wait, so that those few are done in time.
const AT_ONCE: usize = 16;

/// Links with one host that are set up at once. So a host whose attempts do not end keeps no other host waiting.
const WITH_ONE_HOST: usize = AT_ONCE / 2;

/// The turns of the links that a device sets up as client, or as server.
#[derive(Debug)]
pub(super) struct SetupTurns {
    all: Arc<Semaphore>,
    /// Those of the hosts whose links have a turn or wait for one.
    of_hosts: Mutex<HashMap<Origin, Weak<Semaphore>>>,
}

/// A link's turn, which lasts until this is dropped.
#[derive(Debug)]
#[must_use = "the turn ends when this is dropped"]
pub(crate) struct SetupTurn {
    _of_host: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for SetupTurns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(AT_ONCE)), of_hosts: Mutex::default() }
    }
}

impl SetupTurns {
    /// Waits for a turn of a link with this host; first come, first served.
    ///
    /// Cancel safe: a link that gives up loses its place.
    pub(super) async fn next(&self, host: Origin) -> SetupTurn {
        // First the host's own, so that at most so many of its links wait among those of other hosts.
        let of_host = self.of_host(host).acquire_owned().await;
        let of_all = Arc::clone(&self.all).acquire_owned().await;
        const OPEN: &str = "nobody closes it";
        SetupTurn { _of_host: of_host.expect(OPEN), _of_all: of_all.expect(OPEN) }
    }

    fn of_host(&self, host: Origin) -> Arc<Semaphore> {
        let mut of_hosts = self.of_hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = of_hosts.get(&host).and_then(Weak::upgrade) {
            return turns;
        }
        of_hosts.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(WITH_ONE_HOST));
        of_hosts.insert(host, Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    fn host(n: u8) -> Origin {
        Origin::of(Some([10, 0, 0, n].into()))
    }

    /// Returns the turn, if it can be had now.
    async fn now(turn: impl Future<Output = SetupTurn>) -> Option<SetupTurn> {
        let mut turn = pin!(turn);
        poll_fn(|cx| match turn.as_mut().poll(cx) {
            Poll::Ready(turn) => Poll::Ready(Some(turn)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn a_host_has_half_of_the_turns_at_most() {
        let turns = SetupTurns::default();
        let mut taken = Vec::new();
        for n in 0..AT_ONCE {
            taken.extend(now(turns.next(host(1))).await);
            assert_eq!(taken.len(), WITH_ONE_HOST.min(n + 1));
        }
        for _ in 0..WITH_ONE_HOST {
            taken.push(now(turns.next(host(2))).await.expect("another host waits for it"));
        }
        assert!(now(turns.next(host(3))).await.is_none(), "more than {AT_ONCE} at once");
        drop(taken.swap_remove(0));
        assert!(now(turns.next(host(3))).await.is_some());
    }

    #[tokio::test]
    async fn hosts_without_links_are_forgotten() {
        let turns = SetupTurns::default();
        for n in 0..20 {
            assert!(now(turns.next(host(n))).await.is_some());
        }
        assert_eq!(turns.of_hosts.lock().unwrap().len(), 1);
    }
}
