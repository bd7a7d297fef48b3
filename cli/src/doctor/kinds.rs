//! The kinds of findings about the way between two machines: one table for `farcall doctor HOST` and `farcall explain`.

use farcall::explain::Explanation;
use farcall::rdma::probe::Severity::{self, Fault, Note, Warning};

use super::between::Between;

/// A kind of finding.
#[derive(Debug)]
pub(super) struct Kind {
    code: &'static str,
    severity: Severity,
    means: &'static str,
    remedy: &'static str,
}

macro_rules! kinds {
    ($($name:ident = $code:literal, $severity:ident, $means:literal, $remedy:literal;)*) => {
        $(pub(super) const $name: Kind =
            Kind { code: $code, severity: $severity, means: $means, remedy: $remedy };)*

        const ALL: &[Kind] = &[$($name),*];
    };
}

kinds! {
    UNREACHED = "host-not-reached", Fault,
        "Connections begin by TCP, also those that go by RDMA.",
        "run `farcall serve` there; see address, port, route and firewall";
    NO_SERVICE = "no-farcall-serve", Warning,
        "Only this machine and the way to the host were looked at.",
        "run `farcall serve` there";
    MTU_DIFFERS = "mtu-differs", Note,
        "Connections use the smaller packets of both. A switch between them may take smaller ones still.",
        "set one MTU on all hosts and switches";
    NO_RDMA = "no-rdma-to-host", Fault,
        "Connections to this host go by TCP.",
        "mend what is wrong on either machine first; then see route, VLAN, MTU and UDP port 4791 between them";
    LOST = "lost-on-the-way", Fault,
        "Short packets arrive and long ones do not, or some are lost. A part of the way has a smaller MTU, or drops packets.",
        "compare the MTU of hosts and switches on the way (`ping -M do -s 4200 ADDRESS`), and see `farcall doctor --watch 10`";
    PATH_MTU = "path-mtu", Warning,
        "RDMA's packets pass. Longer ones, which TCP sends, may be lost without a word, and their connections stand still. UDP packets of \
         another port stood in for RoCE's port 4791.",
        "raise the MTU of the switches between the hosts to that of the hosts, or lower the hosts'";
    DSCP_REWRITTEN = "dscp-rewritten", Warning,
        "Switches sort packets by their DSCP. Packets that have lost it travel in a queue that has no protection from loss. UDP packets of \
         another port stood in for RoCE's port 4791, for which the way may have another rule.",
        "have switches and routers trust the DSCP of packets from hosts and keep it; and see `nft list ruleset`, `tc filter show dev NETDEV \
         egress` on both hosts";
    DSCP_DROPPED = "dscp-dropped", Warning,
        "Something on the way drops packets for their DSCP. UDP packets stood in for RoCE's here.",
        "have switches and routers trust the DSCP of packets from hosts and keep it; and see `nft list ruleset`, `tc filter show dev NETDEV \
         egress` on both hosts";
    ECN_CLEARED = "ecn-cleared", Warning,
        "Switches mark packets where they queue only if their ECN bits allow it. Without marks senders do not slow down before packets are \
         lost. UDP packets of another port stood in for RoCE's port 4791.",
        "have the switch, router or rule that sets the DSCP leave the two bits below it alone";
    UNTRIED = "way-untried", Note,
        "A network may rewrite the DSCP of packets, and carry shorter ones than the hosts send.",
        "run one version of farcall on both hosts, name the host by its address of RoCE, and let UDP pass";
}

impl Kind {
    /// Returns a finding of this kind.
    pub(super) fn found(&self, seen: String) -> Between {
        let Self { code, severity, means, remedy } = *self;
        Between { code, severity, area: "between", seen, means, fix: remedy.to_owned() }
    }
}

/// Returns all kinds, for `farcall explain`.
pub(crate) fn explanations() -> Vec<Explanation> {
    let explained = |kind: &Kind| Explanation::new("between hosts", kind.code, kind.means, kind.remedy);
    ALL.iter().map(explained).collect()
}
