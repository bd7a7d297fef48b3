//! Rules as nft(8) lists them.

use std::collections::BTreeMap;

use super::model::{Base, Chain, ROCE_PORT, Ruleset};
use super::statement::{Sets, rules, tokens};

/// Reads the output of `nft -s list ruleset`.
pub(super) fn parse(text: &str) -> Ruleset {
    let mut chains = BTreeMap::new();
    for table in tables(text) {
        for (name, lines) in &table.chains {
            let (name, mut chain) = (format!("{} {name}", table.name), Chain::default());
            for line in lines {
                match line.starts_with("type ") {
                    true => chain.base = base(&table.name, &name, line),
                    false => chain.rules.extend(rules(line, &table.name, &table.sets)),
                }
            }
            chains.insert(name, chain);
        }
    }
    Ruleset { program: "nft", chains }
}

/// A table that is in use.
#[derive(Debug, Default)]
struct Table {
    /// Its family and name.
    name: String,
    chains: Vec<(String, Vec<String>)>,
    sets: Sets,
}

/// An object within a table: a chain, a set, a map, and others that don't matter.
#[derive(Debug, Default)]
struct Object {
    kind: String,
    name: String,
    lines: Vec<String>,
    /// The beginning of a line whose braces are not closed yet: long sets have several.
    open: String,
    /// How many of its braces are open.
    depth: usize,
    is_quoted: bool,
}

impl Object {
    /// Takes a line. Returns whether the object ends there.
    fn take(&mut self, line: &str) -> bool {
        if self.open.is_empty() && line == "}" {
            return true;
        }
        if !self.open.is_empty() {
            self.open.push(' ');
        }
        self.open.push_str(line);
        for character in line.chars() {
            match character {
                '"' => self.is_quoted = !self.is_quoted,
                '{' if !self.is_quoted => self.depth += 1,
                '}' if !self.is_quoted => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        if self.depth == 0 {
            self.lines.push(std::mem::take(&mut self.open));
            self.is_quoted = false;
        }
        false
    }
}

fn tables(text: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut open: Option<Object> = None;
    let mut is_dormant = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(object) = &mut open {
            if object.take(line)
                && let (Some(object), Some(table)) = (open.take(), tables.last_mut())
            {
                table.add(object);
            }
            continue;
        }
        // Newer versions name the owner of a table behind the brace.
        let opening = line.split_once(" {").map(|(before, _)| before.split_once(' ').unwrap_or((before, "")));
        match opening {
            Some(("table", name)) => tables.push(Table { name: name.to_owned(), ..Table::default() }),
            Some((kind, name)) => {
                let (kind, name) = (kind.to_owned(), name.to_owned());
                open = Some(Object { kind, name, ..Object::default() });
            }
            // Its chains see no packets.
            None if line.starts_with("flags ") && line.contains("dormant") => is_dormant = true,
            None if line == "}" && std::mem::take(&mut is_dormant) => drop(tables.pop()),
            None => {}
        }
    }
    tables
}

impl Table {
    fn add(&mut self, object: Object) {
        let Object { kind, name, lines, .. } = object;
        match kind.as_str() {
            "chain" => self.chains.push((name, lines)),
            "set" | "map" => {
                // Packets change what is in a dynamic one.
                let is_dynamic = |line: &String| line.starts_with("flags ") && line.contains("dynamic");
                let elements = lines.iter().find_map(|line| line.strip_prefix("elements = "));
                let elements = elements.unwrap_or("{ }").to_owned();
                self.sets.insert(name, (!lines.iter().any(is_dynamic)).then_some(elements));
            }
            _ => {}
        }
    }
}

/// Reads where the kernel has packets come to a chain: `type filter hook input priority filter; policy drop;`. `None`: they are passed on,
/// or no packets of IP.
fn base(table: &str, name: &str, line: &str) -> Option<Base> {
    let tokens = tokens(line);
    let after = |word: &str| {
        let at = tokens.iter().position(|token| *token == word)?;
        tokens.get(at + 1).copied()
    };
    let is_inward = match after("hook")? {
        "ingress" | "prerouting" | "input" => true,
        "output" | "postrouting" | "egress" => false,
        _ => return None,
    };
    let is_v6 = match table.split(' ').next()? {
        "ip" => Some(false),
        "ip6" => Some(true),
        "inet" | "netdev" => None,
        // Bridges pass frames on, and ARP is not RoCE.
        _ => return None,
    };
    // `device "eth0"`, or `devices = { "eth0", "eth1" }`.
    let devices = after("device").or_else(|| tokens.iter().find(|token| token.starts_with('{')).copied());
    let name_of = |name: &str| name.trim_matches([' ', '"']).to_owned();
    let names = |list: &str| list.trim_matches(['{', '}']).split(',').map(name_of).collect();
    Some(Base {
        name: name.to_owned(),
        is_inward,
        drops_by_default: line.contains("policy drop"),
        is_v6,
        devices: devices.map(names),
        fix: format!("nft insert rule {name} udp dport {ROCE_PORT} accept"),
    })
}
