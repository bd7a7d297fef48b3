//! The check: random reads and writes by several caches, against a model of the file.

use std::error::Error;
use std::time::{Duration, Instant};

use farcall::Channel;
use farcall::bulk::BulkWrite;

use super::cache::{Cache, Counts};
use super::service::{PageId, PagesClient, Shape};

/// Caches that work at once, each with every so many-th page.
const CACHES: u64 = 2;

/// Rounds of each cache.
const ROUNDS: usize = 100;

/// Pages of a round.
const BATCH: usize = 8;

type Failure = Box<dyn Error + Send + Sync>;

/// The result of the check.
pub struct Report {
    pub shape: Shape,
    pub frames: usize,
    pub counts: Counts,
    pub took: Duration,
    /// The checksum that each page must have now.
    pub model: Vec<u32>,
}

/// Uses the pages of a server at random, and compares every one with a model. The model of a page is its checksum.
pub async fn run(channel: &Channel, frames: usize) -> Result<Report, Failure> {
    let pages = PagesClient::new(channel);
    let shape = pages.shape().await?;
    let mut model = scan(&pages, shape).await?;

    let start = Instant::now();
    let each = frames / CACHES as usize;
    let working = (0..CACHES).map(|part| {
        let cache = Cache::new(pages.clone(), shape, each);
        tokio::spawn(work(cache, shape, part, model.clone()))
    });
    let mut counts = Counts::default();
    for (part, working) in working.collect::<Vec<_>>().into_iter().enumerate() {
        let (parts_model, parts_counts) = working.await??;
        let own = (part..model.len()).step_by(CACHES as usize);
        own.for_each(|at| model[at] = parts_model[at]);
        counts.hits += parts_counts.hits;
        counts.misses += parts_counts.misses;
        counts.written_back += parts_counts.written_back;
    }
    let took = start.elapsed();

    // By calls of their own, past every cache.
    let stored = scan(&pages, shape).await?;
    compare(&stored, &model)?;
    Ok(Report { shape, frames, counts, took, model })
}

/// Checks that pages are those of the model.
pub fn compare(pages: &[u32], model: &[u32]) -> Result<(), Failure> {
    if pages.len() != model.len() {
        return Err(format!("there are {} pages, and not {}", pages.len(), model.len()).into());
    }
    match pages.iter().zip(model).position(|(page, model)| page != model) {
        Some(id) => Err(format!("page {id} has another content than was written").into()),
        None => Ok(()),
    }
}

/// Reads and writes random pages of one part through a cache. Returns the new model.
async fn work(
    mut cache: Cache,
    shape: Shape,
    part: u64,
    mut model: Vec<u32>,
) -> Result<(Vec<u32>, Counts), Failure> {
    let mut random = fastrand::Rng::with_seed(part);
    let own = shape.pages.saturating_sub(part).div_ceil(CACHES);
    if own == 0 {
        return Ok((model, cache.counts()));
    }
    for _ in 0..ROUNDS {
        let mut pick = || {
            // Four of five accesses are to one of five pages.
            let among = if random.u8(0..5) < 4 { own.div_ceil(5) } else { own };
            random.u64(0..among) * CACHES + part
        };
        let ids: Vec<PageId> = (0..BATCH).map(|_| pick()).collect();
        cache.load(&ids).await?;
        for id in ids {
            let page = cache.page(id).ok_or("a page that was loaded is not here")?;
            let expected = &mut model[id as usize];
            if crc32fast::hash(page) != *expected {
                return Err(format!("page {id} in the cache has another content than was written").into());
            }
            if random.u8(0..4) == 0 {
                let page = cache.page_mut(id).ok_or("a page that was loaded is not here")?;
                let start = random.usize(0..page.len());
                let end = random.usize(start..page.len());
                random.fill(&mut page[start..=end]);
                *expected = crc32fast::hash(page);
            }
        }
    }
    cache.flush().await?;
    Ok((model, cache.counts()))
}

/// Fetches every page, and returns the checksum of each.
async fn scan(pages: &PagesClient, shape: Shape) -> Result<Vec<u32>, Failure> {
    let mut checksums = Vec::new();
    // By RDMA the server's device writes to such a buffer by itself.
    let mut memory = farcall::buf(16 * shape.page_bytes);
    memory.resize(16 * shape.page_bytes);
    let all: Vec<PageId> = (0..shape.pages).collect();
    for ids in all.chunks(16) {
        let (into, loan) = BulkWrite::lend(memory);
        let said = pages.get_pages(ids.to_vec(), into).await?;
        memory = loan.reclaim().await;
        let got = memory.chunks(shape.page_bytes).take(ids.len()).map(crc32fast::hash);
        let from = checksums.len();
        checksums.extend(got);
        compare(&checksums[from..], &said)?;
    }
    Ok(checksums)
}
