//! Words in huge pages, or in a file.

use std::fmt;
use std::fs::File;
use std::io;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use farcall_core::region::Exportable;

use super::mapping::Mapping;

/// Memory for a [region](farcall_core::region): in huge pages, which spare the device translations, or in a file.
///
/// ```no_run
/// # mod farcall { pub use farcall_core::region; pub mod rdma { pub use farcall_rdma::MappedWords; } }
/// use std::sync::Arc;
///
/// use farcall::rdma::MappedWords;
/// use farcall::region::{Region, Rights};
///
/// let memory = Arc::new(MappedWords::zeroed(1 << 30)?);
/// let region = Region::export(memory.clone(), Rights::READ);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct MappedWords {
    mapping: Arc<Mapping>,
    words: usize,
}

impl MappedWords {
    /// Maps so many bytes of zeroes, rounded up to whole words: from reserved huge pages (`vm.nr_hugepages`) if there are enough, else
    /// from what the kernel makes into such.
    ///
    /// # Errors
    ///
    /// If `len` is 0, or there is not so much memory.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        let words = len.div_ceil(size_of::<AtomicU64>());
        let len = words.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { mapping: Mapping::new(len, None)?, words })
    }

    /// Maps a file that is open for reading and writing, without the bytes behind its last whole word. Bytes that peers
    /// and this process write are in the file at once for its readers, and on disk after [`sync`](Self::sync).
    ///
    /// The kernel must let a device write to the pages of the file. Those of tmpfs and hugetlbfs it does. Of other file systems newer
    /// kernels do not. Then a warning says so, and this process does the accesses of its peers.
    ///
    /// While it is mapped nobody may make the file shorter: the kernel ends the process that uses words which are gone, by SIGBUS.
    ///
    /// # Errors
    ///
    /// If the file has less than eight bytes, or can't be mapped.
    pub fn of_file(file: &File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let words = len / size_of::<AtomicU64>();
        let mapping = Arc::new(Mapping::of_file(file, words * size_of::<AtomicU64>())?);
        Ok(Self { mapping, words })
    }

    /// Writes what was changed to the file, if the words are in one, and waits until it is on disk.
    ///
    /// # Errors
    ///
    /// If the disk can't be written.
    pub fn sync(&self) -> io::Result<()> {
        self.mapping.sync()
    }
}

impl AsRef<[AtomicU64]> for MappedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: mapped for as long as `self` is, at the beginning of a page, and no longer than the mapping. Any bytes are valid
        // words, and there is no way to the mapping but by these atomic ones, here or in other processes.
        unsafe { slice::from_raw_parts(self.mapping.base().cast(), self.words) }
    }
}

impl Exportable for MappedWords {}

impl fmt::Debug for MappedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedWords").field("words", &self.words).field("mapping", &self.mapping).finish()
    }
}
