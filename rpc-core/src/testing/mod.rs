//! Tools for tests of transports and of sessions: a suite that every transport passes, the end of a link, and a peer that a test
//! plays frame by frame.

pub mod conformance;
mod end;
mod peer;

pub use end::{End, Event};
pub use peer::{Peer, hello, request};
