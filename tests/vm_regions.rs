//! Regions that are read and written by RDMA while the owner's process is stopped, and when it is killed.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod process;

use std::future::pending;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farcall::rdma::MappedWords;
use farcall::region::{Exportable, Region, RemoteMemory, RemoteRegion, Rights};
use farcall::{Channel, Code, Config, Policy, Result, Server};
use tokio::sync::Mutex;

use process::{Process, say, told};

const LEN: usize = 1 << 20;
/// One after the other: accesses are counted for the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());

const PATIENCE: Duration = Duration::from_secs(60);

#[farcall::service(package = "test")]
trait Owner {
    async fn region(&self) -> Result<RemoteRegion>;
}

struct Pages(Region);

impl Owner for Pages {
    async fn region(&self) -> Result<RemoteRegion> {
        Ok(self.0.remote())
    }
}

struct Shared(Arc<Region>);

impl Owner for Shared {
    async fn region(&self) -> Result<RemoteRegion> {
        Ok(self.0.remote())
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.liveness.connect_ms = 30_000;
    config
}

/// The byte at a place of the region.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// Not a test by itself: the owner, in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_owner() {
    if told().is_some() {
        let memory = Arc::new(MappedWords::zeroed(LEN).unwrap());
        let region = Region::export(memory, Rights::READ | Rights::WRITE | Rights::ATOMICS);
        region.write(0, &(0..LEN).map(byte).collect::<Vec<_>>()).unwrap();
        let server = Server::builder().add(OwnerServer::new(Pages(region))).config(config());
        let server = server.bind("127.0.0.1:0").await.unwrap();
        say(&format!("farcall://{}", server.local_addr()));
        tokio::spawn(server.serve());
        pending::<()>().await;
    }
}

/// Exports a region from a server of this process, and reaches it by a channel.
async fn reached(region: Region) -> RemoteMemory {
    let server = Server::builder().add(OwnerServer::new(Pages(region))).config(config());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::builder().config(config()).connect(&address).await.unwrap();
    OwnerClient::new(&channel).region().await.unwrap().on(&channel)
}

fn direct_accesses() -> u64 {
    farcall::rdma::stats().iter().map(|stats| stats.direct_accesses).sum()
}

/// Reads a region until this process does it by itself.
async fn until_direct(region: &RemoteMemory) {
    let begin = direct_accesses();
    let direct = async {
        while direct_accesses() == begin {
            region.read(..8).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, direct).await.expect("no read is direct");
}

/// Writes to a region at random places, and reads there, all of which this process does by itself. Returns what the region has then.
async fn used_directly(region: &RemoteMemory, mut expected: Vec<u8>) -> Vec<u8> {
    const TIMES: u64 = 100;
    until_direct(region).await;
    let (begin, mut random) = (direct_accesses(), fastrand::Rng::with_seed(2));
    for _ in 0..TIMES {
        let at = random.usize(..expected.len());
        let range = at..at + random.usize(1..=(expected.len() - at).min(20_000));
        random.fill(&mut expected[range.clone()]);
        region.write(at, expected[range.clone()].to_vec()).await.unwrap();
        assert!(region.read(range.clone()).await.unwrap() == expected[range.clone()], "{range:?}");
    }
    assert!(region.read(..).await.unwrap() == expected);
    // The first writes of a length may lack registered memory to write from.
    let direct = direct_accesses() - begin;
    assert!(direct >= 2 * TIMES - 10, "{direct} of {} were direct", 2 * TIMES + 1);
    expected
}

#[tokio::test]
async fn a_region_is_used_while_its_owner_is_stopped_and_not_when_it_is_killed() {
    let _alone = ALONE.lock().await;
    let mut owner = Process::start("part_owner", "");
    let channel = Channel::builder().config(config()).connect(&owner.said()).await.unwrap();
    let region = OwnerClient::new(&channel).region().await.unwrap().on(&channel);
    until_direct(&region).await;

    owner.stop();
    let (before, mut random) = (direct_accesses(), fastrand::Rng::with_seed(1));
    for i in 0..200 {
        let at = random.usize(..LEN);
        let len = random.usize(..=(LEN - at).min(if i % 10 == 0 { LEN } else { 500 }));
        let read =
            tokio::time::timeout(PATIENCE, region.read(at..at + len)).await.expect("the owner must run");
        assert!(read.unwrap().iter().copied().eq((at..at + len).map(byte)), "{len} bytes at {at}");
    }
    // A read of no bytes needs no READ.
    assert!(direct_accesses() >= before + 190);
    let mut expected = region.read(..).await.unwrap().to_vec();
    for i in 0..200 {
        let at = random.usize(..LEN);
        let len = random.usize(..=(LEN - at).min(if i % 10 == 0 { LEN } else { 500 }));
        random.fill(&mut expected[at..at + len]);
        let written = tokio::time::timeout(PATIENCE, region.write(at, expected[at..at + len].to_vec())).await;
        written.expect("the owner must run").unwrap();
    }
    assert!(region.read(..).await.unwrap() == expected);
    for _ in 0..200 {
        let at = random.usize(..LEN / 8) * 8;
        let place = at..at + 8;
        let before = u64::from_le_bytes(expected[place.clone()].try_into().unwrap());
        let (add, new) = (random.u64(..), random.u64(..));
        let changed = async {
            assert_eq!(region.fetch_add(at, add).await.unwrap(), before);
            let before = before.wrapping_add(add);
            assert_eq!(region.compare_and_swap(at, !before, new).await.unwrap(), before);
            assert_eq!(region.compare_and_swap(at, before, new).await.unwrap(), before);
            assert_eq!(region.load(at).await.unwrap(), new);
        };
        tokio::time::timeout(PATIENCE, changed).await.expect("the owner must run");
        expected[place].copy_from_slice(&new.to_le_bytes());
    }
    assert!(region.read(..).await.unwrap() == expected);
    owner.signal("CONT");
    assert!(region.read(..).await.unwrap() == expected);

    owner.kill().await;
    let status = tokio::time::timeout(PATIENCE, region.read(..)).await.expect("it hangs").unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[tokio::test]
async fn a_region_in_a_file_is_used_and_the_file_has_what_was_written() {
    let _alone = ALONE.lock().await;
    // A file system whose pages a device may write to.
    let path = std::path::Path::new("/dev/shm/farcall-region");
    std::fs::write(path, vec![3; LEN]).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let memory = Arc::new(MappedWords::of_file(&file).unwrap());
    let region = Region::export(memory.clone(), Rights::READ | Rights::WRITE);
    let expected = used_directly(&reached(region).await, vec![3; LEN]).await;
    memory.sync().unwrap();
    assert!(std::fs::read(path).unwrap() == expected);
    std::fs::remove_file(path).unwrap();
}

/// Returns the size of the pages at an address, as the kernel tells it.
fn page_size(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let is_of = |line: &str| {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let range = range.and_then(|(from, to)| {
            Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
        });
        range.is_some_and(|range| range.contains(&address))
    };
    let mut lines = maps.lines().skip_while(|line| !is_of(line));
    lines.find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_region_in_huge_pages_is_used() {
    const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
    const HUGE: usize = 2 << 20;
    let _alone = ALONE.lock().await;
    let before = std::fs::read_to_string(RESERVED).unwrap();
    // Enough for farcall's own memory, too, should that be registered at this moment.
    std::fs::write(RESERVED, "64").unwrap();
    // Part of a page at the end, which is mapped and not exported.
    let len = 2 * HUGE - 4096;
    let memory = Arc::new(MappedWords::zeroed(len).unwrap());
    std::fs::write(RESERVED, before).unwrap();
    assert_eq!(page_size((*memory).as_ref().as_ptr() as usize), "2048 kB");
    let region = Region::export(memory.clone(), Rights::READ | Rights::WRITE | Rights::ATOMICS);
    let region = reached(region).await;
    assert_eq!(region.region().len(), len);
    let expected = used_directly(&region, vec![0; len]).await;
    let words = (*memory).as_ref().iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    assert!(words.eq(expected), "the words are not what was written");
}

/// Words that claim to lie in another device.
struct Elsewhere(Vec<AtomicU64>, OwnedFd);

impl AsRef<[AtomicU64]> for Elsewhere {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl Exportable for Elsewhere {
    fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        Some(self.1.as_fd())
    }
}

#[tokio::test]
async fn memory_that_the_rdma_device_cannot_use_is_used_by_its_owner() {
    let _alone = ALONE.lock().await;
    let words = (0..LEN / 8).map(|_| AtomicU64::new(0)).collect();
    let descriptor = std::fs::File::open("/dev/null").unwrap().into();
    let memory = Arc::new(Elsewhere(words, descriptor));
    let region = Region::export(memory, Rights::READ | Rights::WRITE | Rights::ATOMICS);
    let region = reached(region).await;
    let begin = direct_accesses();
    for i in 0..100 {
        assert_eq!(region.fetch_add(0, 1).await.unwrap(), i);
        region.write(8 + i as usize, vec![7]).await.unwrap();
    }
    assert_eq!(region.read(..108).await.unwrap()[8..], [7; 100]);
    assert_eq!(direct_accesses(), begin, "a device has used it");
}

/// Soft-RoCE's operations are not atomic with the processor's.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn peers_by_rdma_and_by_tcp_and_the_owner_count_together() {
    const ROUNDS: usize = 500;
    let _alone = ALONE.lock().await;
    let region = Arc::new(Region::zeroed(64, Rights::READ | Rights::WRITE | Rights::ATOMICS));
    let server = Server::builder().add(OwnerServer::new(Shared(region.clone()))).config(Config::default());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let mut tcp = Config::default();
    tcp.transport = Some(Policy::Tcp);
    let mut counting = tokio::task::JoinSet::new();
    for config in [config(), tcp] {
        let channel = Channel::builder().config(config).connect(&address).await.unwrap();
        let remote = OwnerClient::new(&channel).region().await.unwrap().on(&channel);
        for _ in 0..2 {
            let remote = remote.clone();
            counting.spawn(async move {
                let mut seen = Vec::new();
                for _ in 0..ROUNDS {
                    seen.push(remote.fetch_add(8, 1).await.unwrap());
                }
                seen
            });
        }
    }
    let (begin, own) = (direct_accesses(), region.clone());
    counting.spawn(async move {
        let mut seen = Vec::new();
        for _ in 0..ROUNDS {
            seen.push(own.fetch_add(8, 1).await.unwrap());
        }
        seen
    });
    let mut seen = tokio::time::timeout(PATIENCE, counting.join_all()).await.unwrap().concat();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..5 * ROUNDS as u64), "two have seen one number");
    assert_eq!(region.load(8).unwrap(), 5 * ROUNDS as u64);
    assert!(direct_accesses() > begin, "none was done by a device");
    tokio::time::timeout(PATIENCE, region.revoke()).await.expect("a device keeps the memory");
}
