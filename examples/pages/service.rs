//! The page service, which the server and the cache share.

use farcall::bulk::{BulkRead, BulkWrite};
use serde::{Deserialize, Serialize};

/// The number of a page in the file, from 0 on.
pub type PageId = u64;

/// The pages of a server's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// How many there are.
    pub pages: u64,
    /// How long each is, in bytes.
    pub page_bytes: usize,
}

/// The pages of one file. Checksums are CRC-32.
#[farcall::service(package = "farcall.example.pages")]
pub trait Pages {
    /// Returns how many pages there are, and how long each is.
    async fn shape(&self) -> farcall::Result<Shape>;

    /// Stores a page, which the server reads from the caller's memory.
    ///
    /// DATA_LOSS, if the checksum is another one than the caller's: the stored page is the old one.
    async fn put_page(&self, id: PageId, checksum: u32, data: BulkRead) -> farcall::Result<()>;

    /// Writes pages to the caller's memory, one behind the other. Returns their checksums, in the order of `ids`.
    ///
    /// DATA_LOSS, if a page in the file is not the one that was stored.
    async fn get_pages(&self, ids: Vec<PageId>, into: BulkWrite) -> farcall::Result<Vec<u32>>;

    /// Returns when the disk has every page that was stored before.
    async fn sync(&self) -> farcall::Result<()>;
}
