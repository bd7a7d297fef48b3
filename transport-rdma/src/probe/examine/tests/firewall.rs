//! Emulated devices, whose packets pass the kernel's firewall.

use super::*;

#[test]
fn software_is_named_and_its_firewall_looked_at() {
    let soft = |answers: &str| codes(&examined(&format!("{SOFT}{answers}"), &RdmaConfig::default()));
    assert_eq!(soft(""), [(Note, "software-device")]);
    let nft = |rules: &str| {
        format!(
            "== $ nft -s list ruleset\ntable inet f {{\n chain in {{\n  type filter hook input priority 0; policy accept;\n{rules} }}\n}}\n"
        )
    };
    assert_eq!(
        soft(&nft("  udp dport 4791 drop\n")),
        [(Fault, "firewall-drops-roce"), (Note, "software-device")]
    );
    assert_eq!(soft(&nft("  counter udp dport 479 drop\n")), [(Note, "software-device")]);
    assert_eq!(soft(&nft("  udp dport != 4791 drop\n")), [(Note, "software-device")]);
    let some = nft("  ip saddr 10.0.0.0/8 udp dport 4791 accept\n  udp dport 4791 drop\n");
    assert_eq!(soft(&some), [(Warning, "firewall-may-drop-roce"), (Note, "software-device")]);
    let last = nft("  tcp dport 22 accept\n  reject with icmpx admin-prohibited\n");
    let report = examined(&format!("{SOFT}{last}"), &RdmaConfig::default());
    assert_eq!(report.findings[0].fix, "nft insert rule inet f in udp dport 4791 accept");
    let accepted = last.replace("  tcp", "  udp dport 4791 accept\n  tcp");
    assert_eq!(soft(&accepted), [(Note, "software-device")]);
    let closed =
        "== $ iptables-save\n*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp --dport 22 -j ACCEPT\nCOMMIT\n";
    assert_eq!(soft(closed), [(Fault, "firewall-drops-roce"), (Note, "software-device")]);
    let part = closed.replace("-A", "-A INPUT -s 10.0.0.0/8 -j ACCEPT\n-A");
    assert_eq!(soft(&part), [(Warning, "firewall-may-drop-roce"), (Note, "software-device")]);
    let others = closed
        .replace("DROP [", "ACCEPT [")
        .replace("COMMIT", "-A INPUT -p udp ! --dport 4791 -j DROP\nCOMMIT");
    assert_eq!(soft(&others), [(Note, "software-device")]);
    let open = closed.replace("COMMIT", "-A INPUT -p udp --dport 4791 -j ACCEPT\nCOMMIT");
    assert_eq!(soft(&open), [(Note, "software-device")]);
    // Packets that leave pass other chains, which are as able to drop them.
    let leaving = |rules: &str| nft(rules).replace("hook input", "hook output");
    assert_eq!(
        soft(&leaving("  udp dport 4791 drop\n")),
        [(Fault, "firewall-drops-roce"), (Note, "software-device")]
    );
    assert_eq!(
        soft(&nft("  udp dport 4791 drop\n").replace("input", "forward")),
        [(Note, "software-device")]
    );
    let closed_output = closed.replace("INPUT", "OUTPUT");
    let report = examined(&format!("{SOFT}{closed_output}"), &RdmaConfig::default());
    assert_eq!(report.findings[0].fix, "iptables -I OUTPUT -p udp --dport 4791 -j ACCEPT");
    let down =
        "== /sys/class/infiniband/rxe0/ports/1/state\n1: DOWN\n== /sys/class/net/eth0/operstate\ndown\n";
    let report = examined(&format!("{SOFT}{down}"), &RdmaConfig::default());
    assert_eq!(codes(&report), [(Fault, "port-down")]);
    assert_eq!(report.findings[0].fix, "ip link set eth0 up");
}

#[test]
fn chains_of_the_firewall_that_are_jumped_to_are_looked_at() {
    let soft = |answers: &str| {
        let mut findings = examined(&format!("{SOFT}{answers}"), &RdmaConfig::default()).findings;
        findings.retain(|finding| finding.code.starts_with("firewall"));
        findings.into_iter().map(|finding| (finding.code, finding.seen)).collect::<Vec<_>>()
    };
    let nft = |rules: &str, others: &str| {
        format!(
            "== $ nft -s list ruleset\ntable inet f {{\n chain in {{\n  type filter hook input priority 0; policy drop;\n{rules} }}\n{others}}}\n\
             table ip g {{\n chain roce {{\n  udp dport 4791 drop\n }}\n}}\n"
        )
    };
    let found = |code, path: &str| {
        let some = if code == "firewall-drops-roce" { "" } else { "some of " };
        [(code, format!("a rule of nft drops {some}RoCE: {path} (chain inet f in)"))]
    };
    let chain = |rules: &str| format!(" chain roce {{\n{rules} }}\n");
    assert_eq!(soft(&nft("  jump roce\n", &chain("  udp dport 4791 accept\n"))), []);
    assert_eq!(
        soft(&nft("  udp dport 4791 goto roce\n", &chain("  drop\n"))),
        found("firewall-drops-roce", "`udp dport 4791 goto roce`, then `drop`")
    );
    let through = chain("  jump more\n") + " chain more {\n  udp dport 4791 drop\n }\n";
    assert_eq!(
        soft(&nft("  ip saddr 10.0.0.0/8 jump roce\n  accept\n", &through)),
        found(
            "firewall-may-drop-roce",
            "`ip saddr 10.0.0.0/8 jump roce`, then `jump more`, then `udp dport 4791 drop`"
        )
    );
    // A chain that nobody jumps to, and one of another table, see no packet.
    assert_eq!(soft(&nft("  udp dport 4791 accept\n", &chain("  udp dport 4791 drop\n"))), []);
    assert_eq!(soft(&nft("  udp dport 4791 accept\n  jump roce\n", "")), []);
    // No kernel has a loop. A record may.
    assert_eq!(
        soft(&nft("  udp dport 4791 accept\n  jump roce\n", &chain("  jump roce\n  jump roce\n"))),
        []
    );

    let iptables = |rules: &str| {
        format!("== $ iptables-save\n*filter\n:INPUT DROP [0:0]\n:roce - [0:0]\n{rules}COMMIT\n")
    };
    let accepted = "-A INPUT -p udp -j roce\n-A roce -p udp -m udp --dport 4791 -j ACCEPT\n";
    assert_eq!(soft(&iptables(accepted)), []);
    let found = soft(&iptables("-A INPUT -p udp -m udp --dport 4791 -g roce\n-A roce -j DROP\n"));
    let seen = "a rule of iptables drops RoCE: `-A INPUT -p udp -m udp --dport 4791 -g roce`, then `-A roce -j DROP` (chain INPUT)";
    assert_eq!(found, [("firewall-drops-roce", seen.to_owned())]);
}

macro_rules! firewall {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/firewalls/", $name, ".txt"))
    };
}

/// Another address of [`SOFT`], which is the chosen one if it is to be so.
fn with_ipv6(is_chosen: bool) -> String {
    let index = u8::from(!is_chosen);
    let first = "== /sys/class/infiniband/rxe0/ports/1/gids/0 !22\n";
    format!(
        "{}== /sys/class/infiniband/rxe0/ports/1/gids/{index}\nfd00:0000:0000:0000:0000:0000:0000:0001\n\
         == /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/{index}\nRoCE v2\n\
         == /sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/{index}\neth0\n",
        if is_chosen { first } else { "" }
    )
}

/// The findings of a machine with these rules.
fn of_firewall(firewall: &str, address: &str) -> Vec<(Severity, String, String)> {
    let report = examined(&format!("{SOFT}{address}{firewall}"), &RdmaConfig::default());
    let findings = report.findings.into_iter().filter(|finding| finding.code.starts_with("firewall"));
    findings.map(|finding| (finding.severity, finding.seen, finding.fix)).collect()
}

#[test]
fn rules_of_legacy_iptables_count_beside_those_of_nft() {
    let both = firewall!("nft-beside-legacy");
    let found = of_firewall(both, "");
    let seen = "a rule of iptables-legacy drops RoCE: `-A PREROUTING -p udp -m udp --dport 4791 -j DROP` (chain raw PREROUTING)";
    let fix = "take the rule out, or accept RoCE before it: `iptables-legacy -t raw -I PREROUTING -p udp --dport 4791 -j ACCEPT`";
    assert_eq!(found, [(Fault, seen.to_owned(), fix.to_owned())]);
    // Where nft's list is refused, iptables-save shows those that iptables has written.
    let without = both.replace("== $ nft -s list ruleset\n", "== /ignored\n");
    assert_eq!(of_firewall(&without, ""), found);
    // Machines whose iptables is the legacy one have no other program for it.
    let alone = both
        .replace("== $ iptables-save\n", "== /ignored\n")
        .replace("iptables-legacy-save", "iptables-save");
    assert_eq!(of_firewall(&alone, "")[0].1, seen.replace("-legacy", ""));
    // The rule that the fix adds clears the finding.
    let rule = "-A PREROUTING -p udp -m udp --dport 4791 -j";
    let fixed = both.replace(&format!("{rule} DROP"), &format!("{rule} ACCEPT\n{rule} DROP"));
    assert_eq!(of_firewall(&fixed, ""), []);
}

#[test]
fn conditions_that_nft_has_no_words_for_are_those_of_iptables() {
    let nft = "== $ nft -s list ruleset\ntable ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy accept;\n\
               \t\tmeta l4proto udp xt match multiport counter drop\n\t}\n}\n";
    assert_eq!(of_firewall(nft, ""), []);
    let rule = "-A INPUT -p udp -m multiport --dports 22,4791 -j DROP";
    let saved = format!(
        "{nft}== $ iptables-save\n# by iptables-save v1.8.9 (nf_tables)\n*filter\n:INPUT ACCEPT [0:0]\n{rule}\nCOMMIT\n"
    );
    let found = of_firewall(&saved, "").remove(0);
    assert_eq!((found.0, found.1), (Fault, format!("a rule of iptables drops RoCE: `{rule}` (chain INPUT)")));
    // A rule that nft shows by halves is no reason to fear the policy behind it.
    let accepting = saved.replace("j DROP", "j ACCEPT").replace(":INPUT ACCEPT", ":INPUT DROP");
    let accepting =
        accepting.replace("counter drop", "counter accept").replace("policy accept", "policy drop");
    assert_eq!(of_firewall(&accepting, ""), []);
    assert_eq!(of_firewall(&accepting.replace("22,4791", "22"), "")[0].0, Fault);
}

#[test]
fn hooks_of_a_bond_count_beside_those_of_its_cards() {
    let bond = "== /sys/class/net/eth0/lower_eth1/mtu\n9000\n== /sys/class/net/eth1/mtu\n9000\n";
    let of = |device: &str| {
        let rules = firewall!("nft-ingress").replace("device \"eth0\"", &format!("device \"{device}\""));
        of_firewall(&format!("{bond}{}", &rules[rules.find("==").unwrap()..]), "")[0].1.clone()
    };
    assert!(
        of("eth0").ends_with("(chain netdev early in)") && of("eth1").ends_with("(chain netdev early in)")
    );
}

#[test]
fn rules_of_ipv6_count_for_its_addresses() {
    let rules = firewall!("ip6tables-nft");
    assert_eq!(of_firewall(rules, ""), []);
    let found = of_firewall(rules, &with_ipv6(true)).remove(0);
    assert_eq!(found.0, Fault);
    assert!(found.1.contains("(policy of ip6 filter INPUT)"), "{}", found.1);
    assert_eq!(found.2, "nft insert rule ip6 filter INPUT udp dport 4791 accept");
    // Connections by IPv4 work.
    assert_eq!(of_firewall(rules, &with_ipv6(false))[0].0, Warning);
    let by_iptables = rules.replace("== $ nft -s list ruleset\n", "== /ignored\n");
    let found = of_firewall(&by_iptables, &with_ipv6(true)).remove(0);
    assert_eq!(found.2, "ip6tables -I INPUT -p udp --dport 4791 -j ACCEPT");
}

#[test]
fn hooks_of_network_cards_count_for_the_card_of_the_port() {
    let rules = firewall!("nft-ingress");
    let found = of_firewall(rules, "").remove(0);
    assert_eq!(found.0, Fault);
    assert_eq!(found.1, "a rule of nft drops RoCE: `udp dport 4791 drop` (chain netdev early in)");
    let fix = "take the rule out, or accept RoCE before it: `nft insert rule netdev early in udp dport 4791 accept`";
    assert_eq!(found.2, fix);
    let leaving = rules.replace("device \"eth0\"", "device \"eth1\"");
    assert!(of_firewall(&leaving, "")[0].1.ends_with("(chain netdev early out)"));
    assert_eq!(of_firewall(&leaving.replace("{ eth0, lo }", "{ eth1, lo }"), ""), []);
}

#[test]
fn a_firewall_of_zones_that_rejects_the_rest_is_found() {
    let rules = firewall!("firewalld");
    let found = of_firewall(rules, "").remove(0);
    assert_eq!(found.0, Warning);
    let path = "`jump zones`, then `iifname \"eth0\" goto public`, then `reject with icmpx admin-prohibited`";
    assert!(found.1.contains(path), "{}", found.1);
    assert_eq!(found.2, "nft insert rule inet firewalld filter_INPUT udp dport 4791 accept");
    let allowed = rules.replace("tcp dport 22 accept", "tcp dport 22 accept\n\t\tudp dport 4791 accept");
    assert_eq!(of_firewall(&allowed, ""), []);
}
