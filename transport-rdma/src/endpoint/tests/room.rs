//! Tests of endpoints that have no room for another link.

use super::*;

/// A server that takes the peers of these tests to be at different hosts.
pub(super) fn seen_from(far: &Node, n: u8) -> Node {
    let mut far = far.clone();
    far.attempt.stream.peer = Some(([10, 0, 0, n], 4000).into());
    far
}

#[tokio::test]
async fn too_many_peers_are_told() {
    let fabric = Fabric::new(1);
    let near = node(&fabric, 1, RdmaConfig::default());
    let far = node(&fabric, 2, RdmaConfig { connections: 2, ..RdmaConfig::default() });
    let _links = [near.link(&far).await, near.link(&far).await];
    let why = near.try_link(&far).await.map(drop).unwrap_err();
    assert!(why.reason == Reason::NoCredit && why.detail.contains("rdma.connections"), "{why}");
}

#[tokio::test]
async fn the_host_with_most_links_makes_room_for_another() {
    // The least memory is enough for 22 peers.
    for config in [
        RdmaConfig { connections: 10, ..RdmaConfig::default() },
        RdmaConfig { memory: 1, connections: 1000, ..RdmaConfig::default() },
    ] {
        let fabric = Fabric::new(1);
        let near = node(&fabric, 1, RdmaConfig::default());
        let far = node(&fabric, 2, config);
        let greedy = seen_from(&far, 66);
        let mut of_greedy = Vec::new();
        let refused = loop {
            match near.try_link(&greedy).await {
                Ok(link) => of_greedy.push(link),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.reason, Reason::NoCredit, "{refused}");
        let [a, mut b] = near.link(&seen_from(&far, 1)).await;
        a.send(100, 1000);
        b.receive(100).await;
        let [_, newest] = of_greedy.last_mut().unwrap();
        let end = newest.end().await;
        assert!(end.failed && !end.malformed && end.detail.contains("another host needs room"), "{end}");
        let refused = near.try_link(&greedy).await.map(drop).unwrap_err();
        assert_eq!(refused.reason, Reason::NoCredit, "it takes the place back: {refused}");
        of_greedy.pop();
        for [a, b] in &mut of_greedy {
            a.send(10, 1000);
            b.receive(10).await;
        }
    }
}

/// Tries until there is a place. On a busy machine a second may be too short for others to make one.
async fn place(near: &Node, far: &Node) -> [End; 2] {
    let trying = async {
        loop {
            match near.try_link(far).await {
                Ok(link) => return link,
                Err(why) => assert_eq!(why.reason, Reason::NoCredit, "{why}"),
            }
        }
    };
    tokio::time::timeout(LIMIT, trying).await.expect("there is no place")
}

#[tokio::test]
async fn a_host_that_comes_with_many_links_at_once_gets_no_more_than_its_share() {
    let fabric = Fabric::new(1);
    let near = node(&fabric, 1, RdmaConfig::default());
    let far = node(&fabric, 2, RdmaConfig { connections: 10, ..RdmaConfig::default() });
    let mut first = Vec::new();
    for _ in 0..10 {
        first.push(near.link(&seen_from(&far, 1)).await);
    }
    let attempts = (0..8).map(|_| (near.clone(), seen_from(&far, 66)));
    let mut attempts: tokio::task::JoinSet<_> =
        attempts.map(|(near, far)| async move { near.try_link(&far).await }).collect();
    let mut second = Vec::new();
    while let Some(link) = attempts.join_next().await {
        second.extend(link.unwrap().ok());
    }
    // Those that were ended are gone, and all others work.
    until("links stay", || far.shard().links().len() <= 10).await;
    let left = far.shard().links().len() - second.len();
    assert!(left >= 5 && (1..=5).contains(&second.len()), "{left} and {}", second.len());
}

#[tokio::test]
async fn hosts_share_what_there_is_and_then_none_makes_room() {
    let fabric = Fabric::new(1);
    let near = node(&fabric, 1, RdmaConfig::default());
    let far = node(&fabric, 2, RdmaConfig { connections: 8, ..RdmaConfig::default() });
    let mut links = Vec::new();
    for _ in 0..8 {
        links.push(near.link(&seen_from(&far, 1)).await);
    }
    // Hosts that come later, all at once.
    let attempts = (2..=8).map(|n| (near.clone(), seen_from(&far, n)));
    let mut attempts: tokio::task::JoinSet<_> =
        attempts.map(|(near, far)| async move { place(&near, &far).await }).collect();
    while let Some(link) = attempts.join_next().await {
        links.push(link.unwrap());
    }
    let refused = near.try_link(&seen_from(&far, 9)).await.map(drop).unwrap_err();
    assert_eq!(refused.reason, Reason::NoCredit, "{refused}");
    until("there are more links than may be", || far.shard().links().len() == 8).await;
}
