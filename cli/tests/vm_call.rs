//! `farcall list`, `describe`, `call` and `health` by RDMA.
//!
//! Runs in the VM as root, as `cargo xtask test vm` does it.

#[path = "call.rs"]
mod call;
