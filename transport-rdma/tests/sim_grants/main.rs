//! Memory that peers use by themselves: bytes of regions that they read and write, numbers that they have the owner's device change,
//! and what a call lends.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod atomics;
mod bytes;
mod drain;
mod expiry;
mod idle;
mod lent_regions;
mod loans;
#[path = "../near/mod.rs"]
mod near;
mod pieces;
mod setup;
mod writable_loans;
