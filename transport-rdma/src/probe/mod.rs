//! Whether this machine can use RDMA, how well, and what keeps it from it.
//!
//! [`probe()`] answers the first question for a connection. [`examine`] looks at everything that people lose days with: modules,
//! permissions, ports, addresses, limits, placement, the network's settings, counters. It reads files and runs programs that only
//! report. [`trial`] then has a device do what farcall asks of devices. [`raw`] has the devices of two machines move bytes, without
//! sessions and calls.

mod finding;
pub mod raw;
mod report;

pub use self::finding::{Area, Finding, Kind, Severity};
pub use self::report::{Address, DeviceView, PortView, Probe, Report, Step, StepResult};

cfg_if::cfg_if! {
    if #[cfg(all(target_os = "linux", target_pointer_width = "64"))] {
        mod access;
        mod addresses;
        mod counters;
        mod devices;
        mod examine;
        mod firewall;
        mod limits;
        mod network;
        mod placement;
        mod software;
        mod stop;
        mod trial;
        mod unseen;
        mod view;

        pub use self::counters::Counters;
        pub(crate) use self::counters::explanations as explanations_of_counters;
        pub use self::examine::{KINDS, examine, probe};
        pub use self::trial::trial;
        pub use crate::machine::{Machine, MalformedRecording};
    } else {
        /// The kinds of findings that there are: on this platform, that there is no RDMA.
        pub static KINDS: &[&[&Kind]] = &[finding::UNAVAILABLE];

        pub use crate::elsewhere::probe::{Counters, Machine, MalformedRecording, examine, probe, trial};
    }
}
