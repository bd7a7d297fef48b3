//! Deadlines and cancellation through three services over an RDMA device: the tests of `depth.rs`.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

mod depth;
