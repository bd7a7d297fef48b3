//! farcall's RDMA transport: libibverbs loaded at run time, registered memory, completions polled and awaited.
//!
//! Applications depend on `farcall`, which uses this crate where both ends of a connection can.
//!
//! The crate compiles everywhere. On anything but 64-bit Linux there is no device, and [`probe()`] says so.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "testing"),
    allow(
        clippy::allow_attributes,
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "only the project's tests use the rest"
    )
)]

mod config;
mod errno;
mod explain;
pub mod probe;
mod stats;
mod unavailable;

pub use config::{Completion, Plaintext, RdmaConfig};
pub use errno::Blame;
pub use explain::explanations;
pub use probe::{Probe, probe};
pub use stats::DeviceStats;
pub use unavailable::{DeviceError, Memlock, Unavailable};

cfg_if::cfg_if! {
    if #[cfg(all(target_os = "linux", target_pointer_width = "64"))] {
        mod buffer;
        mod endpoint;
        mod link;
        mod machine;
        mod resources;
        mod upgrade;

        mod device;
        mod dma;
        #[cfg(any(test, feature = "testing"))]
        mod fault;
        #[cfg(any(test, feature = "testing"))]
        mod sim;
        mod verbs;

        /// Devices, real and simulated, for the project's own tests and benchmarks. Nothing here is stable.
        #[cfg(feature = "testing")]
        pub mod testing {
            /// The traits of a device.
            pub mod device {
                pub use crate::device::*;
            }

            /// Memory that devices read and write.
            pub mod dma {
                pub use crate::dma::*;
            }

            /// Faults made on purpose.
            pub mod fault {
                pub use crate::fault::*;
            }

            /// A simulated device.
            pub mod sim {
                pub use crate::sim::*;
            }

            /// Devices of libibverbs.
            pub mod verbs {
                pub use crate::verbs::*;
            }
        }

        pub use buffer::Registered;
        pub use dma::{MappedWords, SharedExtent};
        pub use endpoint::stats;
        pub use upgrade::RdmaUpgrade;
    } else {
        mod elsewhere;

        pub use elsewhere::{MappedWords, RdmaUpgrade, Registered, SharedExtent, stats};
    }
}
