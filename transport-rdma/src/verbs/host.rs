//! This machine: its devices, its addresses, and opening a device.

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::Arc;

use super::device::{Context, VerbsDevice};
use super::load::Verbs;
use crate::device::{Device, DeviceSummary, Host, Interface, RdmaConfig, Unavailable};
use crate::machine::Machine;

/// This machine, by its sysfs and its libibverbs.
#[derive(Debug, Default)]
pub struct SystemHost {
    machine: Machine,
    /// Another library than the system's.
    library: Option<CString>,
}

impl SystemHost {
    /// A machine whose files are elsewhere, or whose library has another name; loading it is for good.
    pub fn with(machine: Machine, library: Option<CString>) -> Self {
        Self { machine, library }
    }

    fn verbs(&self) -> Result<&'static Verbs, Unavailable> {
        match &self.library {
            None => Verbs::system(),
            Some(name) => Ok(Box::leak(Box::new(Verbs::load(name)?))),
        }
    }
}

impl Host for SystemHost {
    fn devices(&self) -> Result<Vec<DeviceSummary>, Unavailable> {
        // Without the library the kernel's devices are of no use, and its absence is the thing to mend first.
        self.verbs()?;
        self.machine.devices()
    }

    fn interfaces(&self) -> Vec<Interface> {
        interfaces()
    }

    fn home_node(&self) -> Option<u32> {
        let status = self.machine.read("/proc/self/status")?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        self.machine.node_of(cpus)
    }

    fn open(&self, device: &DeviceSummary, config: &RdmaConfig) -> Result<Arc<dyn Device>, Unavailable> {
        let verbs = self.verbs()?;
        self.machine.check_access(device)?;
        let context = Context::open(verbs, &device.name)?;
        Ok(Arc::new(VerbsDevice::new(context, device.numa_node, config)?))
    }
}

/// Loads the system's libibverbs, if it is not loaded yet.
pub(crate) fn library() -> Result<(), Unavailable> {
    Verbs::system().map(drop)
}

/// The addresses of this network namespace; none if the kernel does not tell.
pub(crate) fn interfaces() -> Vec<Interface> {
    let mut list = ptr::null_mut();
    // SAFETY: on success `list` is a list that is freed below; on failure it is not used.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next: *const libc::ifaddrs = list;
    // SAFETY: an element of the list, or null at its end; the list is not freed yet.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the element's address is null or a socket address of its family's size.
        if let Some(address) = unsafe { address(entry.ifa_addr) } {
            // SAFETY: every element has a name, a C string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            // SAFETY: the element's mask is null or a socket address of its family's size.
            let mask = unsafe { self::address(entry.ifa_netmask) };
            let prefix = mask.map_or_else(|| if address.is_ipv4() { 32 } else { 128 }, ones);
            found.push(Interface { name: name.to_string_lossy().into_owned(), address, prefix });
        }
    }
    // SAFETY: the list from above, once, with no reference into it left.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// How many bits of a mask are set, which are its first.
fn ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    ones as u8
}

/// Keeps the calling thread on one CPU.
pub(crate) fn pin_to_cpu(cpu: u16) -> Result<(), i32> {
    if usize::from(cpu) >= libc::CPU_SETSIZE as usize {
        return Err(libc::EINVAL);
    }
    // SAFETY: a set of CPUs is plain bits; zero is the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has this bit.
    unsafe { libc::CPU_SET(usize::from(cpu), &mut set) };
    // SAFETY: reads a set of this size; 0 is the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(super::last_errno()),
    }
}

/// The IP address in a socket address, if it is one.
///
/// # Safety
/// `raw` is null or points to a socket address of its family's size.
unsafe fn address(raw: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null or a socket address, as the caller says.
    let family = unsafe { raw.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it has this type; it may be unaligned.
            let v4 = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_library_comes_before_absent_devices() {
        let host =
            SystemHost::with(Machine::below("/nonexistent"), Some(c"libibverbs-that-nobody-has.so.1".into()));
        assert!(matches!(host.devices(), Err(Unavailable::LibraryAbsent { .. })));
    }

    #[test]
    fn loopback_is_among_the_interfaces() {
        let loopback = Interface { name: "lo".to_owned(), address: Ipv4Addr::LOCALHOST.into(), prefix: 8 };
        assert!(interfaces().contains(&loopback), "{:?}", interfaces());
    }
}
