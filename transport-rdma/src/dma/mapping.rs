//! Mappings of memory, for devices to read and write.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The size of a huge page on the machines that have RDMA; a mapping of another huge page size falls back.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// The pages that a mapping is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Reserved huge pages.
    Huge,
    /// Transparent huge pages, as far as the kernel has them.
    Transparent,
    /// The machine's base pages.
    Base,
    /// Those of a file.
    File,
}

/// Memory that is unmapped on drop: private, anonymous and zeroed, or that of a file. Memory that is divided into
/// slots or extents is private, and their owners decide who may touch it.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    pages: Pages,
    /// The NUMA node that the kernel was told to prefer, and agreed to.
    node: Option<u32>,
}

// SAFETY: it owns its pages; who may touch which of them is the business of slots and extents, one owner each.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapping itself is never written to.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// From huge pages if there are any, else from what the kernel makes into such, else from base pages; on this NUMA
    /// node if the kernel can.
    pub(super) fn new(len: usize, node: Option<u32>) -> io::Result<Arc<Self>> {
        if len == 0 || len > isize::MAX as usize - 2 * HUGE_PAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mapping = match Self::reserved(len, node) {
            Some(mapping) => mapping,
            None => Self::ordinary(len)?.on(node),
        };
        Ok(Arc::new(mapping))
    }

    /// Reserved huge pages, if they can be touched. The limit of a control group does not keep the kernel from mapping them:
    /// it registers none, and sends SIGBUS to who touches one. So all of them are taken here, where a refusal is an error. A
    /// kernel before 5.14 can't be asked and gives none: what takes their place is slower, but the signal ends the process.
    fn reserved(len: usize, node: Option<u32>) -> Option<Self> {
        if len < HUGE_PAGE {
            return None;
        }
        let len = len.next_multiple_of(HUGE_PAGE);
        let base = map(len, libc::MAP_HUGETLB).ok()?;
        // The node is chosen before there are pages on another.
        let mapping = Self { base, len, pages: Pages::Huge, node: None }.on(node);
        mapping.populate().then_some(mapping)
    }

    fn ordinary(len: usize) -> io::Result<Self> {
        if len < HUGE_PAGE {
            return Ok(Self { base: map(len, 0)?, len, pages: Pages::Base, node: None });
        }
        let len = len.next_multiple_of(HUGE_PAGE);
        let base = map_aligned(len)?;
        // SAFETY: advice about pages that this function has just mapped.
        let advised = unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) } == 0;
        Ok(Self { base, len, pages: if advised { Pages::Transparent } else { Pages::Base }, node: None })
    }

    /// Maps the first bytes of a file, which others may map, too. The file is at least so long.
    pub(super) fn of_file(file: &File, len: usize) -> io::Result<Self> {
        if len == 0 || len > isize::MAX as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { base: mmap(len, libc::MAP_SHARED, file.as_raw_fd())?, len, pages: Pages::File, node: None })
    }

    /// Writes what was changed to the file, and waits for that.
    pub(super) fn sync(&self) -> io::Result<()> {
        // SAFETY: pages of this mapping.
        let result = unsafe { libc::msync(self.base.as_ptr().cast(), self.len, libc::MS_SYNC) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Maps memory on this NUMA node, if the kernel agrees.
    fn on(mut self, node: Option<u32>) -> Self {
        self.node = node.filter(|&node| self.prefer(node));
        self
    }

    /// Asks for pages of this NUMA node; says whether the kernel will try.
    fn prefer(&self, node: u32) -> bool {
        const MPOL_PREFERRED: libc::c_int = 1;
        let mut nodes = [0u64; 16];
        let Some(word) = nodes.get_mut(node as usize / 64) else { return false };
        *word = 1 << (node % 64);
        // The kernel takes the number of bits plus one.
        let bits = nodes.len() * 64 + 1;
        let base = self.base.as_ptr();
        // SAFETY: a policy for pages of this mapping, none of which is in use yet; the mask is read during the call.
        let set = unsafe {
            libc::syscall(libc::SYS_mbind, base, self.len, MPOL_PREFERRED, nodes.as_ptr(), bits, 0)
        };
        set == 0
    }

    /// Has the kernel provide all pages now; pinning them one fault at a time takes many times as long. Kernels before 5.14
    /// refuse, and a lack of memory shows itself when the pages are pinned.
    pub(crate) fn prefault(&self) {
        self.populate();
    }

    /// As if each page were written to, without changing what is in it. False if not all of them can be.
    fn populate(&self) -> bool {
        // SAFETY: pages of this mapping.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Its addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.base.as_ptr() as usize;
        start..start + self.len
    }

    /// Returns the first address.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) fn pages(&self) -> Pages {
        self.pages
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Mapping");
        s.field("bytes", &self.len).field("pages", &self.pages).field("node", &self.node);
        s.finish_non_exhaustive()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base.as_ptr(), self.len);
    }
}

fn map(len: usize, flags: i32) -> io::Result<NonNull<u8>> {
    mmap(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1)
}

fn mmap(len: usize, flags: i32, file: i32) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// A mapping that begins on a huge page: a longer one, of which the ends are given back.
fn map_aligned(len: usize) -> io::Result<NonNull<u8>> {
    let start = map(len + HUGE_PAGE, 0)?.as_ptr();
    let before = start.align_offset(HUGE_PAGE);
    if before > 0 {
        unmap(start, before);
    }
    // SAFETY: `before` is less than a huge page, so this and `len` bytes from here are within the mapping.
    let base = unsafe { start.add(before) };
    // SAFETY: the end of the needed part, and not beyond the end of the mapping.
    let end = unsafe { base.add(len) };
    unmap(end, HUGE_PAGE - before);
    NonNull::new(base).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Unmaps pages of which nothing is used any more.
fn unmap(start: *mut u8, len: usize) {
    // SAFETY: called with pages of this module's own mappings, to which no reference is left.
    let result = unsafe { libc::munmap(start.cast(), len) };
    if result != 0 {
        // Only with a wrong range, or when the kernel cannot split a mapping for lack of memory; then it stays.
        super::leaked("munmap", io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
}
