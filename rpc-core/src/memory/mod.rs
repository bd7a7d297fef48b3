//! The memory that peers make this process hold, and its limit.
//!
//! A server has a [`Budget`], of which each connection has an account. Parts of a connection count what they hold for
//! the peer there, each with a gauge. When a budget is nearly used up, the connections that hold more than their share
//! are *greedy*. They are not read for a while, then their calls are refused. When a budget is used up, the greediest
//! connection is closed, and an address that holds more than its share gets no new one. Other connections notice nothing.

mod account;
mod machine;
mod meter;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};

pub(crate) use self::account::{Account, Gauge};
use self::meter::Meter;
use crate::origin::Origin;
use crate::sync::{Mutex, rank};
use crate::transport::{SHARED_BUFFER, SHORT_PAYLOAD, SHORT_PAYLOADS_SHARE};

/// The use of memory that is held for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The connection itself.
    Session,
    /// Messages that have arrived in part, and the buffers that links read to.
    Partial,
    /// The arguments of handlers that run, and what handlers have read of the peer's memory.
    Arguments,
    /// Items of streams that were not read.
    Items,
    /// Messages that the peer has not read.
    Unsent,
}

/// How many uses there are.
const USES: usize = 5;

/// Returns how much memory received bytes of this length may keep, in bytes: they may be a view of a longer buffer.
#[inline]
pub(crate) fn kept_by(len: usize) -> usize {
    match len {
        0 => 0,
        1..SHORT_PAYLOAD => SHORT_PAYLOADS_SHARE,
        len => len.max(SHARED_BUFFER),
    }
}

/// A limit on the memory that peers make this process hold. Clones of its `Arc` share it.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    /// The use above which greedy connections are held back, in bytes.
    high: usize,
    /// The use above which connections are closed, in bytes. The rest is for what is under way then.
    full: usize,
    /// The sum of what accounts have taken, in bytes.
    used: AtomicUsize,
    /// The most that was ever used.
    peak: AtomicUsize,
    /// The part of it that is being freed, because its connections are being closed.
    closing: AtomicUsize,
    peers: Mutex<rank::Leaf, HashMap<Origin, Arc<Peer>>>,
    /// The number of peers.
    count: AtomicUsize,
    /// Notified when the use falls below one of the two limits.
    freed: Notify,
    meter: Meter,
}

/// The connections from one origin.
#[derive(Debug, Default)]
struct Peer {
    used: AtomicUsize,
    count: AtomicUsize,
    /// By number.
    accounts: Mutex<rank::Leaf, HashMap<u64, Weak<Account>>>,
    turn: HostTurn,
}

/// The turn of one host in a queue where each host waits once, however many of its connections want something.
#[derive(Clone, Debug)]
pub(crate) struct HostTurn(Arc<Semaphore>);

impl Default for HostTurn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl HostTurn {
    /// Waits until nobody else waits for this host, and then for `turn`.
    pub(crate) async fn wait<T>(&self, turn: impl Future<Output = T>) -> T {
        // It is never closed.
        let _waits = self.0.acquire().await;
        turn.await
    }
}

/// The memory that is held for one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerMemory {
    /// The address; for IPv6, the lowest one of the network, whose prefix has 64 bits. `None` for peers of transports without
    /// addresses.
    pub address: Option<IpAddr>,
    /// How many connections it has.
    pub connections: usize,
    /// The memory of the connections themselves, in bytes.
    pub sessions: usize,
    /// Messages that have arrived in part, and the buffers that they are read to, in bytes.
    pub partial: usize,
    /// The arguments of handlers that run, and what handlers have read of the clients' memory, in bytes.
    pub arguments: usize,
    /// Items of streams that handlers have not read, in bytes.
    pub items: usize,
    /// Answers and items that the peer has not read, in bytes.
    pub unsent: usize,
}

impl PeerMemory {
    /// Returns the sum of all uses, in bytes.
    pub fn total(&self) -> usize {
        self.sessions + self.partial + self.arguments + self.items + self.unsent
    }
}

impl Budget {
    /// Returns a budget of so many bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            high: limit / 8 * 5,
            full: limit / 8 * 7,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            closing: AtomicUsize::new(0),
            peers: Mutex::default(),
            count: AtomicUsize::new(0),
            freed: Notify::new(),
            meter: Meter::new(),
        })
    }

    /// Returns the budget of `limits.memory` bytes, or, if that is 0, the one of the process: a quarter of the memory that the
    /// machine, the control group and the limit on address space (`ulimit -v`) allow.
    pub fn of(limit: u64) -> Arc<Self> {
        static PROCESS: LazyLock<Arc<Budget>> = LazyLock::new(|| Budget::new(machine::memory() / 4));
        match limit {
            0 => PROCESS.clone(),
            limit => Self::new(usize::try_from(limit).unwrap_or(usize::MAX)),
        }
    }

    /// Returns the limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns how much of it is used, in bytes. Connections take it in steps of 64 KiB.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the most that was ever used, in bytes.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns what is held for each address, the greediest first.
    pub fn peers(&self) -> Vec<PeerMemory> {
        let peers: Vec<_> = self.peers.lock().iter().map(|(origin, peer)| (*origin, peer.clone())).collect();
        let mut peers: Vec<_> = peers.into_iter().map(|(origin, peer)| peer.memory(origin)).collect();
        peers.sort_by_key(|peer| std::cmp::Reverse(peer.total()));
        peers
    }

    /// Returns what is held for each use, in bytes.
    #[cfg(feature = "metrics")]
    fn held(&self) -> [usize; USES] {
        self.peers().iter().fold([0; USES], |sums, peer| {
            let held = [peer.sessions, peer.partial, peer.arguments, peer.items, peer.unsent];
            std::array::from_fn(|of| sums[of] + held[of])
        })
    }

    /// Whether greedy connections are held back.
    #[inline]
    fn is_high(&self) -> bool {
        self.used() > self.high
    }

    /// Whether connections are being closed.
    fn is_used_up(&self) -> bool {
        self.used() > self.full
    }

    /// Checks that an address may have another connection. Connections without addresses are from anyone, and always may.
    ///
    /// # Errors
    ///
    /// The reason for the client, if the budget is used up and the address holds more than its share.
    pub(crate) fn admit(&self, address: Option<IpAddr>) -> Result<(), String> {
        let origin = Origin::of(address);
        if !self.is_used_up() || origin == Origin::NONE {
            return Ok(());
        }
        let held = self.peers.lock().get(&origin).map_or(0, |peer| peer.used.load(Ordering::Relaxed));
        if held <= self.share() {
            return Ok(());
        }
        Err(format!(
            "the memory for peers is used up (limits.memory is {} bytes), and this address holds more than its share: {held} bytes",
            self.limit
        ))
    }

    /// Returns the share of each peer, in bytes.
    fn share(&self) -> usize {
        self.high / self.count.load(Ordering::Relaxed).max(1)
    }

    /// Closes the greediest connections until what is left fits.
    #[cold]
    fn make_room(&self) {
        while self.used().saturating_sub(self.closing.load(Ordering::Relaxed)) > self.full {
            let Some(account) = self.greediest() else { return };
            account.evict();
        }
    }

    /// Returns the greediest connection of the greediest peer that is not being closed.
    fn greediest(&self) -> Option<Arc<Account>> {
        let peers: Vec<_> = self.peers.lock().values().cloned().collect();
        let accounts = |peer: &Peer| -> Vec<Arc<Account>> {
            let accounts: Vec<_> = peer.accounts.lock().values().filter_map(Weak::upgrade).collect();
            accounts.into_iter().filter(|account| !account.is_closing()).collect()
        };
        let greediest = |accounts: Vec<Arc<Account>>| {
            let sum: usize = accounts.iter().map(|account| account.taken()).sum();
            Some((sum, accounts.into_iter().max_by_key(|account| account.taken())?))
        };
        let candidates = peers.iter().filter_map(|peer| greediest(accounts(peer)));
        candidates.max_by_key(|(sum, _)| *sum).map(|(_, account)| account)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        Meter::tell_now(self);
    }
}

impl Peer {
    fn memory(&self, origin: Origin) -> PeerMemory {
        let accounts: Vec<_> = self.accounts.lock().values().filter_map(Weak::upgrade).collect();
        let sum = |of: Use| accounts.iter().map(|account| account.held(of)).sum();
        PeerMemory {
            address: origin.address(),
            connections: accounts.len(),
            sessions: sum(Use::Session),
            partial: sum(Use::Partial),
            arguments: sum(Use::Arguments),
            items: sum(Use::Items),
            unsent: sum(Use::Unsent),
        }
    }
}
