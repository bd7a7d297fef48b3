//! Rules of the machine's firewall about RoCE. Packets of real devices don't pass the kernel; those of emulated ones do.

use super::Finding;
use super::finding::kinds;
use super::view::View;

kinds! { KINDS:
    DROPPED = "firewall-drops-roce", Fault, Network,
        "Packets of Soft-RoCE pass the kernel's firewall, and it drops them. Connections go by TCP after their probe has timed out.",
        "take the rule out, or accept UDP port 4791 before it";
    MAY_DROP = "firewall-may-drop-roce", Warning, Network,
        "Packets of Soft-RoCE pass the kernel's firewall, which drops what no rule accepts.",
        "accept UDP port 4791: `nft insert rule CHAIN udp dport 4791 accept`, `iptables -I INPUT -p udp --dport 4791 -j ACCEPT`";
}

/// The UDP port of RoCE v2, as IANA has assigned it.
pub(super) const ROCE_PORT: &str = "4791";

pub(super) fn check(view: &View<'_>) -> Option<Finding> {
    let (device, ..) = view.chosen()?;
    if !view.is_software(device) {
        return None;
    }
    // Without counters, whose numbers could look like the port.
    let nft =
        view.machine.run(&["nft", "-s", "list", "ruleset"]).map(|text| of_nft(&text)).unwrap_or_default();
    // On machines where iptables writes rules of nft, these are there already.
    let rules = if nft.is_empty() { of_iptables(&view.machine.run(&["iptables-save"])?) } else { nft };
    rules.iter().find_map(|chain| chain.judge())
}

/// The rules for packets that come in.
#[derive(Debug, Default, PartialEq, Eq)]
struct Chain {
    program: &'static str,
    /// The chain, as its program names it.
    name: String,
    drops_by_default: bool,
    rules: Vec<String>,
}

impl Chain {
    fn judge(&self) -> Option<Finding> {
        let names_port = |rule: &String| {
            let mut numbers = rule.split(|c: char| !c.is_ascii_digit());
            numbers.any(|number| number == ROCE_PORT) && !is_about_others(rule)
        };
        let has =
            |rule: &String, verdicts: &[&str]| rule.split_whitespace().any(|word| verdicts.contains(&word));
        let drops = |rule: &String| has(rule, &["drop", "reject", "DROP", "REJECT"]);
        let accepts = |rule: &String| has(rule, &["accept", "ACCEPT"]);
        let fix = match self.program {
            "nft" => format!("nft insert rule {} udp dport {ROCE_PORT} accept", self.name),
            _ => format!("iptables -I {} -p udp --dport {ROCE_PORT} -j ACCEPT", self.name),
        };
        let about: Vec<_> = self.rules.iter().filter(|rule| names_port(rule)).collect();
        let is_accepted = about.iter().take_while(|rule| !drops(rule)).any(|rule| accepts(rule));
        if let Some(rule) = about.iter().find(|rule| drops(rule)) {
            let seen = format!("a rule of {} drops RoCE: `{rule}`", self.program);
            // Some packets are accepted before.
            let kind = if is_accepted { &MAY_DROP } else { &DROPPED };
            return Some(Finding::new(
                kind,
                seen,
                format!("take the rule out, or accept RoCE before it: `{fix}`"),
            ));
        }
        // A last rule without conditions is a default, too.
        let is_bare = |rule: &&String| {
            rule.starts_with("reject")
                || rule.starts_with("drop")
                || rule.ends_with("-j DROP") && !rule.contains(" -p ")
        };
        let closed = self.drops_by_default || self.rules.last().filter(|rule| is_bare(rule)).is_some();
        let seen = format!(
            "{} drops what no rule accepts ({}), and no rule names UDP port {ROCE_PORT}",
            self.program, self.name
        );
        (closed && !is_accepted).then(|| Finding::new(&MAY_DROP, seen, fix))
    }
}

/// Whether a rule is for all ports but those that it names: `dport != 4791` of nft, `! --dport 4791` of iptables.
fn is_about_others(rule: &str) -> bool {
    let words: Vec<_> = rule.split_whitespace().collect();
    words.windows(2).any(|pair| pair == ["dport", "!="] || matches!(pair, ["!", "--dport" | "--dports"]))
}

/// Returns the chains of nft(8)'s list that see packets that come in.
fn of_nft(text: &str) -> Vec<Chain> {
    let (mut chains, mut table, mut open): (Vec<_>, _, Option<Chain>) = (Vec::new(), String::new(), None);
    let mut is_input = false;
    for line in text.lines().map(str::trim) {
        let name = line.strip_suffix(" {").unwrap_or(line);
        if let Some(name) = name.strip_prefix("table ") {
            table = name.to_owned();
        } else if let Some(name) = name.strip_prefix("chain ") {
            open = Some(Chain { program: "nft", name: format!("{table} {name}"), ..Chain::default() });
            is_input = false;
        } else if line == "}" {
            chains.extend(open.take().filter(|_| is_input));
        } else if let Some(chain) = &mut open {
            match line.contains(" hook ") {
                true => {
                    is_input = line.contains(" hook input ");
                    chain.drops_by_default = line.contains("policy drop");
                }
                false => chain.rules.push(line.to_owned()),
            }
        }
    }
    chains
}

/// Returns the chain INPUT of iptables-save(8).
fn of_iptables(text: &str) -> Vec<Chain> {
    let filter = text
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "*filter")
        .take_while(|line| *line != "COMMIT");
    let mut chain = Chain { program: "iptables", name: "INPUT".to_owned(), ..Chain::default() };
    for line in filter {
        chain.drops_by_default |= line.starts_with(":INPUT DROP");
        if line.starts_with("-A INPUT ") {
            chain.rules.push(line.to_owned());
        }
    }
    vec![chain]
}
