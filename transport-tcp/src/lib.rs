//! farcall's transport over TCP, Unix-domain sockets and streams of the application's.
//!
//! Whichever task has frames writes them straight from where they lie, by one vectored write for as many as there are. One
//! task per connection reads. It reads large payloads straight to where they belong.

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
