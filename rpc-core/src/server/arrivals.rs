//! The connections that a server accepts: how many in all and from one address, and how many before their HELLO.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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
    /// The connections that have a place.
    open: ByOrigin,
    /// Those of them whose HELLO has not arrived.
    greeting: ByOrigin,
    /// The number of the latest connection.
    last: u64,
}

/// Connections by their origins, those of each by their numbers: the oldest comes first.
#[derive(Default)]
struct ByOrigin {
    connections: HashMap<Origin, BTreeMap<u64, Arc<Displaced>>>,
    count: usize,
}

/// Says whether another connection gets the place of this one, and why.
#[derive(Default)]
struct Displaced {
    why: OnceLock<String>,
    is_said: Notify,
}

/// A connection that was admitted. It counts until it is displaced, or this is dropped.
pub(super) struct Arrival {
    arrivals: Arc<Arrivals>,
    origin: Origin,
    number: u64,
    displaced: Arc<Displaced>,
}

impl Arrivals {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// Admits a connection from this address. When there are too many connections, the newest one of the origin that has most
    /// of them makes room, if this origin has fewer. When there are too many handshakes, the oldest one of the origin that has
    /// most of these does.
    ///
    /// # Errors
    ///
    /// The reason why the connection is refused, for the client.
    pub(super) fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Arrival, String> {
        let Limits { connections, connections_per_address, handshakes, .. } = self.limits;
        let origin = Origin::of(address);
        let mut counts = self.counts();
        let from_here = counts.open.of(origin);
        if from_here >= connections_per_address as usize && origin != Origin::NONE {
            return Err(format!(
                "the server has {connections_per_address} connections from this address already, which is its \
                 limits.connections_per_address"
            ));
        }
        if counts.open.count >= connections as usize && !counts.make_place(from_here, connections) {
            return Err(format!(
                "the server has {connections} connections already, which is its limits.connections"
            ));
        }
        counts.last += 1;
        let (number, displaced) = (counts.last, Arc::<Displaced>::default());
        counts.open.insert(origin, number, displaced.clone());
        counts.greeting.insert(origin, number, displaced.clone());
        if counts.greeting.count > handshakes as usize {
            counts.end_a_handshake();
        }
        Ok(Arrival { arrivals: self.clone(), origin, number, displaced })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Displaces the newest connection of the address that has most, if that has as many afterwards as one that has
    /// `from_here` and gets another. Returns whether there is a place now.
    fn make_place(&mut self, from_here: usize, limit: u32) -> bool {
        // Connections without addresses keep their places: this machine or the program itself made them.
        let Some((origin, connections)) = self.open.most(|origin| origin != Origin::NONE) else {
            return false;
        };
        if connections.len() < from_here + 2 {
            return false;
        }
        let Some((&number, newest)) = connections.last_key_value() else { return false };
        newest.say(format!(
            "the server has {limit} connections, which is its limits.connections, most of them from this address, and \
             another address needs a place"
        ));
        self.remove(origin, number);
        true
    }

    /// Ends the oldest handshake of the origin that has most of them.
    fn end_a_handshake(&mut self) {
        let Some((origin, handshakes)) = self.greeting.most(|_| true) else { return };
        let Some((&number, oldest)) = handshakes.first_key_value() else { return };
        oldest.say("the server has too many unfinished handshakes (limits.handshakes)".into());
        self.greeting.remove(origin, number);
    }

    /// Counts a connection no more.
    fn remove(&mut self, origin: Origin, number: u64) {
        self.greeting.remove(origin, number);
        self.open.remove(origin, number);
    }
}

impl ByOrigin {
    /// Returns the number of connections of an origin.
    fn of(&self, origin: Origin) -> usize {
        self.connections.get(&origin).map_or(0, BTreeMap::len)
    }

    /// Returns that origin of some which has most connections. Of several, the one whose oldest is the oldest of all.
    fn most(&self, may_be: impl Fn(Origin) -> bool) -> Option<(Origin, &BTreeMap<u64, Arc<Displaced>>)> {
        let age = |here: &BTreeMap<u64, _>| here.first_key_value().map(|(number, _)| Reverse(*number));
        let those = self.connections.iter().filter(|(origin, _)| may_be(**origin));
        let most = those.max_by_key(|(_, here)| (here.len(), age(here)));
        most.map(|(origin, here)| (*origin, here))
    }

    fn insert(&mut self, origin: Origin, number: u64, displaced: Arc<Displaced>) {
        self.count += 1;
        self.connections.entry(origin).or_default().insert(number, displaced);
    }

    /// Removes a connection, if it is there.
    fn remove(&mut self, origin: Origin, number: u64) {
        let Some(here) = self.connections.get_mut(&origin) else { return };
        self.count -= usize::from(here.remove(&number).is_some());
        if here.is_empty() {
            self.connections.remove(&origin);
        }
    }
}

impl Displaced {
    fn say(&self, why: String) {
        // The first reason stays.
        let _ = self.why.set(why);
        self.is_said.notify_one();
    }
}

impl Arrival {
    /// Resolves when another connection needs the place of this one, with the reason. For one task at a time.
    pub(super) async fn displaced(&self) -> String {
        loop {
            if let Some(why) = self.displaced.why.get() {
                return why.clone();
            }
            self.displaced.is_said.notified().await;
        }
    }

    /// Counts the handshake as over, because HELLO has arrived.
    pub(super) fn greeted(&self) {
        self.arrivals.counts().greeting.remove(self.origin, self.number);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arrivals.counts().remove(self.origin, self.number);
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
        arrival.displaced.why.get().is_some()
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
        assert!(refusal(address(2)).ends_with("limits.connections"));
        drop(first);
        assert!(arrivals.admit(address(1)).is_ok());
    }

    #[test]
    fn the_newest_connection_of_the_address_with_most_makes_room() {
        let arrivals = arrivals(|limits| limits.connections = 9);
        let local: Vec<_> = (0..5).map(|_| arrivals.admit(None).unwrap()).collect();
        let flood: Vec<_> = (0..4).map(|_| arrivals.admit(address(1)).unwrap()).collect();
        assert!(arrivals.admit(address(1)).is_err(), "an address with most displaces none");
        let others = [arrivals.admit(address(2)).unwrap(), arrivals.admit(address(2)).unwrap()];
        assert_eq!(flood.iter().map(is_displaced).collect::<Vec<_>>(), [false, false, true, true]);
        assert!(flood[3].displaced.why.get().unwrap().contains("limits.connections"));
        assert!(arrivals.admit(address(2)).is_err(), "both addresses have two now");
        let _last = arrivals.admit(address(3)).unwrap();
        assert!(is_displaced(&flood[1]) && !others.iter().chain(&local).any(is_displaced));
        drop(flood);
        assert_eq!(arrivals.counts().open.count, 8, "one of the flood had a place still");
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
