//! Rules as iptables-save(8) and ip6tables-save(8) print them.

use std::collections::BTreeMap;

use super::model::{Base, Chain, Condition, Part, ROCE_PORT, Rule, Ruleset, Verdict};

/// Reads the rules of all tables. `program` is the one that changes them: `iptables`, `ip6tables-legacy`.
pub(super) fn parse(text: &str, program: &'static str) -> Ruleset {
    let mut chains = BTreeMap::<String, Chain>::new();
    let mut table = "filter";
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some((name, policy)) = line.strip_prefix(':').and_then(|chain| chain.split_once(' ')) {
            let drops_by_default = policy.starts_with("DROP");
            let base = base(program, table, name, drops_by_default);
            chains.entry(format!("{table} {name}")).or_default().base = base;
        } else if let Some((name, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')) {
            let chain = chains
                .entry(format!("{table} {name}"))
                .or_insert_with(|| Chain { base: base(program, table, name, false), ..Chain::default() });
            chain.rules.push(self::rule(line, rule, table));
        }
    }
    Ruleset { program, chains }
}

/// Returns where packets come to one of the kernel's chains. `None`: the chain is a user's, or for packets that are passed on.
fn base(program: &str, table: &str, name: &str, drops_by_default: bool) -> Option<Base> {
    let is_inward = match name {
        "PREROUTING" | "INPUT" => true,
        "OUTPUT" | "POSTROUTING" => false,
        _ => return None,
    };
    let (of_table, option) = match table {
        "filter" => (String::new(), String::new()),
        other => (format!("{other} "), format!("-t {other} ")),
    };
    Some(Base {
        name: format!("{of_table}{name}"),
        is_inward,
        drops_by_default,
        is_v6: Some(program.starts_with("ip6")),
        devices: None,
        fix: format!("{program} {option}-I {name} -p udp --dport {ROCE_PORT} -j ACCEPT"),
    })
}

/// Reads a rule. `options` is what stands behind the chain's name.
fn rule(text: &str, options: &str, table: &str) -> Rule {
    let (mut conditions, mut verdict) = (Vec::new(), Verdict::Continue);
    let words = words(options);
    let mut words = words.iter().map(String::as_str).peekable();
    let mut is_negated = false;
    while let Some(option) = words.next() {
        // An option's values stand before the next option, or before the negation of it.
        let value = match words.peek() {
            Some(value) if !value.starts_with('-') && *value != "!" => words.next().unwrap_or_default(),
            _ => "",
        };
        match option {
            "!" => {
                is_negated = true;
                // It has no value: the next word is the option that it negates.
                continue;
            }
            "-j" | "--jump" | "-g" | "--goto" => {
                verdict = self::verdict(option, value, table);
                // The options of the target follow.
                break;
            }
            "-m" | "--match" | "--comment" | "-c" => {}
            _ => conditions.push(Condition { alternatives: alternatives(option, value), is_negated }),
        }
        is_negated = false;
    }
    Rule { text: text.into(), conditions, verdict }
}

fn verdict(option: &str, target: &str, table: &str) -> Verdict {
    match target {
        // A program that has the packet queued decides by itself.
        "ACCEPT" | "QUEUE" | "NFQUEUE" => Verdict::Accept,
        "DROP" | "REJECT" => Verdict::Drop,
        "RETURN" => Verdict::Return,
        // A target that is no chain, as LOG, leads nowhere.
        name if option.starts_with("-g") || option == "--goto" => Verdict::Goto(format!("{table} {name}")),
        name => Verdict::Jump(format!("{table} {name}")),
    }
}

/// Returns the alternatives of a condition. An option that is not known is one that is not understood.
fn alternatives(option: &str, value: &str) -> Vec<Vec<Part>> {
    let interface = |is_inward| vec![vec![Part::Interface { is_inward, name: value.to_owned() }]];
    match option {
        "-p" | "--protocol" => vec![match value {
            "udp" | "17" => vec![Part::Udp],
            "all" | "0" => Vec::new(),
            _ => vec![Part::Never],
        }],
        "--dport" | "--dports" | "--destination-port" | "--destination-ports" => ports(value),
        // Either port may be one of these.
        "--ports" => {
            let mut either = ports(value);
            either.push(vec![Part::Unknown]);
            either
        }
        "-i" | "--in-interface" => interface(true),
        "-o" | "--out-interface" => interface(false),
        // The first packet of a flow is new, and without it there are no others.
        "--ctstate" | "--state" => vec![match value.split(',').any(|state| state == "NEW") {
            true => Vec::new(),
            false => vec![Part::Never],
        }],
        _ => vec![vec![Part::Unknown]],
    }
}

/// Reads a list of ports and of their ranges: `22,4000:5000`. The ends of a range may be left out.
fn ports(list: &str) -> Vec<Vec<Part>> {
    let port = |text: &str, otherwise: u16| match text {
        "" => Some(otherwise),
        number => number.parse().ok(),
    };
    let range = |item: &str| {
        let (first, last) = item.split_once(':').unwrap_or((item, item));
        Some(Part::Port(port(first, 0)?..=port(last, u16::MAX)?))
    };
    list.split(',').map(|item| vec![range(item).unwrap_or(Part::Unknown)]).collect()
}

/// Splits a line into words. A quoted one may have spaces, and quotes behind a backslash. It keeps its first quote, by which a comment
/// does not look like an option.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), None::<String>, false);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_with(|| "\"".to_owned());
            }
            '\\' => word.get_or_insert_default().extend(characters.next()),
            space if space.is_whitespace() && !is_quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}
