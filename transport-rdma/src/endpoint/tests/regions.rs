//! Regions of the peer, and callers that look for the end of what they have begun.

use std::sync::atomic::AtomicU64;

use farcall_core::transport::{Atomic, Grant, GrantTerms, Registered, Words};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::watch;

use super::*;

/// Two linked nodes. The second has granted memory to the first.
struct Granted {
    fabric: Arc<Fabric>,
    near: Node,
    _far: Node,
    ends: [End; 2],
    memory: Arc<Vec<AtomicU64>>,
    grant: Grant,
}

impl Granted {
    async fn new() -> Self {
        let (fabric, [near, far]) = nodes(1);
        let ends = near.link(&far).await;
        let memory: Arc<Vec<_>> = Arc::new((0..1024).map(AtomicU64::new).collect());
        let (in_effect, _) = watch::channel(());
        let terms = GrantTerms { read: true, write: true, atomics: true, in_effect };
        let grant = ends[1].link().clone().grant(Arc::clone(&memory) as Words, terms).await.unwrap();
        // Behind what else there is to be done for the link.
        until("a driver does not sleep", || fabric.queues_armed() == 4).await;
        Self { fabric, near, _far: far, ends, memory, grant }
    }

    fn link(&self) -> &Arc<dyn Link> {
        self.ends[0].link()
    }

    fn descriptor(&self) -> Bytes {
        self.grant.descriptor.clone()
    }
}

/// Between two awaits the drivers do nothing: what happens there is the caller's work.
#[tokio::test]
async fn caller_takes_the_end_of_what_it_has_begun() {
    let t = Granted::new().await;
    let link = t.link();
    for number in [5, 6, 7] {
        let mut read = link.read_granted(t.descriptor(), 8 * number, 16).unwrap();
        let mut changed = link.change_granted(t.descriptor(), 0, Atomic::FetchAdd(1)).unwrap();
        let mut written = link.write_granted(t.descriptor(), 8 * 100, vec![7; 8].into()).unwrap();
        assert_eq!(read.try_recv(), Err(TryRecvError::Empty));
        while written.try_recv().is_err() {
            t.near.shard().take_moved();
        }
        let expected = [number as u64, number as u64 + 1].map(u64::to_ne_bytes).concat();
        assert_eq!(read.try_recv().unwrap(), expected);
        assert_eq!(changed.try_recv().unwrap(), number as u64 - 5);
    }
    assert_eq!(t.memory[100].load(Ordering::Relaxed), u64::from_ne_bytes([7; 8]));
    assert!(!t.near.shard().take_moved(), "there is nothing more");
}

/// Else the driver of a runtime with one thread would have no turn beside a caller that never waits.
#[tokio::test]
async fn callers_look_so_often_and_then_the_driver_has_its_turn() {
    let t = Granted::new().await;
    let began = || t.link().change_granted(t.descriptor(), 0, Atomic::FetchAdd(1)).unwrap();
    let mut in_a_row = 0;
    let last = loop {
        let mut before = began();
        if !t.link().look() {
            break before;
        }
        assert_eq!(before.try_recv(), Ok(in_a_row));
        in_a_row += 1;
    };
    assert!(in_a_row > 1);
    // In that turn the task ends the operations that were begun, and lets callers look again.
    assert_eq!(tokio::time::timeout(LIMIT, last).await.expect("the driver has no turn"), Ok(in_a_row));
    let mut before = began();
    assert!(t.link().look());
    assert_eq!(before.try_recv(), Ok(in_a_row + 1));
}

#[tokio::test]
async fn an_end_behind_a_message_is_left_to_the_driver() {
    let mut t = Granted::new().await;
    // A message so long that somebody waits for its completion.
    t.ends[0].send(1, LONE);
    let mut read = t.link().read_granted(t.descriptor(), 0, 8).unwrap();
    let shard = t.near.shard();
    until_polled(&shard);
    assert!(!shard.take_moved());
    assert_eq!(read.try_recv(), Err(TryRecvError::Empty));
    let read = tokio::time::timeout(LIMIT, read).await.expect("the driver sleeps").unwrap();
    assert_eq!(read, 0_u64.to_ne_bytes()[..]);
    t.ends[1].receive(1).await;
}

/// Has the device do what it can, and a caller look, until there is something that it leaves to the driver.
fn until_polled(shard: &Shard) {
    while shard.done().is_empty() {
        assert!(!shard.take_moved());
    }
}

#[tokio::test]
async fn a_caller_hears_of_a_failed_link() {
    let t = Granted::new().await;
    t.fabric.set_traffic(false);
    let mut read = t.link().read_granted(t.descriptor(), 0, 8).unwrap();
    t.link().look();
    assert_eq!(read.try_recv(), Err(TryRecvError::Empty));
    t.fabric.expire();
    t.link().look();
    assert!(tokio::time::timeout(LIMIT, read).await.expect("nobody says so").is_err());
}

/// Words of this side that its device has registered.
async fn registered(link: &Arc<dyn Link>) -> (Arc<Vec<AtomicU64>>, Arc<dyn Registered>) {
    let words: Arc<Vec<_>> = Arc::new((0..1024).map(|_| AtomicU64::new(0)).collect());
    let registered = link.clone().register(Arc::clone(&words) as Words).await.unwrap();
    (words, registered)
}

fn values(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

#[tokio::test]
async fn words_move_between_both_sides() {
    let t = Granted::new().await;
    let (words, ours) = registered(t.link()).await;
    let (in_effect, mut over) = watch::channel(());
    // All but a word at each end.
    let moved = t.link().read_granted_into(t.descriptor(), 16, &*ours, 8..8184, Box::new(in_effect)).unwrap();
    tokio::time::timeout(LIMIT, moved).await.expect("nobody says so").unwrap();
    assert!(tokio::time::timeout(LIMIT, over.changed()).await.expect("it is kept").is_err());
    assert_eq!(values(&words[..1]), [0]);
    assert_eq!(values(&words[1..1023]), (2..1024).collect::<Vec<_>>());
    assert_eq!(values(&words[1023..]), [0]);

    let (in_effect, mut over) = watch::channel(());
    let moved = t.link().write_granted_from(t.descriptor(), 0, &*ours, 80..96, Box::new(in_effect)).unwrap();
    tokio::time::timeout(LIMIT, moved).await.expect("nobody says so").unwrap();
    assert!(tokio::time::timeout(LIMIT, over.changed()).await.expect("it is kept").is_err());
    assert_eq!(values(&t.memory[..3]), [11, 12, 2]);
}

#[tokio::test]
async fn words_move_within_their_bounds_by_the_device_that_has_them() {
    let t = Granted::new().await;
    let (words, ours) = registered(t.link()).await;
    let elsewhere = Granted::new().await;
    let (_, foreign) = registered(elsewhere.link()).await;
    assert_ne!(t.link().registrar(), elsewhere.link().registrar());
    let read = |into: &Arc<dyn Registered>, range| {
        t.link().read_granted_into(t.descriptor(), 0, &**into, range, Box::new(())).is_some()
    };
    let write = |from: &Arc<dyn Registered>, range| {
        t.link().write_granted_from(t.descriptor(), 0, &**from, range, Box::new(())).is_some()
    };
    assert!(read(&ours, 0..8192) && write(&ours, 0..8192));
    assert!(!read(&foreign, 0..8) && !write(&foreign, 0..8));
    assert!(!read(&ours, 1..8193) && !write(&ours, 1..8193) && !read(&ours, 5..5) && !write(&ours, 5..5));
    // Once for all links and uses.
    let again = t.link().clone().register(words as Words).await.unwrap();
    assert!(read(&again, 0..8));
    assert!(!foreign.is_over());
    drop(elsewhere);
    until("the device is kept open", || foreign.is_over()).await;
}

/// A long transfer that nobody waits for ends with what was posted of it.
#[tokio::test]
async fn a_transfer_that_is_given_up_goes_on_no_longer_than_it_must() {
    const LONG: usize = 4 << 20;
    let (fabric, [near, far]) = nodes(1);
    let ends = near.link(&far).await;
    let [theirs, ours] = [1, 0]
        .map(|value| -> Arc<Vec<_>> { Arc::new((0..LONG / 8).map(|_| AtomicU64::new(value)).collect()) });
    let terms = GrantTerms { read: true, write: false, atomics: false, in_effect: watch::channel(()).0 };
    let grant = ends[1].link().clone().grant(theirs as Words, terms).await.unwrap();
    let link = ends[0].link();
    let memory = link.clone().register(Arc::clone(&ours) as Words).await.unwrap();
    fabric.set_traffic(false);
    let (in_effect, mut over) = watch::channel(());
    let moved =
        link.read_granted_into(grant.descriptor.clone(), 0, &*memory, 0..LONG, Box::new(in_effect)).unwrap();
    drop(moved);
    fabric.set_traffic(true);
    assert!(tokio::time::timeout(LIMIT, over.changed()).await.expect("it is kept").is_err());
    let read = values(&ours).iter().filter(|value| **value == 1).count() * 8;
    assert!(read > 0 && read <= LONG / 8, "{read} bytes were read");
    // The link is as it was.
    let (in_effect, _over) = watch::channel(());
    let moved =
        link.read_granted_into(grant.descriptor.clone(), 0, &*memory, 0..LONG, Box::new(in_effect)).unwrap();
    tokio::time::timeout(LIMIT, moved).await.expect("nobody says so").unwrap();
    assert!(values(&ours).iter().all(|value| *value == 1));
}

/// Only then can the memory be used for something else.
#[tokio::test]
async fn words_of_a_failed_link_are_let_go_when_its_device_does_nothing_more() {
    let mut t = Granted::new().await;
    let (_, ours) = registered(t.link()).await;
    t.fabric.set_traffic(false);
    let (in_effect, mut over) = watch::channel(());
    let moved = t.link().read_granted_into(t.descriptor(), 0, &*ours, 0..80, Box::new(in_effect)).unwrap();
    assert!(over.has_changed().is_ok());
    t.fabric.expire();
    assert!(tokio::time::timeout(LIMIT, moved).await.expect("nobody says so").is_err());
    t.ends[0].end().await;
    assert!(tokio::time::timeout(LIMIT, over.changed()).await.expect("it is kept").is_err());
}

/// The receive that such a WRITE completes still holds an earlier message, maybe another peer's.
#[tokio::test]
async fn a_write_with_immediate_data_is_no_message() {
    let mut t = Granted::new().await;
    t.fabric.set_immediate_data(true);
    let written = t.link().write_granted(t.descriptor(), 0, vec![7; 64].into()).unwrap();
    let why = t.ends[1].end().await;
    assert!(why.malformed && why.detail.contains("immediate data"), "{why}");
    drop(written);
}

/// Callers look at every point of the driver's way to sleep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_slept_through_beside_callers_that_look() {
    for spite in [false, true] {
        let t = Granted::new().await;
        t.fabric.set_spite(spite);
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let helpers = [(); 2].map(|()| {
            let (shard, over) = (t.near.shard(), Arc::clone(&over));
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    shard.take_moved();
                    std::thread::yield_now();
                }
            })
        });
        let rounds = if spite { 20 } else { 500 };
        for round in 0..rounds {
            t.ends[0].send(1, LONE);
            let before = t.link().change_granted(t.descriptor(), 8, Atomic::FetchAdd(1)).unwrap();
            let read = t.link().read_granted(t.descriptor(), 8, 8).unwrap();
            let before = tokio::time::timeout(LIMIT, before).await.expect("slept through").unwrap();
            assert_eq!(before, 1 + round);
            let read = tokio::time::timeout(LIMIT, read).await.expect("slept through").unwrap();
            assert_eq!(read, (2 + round).to_ne_bytes()[..]);
        }
        over.store(true, Ordering::Relaxed);
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
    }
}
