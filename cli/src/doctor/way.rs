//! The way between two hosts as packets find it: whether it keeps their marks, and how long they may be.
//!
//! A mirror at the other host answers datagrams. They stand in for RoCE's packets, which are UDP, too.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use farcall::rdma::RdmaConfig;
use farcall::rdma::probe::Severity;
use farcall::{Channel, Status, Streaming, TrafficClass};
use serde_json::Value;

use super::between::{Between, PATIENCE, list};
use super::kinds;
use super::mirror::{Asker, Head, Seen};
use super::service::{DoctorClient, Mirror};
use crate::target::ends;

/// The DSCP that most networks give to RoCE. It is tried for configurations without one.
const CUSTOMARY: u8 = 26;

/// The bits of a mark below the DSCP, by which switches say that packets queue.
const ECN: u8 = 0b11;

/// The value of these bits in packets that switches may mark so.
const ECN_CAPABLE: u8 = 0b10;

/// Looks at the way between two addresses of RoCE, whether or not RDMA works on it. Looks at nothing if a host has no such address.
pub(super) async fn look(
    channel: &Channel,
    here: &Value,
    there: &Value,
    config: &RdmaConfig,
    has_rdma: bool,
) -> Vec<Between> {
    let (ours, theirs) = (ends_of(here), ends_of(there));
    if ours.is_empty() || theirs.is_empty() {
        return Vec::new();
    }
    match Way::open(channel, &ours, &theirs).await {
        Ok(mut way) => {
            let mut found = way.marks(config).await;
            found.extend(way.length(has_rdma).await);
            found
        }
        Err(untried) => vec![untried],
    }
}

/// An address from which a host's device sends packets of RoCE.
#[derive(Debug, Clone)]
pub(super) struct End {
    address: IpAddr,
    /// Whether connections leave from there that could leave from any.
    is_chosen: bool,
    netdev: String,
    /// The network interface's longest packet, in bytes.
    mtu: usize,
}

/// Returns the addresses of RoCE in a report.
pub(super) fn ends_of(report: &Value) -> Vec<End> {
    let ports = list(report, "devices").iter().flat_map(|device| list(device, "ports"));
    let of_port = |port: &Value| {
        let netdev = port["netdev"].as_str().unwrap_or("NETDEV").to_owned();
        let mtu = port["netdev_mtu"].as_u64().and_then(|mtu| mtu.try_into().ok());
        let end = |address: &Value| {
            let is_v2 = address["kind"].as_str()?.starts_with("RoCE v2");
            let is_chosen = address["is_chosen"] == true;
            let address = address["address"].as_str()?.parse().ok().filter(|_| is_v2)?;
            Some(End { address, is_chosen, netdev: netdev.clone(), mtu: mtu? })
        };
        list(port, "addresses").iter().filter_map(end).collect::<Vec<_>>()
    };
    ports.flat_map(of_port).collect()
}

/// A way with a mirror at its end.
struct Way {
    asker: Asker,
    own: End,
    peer: End,
    /// The mirror lives as long as this stream.
    _mirror: Streaming<Mirror>,
}

impl Way {
    /// Opens a mirror at the other host. An error says why the way can't be tried.
    async fn open(channel: &Channel, ours: &[End], theirs: &[End]) -> Result<Self, Between> {
        let refused = |status: Status| {
            untried(
                format!("the host answers no datagrams: {status}"),
                "run one version of farcall on both hosts, and try again".to_owned(),
            )
        };
        let unreached = |error: io::Error| refused(Status::unavailable(error.to_string()));
        let (address, server) = ends(channel).await.map_err(refused)?;
        let among = |ends: &[End], address| ends.iter().find(|end| end.address == address).cloned();
        let (Some(own), Some(peer)) = (among(ours, address), among(theirs, server.ip())) else {
            let chosen = theirs.iter().find(|end| end.is_chosen).unwrap_or(&theirs[0]).address;
            let chosen = SocketAddr::new(chosen, server.port());
            return Err(untried(
                format!("{address} and {} are not both addresses of RoCE", server.ip()),
                format!("name the host by its address of RoCE: `farcall doctor {chosen}`"),
            ));
        };
        let mirrors = DoctorClient::new(channel).mirror(peer.address).timeout(PATIENCE);
        let mut mirrors = mirrors.await.map_err(refused)?;
        let mirror = mirrors.message().await.map_err(refused)?;
        let Mirror { port, token } = mirror.ok_or_else(|| refused(Status::unavailable("it has ended")))?;
        // The scope stays that of the server's address, which a link-local one needs.
        let mut to = server;
        to.set_port(port);
        let asker = Asker::new(own.address, to, token).await.map_err(unreached)?;
        let mut way = Self { asker, own, peer, _mirror: mirrors };
        match way.asker.ask(Head::LENGTH, 0, false).await {
            Some(_) => Ok(way),
            None => Err(untried(
                format!("UDP datagrams to port {port} of {} get no answer", way.peer.address),
                "let the hosts exchange UDP on all ports for as long as you look".to_owned(),
            )),
        }
    }

    /// Finds that marks do not arrive as they were sent.
    async fn marks(&mut self, config: &RdmaConfig) -> Vec<Between> {
        let configured: BTreeSet<u8> = TrafficClass::ALL.map(|class| config.dscp.of(class)).into();
        let mut dscps: Vec<_> = configured.iter().copied().filter(|dscp| *dscp != 0).collect();
        if dscps.is_empty() {
            dscps.push(CUSTOMARY);
        }
        let ecn = if config.ecn { ECN_CAPABLE } else { 0 };
        let mut found = Vec::new();
        for dscp in dscps {
            let severity = if configured.contains(&dscp) { Severity::Warning } else { Severity::Note };
            let seen = self.asker.ask(Head::LENGTH, dscp << 2 | ecn, false).await;
            found.extend(dscp_changed(dscp, seen, severity));
        }
        if config.ecn {
            let mark = config.dscp.of(TrafficClass::Normal) << 2 | ECN_CAPABLE;
            found.extend(self.asker.ask(Head::LENGTH, mark, false).await.and_then(ecn_cleared));
        }
        found
    }

    /// Finds that the way carries shorter packets than the hosts send.
    async fn length(&mut self, has_rdma: bool) -> Option<Between> {
        let Self { asker, own, peer, .. } = self;
        let ip_header = if own.address.is_ipv4() { 20 } else { 40 };
        let headers = ip_header + 8;
        let (least, mtu) = (headers + Head::LENGTH, own.mtu.min(peer.mtu));
        // An interface on the port, of a VLAN say, may take less than the port's.
        let most = largest(least, mtu, async |length| asker.fits(length - headers).await).await;
        let passes = async |length| asker.ask(length - headers, 0, false).await.is_some();
        let carried = largest(least, most, passes).await;
        // A network that was silent for a moment would look like this.
        if carried == most || asker.ask(most - headers, 0, false).await.is_some() {
            return None;
        }
        let direction = match asker.ask(most - headers, 0, true).await {
            Some(_) => "back",
            None => "there",
        };
        let found = kinds::PATH_MTU.found(format!(
            "the way {direction} carries packets of up to {carried} bytes, and both hosts send up to {most}"
        ));
        let fix = format!(
            "raise the MTU of the switches between the hosts to {most} or more (often 9216), or `ip link set {} mtu {carried}` here and \
             likewise there",
            own.netdev
        );
        if has_rdma || longest_of_roce(ip_header, mtu) <= carried {
            return Some(Between { fix, ..found });
        }
        let means = "RDMA's packets are as long as the hosts' MTU allows. On this way they are lost, and connections go back to TCP.";
        Some(Between { severity: Severity::Fault, means, fix, ..found })
    }
}

/// Returns the length of RoCE's longest packets between hosts with this MTU.
fn longest_of_roce(ip_header: usize, mtu: usize) -> usize {
    // Payloads leave room for all headers that there are: 96 bytes. Packets with a whole payload have UDP 8, BTH 12, RETH 16, ICRC 4.
    let payload = [4096, 2048, 1024, 512].into_iter().find(|payload| payload + 96 <= mtu);
    payload.unwrap_or(256) + ip_header + 40
}

/// Returns the largest number that passes, where `least` does and numbers above a limit do not.
async fn largest(least: usize, most: usize, mut passes: impl AsyncFnMut(usize) -> bool) -> usize {
    if most <= least || passes(most).await {
        return most.max(least);
    }
    let (mut passed, mut failed) = (least, most);
    while failed - passed > 1 {
        let middle = passed.midpoint(failed);
        match passes(middle).await {
            true => passed = middle,
            false => failed = middle,
        }
    }
    passed
}

/// Finds that a DSCP does not arrive as it was sent, or that packets with it do not arrive.
fn dscp_changed(dscp: u8, seen: Option<Seen>, severity: Severity) -> Option<Between> {
    let Some(seen) = seen else {
        let found = kinds::DSCP_DROPPED.found(format!("packets with DSCP {dscp} get no answer, others do"));
        return Some(Between { severity, ..found });
    };
    let changes: Vec<_> = [(seen.there, "there"), (seen.here, "back")]
        .into_iter()
        .filter(|(mark, _)| mark >> 2 != dscp)
        .map(|(mark, direction)| format!("becomes {} on the way {direction}", mark >> 2))
        .collect();
    if changes.is_empty() {
        return None;
    }
    let found = kinds::DSCP_REWRITTEN.found(format!("DSCP {dscp} {}", changes.join(" and ")));
    Some(Between { severity, ..found })
}

/// Finds that the bits are gone by which switches tell of queues.
fn ecn_cleared(seen: Seen) -> Option<Between> {
    let ways: Vec<_> = [(seen.there, "there"), (seen.here, "back")]
        .into_iter()
        .filter(|(mark, _)| mark & ECN == 0)
        .map(|(_, direction)| format!("on the way {direction}"))
        .collect();
    let seen = format!("rdma.ecn is on, and the ECN bits of packets are cleared {}", ways.join(" and "));
    (!ways.is_empty()).then(|| kinds::ECN_CLEARED.found(seen))
}

fn untried(why: String, fix: String) -> Between {
    Between { fix, ..kinds::UNTRIED.found(format!("DSCP and packet lengths were not tried: {why}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_largest_that_passes_is_found() {
        for (limit, expected) in [(44, 44), (45, 45), (1400, 1400), (4499, 4499), (4500, 4500), (9999, 4500)]
        {
            assert_eq!(largest(44, 4500, async |length| length <= limit).await, expected);
        }
        assert_eq!(largest(44, 44, async |_| false).await, 44);
    }

    #[test]
    fn the_longest_packets_of_roce_fit_the_mtu() {
        for (mtu, expected) in [(9000, 4156), (4500, 4156), (4191, 2108), (1500, 1084), (576, 316)] {
            assert_eq!(longest_of_roce(20, mtu), expected, "{mtu}");
        }
    }

    #[test]
    fn each_way_on_which_a_mark_changes_is_named() {
        let seen = |there, here| Some(Seen { there, here });
        assert!(dscp_changed(26, seen(26 << 2, 26 << 2 | ECN), Severity::Warning).is_none());
        let both = dscp_changed(26, seen(0, 8 << 2), Severity::Warning).unwrap();
        assert_eq!(both.seen, "DSCP 26 becomes 0 on the way there and becomes 8 on the way back");
        let back = dscp_changed(26, seen(26 << 2, 0), Severity::Note).unwrap();
        assert_eq!((back.code, back.seen.as_str()), ("dscp-rewritten", "DSCP 26 becomes 0 on the way back"));
        assert_eq!(dscp_changed(26, None, Severity::Warning).unwrap().code, "dscp-dropped");
    }

    #[test]
    fn a_mark_of_congestion_is_no_cleared_bit() {
        assert!(ecn_cleared(Seen { there: 26 << 2 | ECN, here: ECN_CAPABLE }).is_none());
        let there = ecn_cleared(Seen { there: 26 << 2, here: ECN_CAPABLE }).unwrap();
        assert!(there.seen.ends_with("are cleared on the way there"), "{}", there.seen);
    }

    #[test]
    fn addresses_of_roce_alone_are_ends() {
        let report = serde_json::json!({ "devices": [{ "ports": [
            { "netdev": "e0", "netdev_mtu": 9000, "addresses": [
                { "address": "10.0.0.1", "kind": "RoCE v1", "is_chosen": false },
                { "address": "10.0.0.1", "kind": "RoCE v2", "is_chosen": true },
                { "address": "nonsense", "kind": "RoCE v2", "is_chosen": true },
            ] },
            { "netdev": "ib0", "netdev_mtu": 2044, "addresses": [{ "address": "fe80::1", "kind": "InfiniBand", "is_chosen": true }] },
            { "addresses": 7 },
        ] }] });
        let ends = ends_of(&report);
        assert_eq!(ends.len(), 1, "{ends:?}");
        assert_eq!((ends[0].address.to_string().as_str(), ends[0].mtu), ("10.0.0.1", 9000));
        assert!(ends_of(&Value::Null).is_empty());
    }
}
