//! Counters of devices that stand still in a healthy network.

mod known;

use std::collections::BTreeMap;

use self::known::{KNOWN, PAUSES, Place};
use super::Finding;
use super::Severity::Note;
use super::finding::{Kind, kinds};
use super::network::Priorities;
use super::view::View;
use crate::config::RdmaConfig;
use crate::device::{DeviceSummary, PortSummary};
use crate::machine::Machine;

kinds! { KINDS:
    LOSS = "packets-lost", Warning, Counters,
        "Packets of RDMA were lost, or came in another order. The device sends all again that came after them, so throughput falls and \
         latency rises.",
        "see whether they grow: `farcall doctor --watch 10`; if so give RoCE a lossless priority (PFC) or marks (ECN) on hosts and \
         switches, and look for full queues there";
    CONGESTION = "congestion", Warning, Counters,
        "Packets queue in the network, or in front of a receiver, and senders slow down. Some of that is normal under load.",
        "if throughput is too low, look for several senders to one receiver, or for a slow receiver";
    CORRUPTION = "damaged-packets", Warning, Counters,
        "Packets arrived damaged, by the cable, the transceiver, or the socket.",
        "reseat or replace cable and transceivers: `ethtool -m NETDEV`, `mlxlink -d DEVICE -c`, `ibdiagnet`";
    RECEIVER = "receiver-not-ready", Warning, Counters,
        "Messages arrived for which the receiver had no buffer. farcall counts the receiver's buffers and never sends more, so they were \
         another program's, or there is a bug.",
        "see which program it is: `rdma resource show qp`; if it is farcall, report a bug";
    ACCESS = "requests-refused", Warning, Counters,
        "A device refused requests: for memory that was not granted, or in a wrong state. A connection that ends while requests are on \
         their way leaves some, too.",
        "look into both programs' logs for closed connections at that time";
    LINK = "link-down", Warning, Counters,
        "The link of a port was lost.",
        "see the kernel's log for when; check cable and switch port";
    PAUSED = "paused-priority", Warning, Counters,
        "Pause frames (PFC) hold a priority up. `rx` are those that came: the switch, or a receiver behind it, is full. `tx` are those that \
         this card sent, because this machine takes packets more slowly than they come. Some of that is normal under load.",
        "if throughput is too low: for `rx` look for several senders to one receiver, or for a slow receiver; for `tx` see this machine's \
         PCIe, NUMA node and load";
    GAVE_UP = "gave-up", Warning, Counters,
        "The device repeated packets as often as it may, got no answer, and gave the connection up.",
        "find out whether the peer's host was down; else look for lost packets, MTU and the route to it (`ip route get ADDRESS`)";
}

pub(crate) use self::known::explanations;

/// The counters of all ports at a time that stand still in a healthy network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// By port, kind and name. The code of a kind stands for it.
    values: BTreeMap<(String, &'static str, String), Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    count: u64,
    /// A remark about what is counted. Mostly empty.
    about: String,
}

impl Counters {
    /// Reads the counters, for a process with this configuration. Blocks for milliseconds.
    pub fn read(machine: &Machine, config: &RdmaConfig) -> Self {
        Self::of(&View::new(machine, config))
    }

    pub(super) fn of(view: &View<'_>) -> Self {
        let suited = view.summaries.iter().filter(|device| device.unsuited.is_none());
        let ports = suited.flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        let of_port = |(device, port): (&DeviceSummary, &PortSummary)| {
            let at = format!("{} port {}", device.name, port.number);
            let counted = counted(view, device, port).into_iter();
            counted.map(move |(kind, name, value)| ((at.clone(), kind.code, name), value))
        };
        Self { values: ports.flat_map(of_port).collect() }
    }

    /// Returns a note about each kind and port of which a counter is not zero.
    pub fn not_zero(&self) -> Vec<Finding> {
        let findings = self.findings(None);
        // A trial has a request refused on purpose, so that a count says nothing.
        let findings = findings.into_iter().filter(|finding| finding.code != ACCESS.code);
        findings.map(|finding| finding.but(Note)).collect()
    }

    /// Returns a warning about each kind and port of which a counter has grown, with what each counter means.
    pub fn grown_since(&self, earlier: &Self) -> Vec<Finding> {
        self.findings(Some(earlier))
    }

    /// Returns a finding about each kind and port that has counted. `earlier`: only what has been counted since then.
    fn findings(&self, earlier: Option<&Self>) -> Vec<Finding> {
        let when = if earlier.is_some() { "while it was watched" } else { "since the driver was loaded" };
        let mut grown: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for (key @ (at, code, name), Value { count, about }) in &self.values {
            // One that was not there before did not grow.
            let before = earlier.map(|earlier| earlier.values.get(key).map_or(*count, |before| before.count));
            let growth = count.saturating_sub(before.unwrap_or(0));
            if growth == 0 {
                continue;
            }
            // Counts since long ago are many, and `farcall explain` tells what they mean.
            let meaning = earlier.and_then(|_| known::meaning(name));
            let meaning = meaning.map(|meaning| format!(" ({meaning})")).unwrap_or_default();
            grown.entry((at, code)).or_default().push(format!("{name} {growth}{meaning}{about}"));
        }
        let finding = |((at, code), grown): ((&str, &str), Vec<String>)| {
            let kind = KINDS.iter().find(|kind| kind.code == code)?;
            Some(Finding::new(kind, format!("{at} counted {} {when}", grown.join(", ")), kind.remedy))
        };
        grown.into_iter().filter_map(finding).collect()
    }
}

/// Returns the counters of a port, each with its kind and name.
fn counted(
    view: &View<'_>,
    device: &DeviceSummary,
    port: &PortSummary,
) -> Vec<(&'static Kind, String, Value)> {
    let netdev = view.netdev(device, port).filter(|_| !view.is_software(device));
    let cards = netdev.map(|netdev| view.cards(&netdev)).unwrap_or_default();
    let ethernet = of_cards(view, &cards);
    let of_file = |file: String| view.of_port(device, port, &file)?.parse().ok();
    let mut counted = Vec::new();
    for (kind, place, names) in KNOWN {
        for (name, _) in *names {
            let count = match place {
                Place::Hardware => of_file(format!("hw_counters/{name}")),
                Place::Port => of_file(format!("counters/{name}")),
                Place::Ethernet => ethernet.get(*name).copied(),
            };
            let value = count.map(|count| Value { count, about: String::new() });
            counted.extend(value.map(|value| (*kind, (*name).to_owned(), value)));
        }
    }
    let pauses = cards.first().map(|card| pauses(view, card, &ethernet)).unwrap_or_default();
    counted.extend(pauses.into_iter().map(|(name, value)| (&PAUSED, name, value)));
    counted
}

/// Returns the counters of pause frames for a priority of a card, with what the priority is for.
fn pauses(view: &View<'_>, card: &str, ethernet: &BTreeMap<String, u64>) -> Vec<(String, Value)> {
    let count = |(before, after): &(&str, &str), priority: u8| {
        let name = format!("{before}{priority}{after}");
        Some((priority, *ethernet.get(&name)?, name))
    };
    let found: Vec<_> =
        PAUSES.iter().flat_map(|names| (0..8).filter_map(move |priority| count(names, priority))).collect();
    // Programs are asked only where it matters.
    let mut priorities = None;
    let value = |(priority, count, name)| {
        let about = if count == 0 {
            String::new()
        } else {
            let priorities = priorities.get_or_insert_with(|| Priorities::read(view, card));
            format!(" (priority {priority}: {})", priorities.about(priority))
        };
        (name, Value { count, about })
    };
    found.into_iter().map(value).collect()
}

/// Returns the counters in the lines `NAME: VALUE` of `ethtool -S`, of all cards of a bond together.
fn of_cards(view: &View<'_>, cards: &[String]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for text in cards.iter().filter_map(|card| view.run(&["ethtool", "-S", card])) {
        let counters = text.lines().filter_map(|line| line.trim().rsplit_once(": "));
        for (name, value) in counters.filter_map(|(name, value)| Some((name, value.parse::<u64>().ok()?))) {
            let sum = sums.entry(name.to_owned()).or_insert(0_u64);
            *sum = sum.saturating_add(value);
        }
    }
    sums
}
