//! Async RPC that runs over RDMA (InfiniBand, RoCE) where both ends have it, and over TCP where they don't.
//!
//! A trait with [`#[farcall::service]`](service) becomes a typed client and server. The same program uses either
//! transport, chosen by configuration; [`Connection::transport`] says which one it is, and why.
//!
//! ```
//! use farcall::{Bytes, Channel, Server};
//!
//! #[farcall::service(package = "shop.v1")]
//! pub trait Kv {
//!     async fn get(&self, key: String) -> farcall::Result<Option<Bytes>>;
//! }
//!
//! struct Store;
//!
//! impl Kv for Store {
//!     async fn get(&self, key: String) -> farcall::Result<Option<Bytes>> {
//!         Ok((key == "greeting").then(|| Bytes::from_static(b"hello")))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().add(KvServer::new(Store)).bind("127.0.0.1:0").await?;
//! let address = format!("farcall://{}", server.local_addr());
//! tokio::spawn(server.serve());
//!
//! let channel = Channel::connect(&address).await?;
//! let kv = KvClient::new(channel.clone());
//! assert_eq!(kv.get("greeting").await?.unwrap(), "hello");
//! println!("over {}", channel.transport().await?);
//! # Ok(())
//! # }
//! ```
//!
//! # Cancellation
//!
//! Dropping the future of a call cancels it: the server drops the handler's future at its next await. Whether it
//! has done its work by then can't be known. Other futures say in their documentation what dropping them does.
//!
//! # Errors
//!
//! A method returns `Result<T>` or `Result<T, E>` with an error type of its own. Failures of transport, deadline and
//! peer are a [`Status`]; they reach the caller as `E::from(status)`. A status says whose fault it is
//! ([`Status::blame`]) and whether the handler may have run ([`Status::executed`]).
//!
//! # Features
//!
//! - `tcp`, `rdma` (both default): the transports. `rdma` needs nothing at build time and loads libibverbs when it
//!   runs, if it is there.
//! - `testing`: the in-memory transport and the suite that every transport passes, for who writes one.

mod address;
mod buf;
#[cfg(feature = "tcp")]
mod channel;
pub mod codec;
mod config;
#[cfg(feature = "tcp")]
mod server;

pub use address::Address;
pub use buf::{Buf, buf};
pub use bytes::Bytes;
#[cfg(feature = "tcp")]
pub use channel::{Channel, ChannelBuilder};
pub use config::{Config, ConfigError};
pub use farcall_core::class::{ByClass, TrafficClass};
pub use farcall_core::client::{Call, CallFuture, Caller, Response, ResponseFuture};
pub use farcall_core::codec::{Codec, Postcard, Prost, Raw, attachment};
pub use farcall_core::config::{Limits, Liveness, Policy};
pub use farcall_core::connection::{Connection, Traffic, Transport};
pub use farcall_core::context::{Context, Scope};
pub use farcall_core::status::{Blame, Code, Executed, Result, Status};
pub use farcall_core::transport::{Counters, Reason, Unavailable};
pub use farcall_macros::service;
#[cfg(feature = "rdma")]
pub use farcall_rdma::RdmaConfig;
#[cfg(feature = "tcp")]
pub use farcall_tcp::TcpConfig;
#[cfg(feature = "tcp")]
pub use server::{BindError, Handle, Server, ServerBuilder};

#[doc(hidden)]
pub use farcall_core::__private;

/// How TCP waits.
#[cfg(feature = "tcp")]
pub mod tcp {
    pub use farcall_tcp::{Completion, TcpConfig};
}

/// What this machine can do.
#[cfg(feature = "rdma")]
pub mod rdma {
    pub use farcall_rdma::{Completion, Probe, RdmaConfig, Unavailable, probe};
}

/// The in-memory transport, and the suite that every transport passes.
#[cfg(feature = "testing")]
pub mod testing {
    pub use farcall_core::transport::{conformance, memory};
}

/// The README, whose examples are compiled as tests.
#[cfg(all(doctest, feature = "tcp"))]
#[doc = include_str!("../README.md")]
struct Readme;
