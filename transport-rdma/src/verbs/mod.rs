//! libibverbs, and the one place with `unsafe`.
//!
//! What makes it sound, and what would break it:
//!
//! - **Memory.** A device writes only to receive slots and reads only from sends. `inflight::InFlight` owns the former
//!   and holds clones of the latter from before the work request is posted until its completion was polled, or until the
//!   queue that had it is destroyed. Completions are believed: a device that reports a request as done and goes on using
//!   its memory cannot be defended against.
//! - **Objects.** Every wrapper owns its C object and keeps its parents by `Arc`, so that they are destroyed in the order
//!   queue pair, shared receive queue, completion queues, channel, memory regions, protection domain, context. If a
//!   destroy fails, the object, its parents and the memory that a device may reach through it stay for good: counted,
//!   logged, never a panic.
//! - **Threads.** libibverbs' functions may be called from any thread on any object; wrappers are `Send` and `Sync` for
//!   that reason. What the library leaves to the caller, such as acknowledging events before a destroy, is done here.
//! - **Structures.** `sys` is compared with the C header by a test. Objects are allocated by the library; only fields that
//!   all versions have are read.
//!
//! Safe modules that others rely on for soundness stand here too: `inflight` and the free list of [`memory`].

#![expect(unsafe_code, reason = "calls a C library and maps memory for devices; see the argument above")]

mod cq;
mod device;
mod events;
mod free_list;
mod host;
pub(crate) mod inflight;
mod load;
pub mod memory;
mod qp;
mod queues;
mod srq;
mod sys;

use std::sync::atomic::{AtomicU64, Ordering};

pub use host::SystemHost;
pub(crate) use host::pin_to_cpu;

use crate::device::DeviceError;

static LEAKED: AtomicU64 = AtomicU64::new(0);

/// How many objects and mappings of this process could not be destroyed. Zero, unless a driver fails.
pub fn leaks() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// Counts and logs an object that stays because its destruction failed.
fn leaked(operation: &'static str, errno: i32) {
    LEAKED.fetch_add(1, Ordering::Relaxed);
    let error = std::io::Error::from_raw_os_error(errno);
    tracing::error!(operation, %error, "an RDMA object could not be destroyed and stays allocated");
}

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
