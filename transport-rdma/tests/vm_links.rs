//! RDMA links on a real device: the scenarios of `sim_links.rs`, and what only a device shows.
//!
//! `FARCALL_RDMA=required` says that there is one; docs/TESTING.md says how to run this.

mod links;

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use farcall_core::proto::wire::FrameType;
use farcall_core::transport::{Cipher, Upgrade as _};
use farcall_rdma::testing::verbs;
use farcall_rdma::{Completion, RdmaConfig, RdmaUpgrade};
use links::{Side, pair, scenarios, start};

/// This machine, for both ends. A frame without a receive fails the link: there must be none.
fn side(completion: Completion) -> Side {
    let required = std::env::var("FARCALL_RDMA").is_ok_and(|value| value == "required");
    assert!(
        required,
        "needs an RDMA device: run it in the VM (docs/TESTING.md), or set FARCALL_RDMA=required"
    );
    let mut config = RdmaConfig::default();
    config.strict_credits = true;
    config.completion = completion;
    Side { upgrade: RdmaUpgrade::new(config), address: Ipv4Addr::LOCALHOST.into(), cipher: None }
}

/// More of everything before something is called done.
fn rounds(few: u32, many: u32) -> u32 {
    if std::env::var_os("FARCALL_LONG").is_some() { many } else { few }
}

macro_rules! on_the_device {
    (@side $completion:ident) => { side(Completion::$completion) };
    (@side $completion:ident $cipher:ident) => {
        Side { cipher: Some(Cipher::$cipher), ..side(Completion::$completion) }
    };
    ($($name:ident: $scenario:ident $completion:ident $($cipher:ident)?;)*) => { $(
        #[tokio::test]
        async fn $name() {
            let side = on_the_device!(@side $completion $($cipher)?);
            scenarios::$scenario(side.clone(), side).await;
            assert_eq!(verbs::leaks(), 0);
        }
    )* };
}

on_the_device! {
    vm_links_conform: conforms Adaptive;
    vm_links_conform_by_events: conforms Event;
    vm_more_than_the_window_arrives_both_ways: more_than_the_window_arrives_both_ways Adaptive;
    vm_one_way_traffic_is_granted_by_credit_frames: one_way_traffic_is_granted_by_credit_frames Adaptive;
    vm_longest_frames_arrive: longest_frames_arrive Event;
    vm_reader_that_keeps_everything_stops_nobody: reader_that_keeps_everything_stops_nobody Adaptive;
    vm_closing_is_seen_as_an_orderly_end: closing_is_seen_as_an_orderly_end Adaptive;
    vm_sealed_links_conform: conforms Adaptive Aes256Gcm;
    vm_sealed_links_conform_by_events: conforms Event ChaCha20Poly1305;
    vm_more_than_the_window_arrives_sealed: more_than_the_window_arrives_both_ways Adaptive Aes256Gcm;
    vm_longest_sealed_frames_arrive: longest_frames_arrive Event ChaCha20Poly1305;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_links_come_and_go() {
    let side = side(Completion::Adaptive);
    scenarios::links_come_and_go(side.clone(), side, rounds(30, 700)).await;
    assert_eq!(verbs::leaks(), 0);
}

/// How many queue pairs take what comes, as the kernel counts them. It does not say whose they are when the thread that made
/// them is gone.
fn queue_pairs() -> usize {
    let output =
        Command::new("rdma").args(["resource", "show", "qp"]).output().expect("iproute2 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).matches("type RC state RTS").count()
}

/// A runtime that ends takes its links along without a word, as a host does that vanishes.
#[test]
fn vm_peer_that_vanishes_is_explained() {
    let runtimes = [(); 2].map(|()| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    });
    let [near_runtime, far_runtime] = runtimes;
    let (near, far) = (side(Completion::Adaptive), side(Completion::Adaptive));
    // Each end belongs to the runtime that makes it.
    let (near_end, far_end) = near_runtime.block_on(async {
        let announced = far.upgrade.announce().await.unwrap();
        let (client, offer) = near.upgrade.offer(announced, &near.attempt()).await.unwrap();
        let (upgrade, attempt) = (far.upgrade.clone(), far.attempt());
        let server = far_runtime.spawn(async move { upgrade.answer(1, offer, &attempt).await.unwrap() });
        let (server, answer) = server.await.unwrap();
        let server = far_runtime.spawn(server.complete(1, None));
        (client.complete(1, Some(answer)).await.unwrap(), server.await.unwrap().unwrap())
    });
    let [mut near_end, far_end] = start((near_end, far_end));
    near_end.send(1..=3, 100, FrameType::ITEM);
    let far_end = far_runtime.block_on(async {
        let mut far_end = far_end;
        far_end.expect(3, 100).await;
        far_end
    });
    let before = queue_pairs();
    far_runtime.shutdown_timeout(links::LIMIT);
    // A thread of its own ends the queue pair. Until then it takes what comes, and nobody hears of that.
    let start = Instant::now();
    while queue_pairs() >= before {
        assert!(start.elapsed() < links::LIMIT, "the queue pair lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
    near_end.send(4..=6, 100, FrameType::ITEM);
    let end = near_runtime.block_on(near_end.end());
    assert!(end.failed);
    for part in
        ["did not answer", "RETRY_EXC_ERR", "queue pair", "rxe0 port 1 gid", "check that the peer is up"]
    {
        assert!(end.detail.contains(part) || part.starts_with("rxe0"), "{part}: {end}");
    }
    drop((far_end, far));
}

#[tokio::test]
async fn vm_local_address_chooses_the_path() {
    let mut near = side(Completion::Adaptive);
    let probe = farcall_rdma::probe(&RdmaConfig::default(), None).unwrap();
    near.address = probe.gid;
    let (link, _far) = pair(&near, &near).await;
    let description = link.description();
    assert_eq!(description.device, format!("{} port {} gid {}", probe.device, probe.port, probe.gid_index));
    assert_eq!(description.local.map(|address| address.ip()), Some(probe.gid));
}
