//! Rules of a firewall, whatever program lists them, and their judgement about a packet of RoCE.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The UDP port of RoCE v2, as IANA has assigned it.
pub(in crate::probe) const ROCE_PORT: u16 = 4791;

/// The packets that are judged: those of RoCE v2, which begin a flow to UDP port 4791.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) is_v6: bool,
    /// The network interface that it comes in by, or leaves by.
    pub(super) netdev: Option<String>,
    /// The network cards below that interface, and itself.
    pub(super) cards: Vec<String>,
}

/// Whether packets meet a condition. The conditions that are not understood depend on the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    No,
    Maybe,
    Yes,
}

impl Match {
    fn of(is_met: bool) -> Self {
        if is_met { Self::Yes } else { Self::No }
    }
}

/// A property that a packet must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// A property that no packet of RoCE has, as another protocol.
    Never,
    /// The protocol is UDP.
    Udp,
    /// The destination port.
    Port(RangeInclusive<u16>),
    /// The version of IP.
    Version { is_v6: bool },
    /// The name of the interface that the packet comes in by, or leaves by. It may end in a wildcard, `*` or `+`.
    Interface { is_inward: bool, name: String },
    /// A property that is not understood, or that some packets of RoCE have.
    Unknown,
}

impl Part {
    fn matched(&self, packet: &Packet, is_inward: bool) -> Match {
        match self {
            Self::Never => Match::No,
            Self::Udp => Match::Yes,
            Self::Port(ports) => Match::of(ports.contains(&ROCE_PORT)),
            Self::Version { is_v6 } => Match::of(*is_v6 == packet.is_v6),
            Self::Interface { is_inward: of_inward, .. } if *of_inward != is_inward => Match::Maybe,
            Self::Interface { name, .. } => {
                let is_named = |netdev: &String| match name.strip_suffix(['*', '+']) {
                    Some(beginning) => netdev.starts_with(beginning),
                    None => netdev == name,
                };
                match &packet.netdev {
                    Some(netdev) if is_named(netdev) => Match::Yes,
                    Some(_) if !packet.cards.iter().any(is_named) => Match::No,
                    _ => Match::Maybe,
                }
            }
            Self::Unknown => Match::Maybe,
        }
    }

    /// Whether a rule with it is one about RoCE. Rules for thousands of ports are about others: those of clients, as a rule.
    fn is_about(&self) -> bool {
        const FEW: usize = 4096;
        matches!(self, Self::Port(ports) if ports.contains(&ROCE_PORT) && ports.len() <= FEW)
    }
}

/// A condition of a rule: packets must have all parts of one alternative, or, negated, of none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) alternatives: Vec<Vec<Part>>,
    pub(super) is_negated: bool,
}

impl Condition {
    pub(super) fn part(part: Part) -> Self {
        Self { alternatives: vec![vec![part]], is_negated: false }
    }

    fn matched(&self, packet: &Packet, is_inward: bool) -> Match {
        let all = |parts: &Vec<Part>| {
            parts.iter().map(|part| part.matched(packet, is_inward)).min().unwrap_or(Match::Yes)
        };
        let any = self.alternatives.iter().map(all).max().unwrap_or(Match::No);
        match (self.is_negated, any) {
            (true, Match::Yes) => Match::No,
            (true, Match::No) => Match::Yes,
            (_, any) => any,
        }
    }

    fn is_about(&self) -> bool {
        !self.is_negated && self.alternatives.iter().flatten().any(Part::is_about)
    }
}

/// The action of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
    /// The next rule follows.
    Continue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// The rule as its program prints it. Several rules may be of one line.
    pub(super) text: Arc<str>,
    pub(super) conditions: Vec<Condition>,
    pub(super) verdict: Verdict,
}

/// A chain, and where packets come to it from the kernel, if they do.
#[derive(Debug, Default)]
pub(super) struct Chain {
    pub(super) rules: Vec<Rule>,
    pub(super) base: Option<Base>,
}

/// A place in the kernel where a chain sees packets that come in for this machine, or that leave it.
#[derive(Debug)]
pub(super) struct Base {
    /// The chain as people know it.
    pub(super) name: String,
    pub(super) is_inward: bool,
    pub(super) drops_by_default: bool,
    /// The version of IP that it sees. `None`: both.
    pub(super) is_v6: Option<bool>,
    /// The interfaces whose packets it sees. `None`: all.
    pub(super) devices: Option<Vec<String>>,
    /// The command that accepts RoCE before all other rules.
    pub(super) fix: String,
}

impl Base {
    fn sees(&self, packet: &Packet) -> bool {
        let is_of = |devices: &Vec<String>| devices.iter().any(|device| packet.cards.contains(device));
        self.is_v6.is_none_or(|is_v6| is_v6 == packet.is_v6) && self.devices.as_ref().is_none_or(is_of)
    }
}

/// The rules that one program lists.
#[derive(Debug)]
pub(super) struct Ruleset {
    pub(super) program: &'static str,
    /// The chains by a name that [`Verdict::Jump`] has.
    pub(super) chains: BTreeMap<String, Chain>,
}

/// A place where packets of RoCE are dropped, or some of them.
#[derive(Debug)]
pub(super) struct Dropping<'a> {
    pub(super) program: &'static str,
    pub(super) base: &'a Base,
    /// The rule that drops, after those that lead to it. Empty: the chain's policy does.
    pub(super) rules: Vec<&'a str>,
    /// Whether it drops all of them. Otherwise that depends on what is not understood.
    pub(super) is_certain: bool,
    /// Whether the rule is one about RoCE, and not about all that is left.
    pub(super) is_about: bool,
}

impl Ruleset {
    /// Leaves the tables of a family out that have rules which nft has no words for. iptables has made those.
    pub(super) fn leave_out_foreign(&mut self, family: &str) {
        let table = |name: &str| name.rsplit_once(' ').map(|(table, _)| table.to_owned());
        let is_foreign = |rule: &Rule| rule.text.contains("xt match ") || rule.text.contains("xt target ");
        let foreign = self.chains.iter().filter(|(_, chain)| chain.rules.iter().any(is_foreign));
        let foreign: BTreeSet<_> = foreign.filter_map(|(name, _)| table(name)).collect();
        let of_family = |table: &String| table.split(' ').next() == Some(family);
        self.chains.retain(|name, _| {
            table(name).is_none_or(|table| !of_family(&table) || !foreign.contains(&table))
        });
    }

    /// Returns the worst of what happens to a packet. `None`: it passes.
    ///
    /// To accept a packet ends one chain only, to drop it ends all. So each chain that the kernel calls is judged alone.
    pub(super) fn judge<'a>(&'a self, packet: &'a Packet) -> Option<Dropping<'a>> {
        let mut steps = MOST;
        let bases = self.chains.values().filter_map(|chain| Some((chain, chain.base.as_ref()?)));
        let seeing = bases.filter(|(_, base)| base.sees(packet));
        let found = seeing.filter_map(|(chain, base)| {
            let mut walk = Walk { ruleset: self, packet, base, steps, accepts_some: false, found: None };
            let left = walk.through(chain, &Way::default(), Match::Yes);
            steps = walk.steps;
            if base.drops_by_default && left > Match::No {
                walk.find(Vec::new(), left == Match::Yes, false);
            }
            walk.found
        });
        // Of those that are as bad the first.
        found.reduce(|worst, other| if other.is_certain && !worst.is_certain { other } else { worst })
    }
}

/// The limit on rules examined, and on the alternatives in them. Firewalls written by people have fewer, and a record may have loops, which
/// no kernel has.
const MOST: usize = 1_000_000;

/// The limit on chains that jump to each other, above the 16 of the kernel.
const DEEPEST: usize = 32;

/// The rules by which a packet came to a chain.
#[derive(Debug, Clone)]
struct Way<'a> {
    rules: Vec<&'a str>,
    matched: Match,
    is_about: bool,
}

impl Default for Way<'_> {
    fn default() -> Self {
        Self { rules: Vec::new(), matched: Match::Yes, is_about: false }
    }
}

impl<'a> Way<'a> {
    fn through(&self, rule: &'a Rule, matched: Match) -> Self {
        let mut rules = self.rules.clone();
        rules.push(&rule.text);
        let is_about = self.is_about || rule.conditions.iter().any(Condition::is_about);
        Self { rules, matched: self.matched.min(matched), is_about }
    }
}

/// A packet on its way through one base chain.
struct Walk<'a> {
    ruleset: &'a Ruleset,
    packet: &'a Packet,
    base: &'a Base,
    steps: usize,
    /// Whether a rule about RoCE accepted some packets. Its author wants others dropped, so what is left is nobody's fault.
    accepts_some: bool,
    found: Option<Dropping<'a>>,
}

impl<'a> Walk<'a> {
    /// Goes through a chain, for packets of which these are left. Returns whether some are left behind it.
    fn through(&mut self, chain: &'a Chain, way: &Way<'a>, mut left: Match) -> Match {
        let mut returned = Match::No;
        for rule in &chain.rules {
            if left == Match::No {
                break;
            }
            let alternatives = rule.conditions.iter().map(|condition| condition.alternatives.len());
            self.steps = self.steps.saturating_sub(1 + alternatives.sum::<usize>());
            if self.steps == 0 {
                // Nobody knows what the rest does.
                left = Match::Maybe;
                break;
            }
            let conditions = rule.conditions.iter();
            let matched = conditions.map(|condition| condition.matched(self.packet, self.base.is_inward));
            let matched = matched.min().unwrap_or(Match::Yes);
            if matched == Match::No || rule.verdict == Verdict::Continue {
                continue;
            }
            let way = way.through(rule, matched);
            // Packets that the rule is not for.
            let others = if matched == Match::Yes { Match::No } else { Match::Maybe };
            match &rule.verdict {
                Verdict::Continue => {}
                Verdict::Accept => {
                    self.accepts_some |= way.is_about;
                    left = others;
                }
                // A rule about something else, as packets from a bad address, is no concern of RoCE.
                Verdict::Drop if way.matched == Match::Maybe && !way.is_about => {}
                Verdict::Drop => {
                    let is_certain = left == Match::Yes && way.matched == Match::Yes;
                    self.find(way.rules, is_certain, way.is_about);
                    left = others;
                }
                Verdict::Return => {
                    returned = returned.max(left.min(matched));
                    left = others;
                }
                Verdict::Jump(name) => {
                    let back = self.into(name, &way, left);
                    left = if matched == Match::Yes { back } else { left.min(back.max(Match::Maybe)) };
                }
                Verdict::Goto(name) => {
                    // Packets don't come back to this chain, but to the one that jumped to it.
                    returned = returned.max(self.into(name, &way, left).min(matched));
                    left = others;
                }
            }
        }
        left.max(returned)
    }

    fn into(&mut self, name: &str, way: &Way<'a>, left: Match) -> Match {
        match self.ruleset.chains.get(name) {
            Some(chain) if way.rules.len() < DEEPEST => self.through(chain, way, left),
            _ => left,
        }
    }

    fn find(&mut self, rules: Vec<&'a str>, is_certain: bool, is_about: bool) {
        let is_wanted = self.accepts_some && !is_about;
        let is_known = self.found.as_ref().is_some_and(|found| found.is_certain || !is_certain);
        if !is_wanted && !is_known {
            let (program, base) = (self.ruleset.program, self.base);
            self.found = Some(Dropping { program, base, rules, is_certain, is_about });
        }
    }
}
