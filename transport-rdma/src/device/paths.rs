//! Chooses which of this side's addresses a link joins with which of the peer's.
//!
//! The RDMA network is often another one than that of the TCP connection. So each side knows several addresses of both. The
//! likeliest pair is tried first; a pair that has failed comes after those that have not.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Gid, GidKind, Match, Selection};

/// How long a failure counts: longer than the pauses between as many attempts as there are pairs.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The most failures that are remembered.
const MOST: usize = 1024;

/// An address that the peer's links may leave from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The address.
    pub gid: Gid,
    /// How packets travel there.
    pub kind: GidKind,
    /// How many of its 128 bits name its network.
    pub prefix: u8,
}

impl From<&Selection> for RemoteAddress {
    fn from(own: &Selection) -> Self {
        Self { gid: own.gid.gid, kind: own.gid.kind, prefix: own.prefix }
    }
}

/// The TCP connection's end at this side and at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamEnds {
    /// This side's address.
    pub local: Option<IpAddr>,
    /// The peer's address.
    pub peer: Option<IpAddr>,
}

impl StreamEnds {
    /// Whether both ends are on this machine.
    fn are_here(&self) -> bool {
        self.local.is_none_or(|local| local.is_loopback()) || self.local == self.peer
    }
}

/// The pairs of addresses that have failed, and when.
#[derive(Debug, Default)]
pub struct Paths {
    failed: Mutex<HashMap<(Gid, Gid), Instant>>,
    /// Counts choices, to spread them.
    turn: AtomicUsize,
}

/// How well two addresses join; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// When it has failed. `None` is less than any time.
    failed: Option<Instant>,
    reach: Reach,
    /// Not on the NUMA node that this process runs on.
    is_far: bool,
    kind: GidKind,
}

/// Why two addresses may reach each other, the likeliest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// TCP packets travel between them.
    Stream,
    /// They are in one network.
    Network,
    /// This side's is on the TCP connection's interface.
    Interface,
    /// Routers may know a way.
    Routed,
}

impl Paths {
    /// Returns the pair to try next: this side's address by its place, and the peer's. `None`: no two are of one kind.
    ///
    /// `home` is the NUMA node that this process runs on. Pairs that are equally good take turns.
    pub fn choose(
        &self,
        own: &[Selection],
        theirs: &[RemoteAddress],
        stream: StreamEnds,
        home: Option<u32>,
    ) -> Option<(usize, Gid)> {
        let failed = self.failed();
        let failed = |pair: (Gid, Gid)| failed.get(&pair).filter(|at| at.elapsed() < REMEMBERED).copied();
        let pairs =
            own.iter().enumerate().flat_map(|(i, own)| theirs.iter().map(move |their| (i, own, their)));
        let ranked: Vec<(Rank, usize, Gid)> = pairs
            .filter(|(_, own, their)| own.gid.kind == their.kind)
            // An address that both machines have leads a packet back to its sender.
            .filter(|(_, own, their)| own.gid.gid != their.gid || stream.are_here())
            .map(|(i, own, their)| {
                let is_far = home.is_some() && own.numa_node.is_some() && own.numa_node != home;
                let failed = failed((own.gid.gid, their.gid));
                (Rank { failed, reach: reach(own, their, stream), is_far, kind: their.kind }, i, their.gid)
            })
            .collect();
        let best = ranked.iter().map(|(rank, ..)| *rank).min()?;
        let equal: Vec<_> = ranked.iter().filter(|(rank, ..)| *rank == best).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (_, i, their) = equal.get(turn % equal.len())?;
        Some((*i, *their))
    }

    /// Begins a trial of a pair.
    pub fn trial(self: &Arc<Self>, own: Gid, their: Gid) -> PairOnTrial {
        PairOnTrial { paths: Arc::clone(self), pair: (own, their), works: false }
    }

    fn note_failure(&self, pair: (Gid, Gid)) {
        let mut failed = self.failed();
        if failed.len() >= MOST {
            failed.retain(|_, at| at.elapsed() < REMEMBERED);
        }
        if failed.len() < MOST {
            failed.insert(pair, Instant::now());
        }
    }

    fn failed(&self) -> MutexGuard<'_, HashMap<(Gid, Gid), Instant>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reach(own: &Selection, their: &RemoteAddress, stream: StreamEnds) -> Reach {
    let is_stream =
        own.matched == Match::Address && Some(their.gid.ip()) == stream.peer.map(|ip| ip.to_canonical());
    if is_stream {
        Reach::Stream
    } else if in_one_network(own.gid.gid, their.gid, own.prefix.max(their.prefix)) {
        Reach::Network
    } else if own.matched != Match::Rank {
        Reach::Interface
    } else {
        Reach::Routed
    }
}

/// Whether the first `prefix` bits of both are equal.
fn in_one_network(one: Gid, other: Gid, prefix: u8) -> bool {
    let differ = u128::from_be_bytes(one.0) ^ u128::from_be_bytes(other.0);
    differ.leading_zeros() >= u32::from(prefix)
}

/// A pair of addresses of which it is being found out whether they reach each other. It has failed when this is dropped, unless it
/// [works](Self::works).
#[derive(Debug)]
pub struct PairOnTrial {
    paths: Arc<Paths>,
    pair: (Gid, Gid),
    works: bool,
}

impl PairOnTrial {
    /// Returns the peer's address.
    pub fn theirs(&self) -> Gid {
        self.pair.1
    }

    /// Ends the trial of a link to this address of the peer's, which may be another than was asked for.
    pub fn works(mut self, their: Gid) {
        self.works = their == self.pair.1;
        if self.works {
            self.paths.failed().remove(&self.pair);
        }
    }
}

impl Drop for PairOnTrial {
    fn drop(&mut self) {
        if !self.works {
            self.paths.note_failure(self.pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::GidEntry;

    fn own(device: &str, ip: &str, prefix: u8, matched: Match) -> Selection {
        let ip: IpAddr = ip.parse().unwrap();
        let kind = if ip.is_ipv4() { GidKind::RoceV2Ipv4 } else { GidKind::RoceV2Ipv6 };
        let gid = GidEntry { index: 0, gid: ip.into(), kind, netdev: None };
        Selection {
            device: device.into(),
            numa_node: None,
            port: 1,
            gid,
            prefix,
            is_of_upper: false,
            matched,
        }
    }

    fn theirs(ips: &[&str]) -> Vec<RemoteAddress> {
        ips.iter().map(|ip| RemoteAddress::from(&own("", ip, 120, Match::Rank))).collect()
    }

    fn stream(local: &str, peer: &str) -> StreamEnds {
        StreamEnds { local: Some(local.parse().unwrap()), peer: Some(peer.parse().unwrap()) }
    }

    fn ip(chosen: Option<(usize, Gid)>) -> Option<(usize, String)> {
        chosen.map(|(i, gid)| (i, gid.ip().to_string()))
    }

    #[test]
    fn the_tcp_connections_own_addresses_come_first_then_a_common_network() {
        let mut ours = [own("a", "10.0.0.1", 120, Match::Address), own("b", "10.1.0.1", 120, Match::Rank)];
        let paths = Paths::default();
        let peer = theirs(&["10.1.0.2", "10.0.0.2"]);
        let tcp = stream("10.0.0.1", "10.0.0.2");
        assert_eq!(ip(paths.choose(&ours, &peer, tcp, None)), Some((0, "10.0.0.2".into())));
        // TCP goes by another network than RDMA.
        ours[0].matched = Match::Rank;
        let tcp = stream("192.168.0.1", "192.168.0.2");
        let peer = theirs(&["10.9.0.2", "10.1.0.2"]);
        assert_eq!(ip(paths.choose(&ours, &peer, tcp, None)), Some((1, "10.1.0.2".into())));
        // No common network: any pair of one kind.
        let peer = theirs(&["2001:db8::2", "10.9.0.2"]);
        assert_eq!(ip(paths.choose(&ours[..1], &peer, tcp, None)), Some((0, "10.9.0.2".into())));
        assert_eq!(paths.choose(&ours, &theirs(&["2001:db8::2"]), tcp, None), None);
    }

    #[test]
    fn a_pair_that_failed_is_tried_again_after_all_others() {
        let paths = Arc::new(Paths::default());
        let ours = [own("a", "10.0.0.1", 120, Match::Rank), own("b", "10.1.0.1", 120, Match::Rank)];
        let peer = theirs(&["10.0.0.2", "10.1.0.2"]);
        let tcp = stream("192.168.0.1", "192.168.0.2");
        let choose = || {
            let (i, their) = paths.choose(&ours, &peer, tcp, None).unwrap();
            paths.trial(ours[i].gid.gid, their)
        };
        let mut tried = Vec::new();
        for _ in 0..4 {
            tried.push(choose().pair);
        }
        let distinct: std::collections::HashSet<_> = tried.iter().collect();
        assert_eq!(distinct.len(), 4, "each pair once");
        let is_in_one_network = |(own, their): &(Gid, Gid)| in_one_network(*own, *their, 120);
        assert!(tried[..2].iter().all(is_in_one_network), "the likelier ones first: {tried:?}");
        let longest_ago = choose();
        assert_eq!(longest_ago.pair, tried[0]);
        drop(longest_ago);
        paths.trial(tried[2].0, tried[2].1).works(tried[2].1);
        let trial = choose();
        assert_eq!(trial.pair, tried[2]);
        // The server has answered from another address than the one that was asked for.
        trial.works(tried[0].1);
        assert_ne!(choose().pair, tried[2]);
    }

    #[test]
    fn equals_take_turns_and_the_near_device_is_better() {
        let paths = Paths::default();
        let mut ours = [own("a", "10.0.0.1", 120, Match::Rank), own("b", "10.0.0.3", 120, Match::Rank)];
        let peer = theirs(&["10.0.0.2"]);
        let tcp = stream("192.168.0.1", "192.168.0.2");
        let chosen: Vec<_> = (0..4).filter_map(|_| paths.choose(&ours, &peer, tcp, Some(1))).collect();
        assert_eq!(chosen.iter().filter(|(i, _)| *i == 0).count(), 2, "{chosen:?}");
        (ours[0].numa_node, ours[1].numa_node) = (Some(0), Some(1));
        assert!((0..4).all(|_| paths.choose(&ours, &peer, tcp, Some(1)).unwrap().0 == 1));
        assert!((0..4).any(|_| paths.choose(&ours, &peer, tcp, None).unwrap().0 == 0), "no node is home");
    }

    #[test]
    fn an_address_that_both_machines_have_joins_them_only_if_they_are_one() {
        let paths = Paths::default();
        let ours = [own("a", "172.17.0.1", 112, Match::Rank)];
        let peer = theirs(&["172.17.0.1"]);
        assert_eq!(paths.choose(&ours, &peer, stream("10.0.0.1", "10.0.0.2"), None), None);
        for (local, other) in [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1")] {
            assert!(paths.choose(&ours, &peer, stream(local, other), None).is_some());
        }
    }
}
