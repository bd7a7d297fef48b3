//! libibverbs: with [`crate::dma`], the place of `unsafe`.
//!
//! The argument for its soundness, and what would break it:
//!
//! - **Memory.** A device writes only to receive slots, targets of READs and, for the peer, to words that an application exports or
//!   lends. It reads only from sends, sources of WRITEs and, for the peer, from what is exposed. `inflight` owns slots. It holds clones
//!   of the others from before the work request is posted until its completion was polled (for what is exposed: that of the invalidation), or until the queue or window that had it is
//!   destroyed. Completions are believed: a device that reports a request as done and goes on using its memory cannot be
//!   defended against.
//! - **Peers.** They read what a bound window exposes. They write only through windows on such words, which are atomic: a
//!   reference to plain memory that a peer may write to would be undefined behaviour.
//! - **Objects.** Every wrapper owns its C object and keeps its parents by `Arc`, so that they are destroyed in the order
//!   windows, queue pair, shared receive queue, completion queues, channel, memory regions, protection domain, context. If a
//!   destroy fails, the object, its parents and the memory that a device may reach through it stay for good: counted,
//!   logged, never a panic.
//! - **Threads.** libibverbs' functions may be called from any thread on any object; wrappers are `Send` and `Sync` for
//!   that reason. Duties that the library leaves to the caller, such as acknowledging events before a destroy, are done
//!   here.
//! - **Structures.** `sys` is compared with the C header by a test. Objects are allocated by the library; only fields that
//!   all versions have are read.
//!
//! A safe module that others rely on for soundness stands here too: `inflight`.

#![expect(unsafe_code, reason = "calls a C library; see the argument above")]

mod batch;
mod cq;
mod device;
mod events;
mod host;
pub(crate) mod inflight;
mod load;
mod qp;
mod queues;
mod srq;
mod sys;
mod window;

pub use host::SystemHost;
pub(crate) use host::{interfaces, library, pin_to_cpu};

use crate::device::DeviceError;
use crate::dma::leaked;
pub use crate::dma::leaks;

/// The error of the verb that was called just before and reports by `errno`.
fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The error of a verb that returns it: most return a positive `errno`, some -1 and set it.
fn returned_errno(result: i32) -> Result<(), i32> {
    match result {
        0 => Ok(()),
        -1 => Err(last_errno()),
        errno => Err(errno.saturating_abs()),
    }
}

fn device_error(device: &str, operation: &'static str, errno: i32) -> DeviceError {
    DeviceError { device: device.to_owned(), operation, errno }
}
