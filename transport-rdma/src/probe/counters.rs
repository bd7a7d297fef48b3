//! Counters of devices that stand still in a healthy network.

use std::collections::BTreeMap;

use super::Finding;
use super::Severity::Note;
use super::finding::{Kind, kinds};
use super::view::View;
use crate::config::RdmaConfig;
use crate::machine::Machine;

kinds! { KINDS:
    LOSS = "packets-lost", Warning, Counters,
        "Packets of RDMA were lost, or came in another order. The device sends all again that came after them, so throughput falls and \
         latency rises.";
    CONGESTION = "congestion", Warning, Counters,
        "Packets queue in the network, or in front of a receiver, and senders slow down. Some of that is normal under load.";
    CORRUPTION = "damaged-packets", Warning, Counters,
        "Packets arrived damaged, by the cable, the transceiver, or the socket.";
    RECEIVER = "receiver-not-ready", Warning, Counters,
        "Messages arrived for which the receiver had no buffer. farcall counts the receiver's buffers and never sends more, so they were \
         another program's, or there is a bug.";
    ACCESS = "requests-refused", Warning, Counters,
        "A device refused requests: for memory that was not granted, or in a wrong state. A connection that ends while requests are on \
         their way leaves some, too.";
    LINK = "link-down", Warning, Counters,
        "The link of a port was lost.";
    GAVE_UP = "gave-up", Warning, Counters,
        "The device repeated packets as often as it may, got no answer, and gave the connection up.";
}

/// Where a counter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// `hw_counters` of a port.
    Hardware,
    /// `counters` of a port.
    Port,
    /// `ethtool -S` of the port's network interface.
    Ethernet,
}

/// Counters that stand still in a healthy network, by the names that drivers give them.
///
/// Sources: Documentation/ABI/stable/sysfs-class-infiniband and the drivers' own tables in the kernel (mlx5/counters.c,
/// bnxt_re/hw_counters.c, irdma/verbs.c, mana/counters.c, rxe_hw_counters.c; mlx5/counters.rst, bnxt_ethtool.c, ice_ethtool.c).
#[rustfmt::skip]
const KNOWN: &[(&Kind, Place, &[&str])] = &[
    (&LOSS, Place::Hardware, &[
        // mlx5
        "out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "roce_adp_retrans", "roce_adp_retrans_to",
        // bnxt_re
        "to_retransmits", "seq_err_naks_rcvd", "oos_drop_count", "missing_resp", "rx_roce_discards", "tx_roce_discards",
        // irdma
        "ip4InDiscards", "ip6InDiscards", "ip4OutNoRoutes", "ip6OutNoRoutes", "rxVlanErrors",
        // mana
        "requester_timeout", "requester_oos_nak", "responder_oos", "requester_implicit_nak",
        // rxe
        "out_of_seq_request", "rcvd_seq_err", "completer_retry_err", "send_err",
    ]),
    (&LOSS, Place::Port, &["port_xmit_discards"]),
    (&LOSS, Place::Ethernet, &[
        "rx_discards_phy", "tx_discards_phy", "outbound_pci_buffer_overflow", "tx_pause_storm_error_events",
        "rx_stat_discard", "continuous_roce_pause_events",
        "rx_dropped.nic",
    ]),
    (&CONGESTION, Place::Hardware, &[
        "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled",
        "rx_ecn_marked_pkts", "tx_cnp_pkts", "rx_cnp_pkts",
        "RxECNMrkd", "cnpSent", "cnpHandled",
        "received_cnps",
    ]),
    (&CONGESTION, Place::Port, &["port_xmit_wait"]),
    (&CONGESTION, Place::Ethernet, &[
        "tx_pause_ctrl_phy", "tx_pause_storm_warning_events", "outbound_pci_stalled_rd_events", "outbound_pci_stalled_wr_events",
        "tx_pause_frames", "tx_pfc_frames",
    ]),
    (&CORRUPTION, Place::Hardware, &["rx_icrc_encapsulated", "rx_roce_errors", "ip4InTruncatedPkts", "ip6InTruncatedPkts"]),
    (&CORRUPTION, Place::Port, &[
        "symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
    ]),
    (&CORRUPTION, Place::Ethernet, &[
        "rx_crc_errors_phy", "rx_symbol_err_phy", "rx_pcs_symbol_err_phy", "rx_pci_signal_integrity", "tx_pci_signal_integrity",
        "rx_fcs_err_frames", "rx_align_err_frames", "rx_fec_uncorrectable_blocks",
        "rx_crc_errors.nic", "illegal_bytes.nic",
    ]),
    (&RECEIVER, Place::Hardware, &[
        "out_of_buffer", "rnr_nak_retry_err", "req_rnr_retries_exceeded",
        "rnr_naks_rcvd", "rx_out_of_buffer",
        "requester_rnr_nak", "responder_rnr_nak", "requester_rnr_nak_retries_exceeded",
        "rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err",
    ]),
    (&ACCESS, Place::Hardware, &[
        "req_remote_access_errors", "resp_remote_access_errors", "req_remote_invalid_request", "resp_local_length_error",
        "remote_access_err", "remote_invalid_req_err", "local_protection_err",
        "nak_inv_req", "nak_access_error",
    ]),
    (&ACCESS, Place::Port, &["port_xmit_constraint_errors", "port_rcv_constraint_errors"]),
    (&GAVE_UP, Place::Hardware, &[
        "req_transport_retries_exceeded", "max_retry_exceeded", "requester_retries_exceeded", "retry_exceeded_err",
    ]),
    (&LINK, Place::Hardware, &["link_downed"]),
    (&LINK, Place::Port, &["link_downed"]),
    (&LINK, Place::Ethernet, &["link_down_events_phy", "link_down_events"]),
];

/// The counters of all ports at a time that stand still in a healthy network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// By port, kind and name. The code of a kind stands for it.
    values: BTreeMap<(String, &'static str, &'static str), u64>,
}

impl Counters {
    /// Reads the counters. Blocks for milliseconds.
    pub fn read(machine: &Machine) -> Self {
        Self::of(&View::new(machine, &RdmaConfig::default()))
    }

    pub(super) fn of(view: &View<'_>) -> Self {
        let mut values = BTreeMap::new();
        for device in view.summaries.iter().filter(|device| device.unsuited.is_none()) {
            for port in &device.ports {
                let netdev = view.netdev(device, port).filter(|_| !view.is_software(device));
                let cards = netdev.map(|netdev| view.cards(&netdev)).unwrap_or_default();
                let ethernet = cards.iter().filter_map(|card| view.machine.run(&["ethtool", "-S", card]));
                let ethernet: String = ethernet.map(|text| text + "\n").collect();
                for (kind, place, names) in KNOWN {
                    for name in *names {
                        let value = match place {
                            Place::Hardware => view.of_port(device, port, &format!("hw_counters/{name}")),
                            Place::Port => view.of_port(device, port, &format!("counters/{name}")),
                            Place::Ethernet => of_ethtool(&ethernet, name),
                        };
                        if let Some(value) = value.and_then(|value| value.parse().ok()) {
                            let at = format!("{} port {}", device.name, port.number);
                            values.insert((at, kind.code, *name), value);
                        }
                    }
                }
            }
        }
        Self { values }
    }

    /// Returns a note about each kind and port of which a counter is not zero.
    pub fn not_zero(&self) -> Vec<Finding> {
        let findings = self.findings("since the driver was loaded", |value, _| value, &Self::default());
        // A trial has a request refused on purpose, so that a count says nothing.
        let findings = findings.into_iter().filter(|finding| finding.code != ACCESS.code);
        findings.map(|finding| finding.but(Note)).collect()
    }

    /// Returns a warning about each kind and port of which a counter has grown.
    pub fn grown_since(&self, earlier: &Self) -> Vec<Finding> {
        self.findings("while it was watched", u64::saturating_sub, earlier)
    }

    fn findings(&self, when: &str, growth: impl Fn(u64, u64) -> u64, earlier: &Self) -> Vec<Finding> {
        let mut grown: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for (key @ (at, code, name), value) in &self.values {
            // One that was not there before did not grow.
            let before = earlier.values.get(key).copied().unwrap_or(if earlier.values.is_empty() {
                0
            } else {
                *value
            });
            let growth = growth(*value, before);
            if growth != 0 {
                grown.entry((at, code)).or_default().push(format!("{name} {growth}"));
            }
        }
        let finding = |((at, code), grown): ((&str, &str), Vec<String>)| {
            let (kind, remedy) = REMEDIES.iter().find(|(kind, _)| kind.code == code)?;
            Some(Finding::new(kind, format!("{at} counted {} {when}", grown.join(", ")), *remedy))
        };
        grown.into_iter().filter_map(finding).collect()
    }
}

/// Returns the value of the lines `NAME: VALUE` of `ethtool -S`.
fn of_ethtool(text: &str, name: &str) -> Option<String> {
    let values = text.lines().filter_map(|line| {
        let (found, value) = line.trim().rsplit_once(": ")?;
        if found == name { value.parse::<u64>().ok() } else { None }
    });
    // A bond has several cards.
    values.reduce(u64::saturating_add).map(|sum| sum.to_string())
}

/// The remedy of each kind.
static REMEDIES: &[(&Kind, &str)] = &[
    (
        &LOSS,
        "see whether they grow: `farcall doctor --watch 10`; if so give RoCE a lossless priority (PFC) or marks (ECN) on hosts and \
         switches, and look for full queues there",
    ),
    (
        &CONGESTION,
        "if throughput is too low, look for several senders to one receiver, or for a slow receiver",
    ),
    (
        &CORRUPTION,
        "reseat or replace cable and transceivers: `ethtool -m NETDEV`, `mlxlink -d DEVICE -c`, `ibdiagnet`",
    ),
    (&RECEIVER, "see which program it is: `rdma resource show qp`; if it is farcall, report a bug"),
    (&ACCESS, "look into both programs' logs for closed connections at that time"),
    (
        &GAVE_UP,
        "find out whether the peer's host was down; else look for lost packets, MTU and the route to it (`ip route get ADDRESS`)",
    ),
    (&LINK, "see the kernel's log for when; check cable and switch port"),
];
