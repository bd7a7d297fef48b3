//! A rule of nft(8), as the conditions and the verdict that it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::{Condition, Part, ROCE_PORT, Rule, Verdict};

/// The elements of a table's sets and maps, by name. `None`: they change with packets.
pub(super) type Sets = BTreeMap<String, Option<String>>;

/// Reads a rule. Each element of a verdict map makes one of its own.
pub(super) fn rules(line: &str, table: &str, sets: &Sets) -> Vec<Rule> {
    let tokens = tokens(line);
    let mut reader = Reader { tokens: &tokens, at: 0, table, sets, conditions: Vec::new() };
    let endings = reader.endings();
    let text: Arc<str> = line.into();
    let rule = |(condition, verdict): (Option<Condition>, Verdict)| {
        let conditions = reader.conditions.iter().cloned().chain(condition).collect();
        Rule { text: Arc::clone(&text), conditions, verdict }
    };
    endings.into_iter().map(rule).collect()
}

/// Splits a line into words, strings with their quotes, and what is in braces.
pub(super) fn tokens(line: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => rest[1..].find('"').map(|end| end + 2),
            '{' => closing(rest),
            _ => rest.find(char::is_whitespace),
        };
        let (token, others) = rest.split_at(end.unwrap_or(rest.len()));
        tokens.push(token.trim_end_matches(';'));
        rest = others.trim_start();
    }
    tokens
}

/// Returns where the braces end that a text begins with.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut is_quoted) = (0_usize, false);
    for (at, character) in text.char_indices() {
        match character {
            '"' => is_quoted = !is_quoted,
            '{' if !is_quoted => depth += 1,
            '}' if !is_quoted && depth == 1 => return Some(at + 1),
            '}' if !is_quoted => depth -= 1,
            _ => {}
        }
    }
    None
}

/// A property of packets that rules compare with values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Port,
    Protocol,
    Version,
    State,
    InwardInterface,
    OutwardInterface,
    /// One that is not understood.
    Other,
}

/// Returns the field that these words name, how many they are, and what packets that have such a field are.
fn field(tokens: &[&str]) -> Option<(Field, usize, Option<Part>)> {
    let version = |is_v6| Some(Part::Version { is_v6 });
    Some(match tokens {
        ["udp" | "th", "dport", ..] => (Field::Port, 2, None),
        ["udp" | "th", _, ..] => (Field::Other, 2, None),
        [
            "tcp" | "sctp" | "dccp" | "udplite" | "icmp" | "icmpv6" | "igmp" | "esp" | "ah" | "comp" | "arp",
            _,
            ..,
        ] => (Field::Other, 2, Some(Part::Never)),
        ["meta", "l4proto", ..] => (Field::Protocol, 2, None),
        ["ip", "protocol", ..] => (Field::Protocol, 2, version(false)),
        ["ip6", "nexthdr", ..] => (Field::Protocol, 2, version(true)),
        ["meta", "nfproto" | "protocol", ..] | ["ether", "type", ..] => (Field::Version, 2, None),
        ["ip", _, ..] => (Field::Other, 2, version(false)),
        ["ip6", _, ..] => (Field::Other, 2, version(true)),
        ["ct", "state", ..] => (Field::State, 2, None),
        ["iif" | "iifname", ..] => (Field::InwardInterface, 1, None),
        ["oif" | "oifname", ..] => (Field::OutwardInterface, 1, None),
        ["meta", "iif" | "iifname", ..] => (Field::InwardInterface, 2, None),
        ["meta", "oif" | "oifname", ..] => (Field::OutwardInterface, 2, None),
        _ => return None,
    })
}

impl Field {
    /// Returns the parts of a condition that the field has a value. None: all packets of RoCE have it.
    fn parts(self, value: &str) -> Vec<Part> {
        let name = value.trim_matches('"');
        let is = |holds: Option<bool>, part: Option<Part>| match holds {
            Some(true) => part.into_iter().collect(),
            Some(false) => vec![Part::Never],
            None => vec![Part::Unknown],
        };
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic());
        match self {
            _ if value == "*" => Vec::new(),
            Self::Port => match ports(name) {
                Some((0, u16::MAX)) => Vec::new(),
                Some((first, last)) => vec![Part::Port(first..=last)],
                None => is((is_name).then_some(false), None),
            },
            Self::Protocol if matches!(name, "udp" | "17") => vec![Part::Udp],
            Self::Protocol => is((is_name || name.parse::<u8>().is_ok()).then_some(false), None),
            Self::Version => match name {
                "ipv4" | "ip" => vec![Part::Version { is_v6: false }],
                "ipv6" | "ip6" => vec![Part::Version { is_v6: true }],
                _ => vec![Part::Never],
            },
            // The first packet of a flow is new, and without it there are no others.
            Self::State => is(is_name.then(|| name.split(',').any(|state| state == "new")), None),
            Self::InwardInterface => vec![Part::Interface { is_inward: true, name: name.to_owned() }],
            Self::OutwardInterface => vec![Part::Interface { is_inward: false, name: name.to_owned() }],
            Self::Other if name == "0-65535" => Vec::new(),
            Self::Other => vec![Part::Unknown],
        }
    }
}

/// Reads a port, or a range of them.
fn ports(value: &str) -> Option<(u16, u16)> {
    // IANA's name, which versions before 0.9 print where the system knows it.
    if value == "roce" {
        return Some((ROCE_PORT, ROCE_PORT));
    }
    let (first, last) = value.split_once('-').unwrap_or((value, value));
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
}

/// A rule that is being read.
struct Reader<'a> {
    tokens: &'a [&'a str],
    at: usize,
    table: &'a str,
    sets: &'a Sets,
    conditions: Vec<Condition>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let token = self.tokens.get(self.at).copied();
        self.at += 1;
        token
    }

    fn rest(&self) -> &'a [&'a str] {
        self.tokens.get(self.at..).unwrap_or_default()
    }

    /// Reads all conditions, and returns the verdicts, each with the condition of its own that it has.
    fn endings(&mut self) -> Vec<(Option<Condition>, Verdict)> {
        while !self.rest().is_empty() {
            if let Some(verdict) = verdict(self.rest(), self.table) {
                return vec![(None, verdict)];
            }
            if self.skip_statement() {
                continue;
            }
            let fields = self.fields();
            if fields.is_empty() && self.rest().first() != Some(&"vmap") {
                // One word of a condition that is not understood.
                self.at += 1;
                self.add(Condition::part(Part::Unknown));
            } else if self.rest().first() == Some(&"vmap") {
                self.at += 1;
                let elements = self.next().unwrap_or_default();
                return self.verdicts(&fields, elements);
            } else {
                let condition = self.comparison(&fields);
                self.add(condition);
            }
        }
        Vec::new()
    }

    fn add(&mut self, condition: Condition) {
        if !self.conditions.contains(&condition) {
            self.conditions.push(condition);
        }
    }

    /// Passes over a statement that no packet is stopped by. Returns whether there was one.
    fn skip_statement(&mut self) -> bool {
        let len = match self.rest() {
            ["counter", "packets", _, "bytes", _, ..] => 5,
            ["counter", "name", _, ..] => 3,
            ["counter" | "notrack", ..] => 1,
            ["comment", _, ..] => 2,
            ["xt", "match", "\"comment\"", ..] => 3,
            ["log", rest @ ..] => 1 + log(rest),
            [_, _, "set", _, ..] => 4,
            _ => return false,
        };
        self.at += len;
        true
    }

    /// Reads the fields of a comparison: `udp dport`, or several with a dot between them. Empty: none is known.
    fn fields(&mut self) -> Vec<Field> {
        let mut fields = Vec::new();
        while let Some((field, len, implied)) = field(self.rest()) {
            self.at += len;
            fields.push(field);
            if let Some(part) = implied {
                self.add(Condition::part(part));
            }
            if self.rest().first() != Some(&".") {
                break;
            }
            self.at += 1;
        }
        fields
    }

    /// Reads what fields are compared with.
    fn comparison(&mut self, fields: &[Field]) -> Condition {
        let operator = match self.rest().first() {
            Some(operator @ (&"==" | &"!=" | &"<" | &">" | &"<=" | &">=")) => {
                self.at += 1;
                operator
            }
            _ => "==",
        };
        let mut value = self.next().unwrap_or_default().to_owned();
        while let [".", next, ..] = self.rest() {
            value = format!("{value} . {next}");
            self.at += 2;
        }
        let is_negated = operator == "!=";
        let alternatives = match (operator, ports(&value)) {
            ("==" | "!=", _) => self.alternatives(fields, &value),
            (_, Some((port, _))) if *fields == [Field::Port] => {
                let ports = match operator {
                    "<" => port.checked_sub(1).map(|last| 0..=last),
                    "<=" => Some(0..=port),
                    ">" => port.checked_add(1).map(|first| first..=u16::MAX),
                    _ => Some(port..=u16::MAX),
                };
                ports.into_iter().map(|ports| vec![Part::Port(ports)]).collect()
            }
            _ => vec![vec![Part::Unknown]],
        };
        Condition { alternatives, is_negated }
    }

    /// Returns the elements of a set, by its name or as they stand in the rule. `None`: they are not known.
    fn elements<'b>(&'b self, set: &'b str) -> Option<Vec<&'b str>> {
        let list = match set.strip_prefix('@') {
            Some(name) => self.sets.get(name)?.as_deref()?,
            None => set,
        };
        let inside = list.strip_prefix('{').and_then(|list| list.strip_suffix('}')).unwrap_or(list);
        Some(split(inside))
    }

    fn alternatives(&self, fields: &[Field], value: &str) -> Vec<Vec<Part>> {
        if !value.starts_with(['{', '@']) {
            return vec![parts(fields, value)];
        }
        match self.elements(value) {
            Some(elements) => {
                let mut alternatives: Vec<_> =
                    elements.into_iter().map(|element| parts(fields, element)).collect();
                // Long lists of addresses, of which none is understood, become one.
                alternatives.dedup();
                alternatives
            }
            None => vec![vec![Part::Unknown]],
        }
    }

    /// Reads the elements of a verdict map: `{ 22 : accept, 4791 : drop }`.
    fn verdicts(&self, fields: &[Field], map: &str) -> Vec<(Option<Condition>, Verdict)> {
        let elements = self.elements(map).unwrap_or_default();
        let pairs = elements.into_iter().filter_map(|element| element.split_once(" : "));
        let (all, some): (Vec<_>, Vec<_>) = pairs.partition(|(key, _)| key.trim() == "*");
        let alternatives: Vec<_> = some.iter().map(|(key, _)| parts(fields, key)).collect();
        let of_key = |parts: &Vec<Part>| Condition { alternatives: vec![parts.clone()], is_negated: false };
        let conditions = alternatives.iter().map(of_key);
        let own = conditions.zip(some.iter().map(|(_, verdict)| *verdict));
        // The element for all keys that are not there.
        let other = Condition { alternatives: alternatives.clone(), is_negated: true };
        let others = all.into_iter().map(|(_, verdict)| (other.clone(), verdict));
        let read = |(condition, words)| Some((Some(condition), verdict(&tokens(words), self.table)?));
        own.chain(others).filter_map(read).collect()
    }
}

/// Returns the parts of an element: a value for each field, with dots between them. Attributes behind them, as a timeout, are left out.
fn parts(fields: &[Field], element: &str) -> Vec<Part> {
    let tokens = tokens(element);
    let attributes = ["timeout", "expires", "counter", "comment", "limit"];
    let words: Vec<_> = tokens.into_iter().take_while(|word| !attributes.contains(word)).collect();
    let values: Vec<_> = words.split(|word| *word == ".").map(|words| words.join(" ")).collect();
    if values.len() != fields.len() {
        return vec![Part::Unknown];
    }
    fields.iter().zip(&values).flat_map(|(field, value)| field.parts(value)).collect()
}

/// Splits a list at its commas, except those within quotes.
fn split(list: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let items = list.split(|c: char| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    items.map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// Returns how many words the options of a log statement are.
fn log(tokens: &[&str]) -> usize {
    const OPTIONS: [&str; 6] = ["prefix", "level", "group", "snaplen", "queue-threshold", "flags"];
    tokens.chunks(2).take_while(|option| OPTIONS.contains(&option[0])).map(<[_]>::len).sum()
}

/// Reads a verdict. `None`: these words begin with none.
fn verdict(tokens: &[&str], table: &str) -> Option<Verdict> {
    Some(match tokens {
        // A program that has the packet queued decides by itself.
        ["accept" | "queue", ..] => Verdict::Accept,
        ["drop" | "reject", ..] => Verdict::Drop,
        // A target of iptables that nft has no words for.
        ["xt", "target", "\"REJECT\"" | "REJECT", ..] => Verdict::Drop,
        ["return", ..] => Verdict::Return,
        ["continue", ..] => Verdict::Continue,
        // Chains are those of the table.
        ["jump", name, ..] => Verdict::Jump(format!("{table} {name}")),
        ["goto", name, ..] => Verdict::Goto(format!("{table} {name}")),
        _ => return None,
    })
}
