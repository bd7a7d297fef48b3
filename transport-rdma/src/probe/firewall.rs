//! Rules of the machine's firewall about RoCE. Packets of real devices don't pass the kernel; those of emulated ones do.

use std::collections::{BTreeMap, VecDeque};

use super::Finding;
use super::finding::kinds;
use super::view::View;

kinds! { KINDS:
    DROPPED = "firewall-drops-roce", Fault, Network,
        "Packets of Soft-RoCE pass the kernel's firewall, and it drops them. Connections go by TCP after their probe has timed out.",
        "take the rule out, or accept UDP port 4791 before it";
    MAY_DROP = "firewall-may-drop-roce", Warning, Network,
        "Packets of Soft-RoCE pass the kernel's firewall, which drops what no rule accepts.",
        "accept UDP port 4791: `nft insert rule CHAIN udp dport 4791 accept`, `iptables -I CHAIN -p udp --dport 4791 -j ACCEPT`";
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

/// The rules for packets that come in, or for those that leave.
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

/// The rules of each chain, by its name. Rules may jump from one to another.
type Chains = BTreeMap<String, Vec<String>>;

/// The limit on rules examined for one chain, including those that it jumps to. Firewalls written by people have fewer.
const MOST: usize = 10_000;

impl Chain {
    /// Puts the rules of the chains that this one jumps to in the places of the jumps. `target` splits a rule that jumps into its
    /// conditions and a chain's name, and `joined` returns a rule of that chain with these conditions.
    fn follow_jumps(
        mut self,
        chains: &Chains,
        target: impl Fn(&str) -> Option<(String, String)>,
        joined: impl Fn(&str, &str) -> String,
    ) -> Self {
        // A jump leads to a place that is worked off before the rest.
        let mut waiting: VecDeque<String> = std::mem::take(&mut self.rules).into();
        for _ in 0..MOST {
            let Some(rule) = waiting.pop_front() else { break };
            let known = target(&rule).and_then(|(conditions, name)| Some((conditions, chains.get(&name)?)));
            match known {
                // A loop, which no kernel has, makes rules longer and more.
                Some((conditions, rules))
                    if conditions.len() < 1000 && waiting.len() + rules.len() < MOST =>
                {
                    rules.iter().rev().for_each(|next| waiting.push_front(joined(&conditions, next)));
                }
                _ => self.rules.push(rule),
            }
        }
        self.rules.extend(waiting);
        self
    }
}

/// Returns the chains of nft(8)'s list that see packets that come in for this machine, or that leave it.
fn of_nft(text: &str) -> Vec<Chain> {
    const HOOKS: [&str; 4] = [" hook prerouting ", " hook input ", " hook output ", " hook postrouting "];
    let (mut hooked, mut all, mut table) = (Vec::new(), Chains::new(), String::new());
    let mut open: Option<(Chain, bool)> = None;
    for line in text.lines().map(str::trim) {
        let name = line.strip_suffix(" {").unwrap_or(line);
        if let Some(name) = name.strip_prefix("table ") {
            table = name.to_owned();
        } else if let Some(name) = name.strip_prefix("chain ") {
            let chain = Chain { program: "nft", name: format!("{table} {name}"), ..Chain::default() };
            open = Some((chain, false));
        } else if line == "}" {
            let Some((chain, is_hooked)) = open.take() else { continue };
            all.insert(chain.name.clone(), chain.rules.clone());
            hooked.extend(is_hooked.then_some((chain, table.clone())));
        } else if let Some((chain, is_hooked)) = &mut open {
            match line.contains(" hook ") {
                true => {
                    *is_hooked = HOOKS.iter().any(|hook| line.contains(hook));
                    chain.drops_by_default = line.contains("policy drop");
                }
                false => chain.rules.push(line.to_owned()),
            }
        }
    }
    let followed = |(chain, table): (Chain, String)| {
        // Jumps stay in their table.
        let target = |rule: &str| {
            let at = ["jump ", "goto "].into_iter().find_map(|verb| rule.rfind(verb))?;
            Some((rule[..at].to_owned(), format!("{table} {}", rule[at..].split_whitespace().nth(1)?)))
        };
        chain.follow_jumps(&all, target, |conditions, rule| format!("{conditions}{rule}"))
    };
    hooked.into_iter().map(followed).collect()
}

/// Returns the chains INPUT and OUTPUT of iptables-save(8).
fn of_iptables(text: &str) -> Vec<Chain> {
    let filter = text
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "*filter")
        .take_while(|line| *line != "COMMIT");
    let (mut all, mut dropping) = (Chains::new(), Vec::new());
    for line in filter {
        dropping
            .extend(line.strip_prefix(':').and_then(|chain| chain.split_once(" DROP")).map(|(name, _)| name));
        let Some((name, _)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')) else {
            continue;
        };
        all.entry(name.to_owned()).or_default().push(line.to_owned());
    }
    let target = |rule: &str| {
        let verb = [" -j ", " -g "].into_iter().find(|verb| rule.contains(verb))?;
        let (conditions, name) = rule.rsplit_once(verb)?;
        Some((conditions.to_owned(), name.split_whitespace().next()?.to_owned()))
    };
    // A rule begins with `-A CHAIN`.
    let joined = |conditions: &str, rule: &str| {
        format!("{conditions} {}", rule.splitn(3, ' ').nth(2).unwrap_or_default())
    };
    let chain = |name: &str| {
        let rules = all.get(name).cloned().unwrap_or_default();
        let drops_by_default = dropping.contains(&name);
        let chain = Chain { program: "iptables", name: name.to_owned(), drops_by_default, rules };
        chain.follow_jumps(&all, target, joined)
    };
    ["INPUT", "OUTPUT"].map(chain).into()
}
