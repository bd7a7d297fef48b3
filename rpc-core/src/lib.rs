//! farcall's protocol, calls, client and server, without a transport.
//!
//! Applications depend on `farcall`, which adds the transports. This crate is for authors of a transport.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod __private;
mod access;
pub mod admission;
pub mod backoff;
pub mod buffer_pool;
pub mod bulk;
pub mod call_error;
mod call_streams;
mod calls;
pub mod class;
pub mod client;
pub mod compress;
pub mod config;
pub mod connection;
pub mod context;
mod decoding;
mod dispatch;
pub mod dynamic;
pub mod explain;
pub mod extensions;
mod freeing;
pub mod in_process;
mod interface;
pub mod memory;
pub mod middleware;
pub mod origin;
mod progress_watch;
mod refusal;
pub mod region;
mod reply;
mod response;
#[cfg(feature = "metrics")]
pub mod sampler;
pub mod server;
pub mod service;
mod session;
pub mod settings;
mod slots;
pub mod stream;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transport;
pub mod turns;

pub use farcall_proto as proto;
#[cfg(feature = "prost")]
pub use farcall_proto::details;
pub use farcall_proto::{codec, metadata, payload, status};
