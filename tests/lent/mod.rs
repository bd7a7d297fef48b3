//! A load of lent and exported memory, each access of which is checked.

mod copying;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::region::{Region, RemoteMemory, RemoteRegion, Rights};
use farcall::{Bytes, Channel, Code, Executed, Result};
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use copying::Memory;

/// The length of a region that is read and written.
const PAGES: usize = 1 << 20;

/// The most bytes that a call lends.
const LENT: usize = 600_000;

#[farcall::service(package = "test")]
pub(crate) trait Lent {
    /// Copies from the client's memory to its memory, in pieces of so many bytes, the last one first.
    async fn copy(&self, from: BulkRead, into: BulkWrite, piece: usize) -> Result<()>;
    /// Copies through a region of the server's.
    async fn copy_through(&self, from: BulkRead, into: BulkWrite) -> Result<()>;
    /// Returns a region whose first number counts.
    async fn counter(&self) -> Result<RemoteRegion>;
    /// Returns a region of so many zeroes, which is there as long as the server.
    async fn pages(&self, len: usize) -> Result<RemoteRegion>;
    /// Returns how often the server's process has used memory without its owner's program.
    async fn direct_accesses(&self) -> Result<u64>;
}

pub(crate) struct Lender {
    counter: Region,
    pages: Mutex<Vec<Region>>,
    /// Regions for copies that no call uses now. They stay registered.
    between: Mutex<Vec<Region>>,
}

impl Lender {
    pub(crate) fn new() -> Self {
        let counter = Region::zeroed(64, Rights::READ | Rights::ATOMICS);
        Self { counter, pages: Mutex::default(), between: Mutex::default() }
    }
}

impl Lent for Lender {
    async fn copy(&self, from: BulkRead, into: BulkWrite, piece: usize) -> Result<()> {
        let copies = (0..from.len()).step_by(piece).rev().map(|at| {
            let (from, into) = (from.clone(), into.clone());
            tokio::spawn(async move {
                let bytes = from.read(at..from.len().min(at + piece)).await?;
                into.write(at, bytes).await
            })
        });
        for copy in copies.collect::<Vec<_>>() {
            copy.await.expect("no panic")?;
        }
        Ok(())
    }

    async fn copy_through(&self, from: BulkRead, into: BulkWrite) -> Result<()> {
        let spare = self.between.lock().unwrap().pop();
        let between = spare.unwrap_or_else(|| Region::zeroed(LENT, Rights::NONE));
        from.read_into(.., &between, 8).await?;
        into.write_from(0, &between, 8..8 + from.len()).await?;
        self.between.lock().unwrap().push(between);
        Ok(())
    }

    async fn counter(&self) -> Result<RemoteRegion> {
        Ok(self.counter.remote())
    }

    async fn pages(&self, len: usize) -> Result<RemoteRegion> {
        let region = Region::zeroed(len, Rights::READ | Rights::WRITE);
        let remote = region.remote();
        self.pages.lock().unwrap().push(region);
        Ok(remote)
    }

    async fn direct_accesses(&self) -> Result<u64> {
        Ok(direct_accesses())
    }
}

/// The count of one task.
#[derive(Default)]
struct Counted {
    /// The numbers before its additions.
    before: Vec<u64>,
    /// Additions under way at a failure, which were done or not.
    unknown: usize,
}

/// State that the tasks of a load share.
#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    /// How many calls have copied.
    copied: AtomicUsize,
    /// Held by each call that lends memory. A writer holds up those to come.
    loans: RwLock<()>,
    /// Held by each access to a region.
    regions: RwLock<()>,
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }
}

/// The load, until it is stopped. It expects that no access fails, but additions under way by RDMA at a failure.
pub(crate) struct Load {
    shared: Arc<Shared>,
    lender: LentClient,
    copying: Vec<JoinHandle<()>>,
    counter: RemoteMemory,
    counting: Vec<JoinHandle<Counted>>,
    paging: Vec<JoinHandle<usize>>,
}

/// How often this process has used a region or lent memory without its owner's program, on all devices.
pub(crate) fn direct_accesses() -> u64 {
    farcall::rdma::stats().iter().map(|stats| stats.direct_accesses).sum()
}

impl Load {
    pub(crate) async fn start(channel: &Channel) -> Self {
        let shared = Arc::<Shared>::default();
        let lender = LentClient::new(channel);
        let counter = lender.counter().await.unwrap().on(channel);
        let copying = (0..).zip(Memory::all());
        let copying =
            copying.map(|(seed, memory)| tokio::spawn(copy(shared.clone(), lender.clone(), memory, seed)));
        let counting = (0..2).map(|_| tokio::spawn(count(shared.clone(), counter.clone())));
        let (copying, counting) = (copying.collect(), counting.collect());
        let mut paging = Vec::new();
        for seed in 0..2 {
            let pages = lender.pages(PAGES).await.unwrap().on(channel);
            paging.push(tokio::spawn(page(shared.clone(), pages, seed)));
        }
        Self { shared, lender, copying, counter, counting, paging }
    }

    /// Returns how many calls have copied.
    pub(crate) fn copied(&self) -> usize {
        self.shared.copied.load(Ordering::Relaxed)
    }

    /// Waits until devices use regions by themselves, and then until they use lent memory so.
    pub(crate) async fn until_direct(&self) {
        for others in [&self.shared.loans, &self.shared.regions] {
            let _others_wait = others.write().await;
            let before = self.direct_accesses().await;
            while self.direct_accesses().await < before + 8 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Of the client, which uses regions, and of the server, which uses lent memory.
    async fn direct_accesses(&self) -> u64 {
        direct_accesses() + self.lender.direct_accesses().await.unwrap()
    }

    /// Stops, and checks that no addition was lost or repeated. Returns how many copies, additions, and reads and writes of regions there
    /// were.
    pub(crate) async fn stop(self) -> (usize, usize, usize) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let mut all = Counted::default();
        for counting in self.counting {
            let counted = counting.await.unwrap();
            all.before.extend(counted.before);
            all.unknown += counted.unknown;
        }
        let Counted { mut before, unknown } = all;
        before.sort_unstable();
        let last = self.counter.load(0).await.unwrap() as usize;
        assert!(before.is_sorted_by(|one, next| one < next), "an addition was lost");
        assert!((before.len()..=before.len() + unknown).contains(&last), "an addition was repeated");
        for copying in self.copying {
            copying.await.unwrap();
        }
        let mut transfers = 0;
        for paging in self.paging {
            transfers += paging.await.unwrap();
        }
        (self.shared.copied.load(Ordering::Relaxed), before.len(), transfers)
    }
}

/// Lends memory of one kind again and again.
async fn copy(shared: Arc<Shared>, lender: LentClient, memory: Memory, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    while shared.goes_on() {
        let bytes: Bytes = (0..rng.usize(3..LENT - 8)).map(|i| (i as u64 * (seed + 3)) as u8).collect();
        let piece = rng.choice([None, Some(20_000), Some(100_000), Some(LENT)]).unwrap();
        let _turn = shared.loans.read().await;
        assert!(memory.copy(&lender, &bytes, piece).await == bytes, "{seed}: {piece:?}");
        shared.copied.fetch_add(1, Ordering::Relaxed);
    }
}

async fn count(shared: Arc<Shared>, counter: RemoteMemory) -> Counted {
    let mut counted = Counted::default();
    while shared.goes_on() {
        let _turn = shared.regions.read().await;
        match counter.fetch_add(0, 1).await {
            Ok(before) => counted.before.push(before),
            Err(status) => {
                assert_eq!(
                    (status.code(), status.executed()),
                    (Code::Unavailable, Executed::Maybe),
                    "{status}"
                );
                counted.unknown += 1;
            }
        }
    }
    counted
}

/// Reads and writes a region, half of the times into and from a region of this process. Returns how often.
async fn page(shared: Arc<Shared>, pages: RemoteMemory, seed: u64) -> usize {
    let (mut rng, mut copy) = (fastrand::Rng::with_seed(seed), vec![0; PAGES]);
    let own = Region::zeroed(PAGES, Rights::NONE);
    let mut transfers = 0;
    while shared.goes_on() {
        let _turn = shared.regions.read().await;
        let range = some(&mut rng);
        rng.fill(&mut copy[range.clone()]);
        if rng.bool() {
            own.write(range.start, &copy[range.clone()]).unwrap();
            pages.write_from(range.start, &own, range).await.unwrap();
        } else {
            pages.write(range.start, Bytes::copy_from_slice(&copy[range])).await.unwrap();
        }
        let range = some(&mut rng);
        let read = if rng.bool() {
            pages.read_into(range.clone(), &own, range.start).await.unwrap();
            own.read(range.clone()).unwrap().into()
        } else {
            pages.read(range.clone()).await.unwrap()
        };
        assert!(read == copy[range.clone()], "{seed}: {range:?}");
        transfers += 2;
    }
    assert!(pages.read(..).await.unwrap() == copy, "{seed}");
    transfers
}

/// Returns a range of a region.
fn some(rng: &mut fastrand::Rng) -> Range<usize> {
    let at = rng.usize(..PAGES);
    at..at + rng.usize(..=(PAGES - at).min(300_000))
}
