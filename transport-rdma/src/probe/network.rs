//! The settings by which the network treats packets: pauses, priorities and marks.

use std::collections::BTreeSet;

use farcall_core::class::TrafficClass;

use super::Finding;
use super::finding::kinds;
use super::firewall::ROCE_PORT;
use super::view::View;
use crate::device::LinkLayer;

kinds! { KINDS:
    LOSSY = "lossy-network", Note, Network,
        "RoCE repairs the loss of a packet by sending everything after it again. Where a switch may drop packets under load, throughput \
         falls steeply then. A priority that switches pause (PFC), or marks that slow senders down (ECN), prevent it.",
        "agree with the network's operators on a priority and a DSCP (often 3 and 26); set them by dcb(8) on all hosts, and \
         `rdma.dscp.normal` and `rdma.ecn` here";
    UNPROTECTED = "unprotected-priority", Note, Network,
        "The network card has a priority without loss, and farcall's packets are not in it. They are dropped first where a switch is full.",
        "set `rdma.dscp.normal` to the DSCP of the priority without loss, if that is RoCE's";
    TRUST = "dscp-not-trusted", Warning, Network,
        "The configuration marks packets with a DSCP, but this network card sorts by the VLAN's priority and ignores the mark. \
         They travel in the queue that has no protection.",
        "`dcb app add dev NETDEV dscp-prio DSCP:PRIORITY` (with MLNX_OFED: `mlnx_qos -i NETDEV --trust dscp`)";
    DSCP_UNMAPPED = "dscp-not-mapped", Warning, Network,
        "The configuration marks packets with a DSCP that this network card maps to no priority, or to one without pauses. \
         They travel in a queue that has no protection.",
        "`dcb app replace dev NETDEV dscp-prio DSCP:PRIORITY`, with the priority that pauses";
    STARVED = "starved-class", Warning, Network,
        "The network card shares its link among classes of priorities (ETS). A class without a share sends only what the others leave over. \
         Under load calls stand still, and connections fail.",
        "give the class a share of the link: `dcb ets set dev NETDEV tc-bw CLASS:SHARE`";
    SHARED = "shared-class", Note, Network,
        "RoCE's priority is without loss, and shares its class with packets that have no DSCP, which are TCP's. They take turns with \
         RoCE's, and a pause for RoCE holds up all of the class.",
        "give RoCE's priority a class of its own: `dcb ets set dev NETDEV prio-tc PRIORITY:CLASS`";
    ECN_OFF = "ecn-off", Warning, Network,
        "With `rdma.ecn` switches mark packets where they queue. This network card ignores the marks, or does not slow down for those who \
         report them, so queues grow until packets are lost.",
        "`echo 1 > /sys/class/net/NETDEV/ecn/roce_np/enable/PRIORITY`, and likewise for roce_rp";
    GLOBAL_PAUSE = "global-pause", Note, Network,
        "The network card pauses all traffic when the other side is full, TCP and heartbeats as well. It keeps RoCE from loss, but one \
         slow receiver can hold up the whole switch.",
        "pause for one priority instead (`dcb pfc set`), and last `ethtool -A NETDEV rx off tx off`";
    SMALL_RINGS = "small-rings", Note, Network,
        "Packets of TCP were dropped because the card had no buffers for them. RDMA has buffers of its own. TCP carries connections that \
         have no RDMA, and each session's beginning.",
        "`ethtool -G NETDEV rx MAXIMUM`";
}

pub(super) fn check(view: &View<'_>) -> Vec<Finding> {
    let Some((device, port, netdev)) = view.chosen() else { return Vec::new() };
    // Emulated devices send what the kernel sends, by whatever card.
    if port.link_layer == LinkLayer::InfiniBand || view.is_software(device) {
        return Vec::new();
    }
    // A bond's and a VLAN's settings are those of the cards below.
    let cards = netdev.map(|netdev| view.cards(&netdev)).unwrap_or_default();
    let of = |card: &String| {
        let qos = Qos::read(view, card);
        let ets = Ets::read(view, card);
        let found = [qos.loss(view), qos.priority(view), qos.ecn(view), qos.global_pause()];
        let found = found.into_iter().chain([ets.starved(view, &qos), ets.shared(view, &qos)]);
        found.chain([small_rings(view, card)]).flatten()
    };
    cards.iter().flat_map(of).collect()
}

/// The settings of a network card, as far as they can be read.
struct Qos<'a> {
    netdev: &'a str,
    /// The priorities for which the card pauses.
    lossless: Option<Vec<u8>>,
    /// Whether packets are sorted by their DSCP, not by the VLAN's priority. `None`: it is not known.
    trusts_dscp: Option<bool>,
    /// The priorities of DSCPs.
    dscp: Vec<(u8, u8)>,
    /// The priority that the table of applications gives RoCE's UDP port.
    roce: Option<u8>,
    /// Whether it pauses all traffic, both ways.
    pauses_all: bool,
}

impl<'a> Qos<'a> {
    fn read(view: &View<'_>, netdev: &'a str) -> Self {
        let pfc = view.run(&["dcb", "pfc", "show", "dev", netdev]);
        let app = view.run(&["dcb", "-N", "app", "show", "dev", netdev]);
        let dscp: Vec<_> = numbers(app.as_deref().unwrap_or_default(), "dscp-prio").collect();
        let ports = pairs(app.as_deref().unwrap_or_default(), "dgram-port-prio");
        let roce = ports
            .filter(|(port, _)| port.parse() == Ok(ROCE_PORT))
            .find_map(|(_, priority)| priority.parse().ok());
        // The kernel's drivers sort by the DSCP as soon as one is mapped. Others have a file.
        let trust = view.of_netdev(netdev, "qos/trust").map(|trust| trust == "dscp");
        let trusts_dscp = trust.or_else(|| app.is_some().then_some(!dscp.is_empty()));
        let pause = view.run(&["ethtool", "-a", netdev]).unwrap_or_default();
        let on = |direction: &str| {
            pause.lines().any(|line| line.strip_prefix(direction).is_some_and(|state| state.trim() == "on"))
        };
        let pauses_all = on("RX:") && on("TX:");
        Self { netdev, lossless: pfc.map(|text| enabled(&text)), trusts_dscp, dscp, roce, pauses_all }
    }

    /// Returns the commands that make a priority lossless for RoCE.
    fn protect(&self) -> String {
        format!(
            "agree with the network's operators on a priority and a DSCP (often 3 and 26), then `dcb pfc set dev {0} prio-pfc 3:on; dcb app \
             add dev {0} dscp-prio 26:3`, `rdma.dscp.normal = 26` and `rdma.ecn = true`",
            self.netdev
        )
    }

    fn loss(&self, view: &View<'_>) -> Option<Finding> {
        if view.config.ecn || self.pauses_all || !self.lossless.as_ref()?.is_empty() {
            return None;
        }
        let seen = format!("{} pauses for no priority, and rdma.ecn is off", self.netdev);
        Some(Finding::new(&LOSSY, seen, self.protect()))
    }

    /// Finds that packets are not in a priority that is lossless.
    fn priority(&self, view: &View<'_>) -> Option<Finding> {
        TrafficClass::ALL.into_iter().find_map(|class| self.of_mark(view.config.dscp.of(class)))
    }

    fn of_mark(&self, mark: u8) -> Option<Finding> {
        let netdev = self.netdev;
        if mark != 0 && self.trusts_dscp == Some(false) {
            let seen = format!("rdma.dscp is {mark}, {netdev} trusts the VLAN's priority (pcp)");
            let fix = format!(
                "`dcb app add dev {netdev} dscp-prio {mark}:PRIORITY` (with MLNX_OFED: `mlnx_qos -i {netdev} --trust dscp`)"
            );
            return Some(Finding::new(&TRUST, seen, fix));
        }
        let lossless = self.lossless.as_ref().filter(|lossless| !lossless.is_empty())?;
        let priority = self.priority_of(mark);
        if lossless.contains(&priority) {
            return None;
        }
        if mark == 0 {
            let seen = format!(
                "{netdev} pauses for {lossless:?}, and packets without a DSCP have priority {priority}"
            );
            let marks = self.dscp.iter().find(|(_, priority)| lossless.contains(priority));
            let fix = marks.map_or_else(
                || self.protect(),
                |(dscp, _)| format!("`rdma.dscp.normal = {dscp}`, if that priority is RoCE's"),
            );
            return Some(Finding::new(&UNPROTECTED, seen, fix));
        }
        let seen = format!("{netdev} puts DSCP {mark} into priority {priority}, and pauses for {lossless:?}");
        let fix = format!("`dcb app replace dev {netdev} dscp-prio {mark}:{}`", lossless[0]);
        Some(Finding::new(&DSCP_UNMAPPED, seen, fix))
    }

    /// Returns the priority of packets with this DSCP. Packets that are not mapped, or not in a VLAN, have priority 0.
    fn priority_of(&self, mark: u8) -> u8 {
        if self.trusts_dscp == Some(false) {
            return 0;
        }
        self.dscp.iter().find(|(dscp, _)| *dscp == mark).map_or(0, |(_, priority)| *priority)
    }

    /// Returns the priorities of farcall's packets, by class.
    fn own_priorities(&self, view: &View<'_>) -> [u8; TrafficClass::ALL.len()] {
        TrafficClass::ALL.map(|class| self.priority_of(view.config.dscp.of(class)))
    }

    /// Finds that ECN is off for the packets' priority, where the driver has the files of MLNX_OFED.
    fn ecn(&self, view: &View<'_>) -> Option<Finding> {
        if !view.config.ecn {
            return None;
        }
        let priorities = self.own_priorities(view);
        // The receiver's part (notification point), and the sender's (reaction point).
        let mut files = priorities
            .iter()
            .flat_map(|priority| ["roce_np", "roce_rp"].map(|part| format!("ecn/{part}/enable/{priority}")));
        let off = files.find(|file| view.of_netdev(self.netdev, file).as_deref() == Some("0"))?;
        let file = format!("/sys/class/net/{}/{off}", self.netdev);
        Some(Finding::new(&ECN_OFF, format!("rdma.ecn is on, and {file} is 0"), format!("`echo 1 > {file}`")))
    }

    fn global_pause(&self) -> Option<Finding> {
        let seen = format!("{} uses global pause frames", self.netdev);
        let fix = format!(
            "for one priority instead: {}, and last `ethtool -A {} rx off tx off`",
            self.protect(),
            self.netdev
        );
        self.pauses_all.then(|| Finding::new(&GLOBAL_PAUSE, seen, fix))
    }
}

/// The use of a card's priorities.
pub(super) struct Priorities {
    /// The priorities for which the card pauses.
    lossless: Vec<u8>,
    /// The priority that the card's table of applications gives RoCE.
    roce: Option<u8>,
    /// The priorities of farcall's packets.
    own: BTreeSet<u8>,
}

impl Priorities {
    pub(super) fn read(view: &View<'_>, netdev: &str) -> Self {
        let qos = Qos::read(view, netdev);
        let own = qos.own_priorities(view);
        Self { own: own.into(), roce: qos.roce, lossless: qos.lossless.unwrap_or_default() }
    }

    /// Returns what a priority is for.
    pub(super) fn about(&self, priority: u8) -> String {
        if self.own.contains(&priority) {
            return "farcall's packets have it".to_owned();
        }
        let own: Vec<_> = self.own.iter().map(u8::to_string).collect();
        let others = match (self.roce == Some(priority), self.lossless.contains(&priority)) {
            (true, _) => "RoCE's by the card's table of applications",
            (false, true) => "without loss, as RoCE's should be",
            (false, false) => "not RoCE's",
        };
        format!("{others}; farcall's packets have {}", own.join(" and "))
    }
}

/// The classes among which a network card shares its link, as far as they can be read: Enhanced Transmission Selection.
struct Ets<'a> {
    netdev: &'a str,
    /// The classes of priorities.
    classes: Vec<(u8, u8)>,
    /// The classes that have shares of what strict ones leave, in percent.
    shares: Vec<(u8, u8)>,
}

impl<'a> Ets<'a> {
    fn read(view: &View<'_>, netdev: &'a str) -> Self {
        let text = view.run(&["dcb", "ets", "show", "dev", netdev]).unwrap_or_default();
        let is_shared =
            |class: u8| pairs(&text, "tc-tsa").any(|(name, kind)| kind == "ets" && name.parse() == Ok(class));
        let shares = numbers(&text, "tc-bw").filter(|(class, _)| is_shared(*class)).collect();
        Self { netdev, classes: numbers(&text, "prio-tc").collect(), shares }
    }

    fn class_of(&self, priority: u8) -> Option<u8> {
        self.classes.iter().find(|(of, _)| *of == priority).map(|(_, class)| *class)
    }

    /// Finds that packets are in a class that has no share. mlx5's driver puts such classes below those that have one
    /// (`mlx5e_dcbnl_ieee_setets_core`).
    fn starved(&self, view: &View<'_>, qos: &Qos<'_>) -> Option<Finding> {
        // If no class has a share they are all equal.
        let (largest, most) = self.shares.iter().copied().max_by_key(|(_, share)| *share)?;
        TrafficClass::ALL.into_iter().find_map(|class| {
            let priority = qos.priority_of(view.config.dscp.of(class));
            let own = self.class_of(priority)?;
            let is_starved = most > 0 && self.shares.contains(&(own, 0));
            let netdev = self.netdev;
            let seen = format!("farcall's packets have priority {priority} of {netdev}, whose class {own} has 0 % of the link");
            let half = most / 2;
            let fix = format!("`dcb ets set dev {netdev} tc-bw {own}:{half} {largest}:{}` (or other shares whose sum is 100)", most - half);
            is_starved.then(|| Finding::new(&STARVED, seen, fix))
        })
    }

    /// Finds that the lossless priority of packets is in the class of those without a DSCP.
    fn shared(&self, view: &View<'_>, qos: &Qos<'_>) -> Option<Finding> {
        const UNMARKED: u8 = 0;
        let is_lossless = |priority: u8| qos.lossless.as_ref().is_some_and(|all| all.contains(&priority));
        TrafficClass::ALL.into_iter().find_map(|class| {
            let priority = qos.priority_of(view.config.dscp.of(class));
            let own = self.class_of(priority)?;
            let is_shared = is_lossless(priority) && !is_lossless(UNMARKED) && self.class_of(UNMARKED) == Some(own);
            let free = (0..8).find(|class| self.classes.iter().all(|(_, taken)| taken != class))?;
            let netdev = self.netdev;
            let seen = format!("{netdev} has the priorities {UNMARKED} and {priority}, RoCE's, in one class ({own})");
            let fix = format!("`dcb ets set dev {netdev} prio-tc {priority}:{free}`, and a share for that class (`tc-tsa`, `tc-bw`)");
            is_shared.then(|| Finding::new(&SHARED, seen, fix))
        })
    }
}

/// Finds that the card has dropped packets, and could have more buffers.
fn small_rings(view: &View<'_>, netdev: &str) -> Option<Finding> {
    let counters = view.run(&["ethtool", "-S", netdev])?;
    let dropped = |line: &str| {
        let (name, value) = line.trim().split_once(": ")?;
        (name == "rx_out_of_buffer" && value != "0").then(|| value.to_owned())
    };
    let dropped = counters.lines().find_map(dropped)?;
    // The maximum stands first, and then the current number.
    let rings = view.run(&["ethtool", "-g", netdev])?;
    let numbers = rings.lines().filter_map(|line| line.strip_prefix("RX:"));
    let numbers: Vec<u64> = numbers.filter_map(|number| number.trim().parse().ok()).collect();
    let &[most, now] = &numbers[..] else { return None };
    let seen = format!("{netdev} dropped {dropped} packets, and has {now} of {most} receive buffers");
    (now < most).then(|| Finding::new(&SMALL_RINGS, seen, format!("`ethtool -G {netdev} rx {most}`")))
}

/// Returns the pairs `KEY:VALUE` behind a name in the output of dcb(8).
fn pairs<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let words = text.split_whitespace().skip_while(move |word| *word != name).skip(1);
    words.map_while(|word| word.split_once(':'))
}

/// Returns those [`pairs`] that are numbers.
fn numbers<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (u8, u8)> {
    pairs(text, name).filter_map(|(key, value)| Some((key.parse().ok()?, value.parse().ok()?)))
}

/// Returns the priorities that `dcb pfc show` calls on.
fn enabled(text: &str) -> Vec<u8> {
    let on = pairs(text, "prio-pfc").filter(|(_, state)| *state == "on");
    on.filter_map(|(priority, _)| priority.parse().ok()).collect()
}
