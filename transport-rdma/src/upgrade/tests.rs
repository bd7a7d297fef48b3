use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::device::{Device, DeviceSummary, Interface};
use crate::sim::{Fabric, SimHost};

macro_rules! host {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/", $name, ".txt"))
    };
}

/// Returns the words for a reason on a recorded machine.
fn said(reason: Reason, recording: &str) -> String {
    let findings = examine(&Machine::recorded(recording).unwrap(), &RdmaConfig::default()).findings;
    with_findings(transport::Unavailable::new(reason, "no answer".to_owned()), &findings).detail
}

/// A firewall that drops what no rule accepts, and accepts some hosts.
const FIREWALL: &str = "== $ nft -s list ruleset\ntable inet f {\n\tchain in {\n\t\ttype filter hook input priority filter; policy drop;\n\
     \t\tip saddr 10.0.0.0/8 accept\n\t}\n}\n";

#[test]
fn a_lost_probe_has_the_warnings_about_the_way() {
    let behind_firewall = format!("{}{FIREWALL}", host!("soft-roce"));
    let small = format!("{}\n== /sys/class/net/ens1f0np0/mtu\n1100\n", host!("mellanox-connectx5-roce"));
    for reason in [Reason::ProbeLost, Reason::TimedOut] {
        let text = said(reason, &behind_firewall);
        assert!(
            text.starts_with("no answer; found on this machine: warning: nft drops what no rule accepts"),
            "{text}"
        );
        assert!(text.ends_with("Fix: nft insert rule inet f in udp dport 4791 accept"), "{text}");
        let text = said(reason, &small);
        assert!(text.contains("found on this machine: warning: ens1f0np0 has MTU 1100"), "{text}");
        // The process runs far from the device, which loses no packets.
        assert!(!text.contains("NUMA") && !text.contains("note:"), "{text}");
    }
}

#[test]
fn other_reasons_have_the_faults_alone() {
    let behind_firewall = format!("{}{FIREWALL}", host!("soft-roce"));
    assert_eq!(said(Reason::NoDevice, &behind_firewall), "no answer");
    let closed = behind_firewall.replace("ip saddr 10.0.0.0/8 accept", "udp dport 4791 drop");
    let text = said(Reason::Other, &closed);
    assert!(text.contains("found on this machine: fault: a rule of nft drops RoCE"), "{text}");
    // The reason says it already.
    let down = format!("{}\n== /sys/class/infiniband/rxe0/ports/1/state\n1: DOWN\n", host!("soft-roce"));
    assert_eq!(said(Reason::PortDown, &down), "no answer");
    assert!(said(Reason::ProbeLost, &down).contains("is DOWN"));
}

/// A machine that counts how often somebody looks at it. The first look takes until it may end.
#[derive(Debug)]
struct Watched {
    machine: SimHost,
    looks: AtomicUsize,
    first: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Host for Watched {
    fn devices(&self) -> Result<Vec<DeviceSummary>, Unavailable> {
        if self.looks.fetch_add(1, Ordering::Relaxed) == 0 {
            self.first.lock().unwrap().recv().unwrap();
        }
        self.machine.devices()
    }

    fn interfaces(&self) -> Vec<Interface> {
        self.machine.interfaces()
    }

    fn open(&self, device: &DeviceSummary, config: &RdmaConfig) -> Result<Arc<dyn Device>, Unavailable> {
        self.machine.open(device, config)
    }
}

#[tokio::test]
async fn sessions_that_begin_together_share_a_look_at_the_machine() {
    let machine = Fabric::new(1).host([10, 0, 0, 1].into());
    let (go, first) = std::sync::mpsc::channel();
    let host = Arc::new(Watched { machine, looks: AtomicUsize::new(0), first: Mutex::new(first) });
    let upgrade = RdmaUpgrade::with_host(host.clone(), RdmaConfig::default());
    let asking = Arc::new(AtomicUsize::new(0));
    let session = |_| {
        let (announce, asking) = (upgrade.announce(), asking.clone());
        tokio::spawn(async move {
            asking.fetch_add(1, Ordering::Relaxed);
            announce.await
        })
    };
    let sessions: Vec<_> = (0..1000).map(session).collect();
    while asking.load(Ordering::Relaxed) < 1000 {
        tokio::task::yield_now().await;
    }
    go.send(()).unwrap();
    for session in sessions {
        assert!(session.await.unwrap().is_ok());
    }
    // The first one's, and one that began when all others waited.
    assert!(host.looks.load(Ordering::Relaxed) <= 2);
}
