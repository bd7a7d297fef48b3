//! Links between simulated machines, seen from inside: what they hold, and how they fail.

mod busy;
mod busy_poll;
mod counts;
mod credits;
mod events;
mod hostile;
mod regions;
mod room;
mod sealed;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Deref;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::class::TrafficClass;
use farcall_core::proto::message::Frame;
use farcall_core::proto::wire::{FrameType, Header};
use farcall_core::testing;
use farcall_core::transport::{self, Attempt, Candidate, Description, Link, LinkEnd, Reason, Upgrade as _};

use super::*;
use crate::RdmaUpgrade;
use crate::device::{DeviceEvent, Mtu};
use crate::sim::{Fabric, SimHost};

const LIMIT: Duration = Duration::from_secs(60);

/// A simulated machine and RDMA on it.
#[derive(Clone)]
struct Node {
    host: SimHost,
    upgrade: RdmaUpgrade,
    attempt: Attempt,
}

fn node(fabric: &Arc<Fabric>, n: u8, config: RdmaConfig) -> Node {
    let host = fabric.host(IpAddr::from([10, 0, 0, n]));
    let upgrade =
        RdmaUpgrade::with_host(Arc::new(host.clone()), RdmaConfig { strict_credits: true, ..config });
    let stream =
        Description { transport: "tcp", local: None, peer: None, device: String::new(), busy_polls: false };
    Node { host, upgrade, attempt: Attempt::plain(stream, TrafficClass::Normal) }
}

fn nodes(seed: u64) -> (Arc<Fabric>, [Node; 2]) {
    let fabric = Fabric::new(seed);
    let nodes = [1, 2].map(|n| node(&fabric, n, RdmaConfig::default()));
    (fabric, nodes)
}

type Candidates = (Box<dyn Candidate>, Box<dyn Candidate>, Bytes);

impl Node {
    /// Its only endpoint.
    fn shard(&self) -> Arc<Shard> {
        Arc::clone(self.upgrade.endpoints()[0].shard())
    }

    async fn candidates(&self, far: &Self) -> Result<Candidates, transport::Unavailable> {
        let announced = far.upgrade.announce().await?;
        let (client, offer) = self.upgrade.offer(announced, &self.attempt).await?;
        let (server, answer) = far.upgrade.answer(1, offer, &far.attempt).await?;
        Ok((client, server, answer))
    }

    async fn try_link(&self, far: &Self) -> Result<[End; 2], transport::Unavailable> {
        let (client, server, answer) = self.candidates(far).await?;
        let (near, far) = tokio::try_join!(client.complete(1, Some(answer)), server.complete(1, None))?;
        Ok([near, far].map(End::start))
    }

    async fn link(&self, far: &Self) -> [End; 2] {
        tokio::time::timeout(LIMIT, self.try_link(far)).await.expect("hangs").unwrap()
    }
}

/// A payload so long that its frame has a message, and so a credit, of its own.
const LONE: usize = 5000;

/// One end of a link. Dropping it drops the link.
struct End(testing::End);

impl Deref for End {
    type Target = testing::End;

    fn deref(&self) -> &testing::End {
        &self.0
    }
}

impl End {
    fn start(link: Arc<dyn Link>) -> Self {
        Self(testing::End::start(link))
    }

    fn send(&self, count: usize, len: usize) {
        self.0.send((0..count).map(|_| {
            let mut frame = Frame::link(FrameType::ITEM, vec![7; len].into());
            frame.header.call = 1;
            frame
        }));
    }

    async fn receive(&mut self, count: usize) {
        for _ in 0..count {
            self.0.frame().await;
        }
    }

    async fn end(&mut self) -> LinkEnd {
        self.0.end().await
    }
}

/// Waits until something is so; the drivers and control threads bring it about.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.expect(what);
}

#[tokio::test]
async fn closed_links_leave_nothing_behind() {
    let (fabric, [near, far]) = nodes(1);
    for round in 0..40 {
        let [mut a, mut b] = near.link(&far).await;
        a.send(100, 3000);
        b.send(100, 100);
        b.receive(100).await;
        a.receive(100).await;
        match round % 3 {
            0 => a.link().close(),
            1 => drop(a),
            _ => drop(b),
        }
    }
    until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
    for node in [&near, &far] {
        let shard = node.shard();
        until("links stay", || shard.links().is_empty()).await;
        // A used receive is posted again, or another in its place.
        let posted = shard.queues.receives_posted();
        assert!(posted > 0 && posted.is_multiple_of(192), "{posted} receives are left");
        assert_eq!(shard.resources.memory.promised(), 0, "receives stay promised");
    }
}

#[tokio::test]
async fn a_completion_between_the_last_look_and_the_arming_is_not_lost() {
    let (fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    fabric.set_spite(true);
    for _ in 0..20 {
        until("the driver does not sleep", || fabric.queues_armed() == 4).await;
        // The first makes an event and takes the arming with it; the second comes when the driver arms again.
        a.send(1, 10);
        a.send(1, 10);
        b.receive(2).await;
    }
}

#[tokio::test]
async fn links_take_turns_with_send_slots() {
    let fabric = Fabric::new(1);
    let far = node(&fabric, 2, RdmaConfig::default());
    // Memory for 64 sends, of which each link could have 60 outstanding.
    let near = node(&fabric, 1, RdmaConfig { memory: 1, ..RdmaConfig::default() });
    let mut links = [near.link(&far).await, near.link(&far).await, near.link(&far).await];
    fabric.set_acknowledgements(false);
    links.iter().for_each(|[a, _]| a.send(300, 4000));
    until("the driver does not sleep", || fabric.queues_armed() == 4).await;
    fabric.set_acknowledgements(true);
    for [_, b] in &mut links {
        b.receive(300).await;
    }
}

#[tokio::test]
async fn endpoint_ends_with_its_last_user() {
    let (fabric, [near, far]) = nodes(1);
    let [a, b] = near.link(&far).await;
    let shard = Arc::downgrade(&near.shard());
    let device = Arc::downgrade(&near.shard().device);
    // The link keeps it without its maker.
    drop(near);
    a.send(1, 10);
    assert!(shard.upgrade().is_some());
    drop((a, b));
    until("the driver stays", || shard.strong_count() == 0).await;
    until("the device stays open", || device.strong_count() == 0).await;
    until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
}

#[tokio::test]
async fn channels_of_one_runtime_share_an_endpoint() {
    let (_fabric, [near, far]) = nodes(1);
    let _ends = [near.link(&far).await, near.link(&far).await, far.link(&near).await];
    assert_eq!((near.upgrade.endpoints().len(), far.upgrade.endpoints().len()), (1, 1));
    assert_eq!((near.shard().links().len(), far.shard().links().len()), (3, 3));
}

#[tokio::test]
async fn lost_packets_end_the_link_with_an_explanation() {
    let (fabric, [near, far]) = nodes(1);
    let [mut a, _b] = near.link(&far).await;
    fabric.set_traffic(false);
    a.send(3, 100);
    until("the driver does not sleep", || fabric.queues_armed() == 4).await;
    fabric.expire();
    let end = a.end().await;
    assert!(end.failed && !end.malformed);
    for part in [
        "on sim0 port 1 gid 1 (10.0.0.1)",
        "at 10.0.0.2",
        "did not answer",
        "RETRY_EXC_ERR",
        "check that the peer",
    ] {
        assert!(end.detail.contains(part), "{part}: {end}");
    }
}

#[tokio::test]
async fn killed_queue_pair_ends_its_link_and_no_other() {
    let (fabric, [near, far]) = nodes(1);
    let ([mut a, _b], [c, mut d]) = (near.link(&far).await, near.link(&far).await);
    let first = *near.shard().links().keys().min().unwrap();
    fabric.kill_qp(first);
    assert!(a.end().await.failed);
    c.send(10, 10);
    d.receive(10).await;
}

#[tokio::test]
async fn a_failure_after_the_peer_has_closed_ends_in_order_behind_all_that_came() {
    let (fabric, [near, far]) = nodes(1);
    let mut links = [near.link(&far).await, near.link(&far).await];
    for [a, b] in &mut links {
        a.send(1000, 10);
        b.receive(1000).await;
    }
    until("the driver does not sleep", || fabric.queues_armed() == 4).await;
    // All of this comes before the far driver's next turn, and is more than it delivers in one.
    for [a, _] in &links {
        a.send(40, 10);
        assert!(a.unsent() == 0);
        a.link().close();
    }
    let numbers: Vec<_> = near.shard().links().keys().copied().collect();
    assert!(numbers.into_iter().all(|number| fabric.kill_qp(number)));
    for [_, b] in &mut links {
        b.send(1, 10);
    }
    for [_, b] in &mut links {
        b.receive(40).await;
        let end = b.end().await;
        assert!(!end.failed, "{end}");
    }
}

#[tokio::test]
async fn lost_completion_queue_ends_all_links_and_the_next_has_a_new_endpoint() {
    let (fabric, [near, far]) = nodes(1);
    // Fewer than the receives that are posted: more at once than these, and the queue is lost.
    far.host.limit_completion_queues(8);
    let ([a, mut b], [c, mut d]) = (near.link(&far).await, near.link(&far).await);
    fabric.set_traffic(false);
    a.send(30, LONE);
    c.send(30, LONE);
    until("the driver does not sleep", || fabric.queues_armed() == 4).await;
    fabric.set_traffic(true);
    assert!(b.end().await.failed && d.end().await.failed);
    far.host.limit_completion_queues(u32::MAX);
    let [e, mut f] = near.link(&far).await;
    e.send(100, 10);
    f.receive(100).await;
}

#[tokio::test]
async fn end_of_the_runtime_takes_the_links_along() {
    let fabric = Fabric::new(1);
    let far = node(&fabric, 2, RdmaConfig::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let near = node(&fabric, 1, RdmaConfig::default());
    let offer = runtime.spawn({
        let near = near.clone();
        async move { near.upgrade.offer(Bytes::new(), &near.attempt).await.unwrap() }
    });
    let (client, offer) = offer.await.unwrap();
    let (server, answer) = far.upgrade.answer(1, offer, &far.attempt).await.unwrap();
    let near_link = runtime.spawn(client.complete(1, Some(answer)));
    let mut far_end = End::start(server.complete(1, None).await.unwrap());
    let near_link = near_link.await.unwrap().unwrap();
    tokio::task::spawn_blocking(move || runtime.shutdown_timeout(LIMIT)).await.unwrap();
    // Nobody is there to say CLOSE; who sends notices.
    until("the queue pair stays", || fabric.queue_pairs().len() == 1).await;
    far_end.send(1, 10);
    assert!(far_end.end().await.failed);
    drop(near_link);
    // In another runtime there is another endpoint.
    let [e, mut f] = near.link(&far).await;
    e.send(1, 10);
    f.receive(1).await;
}

#[tokio::test]
async fn refusal_of_any_call_is_a_reason_and_leaves_nothing_behind() {
    let mut refusals = 0;
    for calls in 0.. {
        let (fabric, [near, far]) = nodes(1);
        near.host.fail_call_after(calls);
        let result = tokio::time::timeout(LIMIT, near.try_link(&far)).await.expect("hangs");
        if !near.host.has_failed() {
            assert!(result.is_ok());
            break;
        }
        match result {
            Err(why) => {
                refusals += 1;
                assert!([Reason::Device, Reason::ProbeLost].contains(&why.reason), "call {calls}: {why}");
            }
            // The device may refuse what comes after the probe.
            Ok(ends) => drop(ends),
        }
        until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
    }
    assert!(refusals > 8, "{refusals}");
}

#[tokio::test]
async fn peer_for_whom_no_receives_are_left_is_told() {
    let fabric = Fabric::new(1);
    let near = node(&fabric, 1, RdmaConfig::default());
    let far = node(&fabric, 2, RdmaConfig { memory: 1, ..RdmaConfig::default() });
    let mut links = Vec::new();
    let why = loop {
        match near.try_link(&far).await {
            Ok(ends) => links.push(ends),
            Err(why) => break why,
        }
    };
    assert_eq!(why.reason, Reason::NoCredit);
    assert!(why.detail.contains("rdma.memory") && links.len() >= 4, "{} links, then {why}", links.len());
    // Those that are there all work at once, the last with the least window.
    for [a, b] in &links {
        a.send(200, 2000);
        b.send(200, 20);
    }
    for [a, b] in &mut links {
        b.receive(200).await;
        a.receive(200).await;
    }
    drop(links);
    until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
    assert!(near.try_link(&far).await.is_ok());
}

#[tokio::test]
async fn reasons_come_from_discovery() {
    let (_fabric, [near, far]) = nodes(1);
    near.host.set_link(false);
    assert_eq!(near.upgrade.announce().await.unwrap_err().reason, Reason::PortDown);
    near.host.set_link(true);
    near.host.set_gid(false);
    assert_eq!(near.upgrade.announce().await.unwrap_err().reason, Reason::NoGid);
    near.host.set_gid(true);
    near.host.limit_memory(Some(1000));
    let why = near.try_link(&far).await.map(drop).unwrap_err();
    assert!(why.reason == Reason::Memlock && why.detail.contains("ulimit -l"), "{why}");
    near.host.limit_memory(None);
    assert!(near.try_link(&far).await.is_ok());
}

#[tokio::test]
async fn probe_that_is_lost_is_a_reason() {
    let (fabric, [near, far]) = nodes(1);
    fabric.set_traffic(false);
    let why = near.try_link(&far).await.map(drop).unwrap_err();
    assert!(why.reason == Reason::ProbeLost && why.detail.contains("UDP port 4791"), "{why}");
    drop(fabric);
}

#[tokio::test]
async fn links_are_proven_at_every_mtu() {
    for mtu in (1..=5).filter_map(Mtu::from_code) {
        for sealed in [false, true] {
            let (_fabric, [near, far]) = if sealed { sealed::sealed_nodes(1) } else { nodes(1) };
            near.host.set_mtu(mtu);
            far.host.set_mtu(mtu);
            let [a, mut b] = near.link(&far).await;
            a.send(1, LONE);
            b.receive(1).await;
        }
    }
}

#[tokio::test]
async fn device_that_hangs_holds_up_one_link_and_what_it_made_is_taken_down() {
    let (fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    let others = near.link(&far).await;
    let (client, server, answer) = near.candidates(&far).await.unwrap();
    let release = near.host.stall("ibv_modify_qp");
    let stuck = tokio::spawn(client.complete(1, Some(answer)));
    until("the call does not come", || !near.host.is_stall_to_come()).await;
    // Meanwhile links come, work and go.
    let [c, mut d] = near.link(&far).await;
    c.send(10, 10);
    d.receive(10).await;
    drop((c, d, others));
    until("queue pairs stay", || fabric.queue_pairs().len() == 4).await;
    a.send(10, 10);
    b.receive(10).await;
    let why = stuck.await.unwrap().map(drop).unwrap_err();
    assert!(why.reason == Reason::TimedOut && why.detail.contains("sim0: connecting a queue pair"), "{why}");
    drop(server);
    until("the server's end stays", || fabric.queue_pairs().len() == 3).await;
    // The other waits for the call, which holds up nobody.
    drop(near.link(&far).await);
    until("queue pairs stay", || fabric.queue_pairs().len() == 3).await;
    drop(release);
    until("the queue pair stays", || fabric.queue_pairs().len() == 2).await;
}

#[tokio::test]
async fn queue_pair_of_an_attempt_that_fails_is_destroyed_on_the_control_thread() {
    let (fabric, [near, far]) = nodes(1);
    let _ends = near.link(&far).await;
    let shard = near.shard();
    let path = *shard.links().values().next().unwrap().path();
    let ((started, start), (release, stuck)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    shard.device.control.spawn(move || {
        started.send(()).unwrap();
        assert!(stuck.recv().is_err());
    });
    start.recv().unwrap();
    // Nobody waits for this one any more, and the next is refused what comes after its creation.
    drop(shard.create_qp(&path).unwrap().unwrap());
    assert_eq!(fabric.queue_pairs().len(), 3);
    near.host.fail_call_after(1);
    assert!(shard.create_qp(&path).is_err());
    assert_eq!(fabric.queue_pairs().len(), 4);
    drop(release);
    until("queue pairs stay", || fabric.queue_pairs().len() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_of_links_is_set_up_a_few_at_a_time_and_completely() {
    let fabric = Fabric::new(1);
    let config = RdmaConfig { connections: 300, ..RdmaConfig::default() };
    let [near, far] = [1, 2].map(|n| node(&fabric, n, config.clone()));
    drop(near.link(&far).await);
    until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
    let most = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let links: Vec<_> = (0..200)
        .map(|_| {
            let (near, far, fabric, most) =
                (near.clone(), far.clone(), Arc::clone(&fabric), Arc::clone(&most));
            tokio::spawn(async move {
                let link = near.try_link(&far).await.unwrap();
                most.fetch_max(fabric.queue_pairs().len(), Ordering::Relaxed);
                drop(link);
            })
        })
        .collect();
    for link in links {
        tokio::time::timeout(LIMIT, link).await.expect("hangs").unwrap();
    }
    assert!(most.load(Ordering::Relaxed) > 2, "they are set up at the same time");
    until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
}

#[tokio::test]
async fn candidate_that_is_dropped_is_given_up() {
    let (fabric, [near, far]) = nodes(1);
    let (client, server, _answer) = near.candidates(&far).await.unwrap();
    assert_eq!(fabric.queue_pairs().len(), 2);
    drop((client, server));
    until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
}

#[tokio::test]
async fn frames_before_the_start_wait_for_it() {
    let (_fabric, [near, far]) = nodes(1);
    let (client, server, answer) = near.candidates(&far).await.unwrap();
    let (a, b) = tokio::try_join!(client.complete(1, Some(answer)), server.complete(1, None)).unwrap();
    let a = End::start(a);
    let before = b.counters().bytes_received;
    a.send(20, 100);
    until("nothing arrives", || b.counters().bytes_received == before + 20 * 132).await;
    End::start(b).receive(20).await;
}

#[tokio::test]
async fn link_that_fails_before_its_start_says_so_at_the_start() {
    let (fabric, [near, far]) = nodes(1);
    let (client, server, answer) = near.candidates(&far).await.unwrap();
    let (a, b) = tokio::try_join!(client.complete(1, Some(answer)), server.complete(1, None)).unwrap();
    let a = End::start(a);
    let before = b.counters().bytes_received;
    a.send(3, 100);
    until("nothing arrives", || b.counters().bytes_received == before + 3 * 132).await;
    let shard = far.shard();
    let number = shard.links().keys().copied().next().unwrap();
    assert!(fabric.kill_qp(number));
    until("the link stays", || shard.links().is_empty()).await;
    let mut b = End::start(b);
    b.receive(3).await;
    assert!(b.end().await.failed);
}
