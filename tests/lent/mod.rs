//! A load of lent and exported memory, each access of which is checked.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::region::{Region, RemoteMemory, RemoteRegion, Rights};
use farcall::{Bytes, Channel, Code, Executed, Result};
use tokio::task::JoinHandle;

/// The length of a region that is read and written.
const PAGES: usize = 1 << 20;

#[farcall::service(package = "test")]
pub(crate) trait Lent {
    /// Copies from the client's memory to its memory, in pieces of so many bytes, the last one first.
    async fn copy(&self, from: BulkRead, into: BulkWrite, piece: usize) -> Result<()>;
    /// Returns a region whose first number counts.
    async fn counter(&self) -> Result<RemoteRegion>;
    /// Returns a region of so many zeroes, which is there as long as the server.
    async fn pages(&self, len: usize) -> Result<RemoteRegion>;
}

pub(crate) struct Lender {
    counter: Region,
    pages: Mutex<Vec<Region>>,
}

impl Lender {
    pub(crate) fn new() -> Self {
        Self { counter: Region::zeroed(64, Rights::READ | Rights::ATOMICS), pages: Mutex::default() }
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

    async fn counter(&self) -> Result<RemoteRegion> {
        Ok(self.counter.remote())
    }

    async fn pages(&self, len: usize) -> Result<RemoteRegion> {
        let region = Region::zeroed(len, Rights::READ | Rights::WRITE);
        let remote = region.remote();
        self.pages.lock().unwrap().push(region);
        Ok(remote)
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

/// The load, until it is stopped. It expects that no access fails, but additions under way by RDMA at a failure.
pub(crate) struct Load {
    stopped: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    copying: Vec<JoinHandle<()>>,
    counter: RemoteMemory,
    counting: Vec<JoinHandle<Counted>>,
    paging: Vec<JoinHandle<usize>>,
}

impl Load {
    pub(crate) async fn start(channel: &Channel) -> Self {
        let (stopped, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let lender = LentClient::new(channel);
        let counter = lender.counter().await.unwrap().on(channel);
        let copying = (0..4).map(|seed| {
            let (lender, stopped, done) = (lender.clone(), stopped.clone(), done.clone());
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !stopped.load(Ordering::Relaxed) {
                    let bytes: Bytes = (0..rng.usize(1..600_000)).map(|i| (i as u64 * seed) as u8).collect();
                    let piece = rng.choice([20_000, 100_000, 600_000]).unwrap();
                    if seed % 2 == 0 {
                        let (into, loan) = BulkWrite::lend(vec![0; bytes.len()]);
                        lender.copy(bytes.clone().into(), into, piece).await.unwrap();
                        assert!(loan.reclaim().await == bytes);
                    } else {
                        let (mut from, mut into) = (farcall::buf(bytes.len()), farcall::buf(bytes.len()));
                        from.put_slice(&bytes);
                        into.resize(bytes.len());
                        let (into, loan) = BulkWrite::lend(into);
                        lender.copy(from.freeze().into(), into, piece).await.unwrap();
                        assert!(loan.reclaim().await[..] == bytes);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let counting = (0..2).map(|_| {
            let (counter, stopped) = (counter.clone(), stopped.clone());
            tokio::spawn(async move {
                let mut counted = Counted::default();
                while !stopped.load(Ordering::Relaxed) {
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
            })
        });
        let (copying, counting) = (copying.collect(), counting.collect());
        let mut paging = Vec::new();
        for seed in 0..2 {
            let pages = lender.pages(PAGES).await.unwrap().on(channel);
            let stopped = stopped.clone();
            paging.push(tokio::spawn(async move {
                let (mut rng, mut copy) = (fastrand::Rng::with_seed(seed), vec![0; PAGES]);
                let mut transfers = 0;
                while !stopped.load(Ordering::Relaxed) {
                    let at = rng.usize(..PAGES);
                    let range = at..at + rng.usize(..=(PAGES - at).min(300_000));
                    rng.fill(&mut copy[range.clone()]);
                    pages.write(at, Bytes::copy_from_slice(&copy[range])).await.unwrap();
                    let at = rng.usize(..PAGES);
                    let range = at..at + rng.usize(..=(PAGES - at).min(300_000));
                    assert!(
                        pages.read(range.clone()).await.unwrap() == copy[range.clone()],
                        "{seed}: {range:?}"
                    );
                    transfers += 2;
                }
                assert!(pages.read(..).await.unwrap() == copy, "{seed}");
                transfers
            }));
        }
        Self { stopped, done, copying, counter, counting, paging }
    }

    /// Returns how many calls have copied.
    pub(crate) fn copied(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Stops, and checks that no addition was lost or repeated. Returns how many copies, additions, and reads and writes of regions there
    /// were.
    pub(crate) async fn stop(self) -> (usize, usize, usize) {
        self.stopped.store(true, Ordering::Relaxed);
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
        (self.done.load(Ordering::Relaxed), before.len(), transfers)
    }
}
