//! The server: pages of a file, and the transfers between the file and the memory of clients.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError, RwLock};

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::{Bytes, Status};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, spawn_blocking};

use super::service::{PageId, Pages, Shape};

/// Transfers that are under way at once, for all clients. Each holds the memory of one page.
const TRANSFERS: usize = 32;

/// The implementation of the service.
pub struct Store {
    disk: Arc<Disk>,
    transfers: Arc<Semaphore>,
}

/// The file. All its methods block, so they run in [`blocking`] only.
struct Disk {
    file: File,
    shape: Shape,
    /// The checksum of each page. The lock is held while the page is read or written, so that nobody reads half of a new page.
    checksums: Vec<RwLock<u32>>,
}

impl Store {
    /// Opens the pages of a file, and reads it once for their checksums. Blocks.
    pub fn open(file: File, page_bytes: usize) -> io::Result<Self> {
        let len = file.metadata()?.len();
        if len == 0 || len % page_bytes as u64 != 0 {
            let why = format!("a file of {len} bytes has no whole number of pages of {page_bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let shape = Shape { pages: len / page_bytes as u64, page_bytes };
        let mut page = vec![0; page_bytes];
        let mut checksums = Vec::new();
        for id in 0..shape.pages {
            file.read_exact_at(&mut page, id * page_bytes as u64)?;
            checksums.push(RwLock::new(crc32fast::hash(&page)));
        }
        let disk = Arc::new(Disk { file, shape, checksums });
        Ok(Self { disk, transfers: Arc::new(Semaphore::new(TRANSFERS)) })
    }

    /// Waits until another transfer may begin.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        self.transfers.clone().acquire_owned().await.map_err(|_| Status::unavailable("the store is closed"))
    }
}

impl Pages for Store {
    async fn shape(&self) -> farcall::Result<Shape> {
        Ok(self.disk.shape)
    }

    async fn put_page(&self, id: PageId, checksum: u32, data: BulkRead) -> farcall::Result<()> {
        let Shape { pages, page_bytes } = self.disk.shape;
        // Before anything is read from the client.
        if id >= pages {
            return Err(no_page(id, pages));
        }
        if data.len() != page_bytes {
            let why = format!("a page has {page_bytes} bytes, and these are {}", data.len());
            return Err(Status::invalid_argument(why));
        }
        let _permit = self.permit().await?;
        let page = data.read(..).await?;
        let disk = self.disk.clone();
        blocking(move || disk.write(id, &page, checksum)).await
    }

    async fn get_pages(&self, ids: Vec<PageId>, into: BulkWrite) -> farcall::Result<Vec<u32>> {
        let Shape { page_bytes, .. } = self.disk.shape;
        if into.len() / page_bytes < ids.len() {
            let why =
                format!("{} pages of {page_bytes} bytes need more memory than {}", ids.len(), into.len());
            return Err(Status::invalid_argument(why));
        }
        let mut checksums = vec![0; ids.len()];
        // Dropping the set aborts its tasks: a call that fails or is cancelled leaves no transfer behind.
        let mut transfers = JoinSet::new();
        for (i, id) in ids.into_iter().enumerate() {
            let permit = self.permit().await?;
            let (disk, into) = (self.disk.clone(), into.clone());
            transfers.spawn(async move {
                let _permit = permit;
                let (page, checksum) = blocking(move || disk.read(id)).await?;
                into.write(i * page_bytes, page).await?;
                Ok::<_, Status>((i, checksum))
            });
        }
        while let Some(done) = transfers.join_next().await {
            let (i, checksum) = done.map_err(|error| Status::internal(error.to_string()))??;
            checksums[i] = checksum;
        }
        Ok(checksums)
    }

    async fn sync(&self) -> farcall::Result<()> {
        let disk = self.disk.clone();
        blocking(move || disk.file.sync_data().map_err(|error| failed("sync", &error))).await
    }
}

impl Disk {
    fn read(&self, id: PageId) -> Result<(Bytes, u32), Status> {
        let lock = self.lock_of(id)?;
        // From such a buffer a long page goes to an RDMA peer without a copy.
        let mut page = farcall::buf(self.shape.page_bytes);
        page.resize(self.shape.page_bytes);
        let checksum = lock.read().unwrap_or_else(PoisonError::into_inner);
        self.file.read_exact_at(&mut page, self.offset(id)).map_err(|error| failed("read", &error))?;
        if crc32fast::hash(&page) != *checksum {
            return Err(Status::data_loss(format!("page {id} is not the one that was stored")));
        }
        Ok((page.freeze(), *checksum))
    }

    fn write(&self, id: PageId, page: &[u8], checksum: u32) -> Result<(), Status> {
        if crc32fast::hash(page) != checksum {
            return Err(Status::data_loss(format!("page {id} was damaged on its way to the server")));
        }
        let mut stored = self.lock_of(id)?.write().unwrap_or_else(PoisonError::into_inner);
        // If this fails half-way, the checksum is still that of the old page, and readers notice.
        self.file.write_all_at(page, self.offset(id)).map_err(|error| failed("write", &error))?;
        *stored = checksum;
        Ok(())
    }

    fn lock_of(&self, id: PageId) -> Result<&RwLock<u32>, Status> {
        let lock = usize::try_from(id).ok().and_then(|at| self.checksums.get(at));
        lock.ok_or_else(|| no_page(id, self.shape.pages))
    }

    fn offset(&self, id: PageId) -> u64 {
        id * self.shape.page_bytes as u64
    }
}

/// Runs work that blocks on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
}

fn no_page(id: PageId, pages: u64) -> Status {
    Status::not_found(format!("there is no page {id}: the file has {pages}"))
}

fn failed(what: &str, error: &io::Error) -> Status {
    Status::internal(format!("can't {what} the file: {error}"))
}
