//! Fuzz targets: one function for each place where farcall reads bytes that a peer chose.
//!
//! Each function takes any bytes and panics if farcall breaks a promise. `cargo test` replays the inputs in `corpus`;
//! `cargo xtask fuzz` looks for new ones. `docs/TESTING.md` tells how to reproduce what it finds.

mod client;
mod fake_link;
mod frames;
mod inbox;
mod rdma;
mod script;
mod server;
mod service;
mod tcp;
mod unpack;
mod values;

pub use client::client;
pub use frames::{frames, payloads};
pub use inbox::inbox;
pub use rdma::rdma;
pub use server::server;
pub use tcp::tcp;
pub use unpack::unpack;
pub use values::values;

#[cfg(fuzzing)]
#[doc(hidden)]
pub use libfuzzer_sys;

/// A fuzz target's function.
pub type Target = fn(&[u8]);

/// All targets by name. The corpus of each lies in the directory of that name.
pub const TARGETS: &[(&str, Target)] = &[
    ("frames", frames),
    ("payloads", payloads),
    ("inbox", inbox),
    ("values", values),
    ("unpack", unpack),
    ("server", server),
    ("client", client),
    ("tcp", tcp),
    ("rdma", rdma),
];

/// Makes a program of a target. With `--cfg fuzzing` libFuzzer drives it. Without, it feeds the files that its
/// command line names to the target: this reproduces a finding in a debugger.
#[macro_export]
macro_rules! target {
    ($target:path) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| $target(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            std::env::args_os().skip(1).try_for_each(|file| Ok($target(&std::fs::read(file)?)))
        }
    };
}
