//! A server moves bytes between regions of its own and memory that its callers lend or export: a page cache.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod moved;
mod over;

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use farcall::bulk::{BulkRead, BulkWrite, Lend};
use farcall::region::{Region, RemoteRegion, Rights};
use farcall::{Buf, Bytes, Channel, Code, Context, Executed, Result, Server, Status};

use moved::Moved;

/// The length of the server's region, in bytes.
const ALL: usize = 1 << 20;

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(120);

#[farcall::service(package = "cache.v1")]
trait Cache {
    /// Reads a part of the caller's memory into the cache.
    async fn put(&self, from: BulkRead, offset: usize, len: usize, at: usize) -> Result<()>;
    /// Writes a part of the cache to the caller's memory.
    async fn get(&self, into: BulkWrite, offset: usize, at: usize, len: usize) -> Result<()>;
    /// Reads all of the caller's region into the cache, from a place on.
    async fn pull(&self, from: RemoteRegion, at: usize) -> Result<()>;
    /// Writes so much of the cache to the caller's region.
    async fn push(&self, into: RemoteRegion, at: usize) -> Result<()>;
    /// Begins to read into the cache, and gives that up.
    async fn give_up(&self, from: BulkRead, at: usize) -> Result<()>;
}

#[derive(Clone)]
struct Pages(Arc<Region>);

impl Cache for Pages {
    async fn put(&self, from: BulkRead, offset: usize, len: usize, at: usize) -> Result<()> {
        from.read_into(offset..offset.saturating_add(len), &self.0, at).await
    }

    async fn get(&self, into: BulkWrite, offset: usize, at: usize, len: usize) -> Result<()> {
        into.write_from(offset, &self.0, at..at.saturating_add(len)).await
    }

    async fn pull(&self, from: RemoteRegion, at: usize) -> Result<()> {
        from.of_caller(&Context::current().unwrap()).read_into(.., &self.0, at).await
    }

    async fn push(&self, into: RemoteRegion, at: usize) -> Result<()> {
        let len = into.len();
        into.of_caller(&Context::current().unwrap()).write_from(0, &self.0, at..at + len).await
    }

    async fn give_up(&self, from: BulkRead, at: usize) -> Result<()> {
        let read = from.read_into(.., &self.0, at);
        let _ = tokio::time::timeout(Duration::from_micros(fastrand::u64(..300)), read).await;
        Ok(())
    }
}

async fn served() -> (Arc<Region>, CacheClient) {
    let (pages, _, cache) = served_by().await;
    (pages, cache)
}

/// Returns the cache of a server, with the channel to it and a client.
async fn served_by() -> (Arc<Region>, Channel, CacheClient) {
    let pages = Arc::new(Region::zeroed(ALL, Rights::NONE));
    let server = Server::builder().add(CacheServer::new(Pages(pages.clone()))).config(over::config());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    (pages, channel.clone(), CacheClient::new(channel))
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it must end")
}

fn random(len: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    (0..len).map(|_| random.u8(..)).collect()
}

/// Memory that a device reads and writes by itself.
fn buffer(content: &[u8]) -> Buf {
    let mut buf = farcall::buf(content.len());
    buf.resize(content.len());
    buf.copy_from_slice(content);
    buf
}

/// Has a part of the cache written to memory. Returns all of that.
async fn got<M: Lend + Deref<Target = [u8]>>(
    cache: &CacheClient,
    memory: M,
    offset: usize,
    part: Range<usize>,
) -> Vec<u8> {
    let (into, loan) = BulkWrite::lend(memory);
    soon(cache.get(into, offset, part.start, part.len())).await.unwrap();
    soon(loan.reclaim()).await.to_vec()
}

/// Each task has a part of the cache, and a copy of what must be there. Nobody else's part changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transfers_move_what_they_should_and_nothing_else() {
    const TASKS: usize = 4;
    const PART: usize = ALL / TASKS;
    let rounds = if std::env::var_os("FARCALL_LONG").is_some() { 2_000 } else { 40 };
    let (pages, channel, cache) = served_by().await;
    let tasks = (0..TASKS).map(|task| {
        let cache = cache.clone();
        tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(task as u64);
            let mut expected = vec![0; PART];
            let own = Region::zeroed(PART + 300, Rights::NONE);
            let mut moved = Moved::default();
            for _ in 0..rounds {
                let most = [300, 40_000, PART][rng.usize(..3)];
                let len = rng.usize(1..=most);
                let at = rng.usize(..=PART - len);
                let offset = rng.usize(..100);
                let content = random(offset + len + rng.usize(..100), &mut rng);
                let base = rng.usize(..100);
                let (of_region, in_region) = (rng.bool(), base..base + content.len());
                if of_region {
                    own.write(base, &content).unwrap();
                    let (from, loan) = BulkRead::of_region(&own, in_region.clone()).unwrap();
                    soon(cache.put(from, offset, len, task * PART + at)).await.unwrap();
                    soon(loan.reclaim()).await;
                    moved.read += len;
                } else {
                    let is_registered = rng.bool();
                    *if is_registered { &mut moved.read } else { &mut moved.sent } += len;
                    let lent = if is_registered { buffer(&content).freeze() } else { content.clone().into() };
                    let (from, loan) = BulkRead::lend(lent);
                    soon(cache.put(from, offset, len, task * PART + at)).await.unwrap();
                    drop(soon(loan.reclaim()).await);
                }
                expected[at..at + len].copy_from_slice(&content[offset..offset + len]);

                let at = rng.usize(..=PART - len);
                let mut canaries = random(own.len() - base, &mut rng);
                let part = task * PART + at..task * PART + at + len;
                let written = if of_region {
                    own.write(base, &canaries).unwrap();
                    let (into, loan) = BulkWrite::of_region(&own, in_region).unwrap();
                    soon(cache.get(into, offset, part.start, len)).await.unwrap();
                    soon(loan.reclaim()).await;
                    moved.written += len;
                    own.read(base..).unwrap()
                } else if rng.bool() {
                    moved.written += len;
                    got(&cache, buffer(&canaries), offset, part).await
                } else {
                    moved.received += len;
                    got(&cache, canaries.clone(), offset, part).await
                };
                canaries[offset..offset + len].copy_from_slice(&expected[at..at + len]);
                assert!(written == canaries, "{task}: {len} bytes from {at}");
            }
            (expected, moved)
        })
    });
    let mut all = Vec::new();
    for (task, done) in tasks.collect::<Vec<_>>().into_iter().enumerate() {
        let (expected, moved) = done.await.unwrap();
        assert!(pages.read(task * PART..(task + 1) * PART).unwrap() == expected, "{task}");
        all.push(moved);
    }
    moved::by_device_over_rdma(all.into_iter().sum(), &channel).await;
}

#[tokio::test]
async fn a_region_of_the_caller_and_one_of_the_server_exchange_their_bytes() {
    let (pages, cache) = served().await;
    let mut rng = fastrand::Rng::with_seed(5);
    // More than one piece of a message, and no multiple of a word.
    for len in [8, 4096, 100_000, 3 * ALL / 4 + 8] {
        let content = random(len, &mut rng);
        let theirs = Region::zeroed(len, Rights::READ | Rights::WRITE);
        theirs.write(0, &content).unwrap();
        soon(cache.pull(theirs.remote(), 3)).await.unwrap();
        assert!(pages.read(3..3 + len).unwrap() == content, "{len}");
        pages.write(5, &[9; 8]).unwrap();
        // Once by messages, and then by a grant.
        for _ in 0..2 {
            soon(cache.push(theirs.remote(), 3)).await.unwrap();
            assert!(theirs.read(..).unwrap() == pages.read(3..3 + len).unwrap(), "{len}");
        }
        soon(theirs.revoke()).await;
    }
}

#[tokio::test]
async fn ranges_are_checked_at_both_ends() {
    let (pages, cache) = served().await;
    let lent = Bytes::from(vec![7; 100]);
    let put = async |offset, len, at| {
        cache.put(lent.clone().into(), offset, len, at).await.map_err(|status| status.code())
    };
    assert_eq!(put(0, 100, ALL - 100).await, Ok(()));
    assert_eq!(put(100, 0, ALL).await, Ok(()));
    for (offset, len, at) in [
        (0, 101, 0),
        (101, 0, 0),
        (1, 100, 0),
        (0, 100, ALL - 99),
        (0, 1, ALL),
        (0, 1, usize::MAX),
        (usize::MAX, 2, 0),
    ] {
        assert_eq!(put(offset, len, at).await, Err(Code::OutOfRange), "{offset} {len} {at}");
    }
    let get = async |offset, at, len| {
        let (into, _loan) = BulkWrite::lend(vec![0; 100]);
        cache.get(into, offset, at, len).await.map_err(|status| status.code())
    };
    assert_eq!(get(0, ALL - 100, 100).await, Ok(()));
    for (offset, at, len) in
        [(0, ALL - 99, 100), (1, 0, 100), (0, ALL, 1), (usize::MAX, 0, 2), (0, usize::MAX, 2)]
    {
        assert_eq!(get(offset, at, len).await, Err(Code::OutOfRange), "{offset} {at} {len}");
    }
    assert!(pages.read(..ALL - 100).unwrap().iter().all(|&byte| byte == 0));
}

#[tokio::test]
async fn nothing_moves_to_or_from_a_region_that_was_revoked() {
    let (pages, cache) = served().await;
    let lent = buffer(&[7; 50_000]).freeze();
    soon(cache.put(lent.clone().into(), 0, 50_000, 0)).await.unwrap();
    soon(pages.revoke()).await;
    let (into, loan) = BulkWrite::lend(vec![1; 100]);
    let refused: [Status; 4] = [
        cache.put(lent.into(), 0, 50_000, 0).await.unwrap_err(),
        cache.get(into, 0, 0, 100).await.unwrap_err(),
        BulkRead::of_region(&pages, ..).unwrap_err(),
        BulkWrite::of_region(&pages, ..).unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("revoked"), "{status}");
    }
    assert_eq!(loan.reclaim().await, [1; 100]);
}

/// A page whose reading was given up is used for another one. Nothing of the first comes later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_a_read_that_was_given_up_do_not_come_late() {
    const LEN: usize = 200_000;
    let rounds = if std::env::var_os("FARCALL_LONG").is_some() { 1_000 } else { 40 };
    let (pages, cache) = served().await;
    for round in 0..rounds {
        let [wrong, right] =
            [1, 2].map(|byte: u8| buffer(&vec![byte.wrapping_add(round as u8); LEN]).freeze());
        soon(cache.give_up(wrong.into(), 0)).await.unwrap();
        if round % 2 == 0 {
            soon(cache.put(right.clone().into(), 0, LEN, 0)).await.unwrap();
        } else {
            soon(pages.settled(..LEN)).await.unwrap();
            pages.write(0, &right).unwrap();
        }
        // As long as a call takes.
        soon(cache.put(Bytes::from_static(b"x").into(), 0, 1, LEN)).await.unwrap();
        assert!(pages.read(..LEN).unwrap() == right, "{round}");
    }
}

/// The caller's memory is the caller's, whatever the server has of it.
#[tokio::test]
async fn a_loan_that_has_ended_moves_nothing() {
    let (pages, cache) = served().await;
    let (into, loan) = BulkWrite::lend(vec![1; 100]);
    assert_eq!(loan.reclaim().await, [1; 100]);
    let status = cache.get(into.clone(), 0, 0, 100).await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::FailedPrecondition, Executed::No));
    // Not lent to this side.
    let status = into.write_from(0, &pages, ..100).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[tokio::test]
async fn ranges_of_regions_are_checked_when_they_are_lent() {
    let region = Region::zeroed(100, Rights::NONE);
    assert_eq!(BulkRead::of_region(&region, 60..).unwrap().0.len(), 40);
    assert_eq!(BulkWrite::of_region(&region, ..).unwrap().0.len(), 100);
    assert_eq!(BulkRead::of_region(&region, ..101).unwrap_err().code(), Code::OutOfRange);
    assert_eq!(BulkWrite::of_region(&region, 101..).unwrap_err().code(), Code::OutOfRange);
}

/// A server with the right to write reads nothing, and the other way round, nor does it get at what is beside the range.
#[tokio::test]
async fn a_region_is_lent_for_one_thing_and_in_its_bounds() {
    let (_, cache) = served().await;
    let own = Region::zeroed(100_000, Rights::NONE);
    own.write(0, &[3; 100_000]).unwrap();
    // More than once: the first time by messages.
    for _ in 0..5 {
        let (from, loan) = BulkRead::of_region(&own, 20_000..60_000).unwrap();
        assert_eq!(from.len(), 40_000);
        let put = async |offset, len| cache.put(from.clone(), offset, len, 0).await.map_err(|s| s.code());
        assert_eq!(soon(put(0, 40_000)).await, Ok(()));
        assert_eq!(soon(put(1, 40_000)).await, Err(Code::OutOfRange));
        drop(from);
        soon(loan.reclaim()).await;
        let (into, loan) = BulkWrite::of_region(&own, 20_000..60_000).unwrap();
        soon(cache.get(into.clone(), 0, 500_000, 40_000)).await.unwrap();
        assert_eq!(cache.get(into, 1, 0, 40_000).await.unwrap_err().code(), Code::OutOfRange);
        soon(loan.reclaim()).await;
        let all = own.read(..).unwrap();
        assert!(all[20_000..60_000].iter().all(|&byte| byte == 0));
        assert!(all[..20_000].iter().chain(&all[60_000..]).all(|&byte| byte == 3));
        own.write(20_000, &[3; 40_000]).unwrap();
    }
    soon(own.revoke()).await;
}
