//! Counters that stand still in a healthy network.

use super::*;
use crate::probe::{Area, Finding};

/// The counters of a host that are not zero, by the code of their findings.
fn counted(recording: &str) -> Vec<(&'static str, String)> {
    let report = examined(recording, &RdmaConfig::default());
    let findings = report.findings.into_iter().filter(|finding| finding.area == Area::Counters);
    let counted = |finding: Finding| {
        assert_eq!(finding.severity, Note, "{finding}");
        let (_, counted) = finding.seen.split_once(" counted ").unwrap();
        (finding.code, counted.strip_suffix(" since the driver was loaded").unwrap().to_owned())
    };
    findings.map(counted).collect()
}

#[test]
fn counters_that_are_not_zero_are_named() {
    let counted = |recording| {
        let counted = counted(recording).into_iter();
        counted.map(|(code, names)| format!("{code}: {names}")).collect::<Vec<_>>()
    };
    assert_eq!(
        counted(CONNECTX),
        [
            "congestion: outbound_pci_stalled_wr_events 2210",
            "packets-lost: implied_nak_seq_err 12, local_ack_timeout_err 41, out_of_sequence 3127, packet_seq_err 2954, \
             roce_adp_retrans 57, roce_adp_retrans_to 41, rx_discards_phy 48213",
        ]
    );
    assert_eq!(
        counted(host!("broadcom-bnxt-re")),
        [
            "link-down: link_down_events 1",
            "packets-lost: continuous_roce_pause_events 2, seq_err_naks_rcvd 211, to_retransmits 63",
            "paused-priority: rx_pfc_ena_frames_pri3 20413 (priority 3: RoCE's by the card's table of applications; farcall's packets \
             have 0), tx_pfc_ena_frames_pri3 118 (priority 3: RoCE's by the card's table of applications; farcall's packets have 0)",
        ]
    );
    assert_eq!(
        counted(host!("intel-e810-irdma")),
        [
            "damaged-packets: illegal_bytes.nic 4, rx_crc_errors.nic 19",
            "packets-lost: ip4InDiscards 731, rx_dropped.nic 731"
        ]
    );
    assert_eq!(counted(host!("mellanox-infiniband")), ["link-down: link_downed 1"]);
    for silent in [host!("aws-efa"), host!("azure-connectx-vf"), host!("chelsio-t6-iw_cxgb4")] {
        assert_eq!(counted(silent), [""; 0]);
    }
}

#[test]
fn each_kind_of_counter_is_told_by_its_names() {
    let of_device = |counter: &str| format!("== /sys/class/infiniband/mlx5_0/ports/1/{counter}\n7\n");
    let of_card = |counter: &str| format!("== $ ethtool -S ens1f0np0\nNIC statistics:\n     {counter}: 7\n");
    for (code, answers) in [
        ("damaged-packets", of_device("counters/symbol_error")),
        ("damaged-packets", of_device("hw_counters/rx_icrc_encapsulated")),
        ("damaged-packets", of_card("rx_crc_errors_phy")),
        ("receiver-not-ready", of_device("hw_counters/rnr_nak_retry_err")),
        ("receiver-not-ready", of_device("hw_counters/out_of_buffer")),
        ("gave-up", of_device("hw_counters/req_transport_retries_exceeded")),
        ("paused-priority", of_card("rx_prio3_pause")),
        ("paused-priority", of_card("tx_priority_4_xoff.nic")),
    ] {
        let counted = counted(&mended(&answers));
        assert_eq!(counted.iter().map(|(code, _)| *code).collect::<Vec<_>>(), [code], "{answers}");
        assert!(counted[0].1.contains(" 7"), "{counted:?}");
    }
    // A trial has a request refused, so that only a count that grows says something.
    let refused = mended(&of_device("hw_counters/req_remote_access_errors"));
    assert_eq!(counted(&refused), []);
    let read =
        |recording: &str| Counters::read(&Machine::recorded(recording).unwrap(), &RdmaConfig::default());
    let before = mended(&of_device("hw_counters/req_remote_access_errors").replace('7', "5"));
    let grown = read(&refused).grown_since(&read(&before));
    assert_eq!(grown.len(), 1, "{grown:?}");
    assert_eq!((grown[0].code, grown[0].severity), ("requests-refused", Warning));
    let counted = "req_remote_access_errors 2 (requests from this device for memory that was not granted, which peers refused) while";
    assert!(grown[0].seen.contains(counted), "{}", grown[0].seen);
}

#[test]
fn a_counter_that_grows_is_told_with_the_meaning_that_is_explained() {
    let places = |name: &str| {
        let of_port =
            |directory: &str| format!("== /sys/class/infiniband/mlx5_0/ports/1/{directory}/{name}\n7\n");
        let of_card = format!("== $ ethtool -S ens1f0np0\nNIC statistics:\n     {name}: 7\n");
        [of_port("counters"), of_port("hw_counters"), of_card]
    };
    let read =
        |recording: &str| Counters::read(&Machine::recorded(recording).unwrap(), &RdmaConfig::default());
    let explanations = crate::explanations();
    let counters: Vec<_> = explanations.iter().filter(|explanation| explanation.group == "counter").collect();
    assert!(counters.len() > 90, "{}", counters.len());
    for explanation in counters {
        let name = explanation.name.replace("[0-7]", "3");
        let grown = places(&name).into_iter().find_map(|answers| {
            let before = mended(&answers.replace('7', "5"));
            read(&mended(&answers)).grown_since(&read(&before)).pop()
        });
        let grown = grown.unwrap_or_else(|| panic!("no finding has {name}"));
        assert!(grown.seen.contains(&format!(" counted {name} 2 (")), "{}", grown.seen);
        assert!(explanation.cause.ends_with(grown.means), "{}", explanation.cause);
        let meaning = explanation.cause.strip_prefix("It counts ").unwrap().split(". ").next().unwrap();
        let is_told = grown.seen.contains(&format!("({meaning})")) || grown.code == "paused-priority";
        assert!(is_told, "{}", grown.seen);
    }
}

#[test]
fn a_priority_that_is_paused_is_told_with_its_use() {
    let config = |dscp: u8| {
        let mut config = RdmaConfig::default();
        config.dscp.normal = dscp;
        config
    };
    let answers = "== $ ethtool -S ens1f0np0\nNIC statistics:\n     rx_prio3_pause: 7\n     rx_prio5_pause: 8\n     tx_prio1_pause: 0\n\
                   == /sys/class/net/ens1f0np0/qos/trust\ndscp\n== $ dcb -N app show dev ens1f0np0\ndscp-prio 26:3\n\
                   == $ dcb pfc show dev ens1f0np0\npfc-cap 8\nprio-pfc 0:off 3:on\n";
    let paused = |dscp| {
        let report = examined(&mended(answers), &config(dscp));
        report.findings.into_iter().find(|finding| finding.code == "paused-priority").unwrap().seen
    };
    assert_eq!(
        paused(26),
        "mlx5_0 port 1 counted rx_prio3_pause 7 (priority 3: farcall's packets have it), rx_prio5_pause 8 (priority 5: not RoCE's; \
         farcall's packets have 3) since the driver was loaded"
    );
    assert_eq!(
        paused(0),
        "mlx5_0 port 1 counted rx_prio3_pause 7 (priority 3: without loss, as RoCE's should be; farcall's packets have 0), \
         rx_prio5_pause 8 (priority 5: not RoCE's; farcall's packets have 0) since the driver was loaded"
    );
}

#[test]
fn counters_that_grow_are_warnings() {
    let read =
        |recording: &str| Counters::read(&Machine::recorded(recording).unwrap(), &RdmaConfig::default());
    let earlier = read(CONNECTX);
    let later =
        format!("{CONNECTX}\n== /sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent\n1000000000\n");
    let later = read(&later);
    let grown = later.grown_since(&earlier);
    assert_eq!(
        grown.iter().map(|finding| (finding.severity, finding.code)).collect::<Vec<_>>(),
        [(Warning, "congestion")]
    );
    assert!(earlier.grown_since(&earlier).is_empty());
}
