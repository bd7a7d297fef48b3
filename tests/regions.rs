//! Memory that one process exports: rights, bounds, atomic operations, and its end.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod over;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall::codec::{from_payload, to_payload};
use farcall::region::{Region, RemoteRegion, Rights};
use farcall::{Bytes, Channel, Code, Context, Executed, Handle, Postcard, Result, Server, Status};

const MIB: usize = 1 << 20;

fn all() -> Rights {
    Rights::READ | Rights::WRITE | Rights::ATOMICS
}

#[farcall::service(package = "regions.v1")]
trait Regions {
    /// Exports zeroes, until it is revoked.
    async fn export(&self, len: usize, rights: Rights, for_ms: Option<u64>) -> Result<RemoteRegion>;
    /// Adds to a number of the owner's.
    async fn add(&self, number: usize, add: u64) -> Result<u64>;
    /// Revokes what was exported, and returns what it held.
    async fn revoke(&self) -> Result<Bytes>;
    /// Adds to a number of the caller's, and returns those before.
    async fn count(&self, cx: &Context, counter: RemoteRegion, times: u64) -> Result<Vec<u64>>;
    /// Exports zeroes for as long as the process lives.
    async fn another(&self, len: usize) -> Result<RemoteRegion>;
    /// Writes to the caller's memory.
    async fn write_to(&self, cx: &Context, page: RemoteRegion, at: usize, bytes: Bytes) -> Result<()>;
    /// Reads the caller's memory.
    async fn read_from(&self, cx: &Context, page: RemoteRegion, at: usize, len: usize) -> Result<Bytes>;
    /// Writes to the caller's memory, and reads it.
    async fn echo(&self, cx: &Context, page: RemoteRegion, bytes: Bytes) -> Result<Bytes>;
}

fn zeroes(len: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..len / 8).map(|_| AtomicU64::new(0)).collect())
}

#[derive(Default)]
struct Owner(Mutex<Option<Arc<Region>>>);

impl Regions for Owner {
    async fn export(&self, len: usize, rights: Rights, for_ms: Option<u64>) -> Result<RemoteRegion> {
        let region = match for_ms {
            Some(for_ms) => Region::export_for(Duration::from_millis(for_ms), zeroes(len), rights),
            None => Region::zeroed(len, rights),
        };
        let remote = region.remote();
        *self.0.lock().unwrap() = Some(Arc::new(region));
        Ok(remote)
    }

    async fn add(&self, number: usize, add: u64) -> Result<u64> {
        let region = self.0.lock().unwrap().clone().unwrap();
        region.fetch_add(8 * number, add).await
    }

    async fn revoke(&self) -> Result<Bytes> {
        let region = self.0.lock().unwrap().take().unwrap();
        let held = region.read(..)?;
        region.revoke().await;
        Ok(held.into())
    }

    async fn count(&self, cx: &Context, counter: RemoteRegion, times: u64) -> Result<Vec<u64>> {
        let counter = counter.of_caller(cx);
        let mut before = Vec::new();
        for _ in 0..times {
            before.push(counter.fetch_add(0, 1).await?);
        }
        Ok(before)
    }

    async fn another(&self, len: usize) -> Result<RemoteRegion> {
        let region = Region::zeroed(len, all());
        let remote = region.remote();
        std::mem::forget(region);
        Ok(remote)
    }

    async fn write_to(&self, cx: &Context, page: RemoteRegion, at: usize, bytes: Bytes) -> Result<()> {
        page.of_caller(cx).write(at, bytes).await
    }

    async fn read_from(&self, cx: &Context, page: RemoteRegion, at: usize, len: usize) -> Result<Bytes> {
        page.of_caller(cx).read(at..at + len).await
    }

    async fn echo(&self, cx: &Context, page: RemoteRegion, bytes: Bytes) -> Result<Bytes> {
        let page = page.of_caller(cx);
        page.write(0, bytes).await?;
        page.read(..).await
    }
}

async fn serving() -> (Handle, String) {
    let server = Server::builder().config(over::config()).add(RegionsServer::new(Owner::default()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (over::address(server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    (handle, address)
}

async fn served() -> (Handle, Channel, RegionsClient) {
    let (handle, address) = serving().await;
    let channel = Channel::connect(&address).await.unwrap();
    (handle, channel.clone(), RegionsClient::new(channel))
}

fn random(len: usize, seed: u64) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

/// The content of a handle, as somebody may forge it.
#[derive(serde::Serialize, serde::Deserialize)]
struct Forged {
    number: u64,
    key: u128,
    len: u64,
    rights: u8,
}

/// Changes a handle.
fn forge(remote: &RemoteRegion, change: impl FnOnce(&mut Forged)) -> RemoteRegion {
    let encoded = to_payload::<Postcard, _>(remote).unwrap();
    let mut forged: Forged = from_payload::<Postcard, _>(encoded).unwrap();
    change(&mut forged);
    from_payload::<Postcard, _>(to_payload::<Postcard, _>(&forged).unwrap()).unwrap()
}

async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes too long")
}

#[tokio::test]
async fn a_client_reads_and_writes_a_servers_memory() {
    let (_, channel, owner) = served().await;
    let remote = owner.export(3 * MIB + 1005, all(), None).await.unwrap();
    assert_eq!((remote.len(), remote.rights()), (3 * MIB + 1005, all()));
    let memory = remote.on(&channel);
    let mut expected = vec![0; remote.len()];
    for (offset, len) in [(0, 3), (3, 100_000), (MIB, 2 * MIB + 1005), (7, 0)] {
        let bytes = random(len, len as u64);
        expected[offset..offset + len].copy_from_slice(&bytes);
        memory.write(offset, bytes).await.unwrap();
    }
    for range in [0..0, 0..5, 4..6, 3..100_004, 0..expected.len()] {
        assert!(memory.read(range.clone()).await.unwrap() == expected[range.clone()], "{range:?}");
    }
    assert!(owner.revoke().await.unwrap() == expected);
}

#[tokio::test]
async fn rights_are_kept() {
    let (_, channel, owner) = served().await;
    let remote = owner.export(64, Rights::READ, None).await.unwrap();
    let memory = remote.on(&channel);
    assert_eq!(memory.read(..).await.unwrap(), [0; 64][..]);
    let refused = [
        memory.write(0, vec![1]).await.unwrap_err(),
        memory.fetch_add(0, 1).await.unwrap_err(),
        memory.compare_and_swap(0, 0, 1).await.unwrap_err(),
    ];
    // A handle that claims more than it has.
    let forged = forge(&remote, |forged| forged.rights = 7).on(&channel);
    let found_out = [
        forged.write(0, vec![1]).await.unwrap_err(),
        forged.fetch_add(0, 1).await.unwrap_err(),
        forged.compare_and_swap(0, 0, 1).await.unwrap_err(),
    ];
    for status in refused.iter().chain(&found_out) {
        assert_eq!((status.code(), status.executed()), (Code::PermissionDenied, Executed::No), "{status}");
    }
    assert_eq!(memory.read(..).await.unwrap(), [0; 64][..]);
    let atomics = owner.export(64, Rights::ATOMICS, None).await.unwrap();
    let memory = atomics.on(&channel);
    assert_eq!(memory.fetch_add(8, 1).await.unwrap(), 0);
    assert_eq!(memory.read(..).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn bounds_and_alignment_are_checked_on_both_sides() {
    let (_, channel, owner) = served().await;
    let remote = owner.export(64, all(), None).await.unwrap();
    let longer = forge(&remote, |forged| forged.len = u64::MAX);
    for memory in [remote.on(&channel), longer.on(&channel)] {
        let out = [
            memory.read(0..65).await.unwrap_err(),
            memory.read(65..66).await.unwrap_err(),
            memory.write(64, vec![1]).await.unwrap_err(),
            memory.write(usize::MAX, vec![1]).await.unwrap_err(),
            memory.fetch_add(64, 1).await.unwrap_err(),
            memory.fetch_add(4, 1).await.unwrap_err(),
            memory.fetch_add(usize::MAX - 7, 1).await.unwrap_err(),
            memory.load(4).await.unwrap_err(),
            memory.store(64, 1).await.unwrap_err(),
        ];
        for status in out {
            assert_eq!(status.code(), Code::OutOfRange, "{status}");
        }
        assert_eq!(memory.fetch_add(8, 1).await.unwrap(), 0);
        owner.add(1, u64::MAX).await.unwrap();
    }
    assert_eq!(owner.revoke().await.unwrap(), [0; 64][..]);
}

#[tokio::test]
async fn numbers_change_atomically_whoever_changes_them() {
    const EACH: u64 = 100;
    let (_, channel, owner) = served().await;
    let remote = owner.export(64, all(), None).await.unwrap();
    let counting = (0..8).map(|i| {
        let (memory, owner) = (remote.on(&channel), owner.clone());
        tokio::spawn(async move {
            let mut before = Vec::new();
            for _ in 0..EACH {
                before.push(match i {
                    0 => owner.add(1, 1).await.unwrap(),
                    _ => memory.fetch_add(8, 1).await.unwrap(),
                });
            }
            before
        })
    });
    let mut tickets = HashSet::new();
    for counted in counting.collect::<Vec<_>>() {
        tickets.extend(counted.await.unwrap());
    }
    assert_eq!(tickets, (0..8 * EACH).collect());

    // A lock: of those that swap at once, one has it.
    let memory = remote.on(&channel);
    let swaps: Vec<_> = (1..=20)
        .map(|owner| {
            let memory = memory.clone();
            tokio::spawn(async move { memory.compare_and_swap(16, 0, owner).await.unwrap() })
        })
        .collect();
    let mut before = Vec::new();
    for swap in swaps {
        before.push(swap.await.unwrap());
    }
    let has_it: Vec<_> = before.iter().filter(|before| **before == 0).collect();
    assert_eq!(has_it.len(), 1, "{before:?}");
    let holder = memory.read(16..24).await.unwrap();
    let holder = u64::from_le_bytes(holder[..].try_into().unwrap());
    assert!(before.iter().all(|before| [0, holder].contains(before)), "{before:?}");
    assert_eq!(memory.compare_and_swap(16, holder, 0).await.unwrap(), holder);
    memory.store(24, 77).await.unwrap();
    assert_eq!((memory.load(24).await.unwrap(), memory.load(16).await.unwrap()), (77, 0));
}

#[tokio::test]
async fn a_server_uses_memory_that_its_caller_exports() {
    let (_, _, owner) = served().await;
    let counter = Region::zeroed(8, Rights::ATOMICS);
    assert_eq!(owner.count(counter.remote(), 5).await.unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(counter.load(0).unwrap(), 5);
    let memory = zeroes(MIB);
    let page = Region::export(memory.clone(), Rights::READ | Rights::WRITE);
    let bytes = random(MIB, 1);
    assert!(owner.echo(page.remote(), bytes.clone()).await.unwrap() == bytes);
    assert!(page.read(..).unwrap() == bytes);
    page.revoke().await;
    // Nobody else has it any more.
    let memory = Arc::into_inner(memory).unwrap();
    assert_eq!(memory[0].load(Ordering::Relaxed).to_ne_bytes(), bytes[..8]);
}

/// The accesses of one kind that a task has made, and those of them that its device has made by itself.
#[derive(Debug, Default)]
struct Made {
    all: usize,
    direct: usize,
}

impl Made {
    fn add(&mut self, is_direct: bool) {
        self.all += 1;
        self.direct += usize::from(is_direct);
    }

    fn are_mostly_direct(&self) -> bool {
        2 * self.direct > self.all
    }
}

/// Returns how many bytes a channel has sent, in messages and by its device.
async fn sent(channel: &Channel) -> u64 {
    let traffic = channel.connection().await.unwrap().traffic();
    traffic.stream.bytes_sent + traffic.upgraded.bytes_sent
}

/// Reads and writes at random places, of many regions at once, each of which is held against a copy. Devices write to those only whose
/// length is a multiple of eight, which half of them have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transfers_leave_both_sides_alike() {
    const TASKS: u64 = 8;
    let transfers = if std::env::var_os("FARCALL_LONG").is_some() { 100_000 } else { 2_000 };
    let (_handle, address) = serving().await;
    let tasks = (0..TASKS).map(|seed| {
        let address = address.clone();
        tokio::spawn(async move {
            // Of its own, so that what is sent is sent for this task.
            let channel = Channel::connect(&address).await.unwrap();
            let owner = RegionsClient::new(&channel);
            let mut random = fastrand::Rng::with_seed(seed);
            let is_whole = seed % 4 < 2;
            let words = random.usize(1..300_000 / 8);
            let len = if is_whole { 8 * words } else { 8 * words + random.usize(1..8) };
            let (mut reads, mut writes) = (Made::default(), Made::default());
            // Odd ones are the caller's, and the server uses them.
            let own = (seed % 2 == 1).then(|| Region::zeroed(len, all()));
            let theirs = match own {
                Some(_) => None,
                None => Some(owner.another(len).await.unwrap().on(&channel)),
            };
            let mut copy = vec![0; len];
            for _ in 0..transfers / TASKS {
                let at = random.usize(..=len);
                let most = if random.u8(..) < 16 { len } else { 5000 };
                let count = random.usize(..=most.min(len - at));
                let range = at..at + count;
                let before = sent(&channel).await;
                if random.bool() {
                    random.fill(&mut copy[range.clone()]);
                    let bytes = Bytes::copy_from_slice(&copy[range.clone()]);
                    match (&own, &theirs) {
                        (Some(own), _) => owner.write_to(own.remote(), at, bytes).await.unwrap(),
                        (None, theirs) => theirs.as_ref().unwrap().write(at, bytes).await.unwrap(),
                    }
                    // A message has a head, too.
                    writes.add(count > 0 && sent(&channel).await - before == count as u64);
                } else {
                    let bytes = match (&own, &theirs) {
                        (Some(own), _) => owner.read_from(own.remote(), at, count).await.unwrap(),
                        (None, theirs) => theirs.as_ref().unwrap().read(range.clone()).await.unwrap(),
                    };
                    reads.add(count > 0 && sent(&channel).await == before);
                    assert!(bytes == copy[range.clone()], "{seed}: {range:?}");
                }
            }
            match own {
                Some(own) => assert!(own.read(..).unwrap() == copy, "{seed}"),
                None if over::transport() == "rdma" => {
                    assert!(reads.are_mostly_direct(), "{seed}: {reads:?}");
                    assert_eq!(writes.are_mostly_direct(), is_whole, "{seed}: {writes:?}");
                }
                None => assert_eq!((reads.direct, writes.direct), (0, 0), "{seed}: {reads:?} {writes:?}"),
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

fn is_gone(status: &Status) {
    assert_eq!((status.code(), status.executed()), (Code::NotFound, Executed::No), "{status}");
}

#[tokio::test]
async fn nothing_can_be_done_after_a_region_is_revoked_or_has_expired() {
    let (_, channel, owner) = served().await;
    let remote = owner.export(64, all(), None).await.unwrap();
    let memory = remote.on(&channel);
    memory.write(0, vec![7; 64]).await.unwrap();
    assert_eq!(owner.revoke().await.unwrap(), [7; 64][..]);
    is_gone(&memory.write(0, vec![1]).await.unwrap_err());
    is_gone(&memory.read(..).await.unwrap_err());
    is_gone(&memory.fetch_add(0, 1).await.unwrap_err());

    // The next export has another number, and the one before is dropped.
    let dropped = owner.export(64, all(), None).await.unwrap();
    let expired = owner.export(64, all(), Some(0)).await.unwrap();
    for remote in [dropped, expired] {
        is_gone(&remote.on(&channel).read(..).await.unwrap_err());
    }
}

#[tokio::test]
async fn a_key_that_is_guessed_opens_nothing() {
    let (_, channel, owner) = served().await;
    let remote = owner.export(64, all(), None).await.unwrap();
    let guessed = forge(&remote, |forged| forged.key ^= 1);
    is_gone(&guessed.on(&channel).read(..).await.unwrap_err());
    let shown = format!("{remote:?}");
    assert!(!shown.contains("key"), "{shown}");
}

#[tokio::test]
async fn an_access_that_fails_with_the_connection_says_that_it_may_have_been_done() {
    let (handle, channel, owner) = served().await;
    let remote = owner.export(64, all(), None).await.unwrap();
    let memory = remote.on(&channel);
    memory.fetch_add(0, 1).await.unwrap();
    let adding = tokio::spawn({
        let memory = memory.clone();
        async move {
            loop {
                if let Err(status) = memory.fetch_add(0, 1).await {
                    return status;
                }
            }
        }
    });
    tokio::task::yield_now().await;
    handle.close();
    let status = soon(adding).await.unwrap();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    // The end of an RDMA link comes before that of its connection, which the next access may find there.
    let refused = async {
        loop {
            let status = memory.fetch_add(0, 1).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            if status.executed() == Executed::No {
                return;
            }
        }
    };
    soon(refused).await;
}

#[tokio::test]
async fn owners_are_told_what_they_do_wrong() {
    let region = Region::zeroed(64, Rights::READ);
    for status in [
        region.read(..65).unwrap_err(),
        region.write(64, &[1]).unwrap_err(),
        region.fetch_add(60, 1).await.unwrap_err(),
        region.compare_and_swap(4, 0, 1).await.unwrap_err(),
    ] {
        assert_eq!(
            (status.code(), status.blame()),
            (Code::OutOfRange, farcall::Blame::Application),
            "{status}"
        );
    }
    region.write(8, &[1; 8]).unwrap();
    assert_eq!(
        region.compare_and_swap(8, u64::from_le_bytes([1; 8]), 5).await.unwrap(),
        u64::from_le_bytes([1; 8])
    );
    assert_eq!(region.read(8..16).unwrap(), 5_u64.to_le_bytes());
    assert_eq!((region.load(8).unwrap(), region.load(4).unwrap_err().code()), (5, Code::OutOfRange));
    region.store(16, 6).await.unwrap();
    assert_eq!(
        (region.load(16).unwrap(), region.store(4, 1).await.unwrap_err().code()),
        (6, Code::OutOfRange)
    );
    region.revoke().await;
    region.revoke().await;
    assert_eq!(region.load(8).unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn long_reads_at_once_wait_for_each_other() {
    let mut config = farcall::Config::default();
    (config.limits.max_message, config.limits.max_assembly) = (MIB as u64, MIB as u64);
    let server = Server::builder().config(config).add(RegionsServer::new(Owner::default()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    let remote = RegionsClient::new(&channel).export(8 * MIB, Rights::READ, None).await.unwrap().on(&channel);
    // All of them are more than the owner answers at once.
    let reads: Vec<_> = (0..16)
        .map(|place| {
            let remote = remote.clone();
            tokio::spawn(async move { remote.read(place * 500_000..(place + 1) * 500_000).await })
        })
        .collect();
    for read in reads {
        assert_eq!(soon(read).await.unwrap().unwrap().len(), 500_000);
    }
}
