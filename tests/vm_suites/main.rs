//! Metadata, middleware and the like over an RDMA device: the suites that run over TCP otherwise, as they are.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::duplicate_mod, reason = "each suite is a program by itself, and has what it needs")]

#[path = "../interop/main.rs"]
mod interop;
#[path = "../loans.rs"]
mod loans;
#[path = "../locks.rs"]
mod locks;
#[path = "../look_ups.rs"]
mod look_ups;
#[path = "../metadata.rs"]
mod metadata;
#[path = "../middleware.rs"]
mod middleware;
#[path = "../page_cache.rs"]
mod page_cache;
#[path = "../pages.rs"]
mod pages;
#[path = "../regions.rs"]
mod regions;
#[path = "../trace.rs"]
mod trace;
