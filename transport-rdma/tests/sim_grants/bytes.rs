//! Bytes that peers read and write.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::region::{Region, Rights};
use farcall_core::status::Code;
use farcall_core::transport::Cipher;

use crate::near::Near;
use crate::setup::{Elsewhere, Hosts, Log, PATIENCE, Setup, block, bytes, runtime, words};

#[tokio::test]
async fn a_region_is_read_while_its_owner_does_nothing() {
    let (owner, thread, stop) = runtime();
    let t = Setup::with(|host| Elsewhere { host, runtime: owner.clone() });
    let memory = words(1 << 20);
    let region = Region::export(Arc::clone(&memory), Rights::READ);
    let remote = region.remote().on(t.channel.clone());
    t.until_direct(&remote).await;
    let blocked = block(&owner);
    for range in [0..1, 3..17, 0..8192, 7..9000, 65_530..200_001, 0..1 << 20] {
        let read =
            tokio::time::timeout(PATIENCE, remote.read(range.clone())).await.expect("the owner must act");
        assert!(read.unwrap() == bytes(&memory)[range.clone()], "{range:?}");
    }
    // Changes by the owner are seen at once.
    memory[5].store(77, Ordering::Relaxed);
    let read = tokio::time::timeout(PATIENCE, remote.read(40..48)).await.expect("the owner must act");
    assert_eq!(read.unwrap(), 77_u64.to_ne_bytes()[..]);
    drop((blocked, stop));
    thread.join().unwrap();
}

/// The device is done with a short access when the caller looks for the first time.
#[tokio::test]
async fn a_short_access_does_not_wait_for_another_task() {
    let t = Setup::new(None);
    let region = Region::export(words(4096), Rights::READ | Rights::WRITE | Rights::ATOMICS);
    let remote = region.remote().on(t.channel.clone());
    t.until_direct(&remote).await;
    t.until_counted(&remote).await;
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(remote.read(..64)).poll(&mut cx).is_ready());
    assert!(pin!(remote.write(0, vec![1; 8])).poll(&mut cx).is_ready());
    assert!(pin!(remote.fetch_add(8, 1)).poll(&mut cx).is_ready());
    // It pays for its turn all the same: without budget left it does not even look.
    std::future::poll_fn(|cx| {
        while let Poll::Ready(budget) = tokio::task::coop::poll_proceed(cx) {
            budget.made_progress();
        }
        assert!(pin!(remote.read(..64)).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_region_is_written_while_its_owner_does_nothing() {
    let (owner, thread, stop) = runtime();
    let t = Setup::with(|host| Elsewhere { host, runtime: owner.clone() });
    let memory = words(1 << 20);
    let region = Region::export(Arc::clone(&memory), Rights::READ | Rights::WRITE);
    let remote = region.remote().on(t.channel.clone());
    t.until_direct(&remote).await;
    let blocked = block(&owner);
    let mut expected = bytes(&memory);
    for (i, range) in (1..).zip([0..1, 3..17, 0..8192, 7..9000, 65_530..200_001, 0..1 << 20]) {
        let value = vec![i; range.len()];
        expected[range.clone()].copy_from_slice(&value);
        let written = tokio::time::timeout(PATIENCE, remote.write(range.start, value)).await;
        written.expect("the owner must act").unwrap();
        assert!(bytes(&memory) == expected, "{range:?}");
    }
    drop((blocked, stop));
    thread.join().unwrap();
}

/// A write whose link fails is repeated by messages. The owner does that only when the first attempt can have no effect any more.
#[tokio::test]
async fn a_write_whose_link_fails_is_repeated_after_the_end_of_the_first_attempt() {
    let hosts = Hosts::new();
    let t = Setup::on(&hosts, Vec::new(), |host| Near { host, cipher: None });
    let memory = words(1 << 20);
    let region = Region::export(Arc::clone(&memory), Rights::READ | Rights::WRITE);
    let remote = region.remote().on(t.channel.clone());
    t.until_direct(&remote).await;

    // The bytes arrive, and the writer does not learn it.
    t.fabric.set_acknowledgements(false);
    let writing = tokio::spawn({
        let remote = remote.clone();
        async move { remote.write(8, vec![7; 100_000]).await }
    });
    t.until(|_| memory[2].load(Ordering::Relaxed) == u64::from_ne_bytes([7; 8])).await;
    // The owner's end of the link can't be taken down yet.
    let release = hosts.server.stall("ibv_modify_qp");
    let paths = t.fabric.queue_pairs();
    // The writer's was made first.
    t.fabric.kill_qp(paths[0]);
    t.fabric.set_acknowledgements(true);
    t.until(|_| !hosts.server.is_stall_to_come()).await;
    // Meanwhile somebody else has seen the bytes, and changes them. This change is not undone later.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!writing.is_finished(), "the first attempt may still have an effect");
    drop(release);
    let written = tokio::time::timeout(PATIENCE, writing).await.expect("the write is lost");
    written.unwrap().unwrap();
    assert_eq!(region.read(8..100_008).unwrap(), [7; 100_000]);
    // Others go on by whichever link there is.
    remote.write(0, vec![9; 16]).await.unwrap();
    assert_eq!(remote.read(..16).await.unwrap(), [9; 16][..]);
}

#[tokio::test]
async fn a_region_that_is_revoked_is_read_no_more_and_its_link_stays() {
    let t = Setup::new(None);
    let memory = words(1 << 20);
    let region = Region::export(Arc::clone(&memory), Rights::READ);
    let other = Region::export(words(64), Rights::READ);
    let (remote, other) = (region.remote().on(t.channel.clone()), other.remote().on(t.channel.clone()));
    t.until_direct(&remote).await;
    t.until_direct(&other).await;
    let links = t.fabric.queue_pairs();
    // A READ is under way when the owner revokes. For one so short there is memory.
    t.fabric.set_reads(false);
    let reading = tokio::spawn({
        let remote = remote.clone();
        async move { remote.read(..64).await }
    });
    // One that is given up, and two that are not: all wait for the READ.
    for _ in 0..2 {
        let at_once = tokio::time::timeout(Duration::from_millis(25), region.revoke()).await;
        assert!(at_once.is_err(), "the memory is being read");
    }
    let revoking = region.revoke();
    t.fabric.set_reads(true);
    // Nobody polls a simulated device but those that wait for it.
    other.read(..).await.unwrap();
    assert!(reading.await.unwrap().unwrap() == bytes(&memory)[..64]);
    tokio::time::timeout(PATIENCE, revoking).await.expect("nobody reads any more");
    Arc::into_inner(memory).expect("nobody else has the memory");
    assert_eq!(remote.read(..).await.unwrap_err().code(), Code::NotFound);
    let before = t.reads.load(Ordering::Relaxed);
    other.read(..).await.unwrap();
    assert_eq!((t.reads.load(Ordering::Relaxed), t.bound()), (before + 1, 1));
    assert_eq!(t.fabric.queue_pairs(), links, "no link has failed");
}

#[tokio::test]
async fn regions_that_are_dropped_or_have_expired_are_read_no_more() {
    let t = Setup::new(None);
    let dropped = Region::zeroed(64, Rights::READ);
    let memory = words(64);
    // Long enough for the first read, on any machine: its end is not waited for by the clock.
    let expiring = Region::export_for(Duration::from_secs(2), Arc::clone(&memory), Rights::READ);
    let remotes = [&dropped, &expiring].map(|region| region.remote().on(t.channel.clone()));
    t.until_direct(&remotes[0]).await;
    drop(dropped);
    for remote in &remotes {
        let gone = async {
            while remote.read(..8).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("it is read for ever");
        assert_eq!(remote.read(..).await.unwrap_err().code(), Code::NotFound);
    }
    t.until(|t| t.bound() == 0).await;
    assert_eq!(expiring.read(..8).unwrap(), [0; 8], "the owner keeps it");
}

#[tokio::test]
async fn a_peer_that_does_not_stop_reading_loses_its_link_and_the_owner_gets_the_memory() {
    let (owner, thread, stop) = runtime();
    let (client, client_thread, client_stop) = runtime();
    let t = Setup::with(|host| Elsewhere { host, runtime: owner.clone() });
    let memory = words(1 << 20);
    let region = Region::export(Arc::clone(&memory), Rights::READ);
    let t = client
        .spawn({
            let remote = region.remote().on(t.channel.clone());
            async move {
                t.until_direct(&remote).await;
                t
            }
        })
        .await
        .unwrap();
    t.fabric.set_reads(false);
    let reading = client.spawn({
        let remote = region.remote().on(t.channel.clone());
        async move { remote.read(..64).await }
    });
    // When this has run, so has the one before it.
    client.spawn(async {}).await.unwrap();
    let blocked = block(&client);
    // The owner's clock runs ahead when nothing else happens there.
    owner.spawn(async { tokio::time::pause() }).await.unwrap();
    tokio::time::timeout(PATIENCE, region.revoke()).await.expect("a peer keeps the memory");
    Arc::into_inner(memory).expect("nobody else has the memory");
    t.fabric.set_reads(true);
    drop(blocked);
    let status = tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap().unwrap_err();
    // The connection may have been closed, too, because the client was silent.
    assert!([Code::NotFound, Code::Unavailable].contains(&status.code()), "{status}");
    drop((stop, client_stop, t));
    thread.join().unwrap();
    client_thread.join().unwrap();
}

#[tokio::test]
async fn a_read_whose_link_fails_is_done_by_messages() {
    let t = Setup::new(None);
    let memory = words(1 << 20);
    let region = Region::export(Arc::clone(&memory), Rights::READ);
    let remote = region.remote().on(t.channel.clone());
    for _ in 0..3 {
        t.until_direct(&remote).await;
        t.fabric.set_reads(false);
        let reading = tokio::spawn({
            let remote = remote.clone();
            async move { remote.read(..).await }
        });
        tokio::task::yield_now().await;
        for number in t.fabric.queue_pairs() {
            t.fabric.kill_qp(number);
        }
        t.fabric.set_reads(true);
        let read = tokio::time::timeout(PATIENCE, reading).await.expect("the read is lost");
        assert!(read.unwrap().unwrap() == bytes(&memory));
    }
    // Grants of links that are gone keep nothing.
    tokio::time::timeout(PATIENCE, region.revoke()).await.expect("a link that is gone keeps the memory");
    Arc::into_inner(memory).expect("nobody else has the memory");
}

#[tokio::test]
async fn memory_that_can_not_be_granted_is_read_by_messages() {
    let sealed = Setup::new(Some(Cipher::Aes256Gcm));
    let none = Setup::new(None);
    for t in [&sealed, &none] {
        let odd = Region::zeroed(13, Rights::READ);
        odd.write(0, b"thirteen byte").unwrap();
        let writable = Region::zeroed(64, Rights::WRITE);
        let empty = Region::zeroed(0, Rights::READ);
        let [odd, writable, empty] =
            [&odd, &writable, &empty].map(|region| region.remote().on(t.channel.clone()));
        for _ in 0..20 {
            assert_eq!(odd.read(..).await.unwrap(), "thirteen byte");
            assert_eq!(odd.read(..14).await.unwrap_err().code(), Code::OutOfRange);
            assert_eq!(writable.read(..).await.unwrap_err().code(), Code::PermissionDenied);
            assert_eq!(empty.read(..).await.unwrap(), Bytes::new());
        }
    }
    assert_eq!(sealed.reads.load(Ordering::Relaxed), 0);
    assert!(none.reads.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn a_link_has_sixteen_grants_and_messages_keep_their_windows() {
    let t = Setup::new(None);
    let regions: Vec<_> = (0..20).map(|_| Region::zeroed(64, Rights::READ)).collect();
    let remotes: Vec<_> = regions.iter().map(|region| region.remote().on(t.channel.clone())).collect();
    for remote in remotes.iter().cycle().take(200) {
        assert_eq!(remote.read(..).await.unwrap(), [0; 64][..]);
    }
    t.until(|t| t.bound() == 16).await;
    let windows = t.fabric.windows().0;
    assert_eq!(windows, 16);
    // Windows of regions that are gone serve the next ones.
    drop(regions);
    t.until(|t| t.bound() == 0).await;
    let again = Region::zeroed(64, Rights::READ);
    t.until_direct(&again.remote().on(t.channel.clone())).await;
    assert_eq!(t.fabric.windows(), (windows, 1));
    assert_eq!(t.host.connections().len(), 1);
}

#[tokio::test]
async fn a_region_that_got_no_window_gets_one_when_there_are_some() {
    let t = Setup::new(None);
    let regions: Vec<_> = (0..16).map(|_| Region::zeroed(64, Rights::READ)).collect();
    for region in &regions {
        t.until_direct(&region.remote().on(t.channel.clone())).await;
    }
    let late = Region::zeroed(64, Rights::READ);
    let remote = late.remote().on(t.channel.clone());
    for _ in 0..100 {
        remote.read(..).await.unwrap();
    }
    assert_eq!(t.bound(), 16);
    drop(regions);
    t.until(|t| t.bound() == 0).await;
    tokio::time::pause();
    for _ in 0..31 {
        tokio::time::advance(Duration::from_secs(1)).await;
        remote.read(..).await.unwrap();
    }
    tokio::time::resume();
    t.until_direct(&remote).await;
    assert_eq!(t.host.connections().len(), 1);
}

#[tokio::test]
async fn a_region_that_the_owner_can_not_register_is_used_by_messages() {
    let hosts = Hosts::new();
    let t = Setup::on(&hosts, Vec::new(), |host| Near { host, cipher: None });
    let first = Region::zeroed(64, Rights::READ);
    t.until_direct(&first.remote().on(t.channel.clone())).await;
    // No more memory may be locked.
    hosts.server.limit_memory(Some(8 << 10));
    let (log, _guard) = Log::start();
    let region = Region::zeroed(4 << 20, Rights::READ | Rights::WRITE);
    let remote = region.remote().on(t.channel.clone());
    let before = t.reads.load(Ordering::Relaxed);
    for byte in 0..50 {
        remote.write(8, vec![byte; 100]).await.unwrap();
        assert_eq!(remote.read(8..108).await.unwrap(), [byte; 100][..]);
    }
    assert_eq!((t.reads.load(Ordering::Relaxed), t.bound()), (before, 1));
    let said = async {
        loop {
            let said = log.said();
            if said.contains("peers can't use a region by themselves") {
                return said;
            }
            tokio::task::yield_now().await;
        }
    };
    let said = tokio::time::timeout(PATIENCE, said).await.expect("no warning");
    for part in [
        "the limit on locked memory is too low",
        "4096 KiB asked",
        "soft limit 8 KiB",
        " KiB missing",
        "`ulimit -l ",
        "LimitMEMLOCK=infinity",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    region.revoke().await;
}

#[tokio::test]
async fn a_device_without_windows_exposes_no_region() {
    let hosts = Hosts::new();
    hosts.server.limit_windows(0);
    let t = Setup::on(&hosts, Vec::new(), |host| Near { host, cipher: None });
    let (log, _guard) = Log::start();
    let region = Region::zeroed(4096, Rights::READ | Rights::WRITE | Rights::ATOMICS);
    let remote = region.remote().on(t.channel.clone());
    for i in 0..50 {
        remote.write(8, vec![i as u8; 100]).await.unwrap();
        assert_eq!(remote.read(8..108).await.unwrap(), [i as u8; 100][..]);
        assert_eq!(remote.fetch_add(0, 1).await.unwrap(), i);
    }
    let connection = t.channel.connection().await.unwrap();
    assert_eq!(connection.transport().name, "rdma");
    assert_eq!((t.reads.load(Ordering::Relaxed), t.atomics.load(Ordering::Relaxed)), (0, 0));
    assert_eq!(t.fabric.windows(), (0, 0));
    // It says so once, however many regions are asked for.
    let other = Region::zeroed(4096, Rights::READ);
    for _ in 0..50 {
        other.remote().on(t.channel.clone()).read(..8).await.unwrap();
    }
    let said = log.said();
    assert_eq!(said.matches("the peer can't use some regions or lent memory by itself").count(), 1, "{said}");
    assert!(said.contains("this side's device has no memory windows of type 2B"), "{said}");
    region.revoke().await;
}
