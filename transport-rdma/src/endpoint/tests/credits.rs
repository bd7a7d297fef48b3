//! Windows that follow what peers do.

use farcall_core::proto::wire::{Credit, CreditOp, HEADER_LEN};

use super::hostile::Hostile;
use super::room::seen_from;
use super::*;

/// A machine with memory for 182 receives, 8 for each peer.
fn small(fabric: &Arc<Fabric>, n: u8) -> Node {
    node(fabric, n, RdmaConfig { memory: 1, ..RdmaConfig::default() })
}

impl Node {
    /// The window that it gives each of its peers, ascending.
    fn windows(&self) -> Vec<u32> {
        let mut windows: Vec<_> = self.shard().links().values().map(|link| link.window()).collect();
        windows.sort_unstable();
        windows
    }

    /// Links until there is no room, and why there is none.
    async fn links_that_fit(&self, far: &Self) -> (Vec<[End; 2]>, transport::Unavailable) {
        let mut links = Vec::new();
        loop {
            match self.try_link(far).await {
                Ok(ends) => links.push(ends),
                Err(why) => return (links, why),
            }
        }
    }
}

/// Sends so much that windows grow to what there is.
async fn exercise([a, b]: &mut [End; 2]) {
    for _ in 0..3 {
        a.send(300, LONE);
        b.receive(300).await;
    }
}

#[tokio::test]
async fn window_of_a_busy_peer_grows_to_its_limit_and_that_of_an_idle_one_does_not() {
    let (_fabric, [near, far]) = nodes(1);
    let (mut busy, _idle) = (near.link(&far).await, near.link(&far).await);
    assert_eq!(far.windows(), [4, 4]);
    exercise(&mut busy).await;
    assert_eq!(far.windows(), [4, 64]);
    assert_eq!(near.windows(), [4, 4], "the other direction is idle");
}

#[tokio::test]
async fn one_call_at_a_time_needs_no_larger_window() {
    let (_fabric, [near, far]) = nodes(1);
    let [mut a, mut b] = near.link(&far).await;
    for _ in 0..100 {
        a.send(1, 10);
        b.receive(1).await;
        b.send(1, 10);
        a.receive(1).await;
    }
    assert_eq!((near.windows(), far.windows()), (vec![4], vec![4]));
}

#[tokio::test]
async fn the_way_to_a_peer_is_measured_and_its_room_is_told() {
    let (_fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    assert_eq!(a.link().credits(), Some(4));
    a.send(1, LONE);
    b.receive(1).await;
    assert_eq!(a.link().credits(), Some(3));
    assert_eq!(a.link().round_trip(), None);
    until("the answer does not come", || a.link().round_trip().is_some()).await;
    // PING and PONG take none, and the PONG says that there is room again.
    assert_eq!((a.link().credits(), b.link().credits()), (Some(4), Some(4)));
}

#[tokio::test]
async fn messages_that_are_not_delivered_keep_their_credits() {
    let (fabric, [near, far]) = nodes(1);
    let (client, server, answer) = near.candidates(&far).await.unwrap();
    let (a, b) = tokio::try_join!(client.complete(1, Some(answer)), server.complete(1, None)).unwrap();
    let a = End::start(a);
    let before = b.counters().bytes_received;
    a.send(300, LONE);
    until("the drivers do not sleep", || fabric.queues_armed() == 4).await;
    let arrived = (b.counters().bytes_received - before) / (LONE + HEADER_LEN) as u64;
    assert!((4..=64).contains(&arrived), "{arrived} of 300 messages are kept");
    // They come back with the delivery.
    End::start(b).receive(300).await;
}

#[tokio::test]
async fn short_frames_leave_together() {
    let (fabric, [_near, far]) = nodes(1);
    let (hostile, server) = Hostile::connect(&fabric, &far, true).await;
    let end = End::start(server.await.unwrap().unwrap());
    // 195 fit into a slot.
    end.send(300, 10);
    let messages = Mutex::new(Vec::new());
    until("messages are missing", || {
        let mut messages = messages.lock().unwrap();
        messages.extend(hostile.received().into_iter().filter(|(kind, ..)| *kind == FrameType::ITEM));
        messages.len() >= 2
    })
    .await;
    let messages = messages.into_inner().unwrap();
    let frames: usize = messages.iter().map(|(_, _, rest)| rest.len().div_ceil(HEADER_LEN + 10)).sum();
    assert_eq!((messages.len(), frames), (2, 300));
}

#[tokio::test]
async fn idle_peers_give_back_what_newcomers_need() {
    let fabric = Fabric::new(1);
    let (near, far) = (node(&fabric, 1, RdmaConfig::default()), small(&fabric, 2));
    let mut busy = [near.link(&far).await, near.link(&far).await, near.link(&far).await];
    for link in &mut busy {
        exercise(link).await;
    }
    let lent: u32 = far.windows().iter().map(|window| window - 4).sum();
    assert!(lent > 100, "{lent}");
    // As many as if nothing had been lent.
    let (mut links, why) = near.links_that_fit(&far).await;
    assert_eq!((busy.len() + links.len(), why.reason), (182 / 8, Reason::NoCredit));
    assert!(far.windows().iter().all(|&window| window == 4), "{:?}", far.windows());
    // All of them work at once, both ways.
    links.extend(busy);
    for [a, b] in &links {
        a.send(200, 2000);
        b.send(200, 20);
    }
    for [a, b] in &mut links {
        b.receive(200).await;
        a.receive(200).await;
    }
}

#[tokio::test]
async fn busy_peers_are_asked_when_there_are_no_idle_ones() {
    let fabric = Fabric::new(1);
    let (near, far) = (node(&fabric, 1, RdmaConfig::default()), small(&fabric, 2));
    let mut busy = near.link(&far).await;
    exercise(&mut busy).await;
    let mut links = Vec::new();
    for _ in 0..182 / 8 - 1 {
        let [a, b] = &mut busy;
        a.send(300, LONE);
        links.push(near.link(&far).await);
        b.receive(300).await;
    }
    assert_eq!(near.try_link(&far).await.map(drop).unwrap_err().reason, Reason::NoCredit);
}

/// A peer that has used its windows until it was lent the largest.
async fn keeper(fabric: &Arc<Fabric>, far: &Node) -> (Hostile, End) {
    let (hostile, server) = Hostile::connect(fabric, far, true).await;
    let mut end = End::start(server.await.unwrap().unwrap());
    let link = far.shard().links().values().next().unwrap().clone();
    // The PROBE has used the first.
    let mut used = 1;
    while link.window() < 64 {
        let told = link.told();
        (used..told).for_each(|_| hostile.send(FrameType::ITEM, b"x", 250));
        end.receive((told - used) as usize).await;
        used = told;
        until("no grant comes", || link.told() > told).await;
    }
    (hostile, end)
}

#[tokio::test]
async fn peer_that_does_not_answer_when_asked_for_credits_loses_its_link() {
    let fabric = Fabric::new(1);
    let (near, far) = (node(&fabric, 1, RdmaConfig::default()), small(&fabric, 2));
    let (_hostile, mut end) = keeper(&fabric, &far).await;
    let (_links, why) = near.links_that_fit(&far).await;
    assert_eq!(why.reason, Reason::NoCredit, "what is lent is not promised twice");
    let newcomer = async { while near.try_link(&far).await.is_err() {} };
    tokio::time::timeout(LIMIT, newcomer).await.expect("the newcomer must have its place");
    let end = end.end().await;
    assert!(end.failed && end.detail.contains("does not answer when asked for credits"), "{end}");
}

#[tokio::test]
async fn a_host_that_does_not_answer_when_asked_for_credits_keeps_no_other_from_its_place() {
    let fabric = Fabric::new(1);
    let (near, far) = (node(&fabric, 1, RdmaConfig::default()), small(&fabric, 2));
    let greedy = seen_from(&far, 66);
    let (_hostile, _end) = keeper(&fabric, &greedy).await;
    let (_links, why) = near.links_that_fit(&greedy).await;
    assert_eq!(why.reason, Reason::NoCredit);
    // Long before the silent link is ended.
    let [a, mut b] = near.link(&seen_from(&far, 1)).await;
    a.send(10, 1000);
    b.receive(10).await;
}

#[tokio::test]
async fn peer_gives_back_what_it_was_asked_for_and_has() {
    let cases: [(u32, usize, Option<&str>); 4] =
        [(60, 0, None), (0, 0, None), (61, 0, Some("without being asked")), (60, 64, Some("does not have"))];
    for (count, sends, expected) in cases {
        let fabric = Fabric::new(1);
        let (near, far) = (node(&fabric, 1, RdmaConfig::default()), small(&fabric, 2));
        let (hostile, mut end) = keeper(&fabric, &far).await;
        let answer = async {
            let (_, payload) = hostile.asked_to_give_back().await;
            assert_eq!(Credit::decode(payload).unwrap(), Credit { op: CreditOp::Reclaim, count: 60 });
            (0..sends).for_each(|_| hostile.send(FrameType::ITEM, b"x", 250));
            let mut payload = BytesMut::new();
            Credit { op: CreditOp::Forfeit, count }.encode(&mut payload);
            hostile.send(FrameType::CREDIT, &payload, 250);
        };
        let ((links, _), ()) = tokio::join!(near.links_that_fit(&far), answer);
        match expected {
            Some(expected) => {
                let end = end.end().await;
                assert!(end.malformed && end.detail.contains(expected), "{expected}: {end}");
            }
            None => assert_eq!(links.len() as u32, (182 - (64 + 4 + 1) + count + count / 60) / 8),
        }
    }
}

impl Hostile {
    /// Answers PINGs until a RECLAIM comes.
    async fn asked_to_give_back(&self) -> (Header, Bytes) {
        loop {
            for (kind, header, payload) in self.received() {
                match kind {
                    FrameType::PING => self.send(FrameType::PONG, &payload, 250),
                    FrameType::CREDIT if payload[0] == 1 => return (header, payload),
                    _ => {}
                }
            }
            tokio::task::yield_now().await;
        }
    }
}
