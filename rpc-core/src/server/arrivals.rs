//! The connections that a server accepts: how many in all and from one address, and how many before their HELLO.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::config::Limits;
use crate::origin::Origin;

/// The connections of a server, counted by their origins.
pub(super) struct Arrivals {
    limits: Limits,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    open: usize,
    by_origin: HashMap<Origin, usize>,
    /// The handshakes in progress, the oldest of each origin first.
    handshakes: HashMap<Origin, VecDeque<Arc<Handshake>>>,
    /// The number of handshakes in progress.
    greeting: usize,
    /// The number of the latest handshake.
    last: u64,
}

/// A connection whose HELLO has not arrived.
struct Handshake {
    number: u64,
    displaced: Notify,
    is_over: AtomicBool,
}

/// A connection that was admitted. It counts until this is dropped.
pub(super) struct Arrival {
    arrivals: Arc<Arrivals>,
    origin: Origin,
    handshake: Arc<Handshake>,
}

impl Arrivals {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// Admits a connection from this address. When there are too many handshakes, the oldest one of the origin that has most
    /// of them makes room.
    ///
    /// # Errors
    ///
    /// The reason why the connection is refused, for the client.
    pub(super) fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Arrival, String> {
        let Limits { connections, connections_per_address, handshakes, .. } = self.limits;
        let origin = Origin::of(address);
        let mut counts = self.counts();
        if counts.open >= connections as usize {
            return Err(format!(
                "the server has {connections} connections already, which is its limits.connections"
            ));
        }
        let from_here = counts.by_origin.entry(origin).or_default();
        if *from_here >= connections_per_address as usize && origin != Origin::NONE {
            return Err(format!(
                "the server has {connections_per_address} connections from this address already, which is its \
                 limits.connections_per_address"
            ));
        }
        *from_here += 1;
        counts.open += 1;
        counts.last += 1;
        let (number, displaced, is_over) = (counts.last, Notify::new(), AtomicBool::new(false));
        let handshake = Arc::new(Handshake { number, displaced, is_over });
        counts.handshakes.entry(origin).or_default().push_back(handshake.clone());
        counts.greeting += 1;
        if counts.greeting > handshakes as usize {
            counts.displace();
        }
        Ok(Arrival { arrivals: self.clone(), origin, handshake })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Ends the oldest handshake of the origin that has most of them.
    fn displace(&mut self) {
        let oldest =
            |queue: &VecDeque<Arc<Handshake>>| queue.front().map_or(0, |first| u64::MAX - first.number);
        let greediest = self.handshakes.iter().max_by_key(|(_, queue)| (queue.len(), oldest(queue)));
        let Some(origin) = greediest.map(|(origin, _)| *origin) else { return };
        if let Some(first) = self.handshakes.get(&origin).and_then(|queue| queue.front()).cloned() {
            first.displaced.notify_one();
            self.end(origin, &first);
        }
    }

    /// Counts a handshake as over.
    fn end(&mut self, origin: Origin, handshake: &Arc<Handshake>) {
        if handshake.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        self.greeting -= 1;
        let Some(queue) = self.handshakes.get_mut(&origin) else { return };
        // Most end in the order in which they began.
        if let Some(at) = queue.iter().position(|other| other.number == handshake.number) {
            queue.remove(at);
        }
        if queue.is_empty() {
            self.handshakes.remove(&origin);
        }
    }
}

impl Arrival {
    /// Resolves when another connection needs the place of this handshake.
    pub(super) async fn displaced(&self) {
        self.handshake.displaced.notified().await;
    }

    /// Counts the handshake as over, because HELLO has arrived.
    pub(super) fn greeted(&self) {
        self.arrivals.counts().end(self.origin, &self.handshake);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut counts = self.arrivals.counts();
        counts.end(self.origin, &self.handshake);
        counts.open -= 1;
        if let Some(from_here) = counts.by_origin.get_mut(&self.origin) {
            *from_here -= 1;
            if *from_here == 0 {
                counts.by_origin.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn arrivals(set: impl FnOnce(&mut Limits)) -> Arc<Arrivals> {
        let mut limits = Limits::default();
        set(&mut limits);
        Arrivals::new(limits)
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(10, 0, 0, last).into())
    }

    fn is_displaced(arrival: &Arrival) -> bool {
        arrival.handshake.is_over.load(Ordering::Relaxed)
    }

    #[test]
    fn connections_are_counted_in_all_and_by_address() {
        let arrivals = arrivals(|limits| (limits.connections, limits.connections_per_address) = (3, 2));
        let refusal = |address| arrivals.admit(address).err().unwrap();
        let first = arrivals.admit(address(1)).unwrap();
        let _second = arrivals.admit(address(1)).unwrap();
        let why = refusal(address(1));
        assert!(
            why.contains("2 connections from this address") && why.contains("limits.connections_per_address"),
            "{why}"
        );
        let _third = arrivals.admit(address(2)).unwrap();
        assert!(refusal(address(3)).ends_with("limits.connections"));
        drop(first);
        assert!(arrivals.admit(address(1)).is_ok());
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_count_as_one() {
        let arrivals = arrivals(|limits| limits.connections_per_address = 1);
        let address = |network, host| Some(Ipv6Addr::new(0xfd00, 0, 0, network, 0, 0, 0, host).into());
        let _first = arrivals.admit(address(1, 1)).unwrap();
        assert!(arrivals.admit(address(1, 2)).is_err());
        let _other = arrivals.admit(address(2, 1)).unwrap();
        let _v4 = arrivals.admit(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
        assert!(arrivals.admit(Some(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into())).is_err());
    }

    #[test]
    fn the_oldest_handshake_of_the_greediest_address_makes_room() {
        let arrivals = arrivals(|limits| limits.handshakes = 3);
        let honest = arrivals.admit(address(1)).unwrap();
        let flood: Vec<_> = (0..4).map(|_| arrivals.admit(address(2)).unwrap()).collect();
        assert_eq!(flood.iter().map(is_displaced).collect::<Vec<_>>(), [true, true, false, false]);
        assert!(!is_displaced(&honest));
        honest.greeted();
        let late = arrivals.admit(address(3)).unwrap();
        assert!(!is_displaced(&flood[2]), "a handshake that is over gives its place back");
        // Of those with equally many, the oldest.
        drop(flood);
        let one = arrivals.admit(address(4)).unwrap();
        let two = arrivals.admit(address(5)).unwrap();
        let _three = arrivals.admit(address(6)).unwrap();
        assert!(is_displaced(&late) && !is_displaced(&one) && !is_displaced(&two));
    }
}
