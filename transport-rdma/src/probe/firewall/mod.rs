//! Rules of the machine's firewall about RoCE. Packets of real devices don't pass the kernel; those of emulated ones do.

mod iptables;
mod model;
mod nft;
mod statement;

pub(super) use self::model::ROCE_PORT;
use self::model::{Dropping, Packet, Ruleset};
use super::Finding;
use super::finding::kinds;
use super::view::View;
use crate::device::{GidEntry, GidKind};
use crate::machine::NoOutput;

kinds! { KINDS:
    DROPPED = "firewall-drops-roce", Fault, Network,
        "Packets of Soft-RoCE pass the kernel's firewall, and it drops them. Connections go by TCP after their probe has timed out.",
        "take the rule out, or accept UDP port 4791 before it";
    MAY_DROP = "firewall-may-drop-roce", Warning, Network,
        "Packets of Soft-RoCE pass the kernel's firewall. It drops some of them, or all, by conditions that a look at the rules does not decide.",
        "accept UDP port 4791: `nft insert rule CHAIN udp dport 4791 accept`, `iptables -I CHAIN -p udp --dport 4791 -j ACCEPT`";
}

pub(super) fn check(view: &View<'_>) -> Option<Finding> {
    let (device, port, netdev) = view.chosen()?;
    if !view.is_software(device) {
        return None;
    }
    let is_v6 = is_v6(&view.choice.as_ref().ok()?.gid)?;
    // Each port has a link-local address, whether it is used or not.
    let others = port.gids.iter().filter(|gid| gid.kind != GidKind::RoceV2LinkLocal);
    let has_other = others.filter_map(self::is_v6).any(|other| other != is_v6);
    let rulesets = rulesets(view);
    // A bond has hooks of its own, beside those of its cards.
    let cards = netdev.iter().flat_map(|netdev| view.cards(netdev).into_iter().chain([netdev.clone()]));
    let cards: Vec<_> = cards.collect();
    let judge = |is_v6| {
        let packet = Packet { is_v6, netdev: netdev.clone(), cards: cards.clone() };
        let found = rulesets.iter().filter_map(|ruleset| ruleset.judge(&packet));
        let worst =
            found.reduce(|worst, other| if other.is_certain && !worst.is_certain { other } else { worst })?;
        Some(finding(&worst))
    };
    // Peers may choose another address of the port.
    judge(is_v6).or_else(|| Some(judge(has_other.then_some(!is_v6)?)?.but(MAY_DROP.severity)))
}

/// Whether packets from this address are IPv6's. `None`: they are no packets of IP.
fn is_v6(gid: &GidEntry) -> Option<bool> {
    match gid.kind {
        GidKind::RoceV2Ipv4 => Some(false),
        GidKind::RoceV2Ipv6 | GidKind::RoceV2LinkLocal => Some(true),
        GidKind::RoceV1 | GidKind::InfiniBand => None,
    }
}

/// The programs for one version of IP.
struct Programs {
    /// As nft names it.
    family: &'static str,
    save: &'static str,
    change: &'static str,
    legacy_save: &'static str,
    legacy_change: &'static str,
    /// The kernel's list of legacy tables. It is absent where their module is.
    legacy_tables: &'static str,
}

const PROGRAMS: [Programs; 2] = [
    Programs {
        family: "ip",
        save: "iptables-save",
        change: "iptables",
        legacy_save: "iptables-legacy-save",
        legacy_change: "iptables-legacy",
        legacy_tables: "/proc/net/ip_tables_names",
    },
    Programs {
        family: "ip6",
        save: "ip6tables-save",
        change: "ip6tables",
        legacy_save: "ip6tables-legacy-save",
        legacy_change: "ip6tables-legacy",
        legacy_tables: "/proc/net/ip6_tables_names",
    },
];

/// Returns all rules of the machine. It may have those of nftables and of legacy iptables at once, and packets pass both.
fn rulesets(view: &View<'_>) -> Vec<Ruleset> {
    // Without counters, whose numbers could look like the port.
    const NFT: &[&str] = &["nft", "-s", "list", "ruleset"];
    let nft = view.machine.run(NFT);
    let mut rulesets: Vec<_> = nft.iter().map(|text| nft::parse(text)).collect();
    for programs in PROGRAMS {
        let tables = view.machine.try_read(programs.legacy_tables);
        // An ordinary user may not read it.
        let has_legacy = !matches!(tables.as_deref(), Ok("") | Err(&libc::ENOENT));
        let of_iptables = of_iptables(view, &programs, &nft, has_legacy);
        if of_iptables.iter().any(|all| all.program == programs.change && !all.chains.is_empty()) {
            // They say more than nft's words for the rules that it has no words for.
            rulesets.iter_mut().for_each(|listed| listed.leave_out_foreign(programs.family));
        }
        rulesets.extend(of_iptables);
    }
    // Other programs than nft write rules of it, too, once its module is loaded.
    let has_nft = !view.machine.names("/sys/module/nf_tables").is_empty();
    match nft {
        Err(why) if rulesets.is_empty() || has_nft || why != NoOutput::NotInstalled => view.miss(NFT, why),
        _ => {}
    }
    rulesets
}

/// Returns the rules that iptables has for one version of IP, beside those that nft has listed. nft has no words for some of iptables'
/// conditions, which it calls `xt match`.
fn of_iptables(
    view: &View<'_>,
    programs: &Programs,
    nft: &Result<String, NoOutput>,
    has_legacy: bool,
) -> Vec<Ruleset> {
    let is_nft_known = matches!(nft, Ok(text) if !text.contains("xt match ") && !text.contains("xt target "));
    if is_nft_known && !has_legacy {
        return Vec::new();
    }
    let saved = view.machine.run(&[programs.save]);
    // Otherwise nft is what is missing.
    if let Err(why) = saved
        && why != NoOutput::NotInstalled
        && *nft == Err(NoOutput::NotInstalled)
    {
        view.miss(&[programs.save], why);
    }
    // Where iptables writes rules of nft, they are in nft's list already.
    let is_of_nft = saved.as_ref().map_or(true, |text| text.is_empty() || text.contains("(nf_tables)"));
    let own = saved.ok().filter(|_| !is_nft_known || !is_of_nft);
    let own = own.map(|text| iptables::parse(&text, programs.change));
    let legacy = if has_legacy && is_of_nft { view.run(&[programs.legacy_save]) } else { None };
    let legacy = legacy.map(|text| iptables::parse(&text, programs.legacy_change));
    own.into_iter().chain(legacy).collect()
}

fn finding(dropping: &Dropping<'_>) -> Finding {
    let Dropping { program, base, rules, is_certain, is_about } = dropping;
    let (name, accept) = (&base.name, &base.fix);
    let kind = if *is_certain { &DROPPED } else { &MAY_DROP };
    let path = rules.iter().map(|rule| format!("`{rule}`")).collect::<Vec<_>>().join(", then ");
    let some = if *is_certain { "" } else { "some of " };
    let seen = match (rules.is_empty(), is_about) {
        (true, _) => format!(
            "{program} drops what no rule accepts (policy of {name}), and no rule accepts all of UDP port {ROCE_PORT}"
        ),
        (false, true) => format!("a rule of {program} drops {some}RoCE: {path} (chain {name})"),
        (false, false) => format!(
            "{program} drops what no rule accepts ({path} of {name}), and no rule accepts all of UDP port {ROCE_PORT}"
        ),
    };
    let fix = match is_about {
        true => format!("take the rule out, or accept RoCE before it: `{accept}`"),
        false => accept.clone(),
    };
    Finding::new(kind, seen, fix)
}

#[cfg(test)]
mod tests;
