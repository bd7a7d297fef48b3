//! farcall's RDMA transport: libibverbs loaded at run time, registered memory, completions polled and awaited.
//!
//! Applications depend on `farcall`, which uses this crate where both ends of a connection can.
//!
//! The crate compiles everywhere. On anything but 64-bit Linux there is no device, and [`probe()`] says so.

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod buffer;
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
#[path = "buffer_stub.rs"]
mod buffer;
mod config;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod endpoint;
mod errno;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod link;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod probe;
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
#[path = "probe_stub.rs"]
mod probe;
mod stats;
mod unavailable;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod upgrade;
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
#[path = "upgrade_stub.rs"]
mod upgrade;

// Not part of the public interface: for the project's own tests.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[doc(hidden)]
pub mod device;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[doc(hidden)]
pub mod fault;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[doc(hidden)]
pub mod sim;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[doc(hidden)]
pub mod verbs;

pub use buffer::Registered;
pub use config::{Completion, RdmaConfig};
pub use errno::Blame;
pub use probe::{Probe, probe};
pub use stats::{DeviceStats, stats};
pub use unavailable::{DeviceError, Memlock, Unavailable};
pub use upgrade::RdmaUpgrade;
