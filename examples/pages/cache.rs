//! The client's cache: a fixed number of frames, each of which holds one page.

use std::collections::HashMap;
use std::mem;

use farcall::bulk::BulkWrite;
use farcall::{Buf, Status};
use tokio::task::JoinSet;

use super::service::{PageId, PagesClient, Shape};

/// Dirty pages that are on their way to the server at once.
const PUTS: usize = 8;

/// Pages of one server. Dirty ones are written back when they are evicted, and by [`flush`](Self::flush).
///
/// A cache does not learn of pages that others write. Caches of one server must therefore have different pages.
pub struct Cache {
    pages: PagesClient,
    shape: Shape,
    frames: Vec<Frame>,
    /// The frame of each page that is here.
    table: HashMap<PageId, usize>,
    /// CLOCK's hand: the next frame that may be evicted.
    hand: usize,
    counts: Counts,
}

/// The counts of a cache, in pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub written_back: u64,
}

#[derive(Default)]
struct Frame {
    id: Option<PageId>,
    /// The memory, which is registered where RDMA is used: the server's device writes pages to it. There is none at first, and after a load
    /// that was dropped while the memory was lent.
    data: Option<Buf>,
    /// Whether it was used since the hand was here.
    is_used: bool,
    is_dirty: bool,
}

impl Cache {
    /// Returns an empty cache of so many frames.
    pub fn new(pages: PagesClient, shape: Shape, frames: usize) -> Self {
        let frames = (0..frames).map(|_| Frame::default()).collect();
        Self { pages, shape, frames, table: HashMap::new(), hand: 0, counts: Counts::default() }
    }

    /// Returns a page, if it is here.
    pub fn page(&self, id: PageId) -> Option<&[u8]> {
        let frame = *self.table.get(&id)?;
        self.frames[frame].data.as_deref()
    }

    /// Returns a page to be changed, if it is here.
    pub fn page_mut(&mut self, id: PageId) -> Option<&mut [u8]> {
        let frame = *self.table.get(&id)?;
        let frame = &mut self.frames[frame];
        frame.is_dirty = true;
        frame.data.as_deref_mut()
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Fetches the pages that are not here, by one call. All of them stay until the next `load`.
    ///
    /// # Errors
    ///
    /// - RESOURCE_EXHAUSTED, if the cache has fewer frames than that.
    /// - DATA_LOSS, if a page was damaged on its way.
    /// - Any error of the server or the connection. No change is lost: a page that was not written back is still here.
    ///
    /// # Cancel safety
    ///
    /// A load that is dropped has loaded nothing, and has perhaps written pages back.
    pub async fn load(&mut self, ids: &[PageId]) -> Result<(), Status> {
        let mut missing = Vec::new();
        for &id in ids {
            match self.table.get(&id) {
                Some(&frame) => self.frames[frame].is_used = true,
                None if missing.contains(&id) => {}
                None => missing.push(id),
            }
        }
        self.counts.hits += (ids.len() - missing.len()) as u64;
        self.counts.misses += missing.len() as u64;
        if missing.is_empty() {
            return Ok(());
        }
        let victims = self.victims(missing.len(), ids)?;
        self.write_back(&victims).await?;
        self.fetch(&missing, &victims).await
    }

    /// Writes all dirty pages back, and waits until they are on the server's disk.
    pub async fn flush(&mut self) -> Result<(), Status> {
        let all: Vec<_> = (0..self.frames.len()).collect();
        self.write_back(&all).await?;
        self.pages.sync().await
    }

    /// Chooses frames whose pages were not used for longest, more or less. The pages `keep` are not among them.
    fn victims(&mut self, count: usize, keep: &[PageId]) -> Result<Vec<usize>, Status> {
        let mut victims = Vec::with_capacity(count);
        // After one turn of the hand no frame is used any more.
        for _ in 0..2 * self.frames.len() {
            if victims.len() == count {
                break;
            }
            let at = self.hand;
            self.hand = (at + 1) % self.frames.len();
            let frame = &mut self.frames[at];
            let is_kept = frame.id.is_some_and(|id| keep.contains(&id)) || victims.contains(&at);
            if !is_kept && !mem::take(&mut frame.is_used) {
                victims.push(at);
            }
        }
        if victims.len() < count {
            let why = format!("a cache of {} frames can't hold these pages at once", self.frames.len());
            return Err(Status::resource_exhausted(why));
        }
        Ok(victims)
    }

    /// Writes the pages of some frames back, as far as they are dirty.
    async fn write_back(&mut self, frames: &[usize]) -> Result<(), Status> {
        let mut puts = JoinSet::new();
        for &at in frames {
            if puts.len() == PUTS {
                self.written(puts.join_next().await)?;
            }
            let Frame { id: Some(id), data: Some(page), is_dirty: true, .. } = &self.frames[at] else {
                continue;
            };
            // A copy is lent, from memory that RDMA can send from. The frame stays here, should the call fail or be dropped.
            let mut image = farcall::buf(self.shape.page_bytes);
            image.put_slice(page);
            let put = self.pages.put_page(*id, crc32fast::hash(&image), image.freeze().into());
            puts.spawn(async move { put.await.map(|()| at) });
        }
        while let Some(done) = puts.join_next().await {
            self.written(Some(done))?;
        }
        Ok(())
    }

    /// Notes that a frame's page was written back.
    fn written(
        &mut self,
        done: Option<Result<Result<usize, Status>, tokio::task::JoinError>>,
    ) -> Result<(), Status> {
        if let Some(done) = done {
            let frame = done.map_err(|error| Status::internal(error.to_string()))??;
            self.frames[frame].is_dirty = false;
            self.counts.written_back += 1;
        }
        Ok(())
    }

    /// Fetches pages into frames whose own pages are clean.
    async fn fetch(&mut self, ids: &[PageId], frames: &[usize]) -> Result<(), Status> {
        let mut memory = Vec::with_capacity(frames.len());
        for &at in frames {
            let frame = &mut self.frames[at];
            if let Some(id) = frame.id.take() {
                self.table.remove(&id);
            }
            let mut data = match frame.data.take() {
                Some(data) => data,
                None => Buf::registered(self.shape.page_bytes).await,
            };
            data.resize(self.shape.page_bytes);
            memory.push(data);
        }
        let (into, loan) = BulkWrite::lend(memory);
        let result = self.pages.get_pages(ids.to_vec(), into).await;
        // The call has ended, however it has ended. So its loan has, too.
        let memory = loan.reclaim().await;
        for (&at, data) in frames.iter().zip(memory) {
            self.frames[at].data = Some(data);
        }
        let checksums = result?;
        if checksums.len() != ids.len() {
            return Err(Status::internal("the server has returned another number of checksums"));
        }
        for ((&id, &at), checksum) in ids.iter().zip(frames).zip(checksums) {
            let frame = &mut self.frames[at];
            if frame.data.as_deref().map(crc32fast::hash) != Some(checksum) {
                return Err(Status::data_loss(format!("page {id} was damaged on its way to the client")));
            }
            (frame.id, frame.is_used, frame.is_dirty) = (Some(id), true, false);
            self.table.insert(id, at);
        }
        Ok(())
    }
}
