//! An open device: context, protection domain, memory regions.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use farcall_core::transport::Words;

use super::events::VerbsDeviceEvents;
use super::load::Verbs;
use super::queues::VerbsQueues;
use super::sys::{self, Plain, ibv_context, ibv_context_ops, ibv_mr, ibv_pd};
use super::window::Window;
use super::{device_error, last_errno, leaked, returned_errno};
use crate::device::{
    Device, DeviceError, DeviceEvents, Limits, LinkLayer, MAX_READS, Mtu, PortStatus, QueueSize, Queues,
    RdmaConfig, RemoteAccess, Unavailable, memlock_reached,
};
use crate::dma::{Arena, Mapping, RegisteredWords, Slab, SlabLayout};
use crate::machine::Machine;

/// A device through libibverbs.
#[derive(Debug)]
pub(super) struct VerbsDevice(Arc<Hca>);

/// The device context that every object on it keeps. The fields are dropped in this order, which is the one the kernel asks
/// for.
#[derive(Debug)]
pub(super) struct Hca {
    regions: RwLock<Vec<Region>>,
    pd: Pd,
    numa_node: Option<u32>,
    relaxed_ordering: bool,
    /// See [`RdmaConfig::most_memory`].
    most_memory: u64,
    limits: Limits,
    /// See [`Hca::has_loose_windows`].
    loose_windows: bool,
}

impl VerbsDevice {
    pub(super) fn new(
        context: Context,
        numa_node: Option<u32>,
        config: &RdmaConfig,
    ) -> Result<Self, DeviceError> {
        let attr = context.query()?;
        let pd = Pd::new(context)?;
        let windows = if pd.has_windows(&attr) { limit(attr.max_mw) } else { 0 };
        let reads = |max| u8::try_from(limit(max)).unwrap_or(u8::MAX).min(MAX_READS);
        let limits = Limits {
            max_cqe: limit(attr.max_cqe),
            max_srq_wr: limit(attr.max_srq_wr),
            max_qp_wr: limit(attr.max_qp_wr),
            max_qp: limit(attr.max_qp),
            max_mr: limit(attr.max_mr),
            windows,
            reads: reads(attr.max_qp_init_rd_atom),
            reads_served: reads(attr.max_qp_rd_atom),
            // Numbers are little-endian, and devices take them to be in the order of the host.
            atomics: attr.atomic_cap != sys::IBV_ATOMIC_NONE && cfg!(target_endian = "little"),
        };
        let (relaxed_ordering, most_memory) = (config.relaxed_ordering, config.most_memory());
        let loose_windows = attr.vendor_id == SOFT_ROCE;
        let regions = RwLock::default();
        Ok(Self(Arc::new(Hca {
            regions,
            pd,
            numa_node,
            relaxed_ordering,
            most_memory,
            limits,
            loose_windows,
        })))
    }
}

/// The vendor number of Soft-RoCE.
const SOFT_ROCE: u32 = 0xff_ffff;

fn limit(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

impl Device for VerbsDevice {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limits(&self) -> Limits {
        self.0.limits
    }

    fn port(&self, number: u8) -> Result<PortStatus, DeviceError> {
        self.0.pd.context.port(number)
    }

    fn add_slab(&self, layout: SlabLayout) -> Result<Arc<Slab>, Unavailable> {
        let slab = Slab::map(layout, self.0.numa_node).map_err(|e| self.0.map_error(&e))?;
        self.0.register(slab.mapping(), sys::IBV_ACCESS_LOCAL_WRITE)?;
        Ok(slab)
    }

    fn add_arena(&self, bytes: usize) -> Result<Arc<Arena>, Unavailable> {
        let arena = Arena::map(bytes, self.0.numa_node).map_err(|e| self.0.map_error(&e))?;
        self.0.register(arena.mapping(), ARENA_ACCESS)?;
        Ok(arena)
    }

    fn remove_arena(&self, arena: &Arc<Arena>) -> bool {
        let retired = arena.retire();
        if retired {
            drop(self.0.unregister(arena.mapping()));
        }
        retired
    }

    fn add_words(&self, words: Words, writable: bool) -> Result<RegisteredWords, Unavailable> {
        let keeper = Arc::clone(&words);
        RegisteredWords::new(words, |range| {
            let memory = Pinned::Words { range, words: keeper };
            // A window can't let a peer write where the device itself may not.
            let access = if writable { ARENA_ACCESS } else { sys::IBV_ACCESS_MW_BIND };
            let region = self.0.region(memory, access)?;
            Ok(Registration { region, hca: Arc::clone(&self.0) })
        })
    }

    fn create_queues(&self, size: QueueSize) -> Result<Arc<dyn Queues>, DeviceError> {
        Ok(Arc::new(VerbsQueues::new(Arc::clone(&self.0), size)?))
    }

    fn events(&self) -> io::Result<Box<dyn DeviceEvents>> {
        Ok(Box::new(VerbsDeviceEvents::new(Arc::clone(&self.0))?))
    }
}

impl Hca {
    pub(super) fn verbs(&self) -> &'static Verbs {
        self.pd.context.verbs
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.pd.context.raw.as_ptr()
    }

    /// Returns the function table that the header's inline functions call through.
    pub(super) fn ops(&self) -> &ibv_context_ops {
        self.pd.context.ops()
    }

    pub(super) fn pd(&self) -> *mut ibv_pd {
        self.pd.raw.as_ptr()
    }

    pub(super) fn name(&self) -> &str {
        &self.pd.context.name
    }

    pub(super) fn error(&self, operation: &'static str, errno: i32) -> DeviceError {
        device_error(self.name(), operation, errno)
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the device compares a READ through a window with the bounds of the window's region only, as Soft-RoCE does:
    /// its windows guard against other queue pairs and stale keys, but only a region guards what is beside the window.
    pub(super) fn has_loose_windows(&self) -> bool {
        self.loose_windows
    }

    /// Returns the registrations, for looking up the keys of a batch of buffers.
    pub(super) fn regions(&self) -> Regions<'_> {
        Regions(self.regions.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn map_error(&self, error: &io::Error) -> DeviceError {
        self.error("mmap", error.raw_os_error().unwrap_or(libc::EINVAL))
    }

    fn register(&self, mapping: &Arc<Mapping>, access: c_int) -> Result<(), Unavailable> {
        mapping.prefault();
        let region = self.region(Pinned::Mapping(Arc::clone(mapping)), access)?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let place = regions.partition_point(|other| other.range.start < region.range.start);
        regions.insert(place, region);
        Ok(())
    }

    /// Registers memory as a whole.
    fn region(&self, memory: Pinned, access: c_int) -> Result<Region, Unavailable> {
        let range = memory.range();
        let is_device_memory = memory.dma_buf().is_some();
        Region::new(self, memory, range.clone(), access).map_err(|errno| {
            // A device's memory counts against no limit of the process.
            if is_device_memory {
                return self.error("ibv_reg_dmabuf_mr", errno).into();
            }
            let asked = range.len() as u64;
            if errno == libc::ENOMEM
                && let Some(memlock) = memlock_reached(&Machine::this(), asked, self.most_memory)
            {
                return Unavailable::Memlock(memlock);
            }
            self.error("ibv_reg_mr", errno).into()
        })
    }

    /// Takes out the region of a mapping. Nothing uses the memory, so no request and no window refers to the region.
    fn unregister(&self, mapping: &Arc<Mapping>) -> Option<Region> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let place = regions
            .iter()
            .position(|region| region.memory.as_ref().is_some_and(|memory| memory.is(mapping)))?;
        Some(regions.remove(place))
    }
}

/// The registered regions in order of address.
pub(super) struct Regions<'a>(RwLockReadGuard<'a, Vec<Region>>);

impl Regions<'_> {
    /// The key of the region in which the buffer lies as a whole.
    pub(super) fn lkey(&self, buffer: &[u8]) -> Option<u32> {
        self.lkey_at(buffer.as_ptr() as usize, buffer.len())
    }

    /// As [`lkey`](Self::lkey), for memory to which no reference may exist.
    pub(super) fn lkey_at(&self, start: usize, len: usize) -> Option<u32> {
        Some(self.find(start, len)?.lkey)
    }

    /// The region in which the buffer lies as a whole, if windows can be bound to it, as they can't to no bytes.
    pub(super) fn arena(&self, start: usize, len: usize) -> Option<&Region> {
        let region = self.find(start, len).filter(|_| len > 0)?;
        (region.access & sys::IBV_ACCESS_MW_BIND != 0).then_some(region)
    }

    fn find(&self, start: usize, len: usize) -> Option<&Region> {
        let end = start.checked_add(len)?;
        let after = self.0.partition_point(|region| region.range.start <= start);
        let region = self.0.get(after.checked_sub(1)?)?;
        (end <= region.range.end).then_some(region)
    }
}

/// Memory that windows may be bound to. It has no remote access of its own: the window gives that.
const ARENA_ACCESS: c_int = sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_MW_BIND;

/// Memory that is registered, and stays where it is as long as this exists.
#[derive(Clone)]
enum Pinned {
    Mapping(Arc<Mapping>),
    Words { range: Range<usize>, words: Words },
}

impl Pinned {
    /// Its addresses, whose provenance is exposed.
    fn range(&self) -> Range<usize> {
        match self {
            Self::Mapping(mapping) => mapping.range(),
            Self::Words { range, .. } => range.clone(),
        }
    }

    /// The dma-buf that it begins with, if it is the memory of another device.
    fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Mapping(_) => None,
            Self::Words { words, .. } => words.dma_buf(),
        }
    }

    fn is(&self, mapping: &Arc<Mapping>) -> bool {
        matches!(self, Self::Mapping(this) if Arc::ptr_eq(this, mapping))
    }
}

/// A registered part of memory. Deregistered on drop; the memory may live on.
pub(super) struct Region {
    raw: NonNull<ibv_mr>,
    verbs: &'static Verbs,
    range: Range<usize>,
    access: c_int,
    pub(super) lkey: u32,
    /// `None`: another keeps it.
    memory: Option<Pinned>,
}

// SAFETY: the library allows its objects to be used and destroyed on any thread.
unsafe impl Send for Region {}
// SAFETY: as above; shared use only reads fields that do not change.
unsafe impl Sync for Region {}

impl Region {
    fn new(hca: &Hca, memory: Pinned, range: Range<usize>, access: c_int) -> Result<Self, i32> {
        let verbs = hca.verbs();
        let whole = memory.range();
        assert!(whole.start <= range.start && range.end <= whole.end, "{range:?} is not within {whole:?}");
        let start = ptr::with_exposed_provenance_mut(range.start);
        let raw = match (memory.dma_buf(), verbs.ibv_reg_mr_iova2) {
            (Some(dma_buf), _) => {
                let reg_dmabuf_mr = verbs.ibv_reg_dmabuf_mr.ok_or(libc::ENOSYS)?;
                let (offset, iova) = ((range.start - whole.start) as u64, range.start as u64);
                // SAFETY: a descriptor that is open during the call; the region keeps the dma-buf by itself. Its words
                // see the writes of peers as atomic ones, as `Exportable::dma_buf` says.
                unsafe { reg_dmabuf_mr(hca.pd(), offset, range.len(), iova, dma_buf.as_raw_fd(), access) }
            }
            // Words must show the writes of peers in the order in which they were made, so only mappings are relaxed.
            (None, Some(reg_mr_iova2)) if hca.relaxed_ordering && matches!(memory, Pinned::Mapping(_)) => {
                let access = access | sys::IBV_ACCESS_RELAXED_ORDERING;
                // SAFETY: the memory is there, and stays so while somebody can use the region, because that keeps it, or the exposure
                // for which it is. A device may write only to a mapping, as the requests and windows of this module decide, or to
                // words, which are atomic.
                unsafe { reg_mr_iova2(hca.pd(), start, range.len(), range.start as u64, access as u32) }
            }
            // SAFETY: as above.
            _ => unsafe { (verbs.ibv_reg_mr)(hca.pd(), start, range.len(), access) },
        };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        // SAFETY: a region that the library has just made.
        let lkey = unsafe { raw.as_ref() }.lkey;
        Ok(Self { raw, verbs, range, access, lkey, memory: Some(memory) })
    }

    /// A region of these bytes alone. A system call, and the kernel pins the pages once more.
    pub(super) fn of_part(&self, hca: &Hca, range: Range<usize>) -> Result<Self, i32> {
        let Some(memory) = self.memory.clone() else { return Err(libc::EINVAL) };
        let mut region = Self::new(hca, memory, range, self.access)?;
        // The exposure for which this is keeps the words. The region may be there for longer: see SAFETY.md, "What a peer can reach".
        region.memory.take_if(|memory| matches!(memory, Pinned::Words { .. }));
        Ok(region)
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this region, once. Its last possible user is gone: queues keep the device, and windows go before
        // their region.
        let result = returned_errno(unsafe { (self.verbs.ibv_dereg_mr)(self.raw.as_ptr()) });
        if let Err(errno) = result {
            leaked("ibv_dereg_mr", errno);
            std::mem::forget(self.memory.clone());
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("bytes", &self.range.len()).finish_non_exhaustive()
    }
}

/// The registration of an application's words. The fields are dropped in this order: the region belongs to the device.
pub(super) struct Registration {
    region: Region,
    hca: Arc<Hca>,
}

impl Registration {
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Whether windows on it may allow this.
    pub(super) fn allows(&self, access: RemoteAccess) -> bool {
        !access.changes() || self.region.access & sys::IBV_ACCESS_LOCAL_WRITE != 0
    }

    pub(super) fn is_of(&self, hca: &Hca) -> bool {
        ptr::eq(&raw const *self.hca, hca)
    }
}

/// A protection domain, and the context after it.
#[derive(Debug)]
struct Pd {
    raw: NonNull<ibv_pd>,
    context: Context,
}

// SAFETY: the library allows its objects to be used and destroyed on any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    fn new(context: Context) -> Result<Self, DeviceError> {
        // SAFETY: an open context.
        let raw = unsafe { (context.verbs.ibv_alloc_pd)(context.raw.as_ptr()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { raw, context }),
            None => Err(device_error(&context.name, "ibv_alloc_pd", last_errno())),
        }
    }

    /// Whether windows can be had that are bound to a queue pair: the device says so, and gives one.
    fn has_windows(&self, attr: &sys::ibv_device_attr) -> bool {
        attr.device_cap_flags & sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0
            // SAFETY: a domain of this context.
            && unsafe { Window::alloc(self.context.ops(), self.raw.as_ptr()) }.and_then(Window::dealloc).is_ok()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: this domain, once; the regions were dropped before it.
        let result = returned_errno(unsafe { (self.context.verbs.ibv_dealloc_pd)(self.raw.as_ptr()) });
        if let Err(errno) = result {
            leaked("ibv_dealloc_pd", errno);
        }
    }
}

/// An open device.
#[derive(Debug)]
pub(super) struct Context {
    raw: NonNull<ibv_context>,
    verbs: &'static Verbs,
    name: String,
}

// SAFETY: the library allows its objects to be used and destroyed on any thread.
unsafe impl Send for Context {}
// SAFETY: as above; shared use goes through the library's functions, or reads fields that do not change.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name, which the kernel has.
    pub(super) fn open(verbs: &'static Verbs, name: &str) -> Result<Self, Unavailable> {
        let mut count: c_int = 0;
        // SAFETY: returns null or a list of `count` devices, which is freed below.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(device_error(name, "ibv_get_device_list", last_errno()).into());
        }
        let opened = (0..usize::try_from(count).unwrap_or(0)).find_map(|i| {
            // SAFETY: an element of the list.
            let device = unsafe { *list.wrapping_add(i) };
            // SAFETY: a device of the list, which is not freed yet.
            let its_name = unsafe { (verbs.ibv_get_device_name)(device) };
            // SAFETY: a C string within the device.
            let same = unsafe { CStr::from_ptr(its_name) }.to_bytes() == name.as_bytes();
            // SAFETY: as for its name; an open context keeps what it needs of the device beyond the list.
            same.then(|| NonNull::new(unsafe { (verbs.ibv_open_device)(device) }).ok_or_else(last_errno))
        });
        // SAFETY: the list from above, once.
        unsafe { (verbs.ibv_free_device_list)(list) };
        match opened {
            Some(Ok(raw)) => Ok(Self { raw, verbs, name: name.to_owned() }),
            Some(Err(errno)) => Err(device_error(name, "ibv_open_device", errno).into()),
            None => Err(Unavailable::NoDevice {
                detail: format!(
                    "the kernel has {name}, but libibverbs has no driver for it (Debian: ibverbs-providers)"
                ),
            }),
        }
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: an open context; providers set its functions before it is given out.
        unsafe { &(*self.raw.as_ptr()).ops }
    }

    fn query(&self) -> Result<sys::ibv_device_attr, DeviceError> {
        let mut attr = sys::ibv_device_attr::zeroed();
        // SAFETY: an open context, and a structure of the size that the function fills.
        let result = unsafe { (self.verbs.ibv_query_device)(self.raw.as_ptr(), &raw mut attr) };
        returned_errno(result).map_err(|errno| device_error(&self.name, "ibv_query_device", errno))?;
        Ok(attr)
    }

    fn port(&self, number: u8) -> Result<PortStatus, DeviceError> {
        let mut attr = sys::ibv_port_attr::zeroed();
        // SAFETY: an open context, and a structure of at least the size that the function fills.
        let result = unsafe { (self.verbs.ibv_query_port)(self.raw.as_ptr(), number, &raw mut attr) };
        let error = |errno| device_error(&self.name, "ibv_query_port", errno);
        returned_errno(result).map_err(error)?;
        let mtu = u8::try_from(attr.active_mtu).ok().and_then(Mtu::from_code);
        let link_layer = match attr.link_layer {
            sys::IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            // Drivers that leave it unspecified are InfiniBand's oldest, which have no RoCE.
            0 => LinkLayer::InfiniBand,
            _ => LinkLayer::Ethernet,
        };
        Ok(PortStatus { active_mtu: mtu.ok_or_else(|| error(libc::EPROTO))?, lid: attr.lid, link_layer })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this context, once; everything on it is gone.
        let result = returned_errno(unsafe { (self.verbs.ibv_close_device)(self.raw.as_ptr()) });
        if let Err(errno) = result {
            leaked("ibv_close_device", errno);
        }
    }
}
