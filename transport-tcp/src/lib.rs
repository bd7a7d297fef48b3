//! farcall's TCP transport, also by Unix-domain sockets and by streams of the application's.
//!
//! Frames are written by whoever has them, straight from where they are, with one vectored write for as many as
//! there are; they are read by one task per connection, large payloads straight to where they belong.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod accept;
mod config;
mod connect;
mod link;
mod listener;
mod read;
mod socket;
mod stream;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(unix)]
mod unix;
#[cfg(not(unix))]
#[path = "no_unix.rs"]
mod unix;
mod waits;
mod write;

pub use accept::Acceptor;
pub use config::{Completion, TcpConfig};
pub use connect::{connect, connect_by};
#[cfg(feature = "tls")]
pub use connect::{connect_by_tls, connect_tls};
pub use link::TcpLink;
pub use listener::Listener;
