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
    let closed =
        "== $ iptables-save\n*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp --dport 22 -j ACCEPT\nCOMMIT\n";
    assert_eq!(soft(closed), [(Warning, "firewall-may-drop-roce"), (Note, "software-device")]);
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
    let dropped = |rule: &str| [("firewall-drops-roce", format!("a rule of nft drops RoCE: `{rule}`"))];
    let chain = |rules: &str| format!(" chain roce {{\n{rules} }}\n");
    assert_eq!(soft(&nft("  jump roce\n", &chain("  udp dport 4791 accept\n"))), []);
    assert_eq!(
        soft(&nft("  udp dport 4791 goto roce\n", &chain("  drop\n"))),
        dropped("udp dport 4791 drop")
    );
    let rule = "ip saddr 10.0.0.0/8 udp dport 4791 drop";
    let through = chain("  jump more\n") + " chain more {\n  udp dport 4791 drop\n }\n";
    assert_eq!(soft(&nft("  ip saddr 10.0.0.0/8 jump roce\n", &through)), dropped(rule));
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
    let seen = "a rule of iptables drops RoCE: `-A INPUT -p udp -m udp --dport 4791 -j DROP`";
    assert_eq!(found, [("firewall-drops-roce", seen.to_owned())]);
}
