//! What RDMA costs this process, counted.

/// What has been done on a device for all of this process' connections, since it was first used. Each number only grows.
///
/// Whether waiting is paid for with processor time or with wake-ups shows in `spins` and `sleeps`; whether
/// [`window`](crate::RdmaConfig::window) or [`memory`](crate::RdmaConfig::memory) is too small, in `credit_waits`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// The device's name in the kernel.
    pub device: String,
    /// How often drivers, of which there is one for each runtime, have asked the device what has completed. Callers that look
    /// for their own answers are not counted.
    pub polls: u64,
    /// How many of those found nothing and were followed by the next without a sleep.
    pub spins: u64,
    /// How often a driver slept.
    pub sleeps: u64,
    /// How often a connection had something to send and no credit: it had to wait until the peer had room.
    pub credit_waits: u64,
}

impl DeviceStats {
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    pub(crate) fn new(device: &str) -> Self {
        Self { device: device.to_owned(), ..Self::default() }
    }
}

/// What has been done on each device that this process has used, by name. Never blocks for long; may be called from anywhere.
pub fn stats() -> Vec<DeviceStats> {
    of_this_machine()
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn of_this_machine() -> Vec<DeviceStats> {
    crate::endpoint::Machine::this().stats()
}

/// There is no device on this platform.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn of_this_machine() -> Vec<DeviceStats> {
    Vec::new()
}
