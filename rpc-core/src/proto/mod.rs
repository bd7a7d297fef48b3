//! The protocol without I/O: bytes and time come in as arguments, frames and decisions go out.
//!
//! No socket, task, clock or lock appears here; a test holds that. What runs it is `crate::connection`; what tests
//! it, besides unit tests, is a seeded simulation of two peers in virtual time.

pub mod inbox;
pub mod message;
pub mod outbox;
pub mod session;
pub mod shorts;
#[cfg(test)]
mod sim;
pub mod stream;
pub mod switch;
pub mod wire;
