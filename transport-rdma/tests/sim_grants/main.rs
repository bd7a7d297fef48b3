//! Regions that peers use by themselves: bytes that they read and write, and numbers that they have the owner's device change.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod atomics;
mod bytes;
#[path = "../near/mod.rs"]
mod near;
mod setup;
