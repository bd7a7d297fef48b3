//! The connections that a server accepts: how many in all and from one address, and how many before their HELLO.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::Notify;

use crate::config::Limits;
use crate::origin::Origin;

/// The part of `limits.connections` that may be leaving beyond these, because others have their places: one of so many.
const LEAVING: u32 = 8;

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
    /// The number of those whose place another one has, and which are not gone yet.
    leaving: u32,
    /// The number of the latest connection.
    last: u64,
}

/// Connections by their origins, those of each by their numbers: the oldest comes first.
#[derive(Default)]
struct ByOrigin {
    connections: HashMap<Origin, BTreeMap<u64, Arc<Displaced>>>,
    ranks: BTreeSet<Rank>,
    count: usize,
}

/// The number of an origin's connections, and that of its oldest one.
type Rank = (usize, Reverse<u64>, Origin);

/// Says whether a connection has to make room for another, and why.
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
    from_place: Arc<Displaced>,
    from_handshake: Arc<Displaced>,
}

impl Arrivals {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// Admits a connection from this address. When there are too many connections, the newest one of the address that has most
    /// makes room, if this address has at least two fewer. When there are too many handshakes, the oldest one of the address that
    /// has most of these does.
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
        let number = counts.last;
        let (from_place, from_handshake) = <(Arc<Displaced>, Arc<Displaced>)>::default();
        counts.open.insert(origin, number, from_place.clone());
        counts.greeting.insert(origin, number, from_handshake.clone());
        if counts.greeting.count > handshakes as usize {
            counts.end_a_handshake();
        }
        Ok(Arrival { arrivals: self.clone(), origin, number, from_place, from_handshake })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Displaces the newest connection of the address that has most, if it still has at least `from_here` and one afterwards.
    /// Returns whether there is a place now.
    fn make_place(&mut self, from_here: usize, limit: u32) -> bool {
        // Connections without addresses keep their places: this machine or the program itself made them.
        let Some(origin) = self.open.most(|origin| origin != Origin::NONE) else { return false };
        if self.open.of(origin) < from_here + 2 || self.leaving >= limit.div_ceil(LEAVING) {
            return false;
        }
        let newest = self.open.connections[&origin].last_key_value();
        let Some((number, displaced)) = newest.map(|(number, displaced)| (*number, displaced.clone())) else {
            return false;
        };
        self.greeting.remove(origin, number);
        self.open.remove(origin, number);
        self.leaving += 1;
        displaced.say(format!(
            "the server has {limit} connections, which is its limits.connections, most of them from this address, and \
             another address needs a place"
        ));
        true
    }

    /// Ends the oldest handshake of the origin that has most of them.
    fn end_a_handshake(&mut self) {
        let Some(origin) = self.greeting.most(|_| true) else { return };
        let oldest = self.greeting.connections[&origin].first_key_value();
        if let Some((number, displaced)) = oldest.map(|(number, displaced)| (*number, displaced.clone())) {
            self.greeting.remove(origin, number);
            displaced.say("the server has too many unfinished handshakes (limits.handshakes)".into());
        }
    }

    /// A connection is gone.
    fn remove(&mut self, origin: Origin, number: u64) {
        self.greeting.remove(origin, number);
        if !self.open.remove(origin, number) {
            self.leaving -= 1;
        }
    }
}

impl ByOrigin {
    /// Returns the number of connections of an origin.
    fn of(&self, origin: Origin) -> usize {
        self.connections.get(&origin).map_or(0, BTreeMap::len)
    }

    /// Of the origins that `may_be` admits, returns the one with most connections; of several, the one with the oldest connection.
    fn most(&self, may_be: impl Fn(Origin) -> bool) -> Option<Origin> {
        self.ranks.iter().rev().map(|(.., origin)| *origin).find(|origin| may_be(*origin))
    }

    fn insert(&mut self, origin: Origin, number: u64, displaced: Arc<Displaced>) {
        self.unrank(origin);
        self.count += 1;
        self.connections.entry(origin).or_default().insert(number, displaced);
        self.ranks.extend(self.rank(origin));
    }

    /// Removes a connection. Returns false if it is not there.
    fn remove(&mut self, origin: Origin, number: u64) -> bool {
        self.unrank(origin);
        let Some(here) = self.connections.get_mut(&origin) else { return false };
        let is_there = here.remove(&number).is_some();
        self.count -= usize::from(is_there);
        if here.is_empty() {
            self.connections.remove(&origin);
        }
        self.ranks.extend(self.rank(origin));
        is_there
    }

    fn unrank(&mut self, origin: Origin) {
        if let Some(rank) = self.rank(origin) {
            self.ranks.remove(&rank);
        }
    }

    /// Returns the rank of an origin that has any.
    fn rank(&self, origin: Origin) -> Option<Rank> {
        let here = self.connections.get(&origin)?;
        let (oldest, _) = here.first_key_value()?;
        Some((here.len(), Reverse(*oldest), origin))
    }
}

impl Displaced {
    fn say(&self, why: String) {
        // Said once: the connection is listed no more.
        let _ = self.why.set(why);
        self.is_said.notify_one();
    }

    /// Resolves when another connection gets this one's place, with the reason. For one task at a time.
    async fn said(&self) -> String {
        loop {
            if let Some(why) = self.why.get() {
                return why.clone();
            }
            self.is_said.notified().await;
        }
    }
}

impl Arrival {
    /// Resolves when the connection has to make room before its handshake has ended, with the reason.
    pub(super) async fn handshake_displaced(&self) -> String {
        tokio::select! {
            why = self.from_handshake.said() => why,
            why = self.from_place.said() => why,
        }
    }

    /// Resolves when another connection has the place of this one, with the reason.
    pub(super) async fn displaced(&self) -> String {
        self.from_place.said().await
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
        [&arrival.from_place, &arrival.from_handshake].iter().any(|displaced| displaced.why.get().is_some())
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
        let mut flood: Vec<_> = (0..4).map(|_| arrivals.admit(address(1)).unwrap()).collect();
        assert!(arrivals.admit(address(1)).is_err(), "an address with most displaces none");
        let others = [arrivals.admit(address(2)).unwrap(), arrivals.admit(address(2)).unwrap()];
        assert_eq!(flood.iter().map(is_displaced).collect::<Vec<_>>(), [false, false, true, true]);
        assert!(flood[3].from_place.why.get().unwrap().contains("limits.connections"));
        assert!(arrivals.admit(address(2)).is_err(), "both addresses have two now");
        assert!(arrivals.admit(address(3)).is_err(), "two are leaving, which is an eighth of the limit");
        drop(flood.split_off(3));
        let _last = arrivals.admit(address(3)).unwrap();
        assert!(is_displaced(&flood[1]) && !others.iter().chain(&local).any(is_displaced));
        let counted = || {
            let counts = arrivals.counts();
            (counts.open.count, counts.leaving)
        };
        assert_eq!(counted(), (9, 2));
        drop((flood, others, local));
        assert_eq!(counted(), (1, 0));
    }

    #[test]
    fn ranks_follow_the_connections() {
        let arrivals = arrivals(|limits| limits.handshakes = 5);
        let mut random = fastrand::Rng::with_seed(1);
        let mut open = Vec::new();
        for _ in 0..2000 {
            if random.usize(..30) < open.len() {
                open.swap_remove(random.usize(..open.len()));
            } else {
                open.push(arrivals.admit(address(random.u8(..6))).unwrap());
            }
            let counts = arrivals.counts();
            for by_origin in [&counts.open, &counts.greeting] {
                let all = || by_origin.connections.iter();
                assert_eq!(by_origin.count, all().map(|(_, here)| here.len()).sum::<usize>());
                let ranks = all().filter_map(|(origin, _)| by_origin.rank(*origin)).collect();
                assert_eq!(by_origin.ranks, ranks);
                assert_eq!(by_origin.ranks.len(), by_origin.connections.len());
            }
            assert_eq!((counts.open.count, counts.leaving), (open.len(), 0));
        }
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
