//! farcall's protocol, calls, client and server, without a transport.
//!
//! Applications depend on `farcall`, which adds the transports; this crate is for those who write a transport.

#[doc(hidden)]
pub mod __private;
pub mod class;
pub mod client;
pub mod codec;
pub mod compress;
pub mod config;
pub mod connection;
pub mod context;
pub mod details;
pub mod metadata;
pub mod middleware;
pub mod payload;
pub mod proto;
#[cfg(feature = "metrics")]
#[doc(hidden)]
pub mod sampler;
pub mod server;
pub mod service;
pub mod spare;
pub mod status;
pub mod stream;
pub mod transport;
