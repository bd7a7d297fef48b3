//! farcall's TCP transport.
//!
//! Frames are written by whoever has them, straight from where they are, with one vectored write for as many as
//! there are; they are read by one task per connection, large payloads straight to where they belong.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;
mod connect;
mod link;
mod read;
mod read_some;
mod socket;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
#[cfg(feature = "tls")]
pub mod tls;
mod waits;
mod write;

pub use config::{Completion, TcpConfig};
#[cfg(feature = "tls")]
pub use connect::connect_tls;
pub use connect::{Acceptor, connect};
pub use link::TcpLink;
