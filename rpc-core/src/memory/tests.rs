use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::advance;

use super::*;

const MIB: usize = 1 << 20;

fn address(n: u8) -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, n]))
}

fn open(budget: &Arc<Budget>, n: u8) -> Arc<Account> {
    Account::open(budget.clone(), address(n))
}

fn holding(account: &Arc<Account>, bytes: usize) -> Gauge {
    Gauge::holding(account, Use::Arguments, bytes)
}

#[test]
fn each_message_counted_in_is_counted_out() {
    let budget = Budget::new(100 * MIB);
    let account = open(&budget, 1);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut gauges: Vec<Gauge> = Vec::new();
    for _ in 0..10_000 {
        match rng.u8(..3) {
            0 => gauges.push(holding(&account, rng.usize(..100_000))),
            1 if !gauges.is_empty() => drop(gauges.swap_remove(rng.usize(..gauges.len()))),
            _ if !gauges.is_empty() => {
                let i = rng.usize(..gauges.len());
                gauges[i].set(rng.usize(..100_000));
            }
            _ => {}
        }
        let held = account.held(Use::Arguments);
        assert!(
            held <= account.taken() && account.taken() < held + (192 << 10),
            "{held} {}",
            account.taken()
        );
        assert_eq!(budget.used(), account.taken());
    }
    gauges.clear();
    assert_eq!(account.held(Use::Arguments), 0);
    drop(account);
    assert_eq!((budget.used(), budget.peers()), (0, Vec::new()));
}

#[test]
fn threads_do_not_lose_counts() {
    let budget = Budget::new(1 << 40);
    let account = open(&budget, 1);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let account = &account;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut gauge = Gauge::new(account, Use::Items);
                for _ in 0..20_000 {
                    gauge.set(rng.usize(..1_000_000));
                }
            });
        }
    });
    assert_eq!(account.held(Use::Items), 0);
    drop(account);
    assert_eq!(budget.used(), 0);
}

#[test]
fn it_is_known_who_holds_what() {
    let budget = Budget::new(100 * MIB);
    let accounts = [open(&budget, 1), open(&budget, 2), open(&budget, 2)];
    let _gauges = [
        Gauge::holding(&accounts[0], Use::Session, 4096),
        Gauge::holding(&accounts[1], Use::Partial, MIB),
        Gauge::holding(&accounts[2], Use::Unsent, 2 * MIB),
        Gauge::holding(&accounts[2], Use::Items, 8192),
    ];
    let peers = budget.peers();
    let [first, second] = &peers[..] else { panic!("{peers:?}") };
    assert_eq!((first.address, first.connections), (address(2), 2));
    assert_eq!((first.partial, first.unsent, first.items, first.arguments), (MIB, 2 * MIB, 8192, 0));
    assert_eq!((second.address, second.sessions, second.total()), (address(1), 4096, 4096));
    assert!(budget.used() >= 3 * MIB + 8192 + 4096);
}

/// One that holds more than its share of a budget that is nearly used up waits. Others do not.
#[tokio::test(start_paused = true)]
async fn the_greedy_wait_and_are_then_refused() {
    let budget = Budget::new(100 * MIB);
    let (greedy, modest) = (open(&budget, 1), open(&budget, 2));
    let mut much = holding(&greedy, 50 * MIB);
    let _little = holding(&modest, 4 * MIB);
    assert!(greedy.pause().is_none(), "there is enough");
    much.set(70 * MIB);
    assert!(modest.pause().is_none() && modest.judge().is_none());

    // It waits until others hold less.
    let pause = greedy.pause().expect("it holds more than half");
    let waiting = tokio::spawn(pause);
    advance(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished() && !greedy.refuses() && greedy.is_held_back());
    much.set(55 * MIB);
    waiting.await.unwrap();
    assert!(!greedy.refuses());

    // Not for ever.
    much.set(70 * MIB);
    greedy.pause().expect("it holds more than half").await;
    assert!(greedy.refuses() && !modest.refuses());
    // From now on its peer is to blame if a message does not go on.
    assert!(!greedy.is_held_back());
    assert!(greedy.pause().is_none(), "it is read, so that its calls can end");
    much.set(10 * MIB);
    assert!(greedy.judge().is_none() && !greedy.refuses());
}

/// Whatever others do: of a budget that is used up, each peer has a small part of its share.
#[tokio::test(start_paused = true)]
async fn a_peer_that_holds_little_is_served_from_a_budget_that_is_used_up() {
    let budget = Budget::new(80 * MIB);
    let greedy: Vec<_> = (1..5).map(|address| open(&budget, address)).collect();
    let modest = open(&budget, 5);
    let much = [22, 17, 17, 16].map(|mib| mib * MIB);
    let _much: Vec<_> = greedy.iter().zip(much).map(|(account, bytes)| holding(account, bytes)).collect();
    // Each peer's share is a fifth of 50 MiB.
    let mut little = holding(&modest, MIB);
    assert!(modest.judge().is_none() && greedy.iter().all(|account| account.judge().is_some()));
    little.set(3 * MIB / 2);
    assert!(modest.judge().is_some(), "it holds more than an eighth of its share");
}

#[tokio::test(start_paused = true)]
async fn connections_share_what_their_address_has() {
    let budget = Budget::new(100 * MIB);
    let accounts: Vec<_> = (0..10).map(|_| open(&budget, 1)).collect();
    let _much = holding(&accounts[0], 76 * MIB);
    let _little = holding(&accounts[1], MIB);
    assert!(accounts[0].judge().is_some());
    assert!(accounts[1..].iter().all(|account| account.judge().is_none()));
}

#[test]
fn a_greedy_address_gets_no_connection_while_nothing_is_left() {
    let budget = Budget::new(100 * MIB);
    let (much, little, unnamed) = (open(&budget, 1), open(&budget, 2), Account::open(budget.clone(), None));
    let mut much = holding(&much, 50 * MIB);
    let _little = holding(&little, 10 * MIB);
    let _unnamed = holding(&unnamed, 25 * MIB);
    assert_eq!(budget.admit(address(1)), Ok(()), "something is left");
    much.set(60 * MIB);
    let why = budget.admit(address(1)).unwrap_err();
    assert!(why.contains("limits.memory is 104857600 bytes") && why.contains("62914560 bytes"), "{why}");
    for other in [address(2), address(3), None] {
        assert_eq!(budget.admit(other), Ok(()), "{other:?}");
    }
    much.set(0);
    assert_eq!(budget.admit(address(1)), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_greediest_is_closed_and_nobody_else() {
    let budget = Budget::new(100 * MIB);
    // Address 1 holds most together, and address 2 the largest connection.
    let many: Vec<_> = (0..4).map(|_| open(&budget, 1)).collect();
    let one = open(&budget, 2);
    let mut gauges: Vec<_> = many.iter().map(|account| holding(account, 12 * MIB)).collect();
    gauges[3].set(16 * MIB);
    let _other = holding(&one, 30 * MIB);
    assert!(many.iter().chain([&one]).all(|account| !account.is_closing()));
    gauges[0].set(20 * MIB);
    let is_closing = |account: &Arc<Account>| account.is_closing();
    assert_eq!(many.iter().map(is_closing).collect::<Vec<_>>(), [true, false, false, false]);
    assert!(!one.is_closing());
    let why = many[0].evicted().await;
    assert!(why.contains("limits.memory is 104857600 bytes") && why.contains("20971520 bytes"), "{why}");
    // It counts as gone until it is.
    gauges[1].set(13 * MIB);
    assert!(!many[1].is_closing());
    gauges.remove(0);
    let account = many.into_iter().next().unwrap();
    drop(account);
    assert_eq!(budget.closing.load(Ordering::Relaxed), 0);
}

#[test]
fn nobody_is_closed_where_a_connection_that_ends_leaves_enough() {
    let budget = Budget::new(100 * MIB);
    let [ends, stays] = [1, 2].map(|n| open(&budget, n));
    let ending = holding(&ends, 30 * MIB);
    let _staying = holding(&stays, 50 * MIB);
    assert!(ends.begin_closing() && !ends.begin_closing());
    let more = holding(&stays, 20 * MIB);
    assert!(!stays.is_closing(), "{} of {} bytes are used", budget.used(), budget.limit());
    drop((more, ending));
    let _more = holding(&stays, 45 * MIB);
    assert!(stays.is_closing());
}
