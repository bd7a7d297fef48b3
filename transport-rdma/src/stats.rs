//! Counts of the work that RDMA does in this process.

/// The work done on a device for all connections of this process since its first use. Each number only grows.
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
    /// How often this process has read or written a part of a peer's [region](farcall_core::region), or of
    /// [memory that a peer lends](farcall_core::bulk), by itself, without the peer's program.
    pub direct_accesses: u64,
}
