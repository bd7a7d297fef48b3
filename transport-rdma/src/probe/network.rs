//! The settings by which the network treats packets: pauses, priorities, marks, and rules of the firewall.

use farcall_core::class::TrafficClass;

use super::Finding;
use super::finding::kinds;
use super::view::View;
use crate::device::LinkLayer;

kinds! { KINDS:
    LOSSY = "lossy-network", Note, Network,
        "RoCE repairs the loss of a packet by sending everything after it again. Where a switch may drop packets under load, throughput \
         falls steeply then. A priority that switches pause (PFC), or marks that slow senders down (ECN), prevent it.";
    TRUST = "dscp-not-trusted", Warning, Network,
        "The configuration marks packets with a DSCP, but this network card sorts by the VLAN's priority and ignores the mark. \
         They travel in the queue that has no protection.";
    DSCP_UNMAPPED = "dscp-not-mapped", Warning, Network,
        "The configuration marks packets with a DSCP that this network card maps to no priority, or to one without pauses. \
         They travel in a queue that has no protection.";
    GLOBAL_PAUSE = "global-pause", Note, Network,
        "The network card pauses all traffic when the other side is full, TCP and heartbeats as well. One slow receiver can hold up \
         the whole switch.";
    WRONG_PAUSE = "pause-on-other-priority", Warning, Network,
        "Pauses come for a priority that is not lossless here. Switch and host disagree about which one is.";
    SMALL_RINGS = "small-rings", Note, Network,
        "Packets of TCP were dropped because the card had no buffers for them. RDMA has buffers of its own. TCP carries connections that \
         have no RDMA, and each session's beginning.";
    DROPPED = "firewall-drops-roce", Fault, Network,
        "Packets of Soft-RoCE pass the kernel's firewall, and it drops them. Connections go by TCP after their probe has timed out.";
    MAY_DROP = "firewall-may-drop-roce", Warning, Network,
        "Packets of Soft-RoCE pass the kernel's firewall, which drops what no rule accepts. No rule names RoCE's port.";
}

/// The UDP port of RoCE v2, as IANA has assigned it.
const ROCE_PORT: &str = "4791";

pub(super) fn check(view: &View<'_>) -> Vec<Finding> {
    let Some((device, port, netdev)) = view.chosen() else { return Vec::new() };
    if port.link_layer == LinkLayer::InfiniBand {
        return Vec::new();
    }
    if view.is_software(device) {
        return firewall(view).into_iter().collect();
    }
    let Some(netdev) = netdev else { return Vec::new() };
    let qos = Qos::read(view, &netdev);
    [
        qos.loss(view),
        qos.marks(view),
        qos.global_pause(view),
        qos.wrong_pause(view),
        small_rings(view, &netdev),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The settings of a network interface, as far as they can be read.
struct Qos<'a> {
    netdev: &'a str,
    /// The priorities for which the card pauses.
    lossless: Option<Vec<u8>>,
    /// The order of packets: by the `dscp`, or by the VLAN's priority (`pcp`).
    trust: Option<String>,
    /// The priorities of DSCPs.
    dscp: Vec<(u8, u8)>,
}

impl<'a> Qos<'a> {
    fn read(view: &View<'_>, netdev: &'a str) -> Self {
        let pfc = view.machine.run(&["dcb", "pfc", "show", "dev", netdev]);
        let app = view.machine.run(&["dcb", "-N", "app", "show", "dev", netdev]).unwrap_or_default();
        let dscp = pairs(&app, "dscp-prio")
            .filter_map(|(dscp, priority)| Some((dscp.parse().ok()?, priority.parse().ok()?)));
        let dscp: Vec<_> = dscp.collect();
        // Drivers of the kernel sort by the DSCP as soon as one is mapped; others have a file.
        let trust =
            view.of_netdev(netdev, "qos/trust").or_else(|| (!dscp.is_empty()).then(|| "dscp".to_owned()));
        Self { netdev, lossless: pfc.map(|text| enabled(&text)), trust, dscp }
    }

    fn loss(&self, view: &View<'_>) -> Option<Finding> {
        if view.config.ecn || !self.lossless.as_ref()?.is_empty() {
            return None;
        }
        let seen = format!("{} pauses for no priority, and rdma.ecn is off", self.netdev);
        let fix = format!(
            "agree with the network's operators on a priority and a DSCP (often 3 and 26), then `dcb pfc set dev {0} prio-pfc 3:on; dcb app \
             add dev {0} dscp-prio 26:3`, `rdma.dscp = 26` and `rdma.ecn = true`",
            self.netdev
        );
        Some(Finding::new(&LOSSY, seen, fix))
    }

    /// Finds that the configured marks mean nothing to this card.
    fn marks(&self, view: &View<'_>) -> Option<Finding> {
        let classes = [TrafficClass::Normal, TrafficClass::Urgent, TrafficClass::Bulk];
        let mark = classes.into_iter().map(|class| view.config.dscp.of(class)).find(|mark| *mark != 0)?;
        let trust = self.trust.as_deref()?;
        if trust != "dscp" {
            let seen = format!("rdma.dscp = {mark}, {} trusts {trust}", self.netdev);
            let fix = format!(
                "dcb app add dev {} dscp-prio {mark}:PRIORITY (with MLNX_OFED: `mlnx_qos -i {} --trust dscp`)",
                self.netdev, self.netdev
            );
            return Some(Finding::new(&TRUST, seen, fix));
        }
        let lossless = self.lossless.as_ref().filter(|lossless| !lossless.is_empty())?;
        let priority = self.dscp.iter().find(|(dscp, _)| *dscp == mark).map(|(_, priority)| *priority);
        if priority.is_some_and(|priority| lossless.contains(&priority)) || self.dscp.is_empty() {
            return None;
        }
        let mapped =
            priority.map_or_else(|| "no priority".to_owned(), |priority| format!("priority {priority}"));
        let seen = format!("{} maps DSCP {mark} to {mapped}, and pauses for {lossless:?}", self.netdev);
        let fix = format!("dcb app replace dev {} dscp-prio {mark}:{}", self.netdev, lossless[0]);
        Some(Finding::new(&DSCP_UNMAPPED, seen, fix))
    }

    fn global_pause(&self, view: &View<'_>) -> Option<Finding> {
        let text = view.machine.run(&["ethtool", "-a", self.netdev])?;
        let on = |direction| {
            text.lines().any(|line| line.strip_prefix(direction).is_some_and(|state| state.trim() == "on"))
        };
        let seen = format!("{} uses global pause frames", self.netdev);
        let fix = format!(
            "for priorities instead: `ethtool -A {0} rx off tx off; dcb pfc set dev {0} prio-pfc 3:on`",
            self.netdev
        );
        (on("RX:") || on("TX:")).then(|| Finding::new(&GLOBAL_PAUSE, seen, fix))
    }

    /// Finds pauses of priorities that are not lossless.
    fn wrong_pause(&self, view: &View<'_>) -> Option<Finding> {
        let lossless = self.lossless.as_ref()?;
        let text = view.machine.run(&["ethtool", "-S", self.netdev])?;
        let paused = (0..8).filter(|priority| !lossless.contains(priority)).find_map(|priority| {
            let name = format!("rx_prio{priority}_pause:");
            let value = text.lines().find_map(|line| line.trim().strip_prefix(&name))?.trim();
            (value != "0").then(|| (priority, value.to_owned()))
        });
        let (priority, count) = paused?;
        let seen = format!(
            "{} got {count} pauses for priority {priority}, and pauses itself for {lossless:?}",
            self.netdev
        );
        let fix = format!(
            "set up one priority on both: `dcb pfc set dev {} prio-pfc all:off {priority}:on`, or change the switch",
            self.netdev
        );
        Some(Finding::new(&WRONG_PAUSE, seen, fix))
    }
}

/// Finds that the card has dropped packets, and could have more buffers.
fn small_rings(view: &View<'_>, netdev: &str) -> Option<Finding> {
    let counters = view.machine.run(&["ethtool", "-S", netdev])?;
    let dropped = |line: &str| {
        let (name, value) = line.trim().split_once(": ")?;
        (name == "rx_out_of_buffer" && value != "0").then(|| value.to_owned())
    };
    let dropped = counters.lines().find_map(dropped)?;
    // The maximum stands first, and then the current number.
    let rings = view.machine.run(&["ethtool", "-g", netdev])?;
    let numbers: Vec<u64> = rings
        .lines()
        .filter_map(|line| line.strip_prefix("RX:"))
        .filter_map(|number| number.trim().parse().ok())
        .collect();
    let &[most, now] = &numbers[..] else { return None };
    let seen = format!("{netdev} dropped {dropped} packets, and has {now} of {most} receive buffers");
    (now < most).then(|| Finding::new(&SMALL_RINGS, seen, format!("ethtool -G {netdev} rx {most}")))
}

/// Returns the pairs `KEY:VALUE` behind a name in the output of dcb(8).
fn pairs<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let words = text.split_whitespace().skip_while(move |word| *word != name).skip(1);
    words.map_while(|word| word.split_once(':'))
}

/// Returns the priorities that `dcb pfc show` calls on.
fn enabled(text: &str) -> Vec<u8> {
    pairs(text, "prio-pfc")
        .filter(|(_, state)| *state == "on")
        .filter_map(|(priority, _)| priority.parse().ok())
        .collect()
}

/// Finds rules that drop the packets of an emulated device. A real one's don't pass the kernel.
fn firewall(view: &View<'_>) -> Option<Finding> {
    let nft = view.machine.run(&["nft", "list", "ruleset"]).unwrap_or_default();
    let tables = view.machine.run(&["iptables-save"]).unwrap_or_default();
    let rules = || nft.lines().chain(tables.lines()).map(str::trim);
    let names_port =
        |rule: &&str| rule.split(|c: char| !c.is_ascii_digit()).any(|number| number == ROCE_PORT);
    let drops =
        |rule: &&str| ["drop", "reject", "DROP", "REJECT"].iter().any(|verdict| rule.contains(verdict));
    if let Some(rule) = rules().filter(names_port).find(drops) {
        let program = if nft.contains(rule) { "nft" } else { "iptables" };
        let fix = format!("take the rule out, or accept UDP port {ROCE_PORT} before it (`{program}`)");
        return Some(Finding::new(&DROPPED, format!("a rule of {program} drops RoCE: `{rule}`"), fix));
    }
    let is_closed = |rule: &str| {
        let of_nft = rule.contains("hook input") && rule.contains("policy drop");
        of_nft || rule.starts_with(":INPUT DROP")
    };
    let closed = rules().find(|rule| is_closed(rule)).filter(|_| !rules().any(|rule| names_port(&rule)))?;
    let (by, fix) = match closed.starts_with(':') {
        true => ("iptables", format!("iptables -I INPUT -p udp --dport {ROCE_PORT} -j ACCEPT")),
        false => (
            "nft",
            format!(
                "accept it in that chain: `nft insert rule inet filter input udp dport {ROCE_PORT} accept`"
            ),
        ),
    };
    Some(Finding::new(&MAY_DROP, format!("{by} drops what no rule accepts: `{closed}`"), fix))
}
