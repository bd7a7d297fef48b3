//! Rules as real programs print them, each judged alone.

use super::*;

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/firewalls/", $name, ".txt"))
    };
}

fn judged(ruleset: &Ruleset, is_v6: bool) -> &'static str {
    let netdev = "eth0".to_owned();
    let packet = Packet { is_v6, cards: vec![netdev.clone()], netdev: Some(netdev) };
    match ruleset.judge(&packet) {
        None => "passes",
        Some(dropping) if dropping.is_certain => "drops",
        Some(_) => "may drop",
    }
}

#[test]
fn each_rule_of_nft_is_judged_as_its_comment_says() {
    let text = recorded!("nft-rules").split_once("ruleset\n").unwrap().1;
    let begin = text.find("policy accept;\n").unwrap() + "policy accept;\n".len();
    let (before, rules) = text.split_at(begin);
    let rules: Vec<_> = rules.lines().map(str::trim).take_while(|line| *line != "}").collect();
    assert!(rules.len() > 70, "{}", rules.len());
    for rule in rules {
        let (_, comment) = rule.rsplit_once(" comment ").unwrap();
        let alone = nft::parse(&format!("{before}{rule}\n}}\n}}\n"));
        assert_eq!(judged(&alone, false), comment.trim_matches('"'), "{rule}");
    }
}

#[test]
fn each_rule_of_iptables_is_judged_as_its_comment_says() {
    let text = recorded!("iptables-rules");
    let is_judged = |line: &&str| line.starts_with("-A INPUT");
    let others: String =
        text.lines().filter(|line| !is_judged(line)).map(|line| format!("{line}\n")).collect();
    let rules: Vec<_> = text.lines().filter(is_judged).collect();
    assert!(rules.len() > 30, "{}", rules.len());
    for rule in rules {
        let comment = rule.split_once("--comment ").unwrap().1;
        let expected = ["drops", "passes", "may drop"].into_iter();
        let expected = expected.clone().find(|word| comment.trim_start_matches('"').starts_with(word));
        let alone = iptables::parse(&others.replace("COMMIT", &format!("{rule}\nCOMMIT")), "iptables");
        assert_eq!(Some(judged(&alone, false)), expected, "{rule}");
        assert_eq!(judged(&alone, true), "passes", "{rule}");
    }
}

#[test]
fn a_rule_that_accepts_clears_what_follows() {
    let of = |rules: &str, policy: &str| {
        let chain =
            format!("table ip f {{\nchain in {{\ntype filter hook input priority 0; policy {policy};");
        judged(
            &nft::parse(&format!("{chain}\n{rules}\n}}\nchain roce {{\nudp dport 4791 accept\n}}\n}}")),
            false,
        )
    };
    for (rules, policy, expected) in [
        ("", "drop", "drops"),
        ("udp dport 4791 accept", "drop", "passes"),
        ("udp dport 4791 accept\nudp dport 4791 drop\ndrop", "accept", "passes"),
        ("jump roce\nudp dport 4791 drop", "accept", "passes"),
        ("udp dport vmap { 4791 : accept }\nreject", "accept", "passes"),
        ("ct state new udp dport 4791 accept\ndrop", "accept", "passes"),
        ("iifname \"eth0\" accept\ndrop", "accept", "passes"),
        (
            "iifname \"eth1\" accept\nct state established,related accept\ntcp dport 22 accept",
            "drop",
            "drops",
        ),
        // Some are accepted, and which is not known.
        ("ip saddr 10.0.0.0/8 accept", "drop", "may drop"),
        ("ip saddr 10.0.0.0/8 accept\nudp dport 4791 drop", "accept", "may drop"),
        ("ip saddr 10.0.0.0/8 udp dport 4791 accept\nudp dport 4791 drop", "accept", "may drop"),
        // Those that the administrator wants.
        ("ip saddr 10.0.0.0/8 udp dport 4791 accept", "drop", "passes"),
        // Those of others, which are clients of any port.
        ("udp sport 53 udp dport 1024-65535 accept", "drop", "may drop"),
    ] {
        assert_eq!(of(rules, policy), expected, "{rules} {policy}");
    }
}

#[test]
fn words_of_iptables_keep_what_is_quoted_together() {
    for comment in ["-j ACCEPT", "! -p udp", "it\\'s \\\" -j ACCEPT"] {
        let rule = format!("-A INPUT -p udp -m udp --dport 4791 -m comment --comment \"{comment}\" -j DROP");
        let ruleset = iptables::parse(&format!("*filter\n{rule}\nCOMMIT\n"), "iptables");
        assert_eq!(judged(&ruleset, false), "drops", "{rule}");
    }
}

#[test]
fn text_that_is_no_rule_does_no_harm() {
    for text in [
        "{",
        "}",
        "table",
        "table ip f {\nchain c {",
        "table ip f {\nchain c {\ntype filter hook\nudp dport {\n}\n}",
        "table ip f {\nchain c {\ntype filter hook input\nudp dport vmap\n\"\nlog prefix\n}\n}\n",
        "*\n:\n-A\n-A INPUT ! -j\n",
        "-A INPUT \"",
    ] {
        judged(&nft::parse(text), false);
        judged(&iptables::parse(text, "iptables"), false);
    }
}

#[test]
fn long_sets_and_endless_jumps_end_without_a_certain_judgement() {
    let addresses: Vec<_> =
        (0..100_000).map(|n| format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255)).collect();
    let lines: Vec<_> = addresses.chunks(5).map(|five| five.join(", ")).collect();
    let text = format!(
        "table inet f {{\nset bad {{\ntype ipv4_addr\nelements = {{ {} }}\n}}\nchain in {{\n\
         type filter hook input priority 0; policy accept;\nip saddr @bad drop\nudp dport 4791 drop\n}}\n}}",
        lines.join(",\n")
    );
    assert_eq!(judged(&nft::parse(&text), false), "drops");
    let jumps = "jump a\n".repeat(3);
    let looped = format!(
        "table ip f {{\nchain a {{\n{jumps}}}\nchain in {{\ntype filter hook input priority 0; policy drop;\njump a\n}}\n}}"
    );
    assert_eq!(judged(&nft::parse(&looped), false), "may drop");
}
