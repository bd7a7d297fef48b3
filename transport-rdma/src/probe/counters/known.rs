//! The counters that stand still in a healthy network, each with its meaning: one table for findings and for `farcall explain`.

use std::collections::BTreeSet;

use farcall_core::explain::{Explanation, sentence};
use farcall_core::status::Blame;

use super::{ACCESS, CONGESTION, CORRUPTION, GAVE_UP, LINK, LOSS, PAUSED, RECEIVER};
use crate::probe::Kind;

/// Where a counter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// `hw_counters` of a port.
    Hardware,
    /// `counters` of a port.
    Port,
    /// `ethtool -S` of the port's network interface.
    Ethernet,
}

use Place::{Ethernet, Hardware, Port};

/// A counter's name, and the things that it counts.
type Counter = (&'static str, &'static str);

/// Counters by the kind of their findings and by their place, under the names that drivers give them.
///
/// Sources: Documentation/ABI/stable/sysfs-class-infiniband and the drivers' own tables in the kernel (mlx5/counters.c,
/// bnxt_re/hw_counters.c, irdma/verbs.c, mana/counters.c, rxe_hw_counters.c; mlx5/counters.rst, bnxt_ethtool.c, ice_ethtool.c).
#[rustfmt::skip]
pub(super) const KNOWN: &[(&Kind, Place, &[Counter])] = &[
    (&LOSS, Hardware, &[
        // mlx5
        ("out_of_sequence", "packets that arrived out of order, mostly because one before them was lost"),
        ("packet_seq_err", "reports from peers that a packet from this device is missing (sequence NAK)"),
        ("implied_nak_seq_err", "answers from which this device saw that an earlier one was lost, as of a READ"),
        ("local_ack_timeout_err", "requests that had no answer in time and were sent again, before the device gave up"),
        ("roce_adp_retrans", "packets that adaptive retransmission sent again"),
        ("roce_adp_retrans_to", "timeouts of adaptive retransmission"),
        // bnxt_re
        ("to_retransmits", "packets sent again because no answer came in time"),
        ("seq_err_naks_rcvd", "reports from peers that a packet from this device is missing (sequence NAK)"),
        ("oos_drop_count", "packets that arrived out of order and were dropped"),
        ("missing_resp", "answers that did not come although a later one did"),
        ("rx_roce_discards", "arriving RoCE packets that the card dropped, mostly for lack of buffers"),
        ("tx_roce_discards", "RoCE packets that the card dropped instead of sending them"),
        // irdma
        ("ip4InDiscards", "arriving IPv4 packets that the device dropped without an error in them"),
        ("ip6InDiscards", "arriving IPv6 packets that the device dropped without an error in them"),
        ("ip4OutNoRoutes", "IPv4 packets that were not sent because the device knew no route"),
        ("ip6OutNoRoutes", "IPv6 packets that were not sent because the device knew no route"),
        ("rxVlanErrors", "arriving packets that were dropped for a wrong VLAN"),
        // mana
        ("requester_timeout", "requests that had no answer in time"),
        ("requester_oos_nak", "reports from peers that a packet from this device is missing (sequence NAK)"),
        ("responder_oos", "requests that arrived out of order"),
        ("requester_implicit_nak", "answers from which this device saw that an earlier one was lost, as of a READ"),
        // rxe
        ("out_of_seq_request", "requests that arrived out of order, mostly because one before them was lost"),
        ("rcvd_seq_err", "reports from peers that a packet from this device is missing (sequence NAK)"),
        ("completer_retry_err", "times that requests were sent again, after a timeout or a missing answer"),
        ("send_err", "packets that the kernel's network did not take"),
    ]),
    (&LOSS, Port, &[("port_xmit_discards", "packets that the port dropped instead of sending them, because it was down or congested")]),
    (&LOSS, Ethernet, &[
        ("rx_discards_phy", "arriving packets that the card dropped for lack of buffers: it can't take what the network sends"),
        ("tx_discards_phy", "packets that the port dropped instead of sending them: the link was down, or paused for too long"),
        ("outbound_pci_buffer_overflow", "packets dropped because the PCIe bus took them more slowly than they came"),
        ("tx_pause_storm_error_events", "times that the card sent pause frames for so long that it stopped sending them; packets may have been dropped then"),
        // bnxt_en
        ("rx_stat_discard", "arriving packets that the card dropped"),
        ("continuous_roce_pause_events", "times that RoCE's priority was paused for so long that the card gave its packets up"),
        // ice
        ("rx_dropped.nic", "arriving packets that the port dropped for lack of buffers"),
    ]),
    (&CONGESTION, Hardware, &[
        // mlx5
        ("np_ecn_marked_roce_packets", "RoCE packets that arrived with the mark of a congested switch (ECN)"),
        ("np_cnp_sent", "notices of congestion (CNP) that this device sent, so that the senders of marked packets slow down"),
        ("rp_cnp_handled", "notices of congestion (CNP) that came, for which this device slowed down"),
        // bnxt_re
        ("rx_ecn_marked_pkts", "RoCE packets that arrived with the mark of a congested switch (ECN)"),
        ("tx_cnp_pkts", "notices of congestion (CNP) that this device sent, so that the senders of marked packets slow down"),
        ("rx_cnp_pkts", "notices of congestion (CNP) that came from receivers of this device's packets"),
        // irdma
        ("RxECNMrkd", "packets that arrived with the mark of a congested switch (ECN)"),
        ("cnpSent", "notices of congestion (CNP) that this device sent, so that the senders of marked packets slow down"),
        ("cnpHandled", "notices of congestion (CNP) that came, for which this device slowed down"),
        // mana
        ("received_cnps", "notices of congestion (CNP) that came from receivers of this device's packets"),
    ]),
    (&CONGESTION, Port, &[("port_xmit_wait", "ticks in which the port had data to send but could not, because the other side had no room")]),
    (&CONGESTION, Ethernet, &[
        ("tx_pause_ctrl_phy", "pause frames that the card sent because it can't take what the network sends"),
        ("tx_pause_storm_warning_events", "times that the card sent pause frames for a long time"),
        ("outbound_pci_stalled_rd_events", "seconds in which PCIe held up the card's reads for more than 30 % of the time"),
        ("outbound_pci_stalled_wr_events", "seconds in which PCIe held up the card's writes for more than 30 % of the time"),
        // bnxt_en
        ("tx_pause_frames", "pause frames that the card sent because it can't take what the network sends"),
    ]),
    (&CORRUPTION, Hardware, &[
        ("rx_icrc_encapsulated", "RoCE packets that arrived with a wrong checksum of their content (ICRC)"),
        ("rx_roce_errors", "RoCE packets that arrived with an error"),
        ("ip4InTruncatedPkts", "IPv4 packets that arrived cut short"),
        ("ip6InTruncatedPkts", "IPv6 packets that arrived cut short"),
    ]),
    (&CORRUPTION, Port, &[
        ("symbol_error", "small errors on the cable's lanes"),
        ("link_error_recovery", "times that the port had to recover the link from errors, and did"),
        ("port_rcv_errors", "packets that arrived with an error"),
        ("port_rcv_remote_physical_errors", "packets that arrived with a mark that they were damaged before this cable"),
        ("local_link_integrity_errors", "times that errors on the cable were more than the port's limit"),
        ("excessive_buffer_overrun_errors", "times that the port's buffers overflowed again and again"),
    ]),
    (&CORRUPTION, Ethernet, &[
        ("rx_crc_errors_phy", "packets that the port dropped for a wrong checksum (FCS)"),
        ("rx_symbol_err_phy", "packets that the port dropped for errors on the cable's lanes"),
        ("rx_pcs_symbol_err_phy", "errors on the cable's lanes that error correction (FEC) did not mend"),
        ("rx_pci_signal_integrity", "errors on the PCIe bus that this card saw; try another slot"),
        ("tx_pci_signal_integrity", "errors on the PCIe bus that the machine's side saw; try another slot"),
        // bnxt_en
        ("rx_fcs_err_frames", "packets that arrived with a wrong checksum (FCS)"),
        ("rx_align_err_frames", "packets whose length was not a whole number of bytes"),
        ("rx_fec_uncorrectable_blocks", "blocks that error correction (FEC) could not mend"),
        // ice
        ("rx_crc_errors.nic", "packets that arrived with a wrong checksum (CRC)"),
        ("illegal_bytes.nic", "packets that arrived with bytes that are illegal in the line code"),
    ]),
    (&RECEIVER, Hardware, &[
        // mlx5
        ("out_of_buffer", "messages that were dropped because their queue pair had no receive posted"),
        ("rnr_nak_retry_err", "reports from peers that they had no receive posted (RNR NAK), after which this device tried again"),
        ("req_rnr_retries_exceeded", "requests given up because the peer had no receive posted, however often this device tried"),
        // bnxt_re
        ("rnr_naks_rcvd", "reports from peers that they had no receive posted (RNR NAK)"),
        ("rx_out_of_buffer", "messages that were dropped because their queue pair had no receive posted"),
        // mana
        ("requester_rnr_nak", "reports from peers that they had no receive posted (RNR NAK)"),
        ("responder_rnr_nak", "reports to peers that this device had no receive posted (RNR NAK)"),
        ("requester_rnr_nak_retries_exceeded", "requests given up because the peer had no receive posted, however often this device tried"),
        // rxe
        ("rcvd_rnr_err", "reports from peers that they had no receive posted (RNR NAK)"),
        ("send_rnr_err", "reports to peers that this device had no receive posted (RNR NAK)"),
        ("retry_rnr_exceeded_err", "requests given up because the peer had no receive posted, however often this device tried"),
    ]),
    (&ACCESS, Hardware, &[
        // mlx5
        ("req_remote_access_errors", "requests from this device for memory that was not granted, which peers refused"),
        ("resp_remote_access_errors", "requests from peers that this device refused, for memory that was not granted"),
        ("req_remote_invalid_request", "requests from this device that peers refused as invalid"),
        ("resp_local_length_error", "messages from peers that were longer than the receive that was posted for them"),
        // bnxt_re
        ("remote_access_err", "requests from this device for memory that was not granted, which peers refused"),
        ("remote_invalid_req_err", "requests from this device that peers refused as invalid"),
        ("local_protection_err", "requests of this machine for memory that is not registered"),
        // mana
        ("nak_inv_req", "refusals of invalid requests"),
        ("nak_access_error", "refusals of requests for memory that was not granted"),
    ]),
    (&ACCESS, Port, &[
        ("port_xmit_constraint_errors", "packets that the port did not send because their partition is not allowed there"),
        ("port_rcv_constraint_errors", "packets that the port dropped because their partition is not allowed there"),
    ]),
    (&GAVE_UP, Hardware, &[
        ("req_transport_retries_exceeded", "requests given up because no answer came, however often the device repeated them"),
        ("max_retry_exceeded", "requests given up because no answer came, however often the device repeated them"),
        ("requester_retries_exceeded", "requests given up because no answer came, however often the device repeated them"),
        ("retry_exceeded_err", "requests given up because no answer came, however often the device repeated them"),
    ]),
    (&LINK, Hardware, &[("link_downed", "times that the port lost its link")]),
    (&LINK, Port, &[("link_downed", "times that the port lost its link")]),
    (&LINK, Ethernet, &[
        ("link_down_events_phy", "times that the port lost its link"),
        ("link_down_events", "times that the port lost its link"),
    ]),
];

/// Counters of pause frames for a priority in `ethtool -S`: what stands before its number, and behind it (mlx5, bnxt_en, ice, mlx4).
pub(super) const PAUSES: &[(&str, &str)] = &[
    ("rx_prio", "_pause"),
    ("tx_prio", "_pause"),
    ("rx_pfc_ena_frames_pri", ""),
    ("tx_pfc_ena_frames_pri", ""),
    ("rx_priority_", "_xoff.nic"),
    ("tx_priority_", "_xoff.nic"),
    ("rx_pause_prio_", ""),
    ("tx_pause_prio_", ""),
];

/// Returns the things that a counter counts. `None`: it counts pause frames, whose finding says it.
pub(super) fn meaning(name: &str) -> Option<&'static str> {
    let mut counters = KNOWN.iter().flat_map(|(.., counters)| *counters);
    counters.find(|(known, _)| *known == name).map(|(_, meaning)| *meaning)
}

/// Returns the explanations of all counters. `[0-7]` in a name stands for the number of a priority.
pub(crate) fn explanations() -> Vec<Explanation> {
    let mut explained = BTreeSet::new();
    let of_kinds =
        KNOWN.iter().flat_map(|(kind, _, counters)| counters.iter().map(move |counter| (*kind, *counter)));
    // A name that is in two places counts one thing.
    let of_kinds = of_kinds.filter(|(_, (name, _))| explained.insert(*name));
    let of_kinds = of_kinds.map(|(kind, (name, meaning))| explanation(kind, name, meaning));
    let pauses = PAUSES.iter().map(|(before, after)| {
        let way = if before.starts_with("rx") { "came" } else { "this card sent" };
        explanation(
            &PAUSED,
            &format!("{before}[0-7]{after}"),
            &format!("pause frames (PFC) for this priority that {way}"),
        )
    });
    of_kinds.chain(pauses).collect()
}

fn explanation(kind: &Kind, name: &str, meaning: &str) -> Explanation {
    let cause = format!("It counts {meaning}. {}", kind.means);
    Explanation::new("counter", name, &cause, &sentence(kind.remedy)).blaming(Blame::Environment)
}
