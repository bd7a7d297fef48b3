//! farcall's RDMA transport: libibverbs loaded at run time, registered memory, completions polled and awaited.
//!
//! Applications depend on `farcall`, which uses this crate where both ends of a connection can.
//!
//! The crate compiles everywhere. On anything but 64-bit Linux there is no device, and [`probe()`] says so.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;
mod errno;
mod stats;
mod unavailable;

pub use config::{Completion, RdmaConfig};
pub use errno::Blame;
pub use stats::DeviceStats;
pub use unavailable::{DeviceError, Memlock, Unavailable};

cfg_if::cfg_if! {
    if #[cfg(all(target_os = "linux", target_pointer_width = "64"))] {
        mod buffer;
        mod endpoint;
        mod link;
        mod probe;
        mod resources;
        mod upgrade;

        // Not part of the public interface: for the project's own tests.
        #[doc(hidden)]
        pub mod device;
        #[doc(hidden)]
        pub mod dma;
        #[doc(hidden)]
        pub mod fault;
        #[doc(hidden)]
        pub mod sim;
        #[doc(hidden)]
        pub mod verbs;

        pub use buffer::Registered;
        pub use endpoint::stats;
        pub use probe::{Probe, probe};
        pub use upgrade::RdmaUpgrade;
    } else {
        mod elsewhere;

        pub use elsewhere::{Probe, RdmaUpgrade, Registered, probe, stats};
    }
}
