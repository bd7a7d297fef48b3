//! Programs that give no answer.

use super::*;

fn unseen(report: &Report) -> Option<&Finding> {
    let mut found = report.findings.iter().filter(|finding| finding.code == "not-looked-at");
    let first = found.next();
    assert_eq!(found.next(), None, "one for each report");
    assert_eq!(first.is_some(), report.is_partial());
    first
}

/// The finding about a good host with these answers.
fn of_host(answers: &str) -> Option<(String, String)> {
    let report = examined(&mended(answers), &RdmaConfig::default());
    unseen(&report).map(|finding| (finding.seen.clone(), finding.fix.clone()))
}

#[test]
fn programs_that_give_no_answer_are_named_with_what_they_would_tell() {
    assert_eq!(of_host(""), None);
    let (seen, fix) = of_host(
        "== $ lldpctl -f keyvalue ens1f0np0 !2\n== $ dcb pfc show dev ens1f0np0 !2\n== $ dcb -N app show dev ens1f0np0 !2\n\
         == $ ethtool -a ens1f0np0 !2\n== $ ethtool -S ens1f0np0 !2\n",
    )
    .unwrap();
    let tells =
        ["PFC, ETS and the priorities of DSCPs", "global pause, receive rings and the card's counters"];
    assert_eq!(
        seen,
        format!(
            "not looked at: dcb is not installed: {}; ethtool is not installed: {}; lldpctl is not installed: the switch's name",
            tells[0], tells[1]
        )
    );
    assert_eq!(fix, "`apt install ethtool iproute2 lldpd`");
    let failed = of_host("== $ ibv_devinfo -d mlx5_0 -i 1 !5\n").unwrap();
    assert!(failed.0.starts_with("not looked at: ibv_devinfo failed: the port's active MTU"), "{}", failed.0);
    assert_eq!(failed.1, "see why: `ibv_devinfo -d mlx5_0 -i 1`");
    let late = of_host("== $ ethtool -a ens1f0np0 !110\n").unwrap();
    assert_eq!(late.1, "see why: `ethtool -a ens1f0np0`");
    let refused = of_host("== $ lldpctl -f keyvalue ens1f0np0 !1\n").unwrap();
    assert_eq!(refused.0, "not looked at: lldpctl needs root: the switch's name");
    assert!(refused.1.contains("`sudo farcall doctor`"), "{}", refused.1);
    // A device that has nothing of the kind has been looked at.
    assert_eq!(of_host("== $ ethtool -a ens1f0np0 !95\n== $ dcb pfc show dev ens1f0np0 !95\n"), None);
}

#[test]
fn missing_programs_are_no_worse_than_a_note() {
    let report = examined(&mended("== $ lldpctl -f keyvalue ens1f0np0 !2\n"), &RdmaConfig::default());
    assert_eq!(report.worst(), Some(Note));
}

#[test]
fn a_firewall_that_is_not_looked_at_is_told() {
    let of = |answers: &str| {
        let report = examined(&format!("{SOFT}{answers}"), &RdmaConfig::default());
        let told = unseen(&report).map(|finding| (finding.seen.clone(), finding.fix.clone()));
        let (seen, fix) = told.unwrap_or_default();
        // The other programs are not in this record.
        (seen.split("; ").filter(|part| part.contains("rules")).collect::<Vec<_>>().join("; "), fix)
    };
    let refused = of("== $ nft -s list ruleset !1\n== $ iptables-save !1\n== $ ip6tables-save !1\n");
    assert!(refused.0.ends_with("nft needs root: the firewall's rules about RoCE"), "{}", refused.0);
    assert!(refused.1.contains("`sudo farcall doctor`"), "{}", refused.1);
    let absent = "== $ nft -s list ruleset !2\n== $ iptables-save !2\n== $ ip6tables-save !2\n";
    let (seen, fix) = of(absent);
    assert!(seen.ends_with("nft is not installed: the firewall's rules about RoCE"), "{seen}");
    assert!(fix.contains("`apt install nftables`"), "{fix}");
    // iptables has told, and nobody has rules of nft.
    let told = "== $ nft -s list ruleset !2\n== $ iptables-save\n# by iptables-save v1.8.9\n*filter\nCOMMIT\n== $ ip6tables-save !2\n";
    assert_eq!(of(told).0, "");
    // Others than nft use its module, as firewalld does.
    let used = format!("{told}== /sys/module/nf_tables/refcnt\n200\n");
    assert!(of(&used).0.contains("nft is not installed"));
    let of_user = absent.replace("iptables-save !2", "iptables-save !1");
    assert!(of(&of_user).0.contains("iptables-save needs root: iptables' rules"), "{}", of(&of_user).0);
    // Legacy rules that only another program shows.
    let legacy = "== $ nft -s list ruleset\n== /proc/net/ip_tables_names\nfilter\n== $ iptables-save !2\n== $ iptables-legacy-save !2\n";
    let (seen, fix) = of(legacy);
    assert!(
        seen.ends_with("iptables-legacy-save is not installed: legacy iptables' rules about RoCE"),
        "{seen}"
    );
    assert!(fix.contains("`apt install iptables`"), "{fix}");
    assert_eq!(of("== $ nft -s list ruleset\n").0, "");
}

#[test]
fn a_report_has_one_finding_about_what_was_not_looked_at() {
    let of = |name: &str| {
        let report = examined(&mended(&format!("== $ {name} !2\n")), &RdmaConfig::default());
        unseen(&report).cloned()
    };
    let (switch, pause) = (of("lldpctl -f keyvalue ens1f0np0").unwrap(), of("ethtool -a ens1f0np0").unwrap());
    let mut report = examined(&mended(""), &RdmaConfig::default());
    report.extend([switch.clone(), pause.clone(), switch]);
    let both = unseen(&report).unwrap();
    assert!(
        both.seen.starts_with("not looked at: lldpctl is not installed: the switch's name; ethtool is"),
        "{}",
        both.seen
    );
    assert_eq!(both.fix, format!("`apt install lldpd`; {}", pause.fix));
}

#[test]
fn other_sources_than_this_machine_say_so() {
    let partial = mended("").replace("== $ lldpctl -f keyvalue ens1f0np0\n", "");
    let report = examined(&partial, &RdmaConfig::default());
    let finding = unseen(&report).unwrap();
    assert_eq!(finding.seen, "not looked at: the record has no answer of lldpctl: the switch's name");
    assert!(finding.fix.contains("--record"), "{}", finding.fix);
    let below = examined(&mended("== $ lldpctl -f keyvalue ens1f0np0 !61\n"), &RdmaConfig::default());
    assert!(unseen(&below).unwrap().fix.contains("without `--root`"));
}
